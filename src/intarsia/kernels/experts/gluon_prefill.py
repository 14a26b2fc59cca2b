# mypy: ignore-errors
# ruff: noqa: PIE808, RET505, RUF005, SIM116 (Gluon knows no other way to write these)
"""The product of experts in tiles with many rows of x each: weights in registers, x in shared memory.

One program takes QUARTERS * 64 rows of one expert's weight, one block of its pairs and all columns, with two
warp groups. Weights go from memory into registers and are decoded there, as in gluon_decode; tiles of x,
as many rows as the block needs, come by TMA, so its rows lie in the order of the blocks. A warp group's
product reads x in the true order of columns, so x is stored as [w w i i t t h] (see gluon_tiles). How many
pairs are multiplied at once touches no bits.

Decoding always runs beside a multiplication: each half step (64 columns) beside the half before it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from intarsia.kernels.experts.gluon_tiles import (
    UNSCALE,
    code_layout,
    code_offsets,
    decoded,
    load_words,
    rows_of,
    scale_offsets,
    scale_pairs,
    store_inner,
    store_parts,
    swiglu_of,
    without,
)

PLACES = gl.constexpr(64)


@gluon.jit
def halves(words, scale_words, QUARTERS: gl.constexpr):
    """A step's words and scales as those of its first and second 64 columns, the scales one a word."""
    even, odd, even_next, odd_next = scale_pairs(scale_words)
    SLICE: gl.constexpr = without(code_layout(QUARTERS, PLACES, 2), 4)
    words = gl.permute(gl.reshape(words, [QUARTERS, PLACES, 4, 2, 2]), [0, 1, 2, 4, 3])
    first, second = gl.split(words)
    first = gl.convert_layout(first, SLICE, assert_trivial=True)
    second = gl.convert_layout(second, SLICE, assert_trivial=True)
    return first, per_word(even, odd, QUARTERS), second, per_word(even_next, odd_next, QUARTERS)


@gluon.jit
def per_word(even, odd, QUARTERS: gl.constexpr):
    """Pairs of scales [QUARTERS / 2, PLACES, 4] of even and odd quarters, one for each of two words."""
    scales = gl.permute(gl.join(even, odd), [0, 3, 1, 2])
    scales = gl.reshape(scales, [QUARTERS, PLACES, 4])
    SLICE: gl.constexpr = without(code_layout(QUARTERS, PLACES, 2), 4)
    return gl.convert_layout(gl.join(scales, scales), SLICE, assert_trivial=True)


@gluon.constexpr_function
def piece(WIDTH, INDEX):
    """A width as the sum of powers of two from 256 down: the INDEX-th of them, 0 past the last."""
    sizes = [size for size in (256, 128, 64, 32) if WIDTH & size]
    return sizes[INDEX] if len(sizes) > INDEX else 0


@gluon.constexpr_function
def pieces(WIDTH):
    """How many they are, and so the products of a half step."""
    return (WIDTH & 480).bit_count()


@gluon.constexpr_function
def before(WIDTH, INDEX):
    """Rows of x in the pieces before the INDEX-th."""
    return sum([size for size in (256, 128, 64, 32) if WIDTH & size][:INDEX])


@gluon.jit
def fetch(boxes, start, column, tiles, barrier, WIDTH: gl.constexpr, FIRST: gl.constexpr, pred):
    """Ask for WIDTH rows of x from `start` on, 128 columns, into the tiles from index FIRST on."""
    for index in gl.static_range(pieces(WIDTH)):
        tma.async_copy_global_to_shared(
            boxes[index], [start + before(WIDTH, index), column], barrier, tiles[FIRST + index], pred=pred
        )


@gluon.jit
def multiplied(a, tiles, sums, WIDTH: gl.constexpr, FIRST: gl.constexpr, HALF: gl.constexpr):
    """The sums with 64 columns more; what was under way before is done then."""
    total = ()
    for index in gl.static_range(pieces(WIDTH)):
        b = tiles[FIRST + index].slice(HALF * 64, 64, 1).permute([1, 0])
        total = total + (warpgroup_mma(a, b, sums[index], is_async=True),)
    total = warpgroup_mma_wait(pieces(WIDTH), total)
    if pieces(WIDTH) == 1:
        return (total,)
    else:
        return total


