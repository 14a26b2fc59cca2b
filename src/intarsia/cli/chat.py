"""intarsia chat: talk with a model in the terminal."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from intarsia.cli.generate import report
from intarsia.cli.options import CheckpointPath, ReplyOptions
from intarsia.cli.output import colours, note, write
from intarsia.cli.progress import terminal_progress
from intarsia.core.errors import UsageError

if TYPE_CHECKING:
    from intarsia.engine.text_model import TextModel

Message = dict[str, Any]
HELP = "/reset begins anew, /exit ends, Ctrl-C ends a reply"


@dataclass(frozen=True, kw_only=True)
class Chat(ReplyOptions):
    """Talk with a model.

    It sees the whole conversation; /reset begins anew, /exit or the end of input ends it. Thinking is shown
    dim, or between its markers where output is not a terminal. Lines may come from a pipe.
    """

    path: CheckpointPath
    """Folder of a checkpoint, or `demo`."""
    system: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None
    """Instructions that precede the conversation."""
    no_thinking: bool = False
    """Ask the model to answer without thinking first."""

    def run(self) -> int:
        from intarsia import api

        model = api.load_text_model(self.path, self.engine_settings(), progress=terminal_progress())
        model.assets.chat_template().check()
        begin: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        messages = list(begin)
        interactive = sys.stdin.isatty()
        if interactive:
            note(HELP)
        for line in _lines(interactive):
            if line == "/exit":
                break
            if line == "/reset":
                messages = list(begin)
                note("the conversation begins anew")
            elif line.startswith("/"):
                note(f"{line.split()[0]} is no command: {HELP}")
            elif line:
                messages.append({"role": "user", "content": line})
                answer = self._answer(model, messages)
                if answer is None:
                    messages.pop()
                else:
                    messages.append({"role": "assistant", "content": answer})
        return 0

    def _answer(self, model: "TextModel", messages: list[Message]) -> str | None:
        """Stream one reply and return its answer; None when the conversation is too long for the window."""
        from intarsia.engine.errors import WindowError
        from intarsia.engine.text import ReasoningSplitter, begins_thinking

        options = {"enable_thinking": False} if self.no_thinking else {}
        prompt = model.render(messages, **options)
        try:
            generation = model.generate(prompt, self.reply_settings(model.defaults))
        except WindowError as error:
            note(f"{error}; /reset begins a new conversation")
            return None
        splitter, shown, answer = ReasoningSplitter(begins_thinking(prompt)), "", []
        try:
            for delta in generation:
                for part, text in splitter.push(delta.text):
                    shown = _show(part, text, shown)
                    answer += [text] if part == "answer" else []
            for part, text in splitter.finish():
                shown = _show(part, text, shown)
                answer += [text] if part == "answer" else []
        except KeyboardInterrupt:
            write("\n")
            note("(ended here)")
            return "".join(answer).strip()
        write("\n" if shown != "thinking" or colours() else "</think>\n")
        note(report(generation.result))
        return "".join(answer).strip()


def _show(part: str, text: str, before: str) -> str:
    """Print a piece of thinking or answer, marking the change where dim text cannot; returns the part."""
    if part != before and not colours():
        write("<think>" if part == "thinking" else "</think>\n" if before == "thinking" else "")
    elif part != before and before == "thinking":
        write("\n")
    write(text.lstrip() if part != before else text, dim=part == "thinking")
    return part


def _lines(interactive: bool) -> Iterator[str]:
    """What the user types, or the lines of a pipe, without surrounding blanks."""
    if not interactive:
        while True:
            try:
                line = sys.stdin.readline()
            except UnicodeDecodeError as error:
                raise UsageError("standard input", found=f"{error}", expected="UTF-8 text") from None
            if not line:
                return
            yield line.strip()
    while True:
        try:
            yield input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            note("")
            return
