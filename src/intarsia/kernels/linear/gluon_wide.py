# mypy: ignore-errors
"""x W^T with wide tiles of x: two warpgroups that multiply by turns.

The sums are those of `gluon_many`, in its order. A program takes 128 rows of one weight, each warpgroup 64
of them, and NT rows of x. A warp that has issued products from registers stands until most of them are done,
so a warpgroup decodes beside the products of the other, not beside its own. Nothing binds the two but the
buffers of x, which the first of them fills: a buffer has a barrier for its bytes and one for those past it.

Where K is cut, a quarter of the total of ranges stays in registers beside the sums, and the rest lies in
shared memory (SHARED), or all of it stays.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_wait

from intarsia.kernels.codes import BLOCK, PLAIN
from intarsia.kernels.linear.fragments import swiglu, weight_layout
from intarsia.kernels.linear.gluon_many import store_layout, turned_layout
from intarsia.kernels.linear.gluon_steps import COLUMNS, half_operand, load_half
from intarsia.kernels.linear.gluon_tiles import pointers, sums_layout

HALF = gl.constexpr(64)  # of a warpgroup
UNIT = gl.constexpr(64)  # columns of a buffer of x


@gluon.jit
def fetch(xd, row, buffers, full, at, stage, UNITS: gl.constexpr, NT: gl.constexpr):
    """Unit `at` of x into buffer `stage`, where there is such a unit."""
    more = at < UNITS
    mbarrier.expect(full.index(stage), NT * UNIT * 2, pred=more)
    tma.async_copy_global_to_shared(xd, [row, at * UNIT], full.index(stage), buffers.index(stage), pred=more)


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
def one_step(
    total,
    acc,
    factor,
    ring,
    xd,
    row,
    buffers,
    full,
    empty,
    wp,
    sp,
    nothing,
    step,
    stage,
    phase,
    LAST: gl.constexpr,
    NT: gl.constexpr,
    STAGES: gl.constexpr,
    FORMAT: gl.constexpr,
    LEAD: gl.constexpr,
    LW: gl.constexpr,
    A: gl.constexpr,
    FETCHES: gl.constexpr,
):
    """128 columns more, of which the last products are on their way.

    Of blocks `acc` is the product of one block, of which the scale `factor` is added to `total` when the next
    begins.
    """
    for unit in gl.static_range(2):
        words = ring[0] | nothing if FORMAT == PLAIN else ring[0]
        operand = half_operand(words, ring[1], FORMAT, 2, 4, LW, A)
        at = step * 2 + unit
        before = gl.where(stage == 0, STAGES - 1, stage - 1)
        b = buffers.index(stage).permute([1, 0])
        if FORMAT == BLOCK and unit == 0:
            acc = warpgroup_mma_wait(0, [acc])
            mbarrier.arrive(empty.index(before), count=1, pred=at > 0)
            total = gl.fma(acc, factor, total)
            factor = ring[1]
            mbarrier.wait(full.index(stage), phase)
            acc = warpgroup_mma(operand, b, acc, use_acc=False, is_async=True)
        else:
            mbarrier.wait(full.index(stage), phase)
            acc = warpgroup_mma(operand, b, acc, is_async=True)
            acc = warpgroup_mma_wait(1, [acc])
            mbarrier.arrive(empty.index(before), count=1, pred=at > 0)
        later = gl.minimum(step + (unit + LEAD) // 2, LAST)
        ring = ring[2:] + load_half(wp, sp, later, (unit + LEAD) % 2, FORMAT)
        if FETCHES:
            mbarrier.wait(empty.index(before), gl.where(stage == 0, phase ^ 1, phase), pred=at > 0)
            fetch(xd, row, buffers, full, at + STAGES - 1, before, 2 * LAST + 2, NT)
        stage += 1
        phase = gl.where(stage == STAGES, phase ^ 1, phase)
        stage = gl.where(stage == STAGES, 0, stage)
    return total, acc, factor, ring, stage, phase


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


@gluon.jit
def store_half(
    out,
    stride,
    y,
    first,
    n,
    row,
    rows,
    kept,
    EVEN: gl.constexpr,
    SHARED: gl.constexpr,
    WIDTH: gl.constexpr,
):
    """y [rows of the weight, NT] as rows of the output, turned in shared memory: in two parts where half of a
    total is not room enough.
    """
    SIZE: gl.constexpr = y.type.shape[0]
    NT: gl.constexpr = y.type.shape[1]
    if SHARED and SIZE * WIDTH > 128:
        low, high = gl.split(gl.permute(gl.reshape(y, [SIZE, 2, NT // 2]), [0, 2, 1]))
        store_part(out, stride, low, first, n, row, rows, kept, EVEN)
        store_part(out, stride, high, first, n, row + NT // 2, rows, kept, EVEN)
    else:
        store_part(out, stride, y, first, n, row, rows, kept, EVEN)


@gluon.jit
def store_part(out, stride, y, first, n, row, rows, kept, EVEN: gl.constexpr):
    SIZE: gl.constexpr = y.type.shape[0]
    NT: gl.constexpr = y.type.shape[1]
    LY: gl.constexpr = store_layout(SIZE, NT, 4)
    turned = kept._reinterpret(out.dtype.element_ty, [NT, SIZE], turned_layout(out.dtype.element_ty, SIZE))
    turned.permute([1, 0]).store(y.to(out.dtype.element_ty))
    y = turned.load(LY)
    column = gl.expand_dims(first + gl.arange(0, SIZE, layout=gl.SliceLayout(0, LY)), 0)
    r = gl.expand_dims(row + gl.arange(0, NT, layout=gl.SliceLayout(1, LY)), 1)
    inside = r < rows
    if not EVEN:
        inside = inside & (column < n)
    gl.store(out + (r.to(gl.int64) * stride + column), y, mask=inside)


@gluon.jit
def multiply(
    xd,
    weight,
    scale,
    program,
    tile,
    n,
    outs,
    strides,
    row,
    rows,
    buffers,
    full,
    empty,
    kept,
    more,
    LIMIT: gl.constexpr,
    NS: gl.constexpr,
    FIRST: gl.constexpr,
    K: gl.constexpr,
    FORMAT: gl.constexpr,
    RANGES: gl.constexpr,
    NT: gl.constexpr,
    STAGES: gl.constexpr,
    LEAD: gl.constexpr,
    GATED: gl.constexpr,
    EVEN: gl.constexpr,
    SHARED: gl.constexpr,
    WIDTH: gl.constexpr,
    WHICH: gl.constexpr,
):
    """What a warpgroup does: tile number 2 `tile` + WHICH, and its part of the outputs."""
    COUNT: gl.constexpr = len(outs)
    half = tile * 2 + WHICH
    y = half_tile(
        xd, weight, scale, half, n, row, rows, buffers, full, empty, kept, more, K, FORMAT, RANGES, NT,
        STAGES, LEAD, GATED, EVEN, SHARED, WHICH == 0,
    )  # fmt: skip
    if GATED:
        y = gl.permute(gl.reshape(y, [HALF // 16, 2, 8, NT]), [0, 2, 3, 1])
        gate, up = gl.split(gl.reshape(y, [HALF // 2, NT, 2]))
        store_half(
            outs[0],
            strides[0],
            swiglu(gate, up, LIMIT),
            half * (HALF // 2),
            n // 2,
            row,
            rows,
            kept,
            EVEN,
            SHARED,
            WIDTH,
        )
    elif COUNT == 1:
        store_half(outs[0], strides[0], y, half * HALF, n, row, rows, kept, EVEN, SHARED, WIDTH)
    else:
        for i in gl.static_range(COUNT):
            if (program >= FIRST[i]) & (program < FIRST[i + 1]):
                store_half(outs[i], strides[i], y, half * HALF, NS[i], row, rows, kept, EVEN, SHARED, WIDTH)


@gluon.jit(do_not_specialize=["rows"])
def wide_rows(
    xd,
    weights,
    scales,
    outs,
    strides,
    rows,
    LIMIT: gl.constexpr,
    NS: gl.constexpr,
    FIRST: gl.constexpr,
    K: gl.constexpr,
    FORMAT: gl.constexpr,
    RANGES: gl.constexpr,
    NT: gl.constexpr,
    STAGES: gl.constexpr,
    LEAD: gl.constexpr,
    GROUP: gl.constexpr,
    GATED: gl.constexpr,
    EVEN: gl.constexpr,
    SHARED: gl.constexpr,
    WIDTH: gl.constexpr,
    REGISTERS: gl.constexpr,
):
    """As `many_rows`, of whole ranges: x [rows, K] as `arrange_rows` leaves it, described by `xd`.

    LEAD halves of steps of weights are on their way, and the widest output
    has WIDTH bytes a number. Rows that `arrange_rows` made zeros give zeros.
    """
    COUNT: gl.constexpr = len(weights)
    TILES: gl.constexpr = FIRST[COUNT]
    # GROUP tiles of rows go through all weights before the next ones: what runs at once shares what it reads.
    every = gl.cdiv(rows, NT)
    group = gl.program_id(0) // (GROUP * TILES)
    wide = gl.minimum(every - group * GROUP, GROUP)
    within = gl.program_id(0) - group * (GROUP * TILES)
    program = within // wide
    row = (group * GROUP + within - program * wide) * NT
    weight, scale, tile, n = weights[0], scales[0], program, NS[0]
    for i in gl.static_range(1, COUNT):
        later = program >= FIRST[i]
        weight = gl.where(later, weights[i], weight)
        scale = gl.where(later, scales[i], scale)
        tile = gl.where(later, program - FIRST[i], tile)
        n = gl.where(later, NS[i], n)
    buffers = gl.allocate_shared_memory(gl.bfloat16, [STAGES, NT, UNIT], xd.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for j in gl.static_range(STAGES):
        mbarrier.init(full.index(j), count=1)
        mbarrier.init(empty.index(j), count=2)
    # The total of ranges of each warpgroup, or its part of the output, which take turns.
    PART: gl.constexpr = NT // 16 if SHARED else NT // 8 * WIDTH // 4
    LINEAR: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    first = gl.allocate_shared_memory(gl.float32, [PART, 128, 4], LINEAR)
    second = gl.allocate_shared_memory(gl.float32, [PART, 128, 4], LINEAR)
    more, others = first, second
    if SHARED:
        more = gl.allocate_shared_memory(gl.float32, [NT // 32, 128, 4], LINEAR)
        others = gl.allocate_shared_memory(gl.float32, [NT // 32, 128, 4], LINEAR)
    gl.warp_specialize(
        [
            (
                multiply,
                (
                    xd, weight, scale, program, tile, n, outs, strides, row, rows, buffers, full, empty,
                    first, more, LIMIT, NS, FIRST, K, FORMAT, RANGES, NT, STAGES, LEAD,
                    GATED, EVEN, SHARED, WIDTH, 0,
                ),
            ),
            (
                multiply,
                (
                    xd, weight, scale, program, tile, n, outs, strides, row, rows, buffers, full, empty,
                    second, others, LIMIT, NS, FIRST, K, FORMAT, RANGES, NT, STAGES, LEAD,
                    GATED, EVEN, SHARED, WIDTH, 1,
                ),
            ),
        ],
        [4],
        [REGISTERS],
    )  # fmt: skip
    for j in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(j))
        mbarrier.invalidate(empty.index(j))
