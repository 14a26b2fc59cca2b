"""intarsia generate: continue a text."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from intarsia.cli.explain import explain
from intarsia.cli.options import CheckpointPath, ReplyOptions
from intarsia.cli.output import emit_json, note, write
from intarsia.cli.progress import terminal_progress
from intarsia.cli.ranks import rank_of, start_ranks

if TYPE_CHECKING:
    from intarsia.engine.generate import Generation
    from intarsia.engine.stream import GenerationResult


@dataclass(frozen=True, kw_only=True)
class Generate(ReplyOptions):
    """Continue a text with a model.

    The text streams to standard output; speed and guessed tokens that were kept are told on standard error. A
    seeded reply is the same with and without drafts, today and tomorrow.
    """

    path: CheckpointPath
    """Folder of a checkpoint, or `demo`."""
    prompt: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")]
    """The text to continue."""
    chat: bool = False
    """Ask the text as a question, through the checkpoint's chat template, instead of continuing it."""
    explain: bool = False
    """Write nothing; print how every weight would run, with which kernel and why, from headers alone."""
    json: bool = False
    """Print one JSON document instead of the text."""

    def run(self) -> int:
        if self.explain:
            return explain(
                self.path,
                self.device,
                self.dtype,
                tuning=self.tuning,
                expert_scales=self.expert_scales,
                json=self.json,
            )
        code = start_ranks(self)
        if code is not None:
            return code

        from intarsia import api

        model = api.load_text_model(self.path, self.engine_settings(), progress=terminal_progress())
        settings = self.reply_settings(model.defaults)
        if self.chat:
            generation = model.chat([{"role": "user", "content": self.prompt}], settings)
        else:
            generation = model.generate(self.prompt, settings)
        if self.json:
            emit_json(self._document(generation))
            return 0
        for delta in generation:
            write(delta.text)
        write("\n")
        if not rank_of(self):  # other ranks have nothing to tell
            note(report(generation.result))
        return 0

    def _document(self, generation: "Generation") -> dict[str, Any]:
        result = generation.result
        return {
            "checkpoint": self.path,
            "prompt": self.prompt,
            "text": result.text,
            "tokens": list(result.tokens),
            "finish_reason": result.finish_reason,
            "stopped_by": result.stopped_by,
            "settings": asdict(generation.settings),
            "usage": {
                "prompt_tokens": result.prompt_tokens,
                "completion_tokens": len(result.tokens),
            },
            "drafts": {
                "steps": result.steps,
                "drafted": list(result.drafted),
                "accepted": list(result.accepted),
            },
            "seconds": {"prompt": result.timing.prompt, "decode": result.timing.decode},
        }


def report(result: "GenerationResult") -> str:
    """One line on speed and drafts."""
    count, timing = len(result.tokens), result.timing
    speed = f"{(count - 1) / timing.decode:.1f} tokens/s" if count > 1 and timing.decode > 0 else "no speed"
    line = (
        f"{result.prompt_tokens} + {count} tokens, {speed} "
        f"(prompt {timing.prompt:.2f} s, reply {timing.decode:.2f} s), ended by {ending(result)}"
    )
    if result.reused:
        line += f"; {result.reused} tokens of the prompt reused"
    if not result.drafted:
        return f"{line}; no drafts"
    drafted, accepted = sum(result.drafted), sum(result.accepted)
    places = ", ".join(
        f"{hits / tries:.0%}" for hits, tries in zip(result.accepted, result.drafted, strict=True) if tries
    )
    return f"{line}; {accepted} of {drafted} drafts accepted (by place: {places})"


def ending(result: "GenerationResult") -> str:
    """Why the reply ended, in words."""
    if result.finish_reason == "length":
        return "the length limit"
    return f"token {result.stopped_by}" if isinstance(result.stopped_by, int) else f"{result.stopped_by!r}"
