"""Options that several commands share."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from intarsia.cli.output import note
from intarsia.core.config import EngineSettings, GenerationSettings, part_of
from intarsia.core.errors import UsageError

if TYPE_CHECKING:
    from intarsia.core.receipt import Receipt

CheckpointPath = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
Texts = Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="TEXT")]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a measurement leaves behind."""

    report: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder for receipts and their page; made if it is not there."""
    json: bool = False
    """Print one JSON document."""

    def open_report(self) -> None:
        """Make the folder before the work that goes into it. Raises UsageError where that cannot be."""
        problem = ""
        try:
            if self.report is not None:
                Path(self.report).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            found = f"{self.report}: {problem}"
            raise UsageError("report", found=found, expected="a folder, or a path that is free")

    def keep(self, receipt: Callable[[], "Receipt"], name: str) -> None:
        """Write what `receipt` makes into the folder, under a name that is free, and the folder's page;
        without a folder nothing is made, which may take reading all files.
        """
        if self.report is None:
            return
        from intarsia.evidence.report.folder import keep_receipt

        written, page = keep_receipt(receipt(), name, Path(self.report))
        note(f"receipt {written}, page {page}")


@dataclass(frozen=True, kw_only=True)
class ReplyOptions(EngineSettings):
    """How replies are drawn; what is not given follows the checkpoint's generation_config.json."""

    max_tokens: int = 256
    """Most tokens of a reply."""
    temperature: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """0 for the likeliest token each time; else logits are divided by it."""
    top_p: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Keep the fewest likeliest tokens whose probabilities reach this sum; 1 keeps all."""
    top_k: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Keep this many of the likeliest tokens; 0 keeps all."""
    min_p: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Keep tokens at least this fraction as likely as the likeliest; 0 keeps all."""
    seed: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Key of the noise; without one it follows from the prompt, so that a command repeats."""
    stop: Texts = ()
    """End the reply before this text; may be given several times."""
    ignore_eos: bool = False
    """Go on past the checkpoint's end-of-text tokens."""
    no_drafts: bool = False
    """Compute every token by a step of its own. The reply stays the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reply_settings(GenerationSettings())  # wrong values are refused before anything is loaded

    def engine_settings(self) -> EngineSettings:
        """The part that loading needs."""
        return part_of(self, EngineSettings, drafts=0 if self.no_drafts else self.drafts)

    def reply_settings(self, defaults: GenerationSettings) -> GenerationSettings:
        """The checkpoint's settings with those that were given in their place."""
        given = {
            name: value
            for name in ("temperature", "top_p", "top_k", "min_p", "seed")
            if (value := getattr(self, name)) is not None
        }
        return replace(
            defaults, max_tokens=self.max_tokens, stop=self.stop, ignore_eos=self.ignore_eos, **given
        )
