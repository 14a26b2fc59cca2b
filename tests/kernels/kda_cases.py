"""Inputs of linear attention for tests of its kernels, and its formulas in double precision."""

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor
from torch.nn.functional import silu

from intarsia.kernels.kda import Cache, Parameters, Projected
from intarsia.kernels.rows import Piece, Rows, rows_of
from tests.kernels.steps import page_table, randn

TAPS = 4
# Added to and multiplied with the decay's projection: log decays at the bound, near zero, both, between.
DECAYS = {"bound": (40.0, 0.0), "zero": (-40.0, 0.0), "both": (0.0, 40.0), "middling": (0.0, 1.0)}


def projected(rows: int, heads: int, width: int, dtype: torch.dtype, decay: str = "middling") -> Projected:
    """Random projections, the same for the rows that two counts share."""
    shift, scale = DECAYS[decay]
    columns = heads * width

    def numbers(seed: int, size: int) -> Tensor:
        return torch.stack([randn(size, seed=seed + 16 * row) for row in range(rows)])

    return Projected(
        raw=numbers(1, 3 * columns).to(dtype),
        decay=(shift + scale * numbers(2, columns)).to(dtype),
        gate=numbers(3, columns).to(dtype),
        beta=2 * numbers(4, heads),
    )


def parameters(heads: int, width: int) -> Parameters:
    columns = heads * width
    return Parameters(
        taps=randn(3 * columns, TAPS, seed=5),
        a_log=0.3 * randn(heads, seed=6),
        dt_bias=0.3 * randn(columns, seed=7),
        norm=1 + 0.1 * randn(width, seed=8),
        lower_bound=-5.0,
        eps=1e-5,
    )


def cache(streams: int, copies: int, heads: int, width: int, dtype: torch.dtype) -> Cache:
    """Every stream with another committed copy; the other copies hold NaN, which nothing may read."""
    current = torch.arange(streams, dtype=torch.int32) % copies
    memory = torch.full((streams, copies, heads, width, width), torch.nan)
    memory[torch.arange(streams), current.long()] = randn(streams, heads, width, width, seed=9)
    window = randn(streams, TAPS - 1 + copies, 3 * heads * width, seed=10).to(dtype)
    return Cache(memory=memory, window=window, current=current)


def rows_for(pieces: Sequence[Piece], streams: int, device: str = "cpu") -> Rows:
    return rows_of(pieces, page_table(streams, 64).to(device))


def to(device: str, *parts):
    """Dataclasses of tensors on a device, each a copy."""
    moved = []
    for part in parts:
        names = [field.name for field in fields(part)]
        tensors = {name: getattr(part, name) for name in names if isinstance(getattr(part, name), Tensor)}
        moved.append(replace(part, **{name: t.clone().to(device) for name, t in tensors.items()}))
    return moved


def some(given: Projected, begin: int, end: int) -> Projected:
    """Rows begin .. end of projections, with padding rows of NaN."""
    count = max(16, -(-(end - begin) // 16) * 16)
    parts = {}
    for field in fields(given):
        values = getattr(given, field.name)[begin:end]
        missing = values.new_full((count - (end - begin), *values.shape[1:]), torch.nan)
        parts[field.name] = torch.cat([values, missing])
    return Projected(**parts)


def exact(given: Projected, weights: Parameters, before: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One stream row by row in double precision: outputs [R, H D], and the last state [H, D, D].

    before [TAPS - 1, 3 H D]: the raw columns before the first row; state [H, D, D].
    """
    heads, width = state.shape[0], state.shape[-1]
    raw = torch.cat([before, given.raw]).double()
    count = given.raw.shape[0]
    mixed = silu(sum(raw[tap : tap + count] * weights.taps[:, tap].double() for tap in range(TAPS)))
    q, k, v = (part.reshape(count, heads, width) for part in mixed.chunk(3, -1))
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    strength = weights.a_log.double().exp().view(1, heads, 1)
    shifted = (given.decay.double() + weights.dt_bias.double()).view(count, heads, width)
    kept = (weights.lower_bound * torch.sigmoid(strength * shifted)).exp()
    beta = given.beta.double().sigmoid()
    state, out = state.double(), []
    for row in range(count):
        state = state * kept[row].unsqueeze(-1)
        known = (k[row].unsqueeze(1) @ state).squeeze(1)
        state = state + k[row].unsqueeze(-1) * (beta[row].unsqueeze(-1) * (v[row] - known)).unsqueeze(1)
        out.append((q[row].unsqueeze(1) @ state).squeeze(1) * width**-0.5)
    o = torch.stack(out)
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + weights.eps) * weights.norm.double()
    return o.flatten(1) * given.gate.double().sigmoid(), state


def unallocated(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def shapes(
    rows: int, segments: int, recurrent_segments: int, width: int = 128, heads: int = 64
) -> tuple[Projected, Parameters, Cache, Rows, Tensor]:
    """What a launch takes, and its output, without memory: for compilers and for counting bytes."""
    columns = heads * width
    narrow, integer = torch.bfloat16, torch.int32
    given = Projected(
        unallocated(rows, 3 * columns, dtype=narrow),
        unallocated(rows, columns, dtype=narrow),
        unallocated(rows, columns, dtype=narrow),
        unallocated(rows, heads),
    )
    weights = Parameters(
        unallocated(3 * columns, TAPS),
        unallocated(heads),
        unallocated(columns),
        unallocated(width),
        lower_bound=-5.0,
        eps=1e-5,
    )
    kept = Cache(
        unallocated(8, 4, heads, width, width),
        unallocated(8, 7, 3 * columns, dtype=narrow),
        unallocated(8, dtype=integer),
    )
    step = Rows(
        unallocated(rows, dtype=torch.int64),
        *[unallocated(size, dtype=integer) for size in (rows, rows, segments + 1)],
        unallocated(8, 4, dtype=integer),
        recurrent_segments,
    )
    return given, weights, kept, step, unallocated(rows, columns, dtype=narrow)
