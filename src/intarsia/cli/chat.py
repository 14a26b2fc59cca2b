"""intarsia chat: talk with a model in the terminal."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from intarsia.cli.generate import report
from intarsia.cli.options import ReplyOptions
from intarsia.cli.output import colours, note, read_key, write
from intarsia.cli.progress import terminal_progress
from intarsia.core.config import EngineSettings
from intarsia.core.errors import UsageError

if TYPE_CHECKING:
    from intarsia.engine.text_model import TextModel

Message = dict[str, Any]
Answer = Callable[[list[Message]], str | None]
"""Streams the reply to a conversation and returns its answer, None when there is none."""
HELP = "/reset begins anew, /exit ends, Ctrl-C ends a reply"


@dataclass(frozen=True, kw_only=True)
class Chat(ReplyOptions):
    """Talk with a model.

    It sees the whole conversation; /reset begins anew, /exit or the end of input ends it. Thinking is shown
    dim, or between its markers where output is not a terminal. Lines may come from a pipe.
    """

    path: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")] = None
    """Folder of a checkpoint, or `demo`; not with --url."""
    url: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None
    """Talk with the model that a server at this address serves, instead of loading one."""
    api_key_file: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """File with the API key to send to the server."""
    system: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None
    """Instructions that precede the conversation."""
    no_thinking: bool = False
    """Ask the model to answer without thinking first."""

    def run(self) -> int:
        if (self.path is None) is (self.url is None):
            raise UsageError("chat", found="both or neither", expected="a checkpoint's PATH or --url URL")
        return self._talk(self._local(self.path) if self.path is not None else self._remote(self.url or ""))

    def _local(self, path: str) -> Answer:
        """The replies of a model that is loaded here."""
        from intarsia import api

        if self.tp > 1:
            raise UsageError("tp", found=str(self.tp), expected="1", action="serve the model, and chat --url")
        model = api.load_text_model(path, self.engine_settings(), resume=True, progress=terminal_progress())
        model.assets.chat_template().check()
        return lambda messages: self._answer(model, messages)

    def _remote(self, url: str) -> Answer:
        """The replies of a server's model; what belongs to loading one is refused, not ignored."""
        from intarsia.cli.chat_remote import RemoteReplies
        from intarsia.evidence.traffic.client import Server

        for field in fields(EngineSettings):
            if getattr(self, field.name) != field.default:
                raise UsageError(
                    field.name.replace("_", "-"), found="a server's address", expected="it at the server"
                )
        return RemoteReplies(Server.of(url, read_key(self.api_key_file)), self._body()).answer

    def _body(self) -> dict[str, Any]:
        """The fields of a request that were given."""
        body: dict[str, Any] = {
            name: value
            for name in ("temperature", "top_p", "top_k", "min_p", "seed")
            if (value := getattr(self, name)) is not None
        }
        body["max_tokens"] = self.max_tokens
        if self.stop:
            body["stop"] = list(self.stop)
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.no_drafts:
            body["draft"] = False
        if self.no_thinking:
            body["chat_template_kwargs"] = {"enable_thinking": False}
        return body

    def _talk(self, reply: Answer) -> int:
        """Read lines and answer them, until the end of input."""
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
                answer = reply(messages)
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
                    shown = show(part, text, shown)
                    answer += [text] if part == "answer" else []
            for part, text in splitter.finish():
                shown = show(part, text, shown)
                answer += [text] if part == "answer" else []
        except KeyboardInterrupt:
            write("\n")
            note("(ended here)")
            return "".join(answer).strip()
        write("\n" if shown != "thinking" or colours() else "</think>\n")
        note(report(generation.result))
        return "".join(answer).strip()


def show(part: str, text: str, before: str) -> str:
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
