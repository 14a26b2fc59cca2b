"""What loading makes of a checkpoint: run-time weights, the tensors they consist of, and what fills those."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from intarsia.checkpoint import Checkpoint, Module, TensorEntry
from intarsia.checkpoint.contracts import FREE
from intarsia.core.errors import Violation
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.runtime import RuntimeModule
from intarsia.families.registry import Family
from intarsia.loading.errors import LoadError
from intarsia.selection.resolve import Selection, Target

PLAIN = ("BF16", "F16", "F32")


@dataclass(frozen=True, slots=True)
class Piece:
    """One stored tensor (or one set of compressed scales) and its place in the stack: expert and part."""

    entries: tuple[TensorEntry, ...]
    suffix: str
    expert: int = 0
    part: int = 0
    codec: str | None = None


@dataclass(frozen=True, slots=True)
class Conversion:
    """One matrix that is encoded while it is read, and its place in the stack."""

    target: Target
    expert: int = 0
    part: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of a run-time weight: its dtype and final shape; `scalar` has one number a source."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    scalar: bool = False


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a stored tensor of shape `whole`: its first entry and its size along every dimension."""

    starts: tuple[int, ...]
    counts: tuple[int, ...]
    whole: tuple[int, ...]

    @property
    def ranges(self) -> tuple[range, ...]:
        """The entries along every dimension."""
        return tuple(range(s, s + n) for s, n in zip(self.starts, self.counts, strict=True))

    def inside(self, rows: range) -> tuple[slice, ...]:
        """The region's entries among `rows` of the tensor, all other dimensions cut too."""
        first, last = max(rows.start, self.starts[0]), min(rows.stop, self.starts[0] + self.counts[0])
        others = (slice(part.start, part.stop) for part in self.ranges[1:])
        return (slice(first - rows.start, last - rows.start), *others)


@dataclass(frozen=True, slots=True)
class Arranged:
    """One run-time weight: its tensors and what fills them. `format` None means a plain tensor.

    Of a rank's share, `regions` says by suffix which part of every source's tensor is read (None: all of
    it), and `origin` where that begins inside a scale block. `row_parts` is `Stored`'s.
    """

    module: RuntimeModule
    format: str | None
    slots: Mapping[str, Slot]
    pieces: tuple[Piece, ...]
    conversions: tuple[Conversion, ...] = ()
    regions: Mapping[str, Region] | None = None
    origin: tuple[int, int] = (0, 0)
    row_parts: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(torch.Size(slot.shape).numel() * slot.dtype.itemsize for slot in self.slots.values())


@dataclass(frozen=True, slots=True)
class Arrangement:
    """All run-time weights of a checkpoint. `unused` names whole groups that are stored and not needed."""

    checkpoint: Checkpoint
    family: Family
    modules: Mapping[str, Module]
    weights: tuple[Arranged, ...]
    mtp: bool
    unused: tuple[str, ...]
    selection: Selection | None = None

    @property
    def config(self) -> Glm5NextConfig:
        """The network's configuration; raises LoadError for an architecture without a network here."""
        if self.family.glm5_next is None:
            found = Violation("no-network", "config.json", self.family.name, "glm5_next")
            raise LoadError(str(self.checkpoint.path), [found])
        return self.family.glm5_next

    @property
    def nbytes(self) -> int:
        """Bytes of all weights once loaded."""
        return sum(weight.nbytes for weight in self.weights)

    @property
    def stored_bytes(self) -> int:
        """Bytes that will be read."""
        read = sum(entry.nbytes for w in self.weights for piece in w.pieces for entry in piece.entries)
        return read + sum(
            source_bytes(self.modules[conversion.target.module])
            for weight in self.weights
            for conversion in weight.conversions
        )


def source_bytes(module: Module) -> int:
    """Bytes read to convert a module."""
    return sum(
        entry.nbytes
        for suffix, entry in module.tensors.items()
        if suffix not in FREE and suffix != "input_scale"
    )


def each_module(modules: Mapping[str, Module]) -> Iterable[RuntimeModule]:
    """Every module as a weight of its own: quantized ones and matrices by module, other tensors by name."""
    for module in modules.values():
        weight = module.tensors.get("weight")
        matrix = weight is not None and (module.format is not None or _is_matrix(weight))
        if matrix:
            yield RuntimeModule(module.name, (module.name,), module.shape or (), True)
        for suffix, entry in module.tensors.items():
            own = matrix and (suffix == "weight" or module.format is not None)
            if suffix in FREE or not own:
                yield RuntimeModule(entry.name, (entry.name,), entry.shape, False)


def _is_matrix(entry: TensorEntry) -> bool:
    return len(entry.shape) == 2 and entry.dtype in PLAIN and min(entry.shape) > 0
