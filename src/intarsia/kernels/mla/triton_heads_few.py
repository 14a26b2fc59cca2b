# mypy: ignore-errors
"""Products of up to 16 rows with the key and value rows of each head, weights ready before the rows.

A program's weights are in registers, as operands, before it waits for what they multiply. As in
`triton_heads` an element is one chain of additions in order of K, so bits are the same.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from intarsia.kernels.mla.triton_attend import joined
from intarsia.kernels.mla.triton_heads import product, weights

NT = tl.constexpr(16)


@triton.jit(do_not_specialize=["rows"])
def absorb_few(
    q,
    kv_b,
    out,
    rows,
    q_stride,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    L: tl.constexpr,
    LB: tl.constexpr,
    WIDE: tl.constexpr,
    OVERLAP: tl.constexpr,
    SETTLED: tl.constexpr,
):
    """As `absorb_rows`, of BF16 weights. The grid is [L / LB, H]."""
    head = tl.program_id(1)
    first = tl.program_id(0) * LB
    row = tl.arange(0, NT).to(tl.int64)
    k = tl.arange(0, K)
    w = weights(kv_b, None, head.to(tl.int64) * (K + V) + k, first, L, K, LB)
    if OVERLAP and not SETTLED:
        gdc_wait()
        gdc_launch_dependents()
    x = tl.load(q + tl.minimum(row, rows - 1)[:, None] * q_stride + head * K + k[None, :])
    total = product(x, w, tl.zeros([NT, LB], tl.float32), WIDE)
    at = (row[:, None] * H + head) * L + first + tl.arange(0, LB)[None, :]
    if OVERLAP and SETTLED:
        gdc_wait()
        gdc_launch_dependents()
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(row < rows)[:, None])


@triton.jit(do_not_specialize=["rows"])
def expand_few(
    latents,
    stats,
    starts,
    kv_b,
    out,
    rows,
    end_at,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    L: tl.constexpr,
    VB: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """As `expand_rows`, of BF16 weights. The grid is [V / VB, H]. Where there are SPLITS, latents are the
    parts of as many ranges for each of ROWS rows, and those from starts[end_at] on are zeros.
    """
    head = tl.program_id(1)
    v = tl.program_id(0) * VB + tl.arange(0, VB)
    row = tl.arange(0, NT).to(tl.int64)
    c = tl.arange(0, L)
    w = weights(kv_b, None, head.to(tl.int64) * (K + V) + K + v, 0, L, VB, L)
    if SPLITS > 0:
        end = tl.load(starts + end_at)
    if OVERLAP:
        gdc_wait()
    if SPLITS > 0:
        x = tl.zeros([NT, L], tl.float32)
        for one in tl.static_range(ROWS):
            if one < end:
                whole = joined(latents, stats, one * H + head, c, L, SPLITS)
                x = tl.where((row == one)[:, None], whole[None, :], x)
        x = x.to(out.dtype.element_ty)
    else:
        x = tl.load(latents + (tl.minimum(row, rows - 1)[:, None] * H + head) * L + c[None, :])
    total = product(x, tl.trans(w), tl.zeros([NT, VB], tl.float32), WIDE)
    at = (row[:, None] * H + head) * V + v[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(row < rows)[:, None])
