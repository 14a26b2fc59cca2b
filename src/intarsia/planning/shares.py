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


def _cut(form: Form, axis: int, part: range) -> Parts:
    if form.format is None:
        return Parts(whole(form).elements // form.shape[axis] * len(part), 0, 0)
    tensors = {
        suffix: torch.empty(shape, dtype=dtype, device="meta") for suffix, dtype, shape in form.tensors
    }
    kind = formats.get(form.format)
    rows, columns = range(form.shape[-2]), range(form.shape[-1])
    stored = kind.cut(kind.stored(tensors), part if axis == 0 else rows, part if axis == 1 else columns)
    counts = [0, 0, 0]
    for suffix, _, shape in form.tensors:
        counts[role_of(suffix, shape)] += stored[suffix].numel() * stored[suffix].element_size()
    return Parts(*counts)
