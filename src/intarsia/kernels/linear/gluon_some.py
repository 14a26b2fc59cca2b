# mypy: ignore-errors
# ruff: noqa: RUF005
"""x W^T for up to 64 rows of x in one launch: wgmma, with x put in the order of products on its way.

The sums are those of `gluon_few`, in its order. A program takes BN rows of one weight, all rows of x, and
either all ranges one after another or, where short matrices leave the GPU idle (APART), one of them. Then the
program of a tile that is over last adds the ranges, in order, so that it does not matter which one it is.

A step is 128 columns in two halves. x comes from memory through registers, a step ahead of the buffer that it
is written to, which is a step ahead of the product; while one half multiplies, the next is decoded.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from intarsia.kernels.codes import BLOCK, PLAIN
from intarsia.kernels.linear.fragments import swiglu, weight_layout
from intarsia.kernels.linear.gluon_ahead import ask
from intarsia.kernels.linear.gluon_many import store_tile
from intarsia.kernels.linear.gluon_steps import COLUMNS, half_operand, load_half
from intarsia.kernels.linear.gluon_tiles import pointers, sums_layout


@gluon.constexpr_function
def rows_layout(NT, WARPS, FORMAT, TURNED):
    """[NT, 128]: eight neighbouring columns a thread.

    Neighbouring lanes take neighbouring columns, so that loads are whole lines, or, when TURNED, a thread
    takes those of all four lanes of a product, which are neighbours in the order of products.
    """
    registers = [[0, 1], [0, 2], [0, 4]]
    rows = [[1 << i, 0] for i in range(NT.bit_length() - 1)]
    if TURNED:
        registers += [[0, 8], [0, 16]] if FORMAT == 0 else [[0, 16], [0, 32]]
        lanes = [[0, 32] if FORMAT == 0 else [0, 8], *rows[:3], [0, 64]]
        rest = rows[3:]
    else:
        lanes = [[0, 8], [0, 16], [0, 32], *rows[:2]]
        rest = [*rows[2:], [0, 64]]
    many = WARPS.bit_length() - 1
    warps = (rest + [[0, 0]] * many)[:many]
    return gl.DistributedLinearLayout(registers + rest[many:], lanes, warps, [], [NT, 128])


@gluon.jit
def in_order(x, FORMAT: gl.constexpr):
    """x [NT, 128] in the order of products, see `fragments`."""
    NT: gl.constexpr = x.type.shape[0]
    if FORMAT == PLAIN:
        x = gl.permute(gl.reshape(x, [NT, 4, 4, 2, 2, 2]), [0, 1, 3, 4, 2, 5])
    else:
        x = gl.permute(gl.reshape(x, [NT, 2, 4, 4, 2, 2]), [0, 1, 3, 5, 2, 4])
    return gl.reshape(x, [NT, 128])


@gluon.jit
def deliver(buffer, x, FORMAT: gl.constexpr):
    """x into a buffer, for the next barrier to show to wgmma."""
    buffer.store(in_order(x, FORMAT))
    fence_async_shared()


@gluon.jit
def one_step(
    acc,
    ring,
    held,
    buffers,
    xp,
    wp,
    sp,
    step,
    STAGE: gl.constexpr,
    LAST: gl.constexpr,
    FORMAT: gl.constexpr,
    GROUPS: gl.constexpr,
    WARPS: gl.constexpr,
    LEAD: gl.constexpr,
    LW: gl.constexpr,
    A: gl.constexpr,
):
    """128 columns more; of a block its product, and then that times its scale."""
    STAGES: gl.constexpr = len(buffers)
    factor = ring[1]
    product = acc
    if FORMAT == BLOCK:
        product = gl.full(acc.type.shape, 0.0, gl.float32, acc.type.layout)
    for half in gl.static_range(2):
        a = half_operand(ring[0], factor if FORMAT == BLOCK else ring[1], FORMAT, GROUPS, WARPS, LW, A)
        if half == 0:
            # What was written to this step's buffer is there, and nobody reads that of the step before the
            # last any more.
            if STAGES == 2 and FORMAT != BLOCK:
                product = warpgroup_mma_wait(0, [product])
            gl.thread_barrier()
        b = buffers[STAGE].slice(half * 64, 64, 1).permute([1, 0])
        if FORMAT == BLOCK:
            product = warpgroup_mma(a, b, product, use_acc=half > 0, is_async=True)
        else:
            product = warpgroup_mma(a, b, product, is_async=True)
            product = warpgroup_mma_wait(1, [product])
        if half == 0:
            deliver(buffers[(STAGE + 1) % STAGES], held[0], FORMAT)
            at = gl.minimum(step + 1 + len(held), LAST)
            held = held[1:] + (gl.load(xp + at * COLUMNS),)
        at = gl.minimum(step + (half + LEAD) // 2, LAST)
        ring = ring[2:] + load_half(wp, sp, at, (half + LEAD) % 2, FORMAT)
    if FORMAT == BLOCK:
        product = warpgroup_mma_wait(0, [product])
        product = gl.fma(product, factor, acc)
    return product, ring, held


@gluon.jit
def tile_sums(
    x,
    weight,
    scale,
    tile,
    n,
    begin,
    x_stride,
    rows,
    K: gl.constexpr,
    FORMAT: gl.constexpr,
    RUNS: gl.constexpr,
    STEPS: gl.constexpr,
    WARPS: gl.constexpr,
    BN: gl.constexpr,
    NT: gl.constexpr,
    STAGES: gl.constexpr,
    LEAD: gl.constexpr,
    HELD: gl.constexpr,
    TURNED: gl.constexpr,
    GATED: gl.constexpr,
    EVEN: gl.constexpr,
):
    """[BN, NT]: RUNS ranges of STEPS steps each, from column `begin` on, added in order."""
    GROUPS: gl.constexpr = BN // (8 * WARPS)
    LAST: gl.constexpr = RUNS * STEPS - 1
    CHUNKS: gl.constexpr = 2 if FORMAT == PLAIN else 1
    LW: gl.constexpr = weight_layout(1, GROUPS, WARPS, CHUNKS, 2 if FORMAT == PLAIN else 4)
    LX: gl.constexpr = rows_layout(NT, WARPS, FORMAT, TURNED)
    SUMS: gl.constexpr = sums_layout(NT, WARPS)
    A: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    gl.static_assert(RUNS == 1 or STEPS % STAGES == 0, "the buffers must divide a range")
    wp, sp = pointers(weight, scale, tile, n, begin, K, FORMAT, BN, WARPS, GATED, EVEN, LW, SUMS)
    ring = ()
    for j in gl.static_range(LEAD):
        ring = ring + load_half(wp, sp, min(j // 2, LAST), j % 2, FORMAT)
    buffers = ()
    for _ in gl.static_range(STAGES):
        buffers = buffers + (
            gl.allocate_shared_memory(gl.bfloat16, [NT, COLUMNS], gl.NVMMASharedLayout(128, 16, 2)),
        )
    # Weights are on their way; only now what the kernel before has written is needed.
    gdc_wait()
    row = gl.minimum(gl.arange(0, NT, layout=gl.SliceLayout(1, LX)), rows - 1)
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, LX))
    xp = x + begin + (gl.expand_dims(row * x_stride, 1) + gl.expand_dims(column, 0))
    held = ()
    for j in gl.static_range(HELD + 1):
        held = held + (gl.load(xp + min(j, LAST) * COLUMNS),)
    deliver(buffers[0], held[0], FORMAT)
    held = held[1:]
    none = gl.full([BN, NT], 0.0, gl.float32, SUMS)
    total = none
    for run in range(RUNS):
        acc = none
        for i in range(STEPS // STAGES):
            for j in gl.static_range(STAGES):
                step = (run * (STEPS // STAGES) + i) * STAGES + j
                acc, ring, held = one_step(
                    acc, ring, held, buffers, xp, wp, sp, step, j, LAST, FORMAT, GROUPS, WARPS, LEAD, LW, A
                )
        for j in gl.static_range(STEPS % STAGES):
            acc, ring, held = one_step(
                acc, ring, held, buffers, xp, wp, sp, STEPS - STEPS % STAGES + j, j, LAST, FORMAT, GROUPS,
                WARPS, LEAD, LW, A,
            )  # fmt: skip
        if FORMAT != BLOCK:
            acc = warpgroup_mma_wait(0, [acc])
        if RUNS == 1:
            total = acc
        else:
            total = total + acc
    return total


@gluon.jit
def sum_of_ranges(y, parts, count, RANGES: gl.constexpr):
    """Whether this program is the last of its tile's, and then the ranges added in order."""
    BN: gl.constexpr = y.type.shape[0]
    NT: gl.constexpr = y.type.shape[1]
    LY: gl.constexpr = y.type.layout
    place = gl.expand_dims(gl.arange(0, BN, layout=gl.SliceLayout(1, LY)), 1) * NT
    place = place + gl.expand_dims(gl.arange(0, NT, layout=gl.SliceLayout(0, LY)), 0)
    gl.store(parts + gl.program_id(1) * (BN * NT) + place, y)
    gl.thread_barrier()
    there = gl.atomic_add(count, 1, sem="acq_rel", scope="gpu")
    last = there == RANGES - 1
    if last:
        gl.store(count, 0)
        y = gl.load(parts + place, cache_modifier=".cg")
        for i in gl.static_range(1, RANGES):
            y = y + gl.load(parts + i * (BN * NT) + place, cache_modifier=".cg")
    return last, y