@gluon.jit
def one_step(
    sums, ring, tiles, ready, boxes, start, words_at, scales_at, step, phase,
    STAGE: gl.constexpr, STEPS: gl.constexpr, QUARTERS: gl.constexpr, WIDTH: gl.constexpr,
    STAGES: gl.constexpr, DEPTH: gl.constexpr, LEFT: gl.constexpr,
):  # fmt: skip
    """128 columns; refills the stage that the step before it used."""
    first, first_scales, second, second_scales = halves(ring[0], ring[1], QUARTERS)
    a = decoded(first, first_scales, QUARTERS, PLACES, 2, LEFT)
    mbarrier.wait(ready[STAGE], phase)
    sums = multiplied(a, tiles, sums, WIDTH, STAGE * pieces(WIDTH), 0)
    BEFORE: gl.constexpr = (STAGE + STAGES - 1) % STAGES
    left = step + (STAGES - 1) < STEPS
    mbarrier.expect(ready[BEFORE], WIDTH * 256, pred=left)
    gl.thread_barrier()  # every warp is done with the step before
    column = (step + STAGES - 1) * 128
    fetch(boxes, start, column, tiles, ready[BEFORE], WIDTH, BEFORE * pieces(WIDTH), left)
    a = decoded(second, second_scales, QUARTERS, PLACES, 2, LEFT)
    ahead = gl.minimum(step + DEPTH, STEPS - 1)
    ring = ring[2:] + (load_words(words_at + ahead * 2048, False), gl.load(scales_at + ahead * 256))
    sums = multiplied(a, tiles, sums, WIDTH, STAGE * pieces(WIDTH), 1)
    return sums, ring


@gluon.jit
def zeros(BN: gl.constexpr, NT: gl.constexpr):
    """Sums to begin with."""
    return gl.full([BN, NT], 0.0, gl.float32, sums_layout(NT))


