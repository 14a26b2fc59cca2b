"""intarsia convert: write a checkpoint in other formats."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from intarsia.cli.options import CheckpointPath
from intarsia.cli.output import emit_json, gigabytes, note
from intarsia.cli.progress import terminal_progress

CsfChoice = Literal["block", "slab", "none"]


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Write a checkpoint in the formats of a recipe.

    The source must not be quantized; what the recipe does not name is copied as it is. The new folder appears
    whole or not at all.
    """

    path: CheckpointPath
    """Folder of the source checkpoint, or `demo`."""
    out: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder to write; it must not exist."""
    recipe: str = "fp4-local"
    """Which modules get which format."""
    csf: Annotated[CsfChoice | None, tyro.conf.arg(metavar="{block,slab,none}")] = None
    """How the experts' block scales are compressed; the recipe's own choice when not given."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from intarsia import api

        source = api.open_checkpoint(self.path)
        written = api.convert(
            self.path, self.out, recipe=self.recipe, csf=self.csf, progress=terminal_progress()
        )
        before, after = source.weight_bytes, written.weight_bytes
        if self.json:
            emit_json(
                {
                    "source": str(source.path),
                    "out": str(written.path),
                    "recipe": self.recipe,
                    "source_bytes": before,
                    "out_bytes": after,
                    "tensors": len(written.tensors),
                    "shards": len(written.shards),
                }
            )
        else:
            note(
                f"{written.path}: {len(written.tensors):,} tensors in {len(written.shards)} shards, "
                f"{gigabytes(after)} ({after / before:.0%} of {gigabytes(before)})"
            )
        return 0
