"""What linear attention takes between its projections."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Projected:
    """What the projections give for every row: raw [R, 3 H D] (q, k, v), decay and gate [R, H D], beta [R, H]
    before its sigmoid.
    """

    raw: Tensor
    decay: Tensor
    gate: Tensor
    beta: Tensor


@dataclass(frozen=True, slots=True)
class Parameters:
    """taps [3 H D, T], a_log [H], dt_bias [H D], norm [D] and the two constants."""

    taps: Tensor
    a_log: Tensor
    dt_bias: Tensor
    norm: Tensor
    lower_bound: float
    eps: float


@dataclass(frozen=True, slots=True)
class Cache:
    """What streams keep: memory [streams, copies, H, D, D] float32, window [streams, ring, 3 H D], and which
    copy is the committed one, current int32 [streams].
    """

    memory: Tensor
    window: Tensor
    current: Tensor