@gluon.jit
def multiply(
    x_32, x_64, x_128, x_256, codes, scales, own, order, out, limit, part, expert, start, count,
    N: gl.constexpr, K: gl.constexpr, PARTS: gl.constexpr, GATED: gl.constexpr, QUARTERS: gl.constexpr,
    WIDTH: gl.constexpr, STAGES: gl.constexpr, DEPTH: gl.constexpr,
):  # fmt: skip
    """The product of a program's weights and the first WIDTH pairs of its block."""
    BN: gl.constexpr = QUARTERS * 64
    STEPS: gl.constexpr = K // 128
    LEFT: gl.constexpr = gl.DotOperandLayout(0, sums_layout(piece(WIDTH, 0)), 2)
    boxes = ()
    for index in gl.static_range(pieces(WIDTH)):
        boxes = boxes + (box(x_32, x_64, x_128, x_256, piece(WIDTH, index)),)
    # One allocation a stage: the compiler then sees that stages do not overlap.
    tiles = ()
    ready = ()
    for _ in gl.static_range(STAGES):
        for index in gl.static_range(pieces(WIDTH)):
            tile = gl.allocate_shared_memory(gl.bfloat16, [piece(WIDTH, index), 128], boxes[index].layout)
            tiles = tiles + (tile,)
        barrier = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        mbarrier.init(barrier, count=1)
        ready = ready + (barrier,)
    gl.thread_barrier()
    row = expert.to(gl.int64) * N + part * BN
    lanes, registers = code_offsets(K, QUARTERS, PLACES, 4)
    words_at = codes + row * (K // 8) + lanes + registers
    scales_at = scales + row * (K // 64) + scale_offsets(K, QUARTERS, PLACES)
    ring = ()
    for step in gl.static_range(DEPTH):
        ring = ring + (load_words(words_at + step * 2048, False), gl.load(scales_at + step * 256))
    for stage in gl.static_range(STAGES - 1):
        mbarrier.expect(ready[stage], WIDTH * 256)
    gl.thread_barrier()
    for stage in gl.static_range(STAGES - 1):
        fetch(boxes, start, stage * 128, tiles, ready[stage], WIDTH, stage * pieces(WIDTH), True)
    sums = ()
    for index in gl.static_range(pieces(WIDTH)):
        sums = sums + (zeros(BN, piece(WIDTH, index)),)
    for turn in range(0, STEPS // STAGES):
        for stage in gl.static_range(STAGES):
            sums, ring = one_step(
                sums, ring, tiles, ready, boxes, start, words_at, scales_at, turn * STAGES + stage, turn & 1,
                stage, STEPS, QUARTERS, WIDTH, STAGES, DEPTH, LEFT,
            )  # fmt: skip
    for stage in gl.static_range(STEPS % STAGES):
        sums, ring = one_step(
            sums, ring, tiles, ready, boxes, start, words_at, scales_at, STEPS // STAGES * STAGES + stage,
            (STEPS // STAGES) & 1, stage, STEPS, QUARTERS, WIDTH, STAGES, DEPTH, LEFT,
        )  # fmt: skip
    done = warpgroup_mma_wait(0, sums)
    if pieces(WIDTH) == 1:
        sums = (done,)
    else:
        sums = done
    for stage in gl.static_range(STAGES):
        mbarrier.invalidate(ready[stage])
    for index in gl.static_range(pieces(WIDTH)):
        past = before(WIDTH, index)
        finish(
            out, sums[index], order, own, limit, part, start + past, count - past,
            N, PARTS, GATED, QUARTERS, piece(WIDTH, index),
        )  # fmt: skip


@gluon.constexpr_function
def sums_layout(NT):
    """Of the sums of NT pairs: two warp groups, one above the other."""
    return gl.NVMMADistributedLayout([3, 0], [8, 1], [16, NT, 16])


@gluon.jit
def finish(
    out, sums, order, own, limit, part, start, count,
    N: gl.constexpr, PARTS: gl.constexpr, GATED: gl.constexpr, QUARTERS: gl.constexpr, NT: gl.constexpr,
):  # fmt: skip
    """Store the sums [64 QUARTERS, NT] of up to NT pairs from place `start` on."""
    BN: gl.constexpr = QUARTERS * 64
    if GATED:
        gate_scale = gl.load(own) * UNSCALE
        up_scale = gl.load(own + PARTS - 1) * UNSCALE
        values = swiglu_of(sums, gate_scale, up_scale, limit, QUARTERS, PLACES, NT)
        row = gl.arange(0, NT, layout=gl.SliceLayout(0, values.type.layout))
        store_inner(out, values, part * (BN // 2), start + row, row < count, N, BN // 2, False)
    else:
        sums = rows_of(sums, QUARTERS, PLACES, NT)
        row = gl.arange(0, NT, layout=gl.SliceLayout(0, sums.type.layout))
        pair = gl.load(order + start + row, mask=row < count, other=0)
        store_parts(out, sums, pair, row < count, own, gl.load(own), part * BN, N, PARTS, BN)


@gluon.constexpr_function
def width_at(WIDTHS, INDEX):
    """Ascending widths: the INDEX-th, 0 before the first."""
    return WIDTHS[INDEX] if INDEX >= 0 else 0


@gluon.constexpr_function
def length(WIDTHS):
    """How many widths there are."""
    return len(WIDTHS)


@gluon.jit
def box(x_32, x_64, x_128, x_256, SIZE: gl.constexpr):
    """The descriptor whose tiles have SIZE rows."""
    if SIZE == 256:
        return x_256
    elif SIZE == 128:
        return x_128
    elif SIZE == 64:
        return x_64
    else:
        return x_32


@gluon.jit
def many_rows(
    x_32,
    x_64,
    x_128,
    x_256,
    codes,
    scales,
    global_scales,
    order,
    block_expert,
    block_start,
    block_count,
    out,
    limit,
    N: gl.constexpr,
    K: gl.constexpr,
    PARTS: gl.constexpr,
    GATED: gl.constexpr,
    QUARTERS: gl.constexpr,
    WIDTHS: gl.constexpr,
    STAGES: gl.constexpr,
    DEPTH: gl.constexpr,
):
    """As gluon_decode.few_rows, with x as descriptors of rows [pairs, K] in places of `order`, tiles of 32 to
    256 rows and 128 columns.

    WIDTHS: how many pairs of a block are multiplied, ascending: the least that holds them. Each is a sum of
    powers of two from 32 on, and a product for each of them. STAGES: tiles of x in shared memory, at most
    K / 128. DEPTH: steps of weights in flight.
    """
    part = gl.program_id(0)
    block = gl.program_id(1)
    count = gl.load(block_count + block)
    expert = gl.load(block_expert + block)
    start = gl.load(block_start + block)
    own = global_scales + expert * PARTS
    for index in gl.static_range(length(WIDTHS)):
        if (count > width_at(WIDTHS, index - 1)) & (count <= width_at(WIDTHS, index)):
            multiply(
                x_32, x_64, x_128, x_256, codes, scales, own, order, out, limit, part, expert, start, count,
                N, K, PARTS, GATED, QUARTERS, width_at(WIDTHS, index), STAGES, DEPTH,
            )  # fmt: skip
