"""intarsia load: load weights, converting them on the way, and say what it took."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import tyro

from intarsia.cli.explain import explain
from intarsia.cli.options import CheckpointPath
from intarsia.cli.output import emit_json, gigabytes
from intarsia.cli.progress import terminal_progress
from intarsia.cli.sizes import size_in_bytes
from intarsia.cli.tables import show_table

LayerMax = Literal["off", "w13", "w2", "all"]


@dataclass(frozen=True, kw_only=True)
class Load:
    """Load a checkpoint into memory, converted as a manifest says, and show what was planned and measured."""

    path: CheckpointPath
    """Folder of a checkpoint, or `demo`."""
    manifest: Annotated[str | None, tyro.conf.arg(metavar="MANIFEST")] = None
    """A manifest, or its folder; without one everything is loaded as stored."""
    device: str = "cpu"
    """Torch device the weights are placed on, such as cpu or cuda:0."""
    budget: Annotated[str | None, tyro.conf.arg(metavar="SIZE")] = None
    """Most working memory beside the weights; loading is refused where it does not suffice."""
    layer_max_input_scale: Annotated[LayerMax, tyro.conf.arg(metavar="{off,w13,w2,all}")] = "off"
    """One activation scale for all experts of a layer: of gate and up (w13), of down (w2), or both."""
    receipt: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Write hashes, times and memory to this file, which must not exist."""
    explain: bool = False
    """Load nothing; print how every weight would run, with which kernel and why, from headers alone."""
    json: bool = False
    """Print the receipt, or the explanation, as one JSON document."""

    def run(self) -> int:
        import msgspec

        from intarsia import api
        from intarsia.core import receipt as receipts

        manifest = api.read_manifest(self.manifest) if self.manifest is not None else None
        if self.explain:
            return explain(self.path, self.device, "float32", manifest=manifest, json=self.json)
        with TemporaryDirectory() as folder:
            path = Path(self.receipt) if self.receipt is not None else Path(folder) / "receipt.json"
            api.load_weights(
                self.path,
                manifest=manifest,
                device=self.device,
                budget=size_in_bytes("--budget", self.budget) if self.budget is not None else None,
                layer_max_input_scale=self.layer_max_input_scale,
                receipt=path,
                progress=terminal_progress(),
            )
            done = receipts.read(path)
        if self.json:
            emit_json(msgspec.to_builtins(done))
            return 0
        rows = [[phase.name, f"{phase.seconds:.3f}", gigabytes(phase.bytes)] for phase in done.phases]
        show_table("phases", ["phase", "seconds", "read"], rows)
        memory = [item for item in (done.predicted, done.measured) if item is not None]
        figures = [[m.by, f"{m.weights:,}", f"{m.working:,}", f"{m.peak:,}", m.peak_at] for m in memory]
        show_table("memory, bytes", ["by", "weights", "beside them", "peak", "at"], figures)
        return 0
