"""Families of CSF containers: which scale matrices one of them compresses, and what their readers check."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from intarsia.checkpoint.checkpoint import Checkpoint
from intarsia.checkpoint.findings import Findings
from intarsia.checkpoint.reader import Reader

GROUP = 16
PROJECTIONS = ("up", "gate", "down")


@dataclass(frozen=True, slots=True)
class ExpertGeometry:
    """The routed experts of a family. Readers of containers accept exactly this geometry."""

    family: str
    experts: int
    hidden: int
    intermediate: int
    layers: range
    prefix: str = "model.language_model.layers."

    def module(self, layer: int, expert: int, projection: str) -> str:
        """The name of one expert's matrix."""
        return f"{self.prefix}{layer}.mlp.experts.{expert}.{projection}_proj"

    def size(self, projection: str) -> tuple[int, int]:
        """Rows and columns of a projection's weight."""
        wide = (self.intermediate, self.hidden)
        return wide if projection != "down" else wide[::-1]

    def modules(self) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of every matrix whose scales are compressed."""
        for layer in self.layers:
            for expert in range(self.experts):
                for projection in PROJECTIONS:
                    yield self.module(layer, expert, projection), *self.size(projection)


GEOMETRIES = {
    geometry.family: geometry
    for geometry in (
        ExpertGeometry("glm53_nvfp4", 288, 4096, 2048, range(3, 45)),
        ExpertGeometry("qwen38_flash_next_nvfp4", 512, 2560, 640, range(48)),
    )
}
"""The NVFP4 families whose geometry is public."""


def check_experts(
    checkpoint: Checkpoint, geometry: ExpertGeometry, reader: Reader, findings: Findings
) -> None:
    """Everything for which a reader would refuse the experts: sets, types, shapes, globals, gate
    against up.
    """
    for layer in geometry.layers:
        for expert in range(geometry.experts):
            globals_ = {}
            for projection in PROJECTIONS:
                module = geometry.module(layer, expert, projection)
                _check_matrix(checkpoint, module, *geometry.size(projection), findings)
                for suffix in ("weight_scale_2", "input_scale"):
                    value = _global(checkpoint, f"{module}.{suffix}", reader, findings)
                    globals_[projection, suffix] = value
            gate, up = (globals_[projection, "weight_scale_2"] for projection in ("gate", "up"))
            if gate is not None and up is not None and gate != up:
                module = geometry.module(layer, expert, "gate")
                findings.add(
                    "container-globals", f"{module}.weight_scale_2", f"{gate:g}", f"up_proj's {up:g}"
                )


def _check_matrix(checkpoint: Checkpoint, module: str, rows: int, columns: int, findings: Findings) -> None:
    wanted = {
        "weight": ("U8", (rows, columns // 2)),
        "weight_scale": ("F8_E4M3", (rows, columns // GROUP)),
    }
    for suffix, (dtype, shape) in wanted.items():
        entry = checkpoint.tensors.get(f"{module}.{suffix}")
        expected = f"{dtype} {list(shape)}"
        if entry is None:
            findings.add("missing-tensor", f"{module}.{suffix}", "no such tensor", expected)
        elif (entry.dtype, entry.shape) != (dtype, shape):
            findings.add("container-geometry", entry.name, f"{entry.dtype} {list(entry.shape)}", expected)


def _global(checkpoint: Checkpoint, name: str, reader: Reader, findings: Findings) -> float | None:
    entry = checkpoint.tensors.get(name)
    expected = "one finite F32 value above zero"
    if entry is None:
        findings.add("missing-tensor", name, "no such tensor", expected)
        return None
    if entry.dtype != "F32" or entry.nbytes != 4:
        findings.add("container-globals", name, f"{entry.dtype} {list(entry.shape)}", expected)
        return None
    value = reader.read_entry(entry).reshape(())
    if not bool(torch.isfinite(value) & (value > 0)):
        findings.add("container-globals", name, f"{value.item():g}", expected)
        return None
    return float(value)
