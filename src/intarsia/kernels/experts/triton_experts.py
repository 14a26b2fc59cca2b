# mypy: ignore-errors
# ruff: noqa: RUF005 (Triton knows no other way to write these)
"""Routed experts from the stored stack: rows grouped by expert on the device, two products, a weighted sum.

A *pair* is one of a row's choices, number row * top + choice. Pairs are sorted by expert and cut into
blocks of at most NT pairs of one expert; a program takes BN rows of an expert's weight for one block at a
time. Which pairs share a block changes no bits: every pair is a column of its own in the products, and
results go to places of their own until `combine` adds them in the order of the row's choice.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from intarsia.kernels.codes import MXFP8, NVFP4, PLAIN, halves, multiply, mxfp8_tiles, nvfp4_tiles


@triton.jit(do_not_specialize=["pairs"])
def group_pairs(
    experts,
    order,
    block_expert,
    block_start,
    block_count,
    blocks,
    pairs,
    NT: tl.constexpr,
    BINS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program an expert: its pairs into `order`, its blocks into the three lists, their number into
    `blocks`.

    Pairs of expert -1 belong to no row and are left out. BINS: a power of two above the number of experts.
    """
    expert = tl.program_id(0)
    bins = tl.arange(0, BINS)
    counts = tl.zeros([BINS], tl.int32)
    at = 0
    while at < pairs:
        pair = at + tl.arange(0, CHUNK)
        chosen = tl.load(experts + pair, mask=pair < pairs, other=-1)
        counts += tl.histogram(tl.where(chosen < 0, BINS - 1, chosen), BINS)
        at += CHUNK
    full = (counts + NT - 1) // NT
    start = tl.sum(tl.where(bins < expert, counts, 0), 0)
    first = tl.sum(tl.where(bins < expert, full, 0), 0)
    own = tl.sum(tl.where(bins == expert, counts, 0), 0)
    if expert == tl.num_programs(0) - 1:
        tl.store(blocks, first + (own + NT - 1) // NT)
    block = 0
    while block * NT < own:
        tl.store(block_expert + first + block, expert)
        tl.store(block_start + first + block, start + block * NT)
        tl.store(block_count + first + block, tl.minimum(own - block * NT, NT))
        block += 1
    at = 0
    if own == 0:
        at = pairs
    while at < pairs:
        pair = at + tl.arange(0, CHUNK)
        mine = tl.load(experts + pair, mask=pair < pairs, other=-1) == expert
        rank = tl.cumsum(mine.to(tl.int32), 0)
        tl.store(order + start + rank - 1, pair, mask=mine)
        start += tl.sum(mine.to(tl.int32), 0)
        at += CHUNK


@triton.jit
def expert_rows(
    x,
    weight,
    scale,
    scale_2,
    order,
    block_expert,
    block_start,
    block_count,
    blocks,
    out,
    N,
    limit,
    K: tl.constexpr,
    GATED: tl.constexpr,
    TOP: tl.constexpr,
    FORMAT: tl.constexpr,
    PARTS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    NT: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """GATED: out [pairs, N / 2] = SwiGLU of x [rows, K] through gate and up rows. Else out [pairs, N] from x
    [pairs, K].

    PARTS: global scales of an expert, each for equally many rows of its weight.
    """
    # Gate and up rows alternate in groups of eight, which puts a pair of them into one lane.
    j = tl.arange(0, BN)
    if GATED:
        inner = tl.minimum(tl.program_id(0) * (BN // 2) + (j // 16) * 8 + j % 8, N // 2 - 1)
        row = ((j // 8) % 2) * (N // 2) + inner
    else:
        row = tl.minimum(tl.program_id(0) * BN + j, N - 1)
    EACH: tl.constexpr = 1 if FORMAT == PLAIN else (2 if FORMAT == MXFP8 else 4)
    word = tl.arange(0, BK // EACH)
    GROUP: tl.constexpr = 32 if FORMAT == MXFP8 else 16
    group = tl.arange(0, BK // GROUP)
    k = tl.arange(0, BK)
    column = tl.arange(0, NT)
    count_of_blocks = tl.load(blocks)
    block = tl.program_id(1)
    while block < count_of_blocks:
        expert = tl.load(block_expert + block).to(tl.int64)
        start = tl.load(block_start + block)
        count = tl.load(block_count + block)
        pair = tl.load(order + start + tl.minimum(column, count - 1))
        source = pair // TOP if GATED else pair
        weight_at = weight + (expert * N + row.to(tl.int64))[:, None] * (K // EACH) + word[None, :]
        scale_at = scale + (expert * N + row.to(tl.int64))[:, None] * (K // GROUP) + group[None, :]
        x_at = x + source.to(tl.int64)[:, None] * K + k[None, :]
        total = tl.zeros([BN, NT], tl.float32)
        for step in tl.range(0, K // BK, num_stages=STAGES):
            w = tl.load(weight_at + step * (BK // EACH))
            xt = tl.load(x_at + step * BK)
            if FORMAT == NVFP4:
                s = tl.load(scale_at + step * (BK // GROUP))
                w0, w1, w2, w3 = nvfp4_tiles(w, s, BN, BK, WIDE)
                even, odd = halves(xt, NT, BK)
                x0, x2 = halves(even, NT, BK // 2)
                x1, x3 = halves(odd, NT, BK // 2)
                total = multiply(w0, x0, total, WIDE)
                total = multiply(w1, x1, total, WIDE)
                total = multiply(w2, x2, total, WIDE)
                total = multiply(w3, x3, total, WIDE)
            elif FORMAT == MXFP8:
                s = tl.load(scale_at + step * (BK // GROUP))
                w0, w1 = mxfp8_tiles(w, s, BN, BK, WIDE)
                x0, x1 = halves(xt, NT, BK)
                total = multiply(w0, x0, total, WIDE)
                total = multiply(w1, x1, total, WIDE)
            else:
                total = multiply(w, xt, total, WIDE)
        if FORMAT == NVFP4:
            own = tl.load(scale_2 + expert * PARTS + row // (N // PARTS))
            if not WIDE:
                own *= 512.0
            total *= own[:, None]
        target = pair.to(tl.int64)[None, :]
        stored = (column < count)[None, :]
        if GATED:
            both = total.reshape(BN // 16, 2, 8, NT).permute(0, 2, 3, 1)
            gate, up = tl.split(both)
            gate = tl.minimum(gate, limit)
            up = tl.minimum(tl.maximum(up, -limit), limit)
            y = (gate / (1 + tl.exp(-gate)) * up).reshape(BN // 2, NT)
            n = tl.program_id(0) * (BN // 2) + tl.arange(0, BN // 2)
            at = out + target * (N // 2) + n[:, None]
            tl.store(at, y.to(out.dtype.element_ty), mask=stored & (n < N // 2)[:, None])
        else:
            n = tl.program_id(0) * BN + j
            tl.store(out + target * N + n[:, None], total, mask=stored & (n < N)[:, None])
        block += tl.num_programs(1)


@triton.jit
def combine(
    parts,
    experts,
    weights,
    plus,
    out,
    D,
    TOP: tl.constexpr,
    PLUS: tl.constexpr,
    SIZE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """out [rows, D] = the sum over a row's choices of weight * part, in order, zero for rows without choices,
    and `plus` [rows, D] at last where PLUS. OVERLAP: launched before the kernel before it has ended, which
    made `parts`; all else is older.
    """
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    added = tl.zeros([SIZE], tl.float32)
    if PLUS:
        added = tl.load(plus + row * D + d, mask=d < D, other=0)
    chosen = ()
    factors = ()
    for choice in tl.static_range(TOP):
        chosen = chosen + (tl.load(experts + row * TOP + choice),)
        factors = factors + (tl.load(weights + row * TOP + choice),)
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    # Parts of pairs without an expert are anything; they are read all the same, so that no load waits.
    read = ()
    for choice in tl.static_range(TOP):
        read = read + (tl.load(parts + (row * TOP + choice) * D + d, mask=d < D, other=0),)
    total = tl.zeros([SIZE], tl.float32)
    for choice in tl.static_range(TOP):
        real = chosen[choice] >= 0
        total += tl.where(real, factors[choice], 0.0) * tl.where(real, read[choice], 0.0)
    if PLUS:
        total += added
    tl.store(out + row * D + d, total, mask=d < D)


@triton.jit
def swiglu_rows(gate_up, out, limit, N: tl.constexpr, SIZE: tl.constexpr):
    """out [rows, N] = SwiGLU of gate_up [rows, 2 N], gate columns first; float32 inside, rounded once."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    real = n < N
    gate = tl.load(gate_up + row * (2 * N) + n, mask=real, other=0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * N) + N + n, mask=real, other=0).to(tl.float32)
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    tl.store(out + row * N + n, (gate / (1 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=real)
