"""intarsia synth: a checkpoint of a published geometry with random weights."""

import time
from dataclasses import dataclass
from typing import Annotated

import tyro

from intarsia.cli.output import emit_json, gigabytes, note
from intarsia.cli.progress import terminal_progress
from intarsia.cli.sizes import size_in_bytes
from intarsia.core.words import counted


@dataclass(frozen=True, kw_only=True)
class Synth:
    """Write a checkpoint of a published model's geometry with random weights, valid in every format.

    It loads, audits, converts and runs as a real one does, at the real sizes; what it writes means nothing.
    """

    out: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder to write; it must not exist."""
    geometry: str = "glm-5.3-flash"
    """Published model whose sizes it has."""
    layers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Main layers; all of the model's when not given. The MTP layer comes on top."""
    experts: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Routed experts of a layer."""
    vocabulary: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Entries of the vocabulary."""
    recipe: str = "fp4-local"
    """Which modules get which format: bf16, spark, nvfp4-experts or fp4-local."""
    seed: int = 0
    """Seed of the numbers. The same seed and kind of device give the same bytes."""
    device: str = "cpu"
    """Where numbers are drawn; a GPU takes seconds."""
    shard_size: Annotated[str, tyro.conf.arg(metavar="SIZE")] = "4GiB"
    """About how large a shard is, such as 5GB or 4GiB."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from intarsia.evidence.synthetic import geometry, synthesize

        config = geometry(self.geometry, layers=self.layers, experts=self.experts, vocabulary=self.vocabulary)
        begin = time.perf_counter()
        made = synthesize(
            self.out,
            config,
            recipe=self.recipe,
            seed=self.seed,
            device=self.device,
            shard_size=size_in_bytes("--shard-size", self.shard_size),
            progress=terminal_progress(),
        )
        seconds = time.perf_counter() - begin
        if self.json:
            emit_json(
                {
                    "out": str(made.path),
                    "bytes": made.weight_bytes,
                    "tensors": len(made.tensors),
                    "shards": len(made.shards),
                    "seconds": round(seconds, 3),
                }
            )
        else:
            parts = f"{counted(len(made.tensors), 'tensor')} in {counted(len(made.shards), 'shard')}"
            note(f"{made.path}: {parts}, {gigabytes(made.weight_bytes)}, {seconds:.1f} s")
        return 0
