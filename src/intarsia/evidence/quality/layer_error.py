"""What a conversion changed, module by module, from stored tensors alone: seen before anything runs.

A number format has an error of its own, so a large one is not yet a fault. The yardstick is what encoding the
source again in the same format gives, row by row: a module with a row far beyond it is suspect, and comes
first.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from intarsia import formats
from intarsia.core.progress import SILENT, Progress
from intarsia.evidence.forms import Form
from intarsia.evidence.quality.matrices import Matrices, Matrix
from intarsia.formats import Stored

SUSPECT = 1.5
"""A row's error over that of encoding it again, from where on its module is suspect. Encoders that search
their scales stay well below it; a wrong scale is far above."""
CHUNK_ROWS = 1024
LISTED = 100


@dataclass(frozen=True, slots=True)
class LayerError:
    """The error of one tensor: ||candidate - base|| / ||base||, Frobenius norms in float64.

    `worst_row` is the row farthest beyond encoding again, `row_ratio` by how much; for a form that is encoded
    here, and for plain tensors, there is nothing beyond and the ratio is 1.
    """

    name: str
    base_format: str
    format: str
    rows: int
    columns: int
    error: float
    row_ratio: float
    worst_row: int
    largest: float
    squared_error: float
    squared_norm: float

    @property
    def suspect(self) -> bool:
        """True when a row is farther off than its format explains."""
        return self.row_ratio > SUSPECT


@dataclass(frozen=True, slots=True)
class LayerErrors:
    """All tensors that differ, suspects first (worst ratio first), then by error; what is equal, or apart."""

    changed: tuple[LayerError, ...]
    identical: int
    only_in_base: tuple[str, ...]
    only_in_candidate: tuple[str, ...]

    @property
    def suspects(self) -> tuple[LayerError, ...]:
        """Modules with a row that its format does not explain."""
        return tuple(row for row in self.changed if row.suspect)

    def as_dict(self) -> dict[str, Any]:
        """JSON values: the worst tensors one by one, all of them by layer and kind."""
        return {
            "changed": len(self.changed),
            "identical": self.identical,
            "suspects": len(self.suspects),
            "only_in_base": list(self.only_in_base[:LISTED]),
            "only_in_candidate": list(self.only_in_candidate[:LISTED]),
            "worst": [asdict(row) | {"suspect": row.suspect} for row in self.changed[:LISTED]],
            "groups": [asdict(group) for group in grouped(self.changed)],
        }


@dataclass(frozen=True, slots=True)
class Group:
    """The tensors of one kind in one layer (-1 outside layers): their error together, and the worst."""

    layer: int
    kind: str
    format: str
    tensors: int
    error: float
    worst: float
    worst_name: str


def layer_errors(base: Form, candidate: Form, *, progress: Progress = SILENT) -> LayerErrors:
    """Compare every stored tensor of two forms, one at a time.

    Memory: four float32 copies of the largest matrix. Raises what reading and encoding raise.
    """
    changed: list[LayerError] = []
    identical = 0
    with base.checkpoint.reader() as first, candidate.checkpoint.reader() as second:
        ours, theirs = Matrices(base, first), Matrices(candidate, second)
        apart = _apart(ours, theirs), _apart(theirs, ours)
        names = [name for name in ours.modules if name in theirs.modules]
        total = sum(ours.modules[name].nbytes for name in names)
        with progress.phase("comparing weights", total) as phase:
            for name in names:
                for found in _module(name, ours, theirs):
                    if found is None:
                        identical += 1
                    else:
                        changed.append(found)
                phase.advance(ours.modules[name].nbytes)
    changed.sort(key=lambda row: (not row.suspect, -row.row_ratio if row.suspect else 0.0, -row.error))
    return LayerErrors(tuple(changed), identical, *apart)


def grouped(rows: Sequence[LayerError]) -> list[Group]:
    """Errors by layer and kind, in order of layers; the experts of a layer are one kind."""
    found: dict[tuple[int, str], list[LayerError]] = {}
    for row in rows:
        found.setdefault(layer_and_kind(row.name), []).append(row)
    groups = []
    for (layer, kind), members in sorted(found.items()):
        worst = max(members, key=lambda row: row.error)
        error = _ratio(
            math.fsum(row.squared_error for row in members), math.fsum(row.squared_norm for row in members)
        )
        groups.append(Group(layer, kind, worst.format, len(members), error, worst.error, worst.name))
    return groups


def layer_and_kind(name: str) -> tuple[int, str]:
    """`model.layers.3.mlp.experts.7.up_proj` is `mlp.experts.up_proj` of layer 3."""
    parts = name.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdecimal()]
    if not numbers:
        return -1, name
    first = numbers[0]
    return int(parts[first]), ".".join(part for part in parts[first + 1 :] if not part.isdecimal())


def _apart(one: Matrices, other: Matrices) -> tuple[str, ...]:
    return tuple(name for name in one.modules if name not in other.modules)


def _module(name: str, ours: Matrices, theirs: Matrices) -> Iterator[LayerError | None]:
    """One result a tensor of a module: None where the bytes or the values are the same."""
    before, after = ours.modules[name], theirs.modules[name]
    quantized = any(form.converted(name) or form.modules[name].format is not None for form in (ours, theirs))
    if quantized:
        yield _matrix(name, ours.read(name), theirs.read(name), encoded_here=theirs.converted(name))
        return
    for suffix, entry in before.tensors.items():
        other = after.tensors.get(suffix)
        if other is None:
            continue
        yield _compare(
            f"{name}.{suffix}",
            (entry.dtype, other.dtype),
            ours.plain(entry).float(),
            theirs.plain(other).float(),
            None,
        )


def _matrix(name: str, ours: Matrix, theirs: Matrix, *, encoded_here: bool) -> LayerError | None:
    yardstick = None
    if theirs.stored is not None and not encoded_here:
        yardstick = _again(ours.values, theirs.stored)
    return _compare(name, (ours.format, theirs.format), ours.values, theirs.values, yardstick)


def _again(values: Tensor, stored: Stored) -> Tensor:
    """The source encoded in the candidate's format, under the candidate's global scale, and decoded."""
    kind = formats.get(stored.format)
    amax = None
    if "weight_scale_2" in stored:
        # Back from the global scale; the product may round below the magnitude it came from.
        amax = torch.maximum(stored["weight_scale_2"].float().amax() * (6.0 * 448.0), values.abs().amax())
    return kind.decode(kind.encode(values, amax=amax))


class _Rows(NamedTuple):
    squared_error: Tensor
    squared_norm: Tensor
    largest: float


def _compare(
    name: str, kinds: tuple[str, str], base: Tensor, candidate: Tensor, yardstick: Tensor | None
) -> LayerError | None:
    if base.shape != candidate.shape:
        return LayerError(name, *kinds, *_sides(candidate), math.inf, math.inf, 0, math.inf, math.inf, 0.0)
    if torch.equal(base, candidate):
        return None
    found = _rows(base, candidate)
    ratio, row = 1.0, int(found.squared_error.argmax())
    if yardstick is not None:
        # Below a float32 rounding of its own norm a row's error says nothing.
        floor = found.squared_norm * 2.0**-46 + 1e-60
        ratios = ((found.squared_error + floor) / (_rows(base, yardstick).squared_error + floor)).sqrt()
        ratio, row = float(ratios.max()), int(ratios.argmax())
    squared, norm = float(found.squared_error.sum()), float(found.squared_norm.sum())
    error = _ratio(squared, norm)
    return LayerError(name, *kinds, *_sides(base), error, ratio, row, found.largest, squared, norm)


def _rows(base: Tensor, candidate: Tensor) -> _Rows:
    """Squared error and norm a row, float64 [rows]; a vector is one row, further dimensions are columns."""
    ours = base.reshape(base.shape[0], -1) if base.ndim > 1 else base.reshape(1, -1)
    theirs = candidate.reshape(ours.shape)
    errors, norms, largest = [], [], 0.0
    for first in range(0, ours.shape[0], CHUNK_ROWS):
        wide = ours[first : first + CHUNK_ROWS].double()
        difference = theirs[first : first + CHUNK_ROWS].double() - wide
        errors.append(difference.square().sum(-1))
        norms.append(wide.square().sum(-1))
        largest = max(largest, float(difference.abs().max()))
    return _Rows(torch.cat(errors), torch.cat(norms), largest)


def _sides(tensor: Tensor) -> tuple[int, int]:
    rows = tensor.shape[0] if tensor.ndim > 1 else 1
    return rows, tensor.numel() // max(rows, 1)


def _ratio(squared_error: float, squared_norm: float) -> float:
    if squared_norm:
        return math.sqrt(squared_error / squared_norm)
    return math.inf if squared_error else 0.0
