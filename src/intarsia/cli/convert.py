"""intarsia convert: write a checkpoint in other formats."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from intarsia.cli.options import CheckpointPath
from intarsia.cli.output import emit_json, gigabytes, note
from intarsia.cli.progress import terminal_progress
from intarsia.cli.sizes import size_in_bytes
from intarsia.core.errors import UsageError
from intarsia.core.words import counted

CsfChoice = Literal["block", "slab", "none"]


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Write a checkpoint in the formats of a recipe or a manifest.

    What they do not name is copied as it is. The new folder appears whole or not at all; an export that was
    stopped goes on with --resume.
    """

    path: CheckpointPath
    """Folder of the source checkpoint, or `demo`."""
    out: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder to write; it must not exist."""
    recipe: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Which modules get which format: bf16, spark, nvfp4-experts, or fp4-local, which is the default."""
    manifest: Annotated[str | None, tyro.conf.arg(metavar="MANIFEST")] = None
    """A manifest, or its folder, instead of a recipe."""
    csf: Annotated[CsfChoice | None, tyro.conf.arg(metavar="{block,slab,none}")] = None
    """How the experts' block scales are compressed; the recipe's own choice when not given."""
    resume: bool = False
    """Go on with an export that was stopped."""
    shard_size: Annotated[str, tyro.conf.arg(metavar="SIZE")] = "4GiB"
    """About how large a shard is, such as 5GB or 4GiB."""
    budget: Annotated[str | None, tyro.conf.arg(metavar="SIZE")] = None
    """Most working memory; conversion is refused where it does not suffice."""
    device: str = "cpu"
    """Torch device that encodes; the bytes are the same on every one."""
    receipt: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Write what the run took to this file, which must not exist."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from intarsia import api

        if self.recipe is not None and self.manifest is not None:
            raise UsageError("--recipe", found="--manifest as well", expected="one of them")
        manifest = api.read_manifest(self.manifest) if self.manifest is not None else None
        recipe = None if manifest is not None else self.recipe or "fp4-local"
        source = api.open_checkpoint(self.path)
        written = api.convert(
            self.path,
            self.out,
            recipe=recipe,
            manifest=manifest,
            csf=self.csf,
            shard_size=size_in_bytes("--shard-size", self.shard_size),
            resume=self.resume,
            device=self.device,
            budget=size_in_bytes("--budget", self.budget) if self.budget is not None else None,
            receipt=self.receipt,
            progress=terminal_progress(),
        )
        before, after = source.weight_bytes, written.weight_bytes
        if self.json:
            emit_json(
                {
                    "source": str(source.path),
                    "out": str(written.path),
                    "recipe": recipe,
                    "manifest": self.manifest,
                    "source_bytes": before,
                    "out_bytes": after,
                    "tensors": len(written.tensors),
                    "shards": len(written.shards),
                }
            )
        else:
            parts = f"{counted(len(written.tensors), 'tensor')} in {counted(len(written.shards), 'shard')}"
            note(f"{written.path}: {parts}, {gigabytes(after)} ({after / before:.0%} of {gigabytes(before)})")
        return 0
