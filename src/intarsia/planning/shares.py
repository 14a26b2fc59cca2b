"""Bytes of a weight's share on each rank, counted on tensors without memory by the formats' own cuts."""

from functools import lru_cache
from math import prod
from typing import NamedTuple

import torch

from intarsia import formats
from intarsia.core.errors import IntarsiaError, Violation
from intarsia.families.glm5_next.split import SplitRule, shares

Spec = tuple[str, torch.dtype, tuple[int, ...]]

_GLOBALS = frozenset(["weight_scale_2", "input_scale"])


class Form(NamedTuple):
    """What a weight is once loaded: its number format (None: plain), logical shape, and its tensors."""

    format: str | None
    shape: tuple[int, ...]
    tensors: tuple[Spec, ...]


class Parts(NamedTuple):
    """Bytes of one share: elements, block scales, and scalars."""

    elements: int
    scales: int
    scalars: int

    @property
    def total(self) -> int:
        return sum(self)


class Held(NamedTuple):
    """What a rank has of one weight: entries of the cut axis (of rows where none is cut), the shape of each
    of its tensors, and where its first element lies inside a scale block."""

    entries: range
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    origin: tuple[int, int] = (0, 0)


def role_of(suffix: str, shape: tuple[int, ...]) -> int:
    """0 for elements, 1 for block scales, 2 for scalars."""
    if suffix in _GLOBALS or (suffix == "weight_scale" and prod(shape) == 1):
        return 2
    return 1 if suffix.startswith("weight_scale") else 0


def whole(form: Form) -> Parts:
    """Bytes of an uncut weight."""
    counts = [0, 0, 0]
    for suffix, dtype, shape in form.tensors:
        counts[role_of(suffix, shape)] += prod(shape) * dtype.itemsize
    return Parts(*counts)


@lru_cache(maxsize=4096)
def on_ranks(form: Form, rule: SplitRule | None, ranks: int) -> tuple[Parts, ...] | Violation:
    """The share of every rank, or why the weight cannot be cut so.

    Weights of one form and rule share one answer: a real layer has 864 experts' matrices of two kinds.
    """
    if ranks == 1 or rule is None or rule.axis is None:
        return (whole(form),) * ranks
    parts = shares(rule, ranks)
    if not len(parts[-1]):
        return Violation(
            "fewer-units",
            "",
            f"{rule.units} {rule.reason} units of {rule.unit}",
            f"at least one for each of {ranks} ranks",
            "use fewer ranks",
        )
    problem: IntarsiaError | None = None
    try:
        return tuple(_cut(form, rule.axis, part) for part in parts)
    except IntarsiaError as error:
        problem = error
    return Violation("split", "", problem.found, problem.expected, "use another number of ranks")


@lru_cache(maxsize=4096)
def held(form: Form, rule: SplitRule, ranks: int) -> tuple[Held, ...]:
    """What every rank has of a weight that `on_ranks` can cut."""
    if ranks == 1 or rule.axis is None:
        entries = range(form.shape[0] if form.shape else 1)
        return (Held(entries, tuple((suffix, shape) for suffix, _, shape in form.tensors)),) * ranks
    found = []
    for part in shares(rule, ranks):
        if form.format is None:
            size = tuple(len(part) if axis == rule.axis else n for axis, n in enumerate(form.shape))
            found.append(Held(part, ((form.tensors[0][0], size),)))
            continue
        stored = _stored(form, rule.axis, part)
        tensors = tuple((suffix, tuple(tensor.shape)) for suffix, tensor in stored.items())
        found.append(Held(part, tensors, stored.origin))
    return tuple(found)


def _stored(form: Form, axis: int, part: range) -> formats.Stored:
    """A share without memory."""
    tensors = {
        suffix: torch.empty(shape, dtype=dtype, device="meta") for suffix, dtype, shape in form.tensors
    }
    kind = formats.get(form.format or "")
    rows, columns = range(form.shape[-2]), range(form.shape[-1])
    return kind.cut(kind.stored(tensors), part if axis == 0 else rows, part if axis == 1 else columns)


def _cut(form: Form, axis: int, part: range) -> Parts:
    if form.format is None:
        return Parts(whole(form).elements // form.shape[axis] * len(part), 0, 0)
    stored = _stored(form, axis, part)
    counts = [0, 0, 0]
    for suffix, _, shape in form.tensors:
        counts[role_of(suffix, shape)] += stored[suffix].numel() * stored[suffix].element_size()
    return Parts(*counts)
