# mypy: ignore-errors
"""A warpgroup's half of a tile of `gluon_wide`: its pointers, and the ranges of K one after another.

Where K is cut, a quarter of the total of ranges stays in registers beside the sums, and the rest lies in
shared memory (SHARED), or all of it stays: the sums of a range alone take half of a thread's registers where
x is widest.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait
from triton.language.extra.cuda import gdc_wait

from intarsia.kernels.codes import BLOCK, PLAIN
from intarsia.kernels.linear.fragments import weight_layout
from intarsia.kernels.linear.gluon_steps import COLUMNS, load_half
from intarsia.kernels.linear.gluon_tiles import pointers, sums_layout
from intarsia.kernels.linear.gluon_wide_steps import UNIT, fetch, one_step

HALF = gl.constexpr(64)  # rows of the weight of a warpgroup


@gluon.jit
def quarters(sums):
    """Four parts [NT / 32, threads, 4] of sums [64, NT]: four numbers of a thread lie together in memory."""
    NT: gl.constexpr = sums.type.shape[1]
    y = gl.permute(gl.reshape(sums, [4, 2, 8, 2, 2, NT // 32, 4, 2]), [5, 0, 2, 6, 1, 7, 4, 3])
    low, high = gl.split(gl.reshape(y, [NT // 32, 128, 4, 2, 2]))
    first, second = gl.split(low)
    third, fourth = gl.split(high)
    return first, second, third, fourth


@gluon.jit
def from_quarters(first, second, third, fourth, LAYOUT: gl.constexpr):
    """The inverse of `quarters`."""
    NT: gl.constexpr = first.type.shape[0] * 32
    y = gl.join(gl.join(first, second), gl.join(third, fourth))
    y = gl.permute(gl.reshape(y, [NT // 32, 4, 8, 4, 2, 2, 2, 2]), [1, 4, 2, 7, 6, 0, 3, 5])
    return gl.convert_layout(gl.reshape(y, [64, NT]), LAYOUT, assert_trivial=True)


@gluon.jit
def half_tile(
    xd,
    weight,
    scale,
    tile,
    n,
    row,
    rows,
    buffers,
    full,
    empty,
    kept,
    more,
    K: gl.constexpr,
    FORMAT: gl.constexpr,
    RANGES: gl.constexpr,
    NT: gl.constexpr,
    STAGES: gl.constexpr,
    LEAD: gl.constexpr,
    GATED: gl.constexpr,
    EVEN: gl.constexpr,
    SHARED: gl.constexpr,
    FETCHES: gl.constexpr,
):
    """The sums [64, NT] of tile number `tile` of 64 rows: ranges one after another, added in order."""
    STEPS: gl.constexpr = K // COLUMNS // RANGES
    LAST: gl.constexpr = K // COLUMNS - 1
    LW: gl.constexpr = weight_layout(1, 2, 4, 2 if FORMAT == PLAIN else 1, 2 if FORMAT == PLAIN else 4)
    SUMS: gl.constexpr = sums_layout(NT, 4)
    A: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    wp, sp = pointers(weight, scale, tile, n, 0, K, FORMAT, HALF, 4, GATED, EVEN, LW, SUMS)
    ring = ()
    for j in gl.static_range(LEAD):
        ring = ring + load_half(wp, sp, min(j // 2, LAST), j % 2, FORMAT)
    # Weights are on their way; only now what the kernel before has written is needed.
    gdc_wait()
    if FETCHES:
        for j in gl.static_range(STAGES - 1):
            fetch(xd, row, buffers, full, j, j, K // UNIT, NT)
    # A zero that the compiler does not see: numbers that were loaded are not multiplied from where they were.
    nothing = rows >> 31
    none = gl.full([HALF, NT], 0.0, gl.float32, SUMS)
    total = none
    QUARTER: gl.constexpr = NT // 32
    if SHARED:
        mine, second, third, fourth = quarters(none)
    stage = 0
    phase = 0
    for run in range(RANGES):
        acc = none
        sums = none
        factor = ring[1]
        for i in range(STEPS):
            sums, acc, factor, ring, stage, phase = one_step(
                sums, acc, factor, ring, xd, row, buffers, full, empty, wp, sp, nothing,
                run * STEPS + i, stage, phase, LAST, NT, STAGES, FORMAT, LEAD, LW, A, FETCHES,
            )  # fmt: skip
        acc = warpgroup_mma_wait(0, [acc])
        if FORMAT == BLOCK:
            acc = gl.fma(acc, factor, sums)
        if RANGES == 1:
            total = acc
        elif SHARED:
            first, second, third, fourth = quarters(acc)
            mine = mine + first
            if run > 0:
                second = kept.slice(0, QUARTER, 0).load(mine.type.layout) + second
                third = kept.slice(QUARTER, QUARTER, 0).load(mine.type.layout) + third
                fourth = more.load(mine.type.layout) + fourth
            kept.slice(0, QUARTER, 0).store(second)
            kept.slice(QUARTER, QUARTER, 0).store(third)
            more.store(fourth)
        else:
            total = total + acc
    if SHARED:
        second = kept.slice(0, QUARTER, 0).load(mine.type.layout)
        third = kept.slice(QUARTER, QUARTER, 0).load(mine.type.layout)
        total = from_quarters(mine, second, third, more.load(mine.type.layout), SUMS)
    return total