@gluon.jit
def write(
    y,
    outs,
    strides,
    program,
    tile,
    real,
    rows,
    LIMIT: gl.constexpr,
    NS: gl.constexpr,
    FIRST: gl.constexpr,
    GATED: gl.constexpr,
    EVEN: gl.constexpr,
    WARPS: gl.constexpr,
):
    """y [BN, NT], or the SwiGLU of its halves when GATED, into the program's output; zeros from `real` on."""
    BN: gl.constexpr = y.type.shape[0]
    NT: gl.constexpr = y.type.shape[1]
    COUNT: gl.constexpr = len(outs)
    HALVES: gl.constexpr = 2 if GATED else 1
    row = gl.expand_dims(gl.arange(0, NT, layout=gl.SliceLayout(0, y.type.layout)), 0)
    y = gl.where(row < real, y, 0.0)
    if GATED:
        y = gl.permute(gl.reshape(y, [BN // 16, 2, 8, NT]), [0, 2, 3, 1])
        gate, up = gl.split(gl.reshape(y, [BN // 2, NT, 2]))
        y = swiglu(gate, up, LIMIT)
    first = tile * (BN // HALVES)
    for i in gl.static_range(COUNT):
        if COUNT == 1:
            store_tile(outs[0], strides[0], y, first, NS[0] // HALVES, 0, rows, EVEN, WARPS)
        elif (program >= FIRST[i]) & (program < FIRST[i + 1]):
            store_tile(outs[i], strides[i], y, first, NS[i] // HALVES, 0, rows, EVEN, WARPS)


@gluon.jit(do_not_specialize=["rows", "ahead_part"])
def some_rows(
    xs,
    weights,
    scales,
    outs,
    strides,
    parts,
    counts,
    used,
    rows,
    x_stride,
    ahead,
    ahead_part,
    LIMIT: gl.constexpr,
    NS: gl.constexpr,
    FIRST: gl.constexpr,
    K: gl.constexpr,
    FORMAT: gl.constexpr,
    RANGES: gl.constexpr,
    APART: gl.constexpr,
    WARPS: gl.constexpr,
    BN: gl.constexpr,
    NT: gl.constexpr,
    STAGES: gl.constexpr,
    LEAD: gl.constexpr,
    HELD: gl.constexpr,
    TURNED: gl.constexpr,
    GATED: gl.constexpr,
    EVEN: gl.constexpr,
    EACH: gl.constexpr,
):
    """As `few_rows`, of x [rows, K] in bfloat16, for rows up to NT.

    APART: the programs of the last dimension are ranges, `parts` float32 [FIRST[-1], RANGES, BN, NT] has room
    for their sums, and `counts` int32 [FIRST[-1]] are zeros, which they are again afterwards.
    """
    COUNT: gl.constexpr = len(weights)
    program = gl.program_id(0)
    begin = gl.program_id(1) * (K // RANGES)
    x, weight, scale, tile, n = xs[0], weights[0], scales[0], program, NS[0]
    for i in gl.static_range(1, COUNT):
        later = program >= FIRST[i]
        if len(xs) > 1:
            x = gl.where(later, xs[i], x)
        weight = gl.where(later, weights[i], weight)
        scale = gl.where(later, scales[i], scale)
        tile = gl.where(later, program - FIRST[i], tile)
        n = gl.where(later, NS[i], n)
    y = tile_sums(
        x, weight, scale, tile, n, begin, x_stride, rows, K, FORMAT, 1 if APART else RANGES,
        K // RANGES // COLUMNS, WARPS, BN, NT, STAGES, LEAD, HELD, TURNED, GATED, EVEN,
    )  # fmt: skip
    gdc_launch_dependents()
    if ahead is not None:
        of_all = program * RANGES + gl.program_id(1) if APART else program
        ask(ahead, ahead_part, of_all, EACH, WARPS)
    real = rows
    if used is not None:
        real = gl.minimum(gl.load(used), rows)
    if APART:
        last, y = sum_of_ranges(
            y, parts + program.to(gl.int64) * (RANGES * BN * NT), counts + program, RANGES
        )
        if last:
            write(y, outs, strides, program, tile, real, rows, LIMIT, NS, FIRST, GATED, EVEN, WARPS)
    else:
        write(y, outs, strides, program, tile, real, rows, LIMIT, NS, FIRST, GATED, EVEN, WARPS)
