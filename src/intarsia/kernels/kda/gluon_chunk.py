# mypy: ignore-errors
"""`decayed_products` of `triton_chunk.py` for heads of 128 columns, with its tiles in shared memory.

Eight warps hold a tile [4 blocks, 16 rows, 128 columns] with the block in the register index, so that what
differs from block to block costs no selection. Products go through mma.sync: each warp owns eight columns of
the 16 rows of k and the 16 of q of one block.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

D = gl.constexpr(128)
CHUNK = gl.constexpr(64)
BLOCK = gl.constexpr(16)
BLOCKS = gl.constexpr(4)
TAPS = gl.constexpr(4)
DEPTH = gl.constexpr(64)  # columns of a product in registers at once: what the swizzle of OPERAND spans

WARPS = gl.constexpr(8)
TILE = gl.constexpr(gl.BlockedLayout([1, 1, 8], [1, 2, 16], [1, 8, 1], [2, 1, 0]))
ROWS = gl.constexpr(gl.SliceLayout(2, TILE))
COLUMNS = gl.constexpr(gl.SliceLayout(0, gl.SliceLayout(1, TILE)))
SUMS = gl.constexpr(gl.BlockedLayout([1, 16, 1], [1, 1, 32], [4, 1, 2], [2, 1, 0]))
TABLE = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]],
        [[8, 0], [16, 0], [32, 0], [64, 0], [0, 0]],
        [[0, 0], [0, 0], [0, 0]],
        [],
        [128, 4],
    )
)
MMA = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [1, 8], [16, 8]))
OPERAND = gl.constexpr(gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))


@gluon.jit
def exp(x):
    """With results below the smallest normal number as zero, which saves half of the instructions."""
    x = x * 1.4426950408889634
    return gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def sigmoid(x):
    x = 1 + exp(-x)
    return gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def add(a, b):
    return a + b


@gluon.jit
def lesser(a, b):
    return gl.minimum(a, b)


@gluon.jit
def indices(LAYOUT: gl.constexpr):
    """Block, row of a block and column of a tile."""
    b = gl.arange(0, BLOCKS, layout=gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))[:, None, None]
    t = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))[None, :, None]
    c = gl.arange(0, D, layout=gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))[None, None, :]
    return b, t, c


@gluon.jit
def row_of(values, i: gl.constexpr):
    """Row i of [4, 128], which a thread has anyway."""
    b = gl.arange(0, BLOCKS, layout=gl.SliceLayout(1, gl.SliceLayout(1, TILE)))[:, None]
    return gl.sum(gl.where(b == i, values, 0.0), 0)


@gluon.jit
def tile_of(shared):
    """A tile from shared memory [64, 128]."""
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [8, 1], [1, 0])
    return gl.convert_layout(gl.reshape(shared.load(FLAT), [BLOCKS, BLOCK, D]), TILE, assert_trivial=True)


@gluon.jit
def halves(x):
    """High part, cut off, and low part, rounded: together 16 bits."""
    high = (x.to(gl.int32, bitcast=True) & -65536).to(gl.float32, bitcast=True)
    return high.to(gl.bfloat16), (x - high).to(gl.bfloat16)


@gluon.jit
def store_parts(high, low, at, values):
    parts = halves(values)
    gl.store(high + at, parts[0])
    gl.store(low + at, parts[1])


@gluon.jit
def share_parts(high, low, values):
    parts = halves(gl.reshape(values, [CHUNK, D]))
    high.store(parts[0])
    low.store(parts[1])


@gluon.jit
def taps_of(taps, begin):
    """The four taps of the 128 channels from `begin` on, oldest first; a channel's lie side by side."""
    channel = begin + gl.arange(0, D, layout=gl.SliceLayout(1, TABLE))
    tap = gl.arange(0, TAPS, layout=gl.SliceLayout(0, TABLE))
    table = gl.load(taps + channel[:, None] * TAPS + tap[None, :]).to(gl.float32)
    even, odd = gl.split(gl.reshape(table, [D, 2, 2]))
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    return (
        gl.convert_layout(first, COLUMNS, assert_trivial=True)[None, None, :],
        gl.convert_layout(second, COLUMNS, assert_trivial=True)[None, None, :],
        gl.convert_layout(third, COLUMNS, assert_trivial=True)[None, None, :],
        gl.convert_layout(fourth, COLUMNS, assert_trivial=True)[None, None, :],
    )


@gluon.jit
def convolved(
    raw, stride, ring, taps, row, length, position, before, begin, C: gl.constexpr, RING: gl.constexpr
):
    """SiLU of the causal convolution of 128 channels of a chunk's rows; zero from `length` on."""
    b, t, c = indices(TILE)
    j = b * BLOCK + t
    channel = begin + c
    weights = taps_of(taps, begin)
    total = gl.zeros([BLOCKS, BLOCK, D], gl.float32, TILE)
    for tap in gl.static_range(TAPS):
        offset = j - (TAPS - 1) + tap
        inside = (j < length) & (before + offset >= 0)
        here = gl.load(
            raw + (row + offset).to(gl.int64) * stride + channel, mask=inside & (channel >= 0), other=0
        )
        if tap < TAPS - 1:  # noqa: SIM102 (the compiler decides the outer one)
            if before < TAPS - 1:
                at = position + offset
                kept = (j < length) & (before + offset < 0) & (at >= 0)
                here += gl.load(ring + (at % RING) * C + channel, mask=kept & (channel >= 0), other=0)
        total += here.to(gl.float32) * weights[tap]
    return total * sigmoid(total)


@gluon.jit
def unit(x, eps):
    return x * gl.rsqrt(gl.sum(x * x, 2) + eps)[:, :, None]


@gluon.jit
def block_products(k_high, k_low, high, low, i: gl.constexpr):
    """The 16 rows of block i times all columns, [16, 64], operands in two parts in shared memory."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    total = gl.zeros([BLOCK, CHUNK], gl.float32, MMA)
    for depth in gl.static_range(0, D, DEPTH):
        a = k_high.slice(i * BLOCK, BLOCK).slice(depth, DEPTH, 1).load(LEFT)
        a_low = k_low.slice(i * BLOCK, BLOCK).slice(depth, DEPTH, 1).load(LEFT)
        b = high.slice(depth, DEPTH, 1).permute([1, 0]).load(RIGHT)
        b_low = low.slice(depth, DEPTH, 1).permute([1, 0]).load(RIGHT)
        total = mma_v2(a_low, b, total)
        total = mma_v2(a, b_low, total)
        total = mma_v2(a, b, total)
    return total


@gluon.jit
def decayed_products(
    raw,
    raw_stride,
    decay,
    decay_stride,
    beta,
    beta_stride,
    taps,
    a_log,
    dt_bias,
    window,
    streams,
    table,
    lower,
    ends,
    w_high,
    w_low,
    query_high,
    query_low,
    q_k_high,
    q_k_low,
    rest_high,
    rest_low,
    keep,
    change_high,
    change_low,
    lower_bound,
    query_scale,
    unit_eps,
    H: gl.constexpr,
    RING: gl.constexpr,
):
    """As its Triton form, but that `change` is left alone. The grid is [heads, chunks]."""
    head = gl.program_id(0)
    entry = table + gl.program_id(1) * 8
    row = gl.load(entry)
    length = gl.load(entry + 1)
    position = gl.load(entry + 2)
    before = gl.load(entry + 3)
    if length <= 0:
        return
    here = (gl.program_id(1) * H + head).to(gl.int64)
    C: gl.constexpr = 3 * H * D
    ring = window + gl.load(streams + row).to(gl.int64) * RING * C

    # The log decay, a thread having all rows of a block for its columns.
    b, t, c = indices(SUMS)
    j = b * BLOCK + t
    inside = (j < length) & (c >= 0)
    f = gl.load(decay + (row + j).to(gl.int64) * decay_stride + head * D + c, mask=inside, other=0)
    shifted = f.to(gl.float32) + gl.load(dt_bias + head * D + c).to(gl.float32)
    strength = exp(gl.load(a_log + head).to(gl.float32))
    g = gl.where(inside, lower_bound * sigmoid(strength * shifted), 0.0)
    summed = gl.associative_scan(g, 1, add)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    since_shared = gl.allocate_shared_memory(gl.float32, [CHUNK, D], PLAIN)
    since_shared.store(gl.reshape(summed, [CHUNK, D]))
    end_shared = gl.allocate_shared_memory(gl.float32, [BLOCKS, D], PLAIN)
    end_shared.store(gl.reduce(summed, 1, lesser))  # sums only fall
    ends_of = end_shared.load(gl.SliceLayout(1, TILE))
    end0, end1, end2, end3 = row_of(ends_of, 0), row_of(ends_of, 1), row_of(ends_of, 2), row_of(ends_of, 3)
    blocks = gl.arange(0, BLOCKS, layout=gl.SliceLayout(1, gl.SliceLayout(1, TILE)))[:, None]
    start = gl.where(blocks > 0, end0[None, :], 0.0) + gl.where(blocks > 1, end1[None, :], 0.0)
    start += gl.where(blocks > 2, end2[None, :], 0.0)
    after = gl.where(blocks < 1, end1[None, :], 0.0) + gl.where(blocks < 2, end2[None, :], 0.0)
    after += gl.where(blocks < 3, end3[None, :], 0.0)
    start_shared = gl.allocate_shared_memory(gl.float32, [BLOCKS, D], PLAIN)
    after_shared = gl.allocate_shared_memory(gl.float32, [BLOCKS, D], PLAIN)
    factor_shared = gl.allocate_shared_memory(gl.float32, [BLOCKS, D], PLAIN)
    start_shared.store(exp(start))
    after_shared.store(exp(after))
    factor_shared.store(exp(ends_of))
    cv = gl.arange(0, D, layout=COLUMNS)
    gl.store(ends + here * 2 * BLOCKS * D + (BLOCKS + blocks) * D + cv[None, :], start)
    gl.store(keep + here * D + cv, exp(end0 + end1 + end2 + end3))

    b, t, c = indices(TILE)
    along = here * CHUNK * D + (b * BLOCK + t) * D + c
    q_high = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, D], OPERAND)
    q_low = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, D], OPERAND)
    q = convolved(raw, raw_stride, ring, taps, row, length, position, before, head * D, C, RING)
    q = unit(q, unit_eps) * (query_scale * exp(tile_of(since_shared)))
    share_parts(q_high, q_low, q)
    store_parts(query_high, query_low, along, q * start_shared.load(gl.SliceLayout(1, TILE))[:, None, :])
    k_high = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, D], OPERAND)
    k_low = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, D], OPERAND)
    k = convolved(raw, raw_stride, ring, taps, row, length, position, before, (H + head) * D, C, RING)
    k = unit(k, unit_eps)
    since = tile_of(since_shared)
    share_parts(k_high, k_low, k * exp(since))
    store_parts(w_high, w_low, along, k * exp(since))
    inner = k * exp(-since)
    outer = k * exp(end_shared.load(gl.SliceLayout(1, TILE))[:, None, :] - since)
    store_parts(rest_high, rest_low, along, outer * after_shared.load(gl.SliceLayout(1, TILE))[:, None, :])

    high = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, D], OPERAND)
    low = gl.allocate_shared_memory(gl.bfloat16, [CHUNK, D], OPERAND)
    r = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, MMA))
    s = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, MMA))[None, :]
    for i in gl.static_range(BLOCKS):
        # Blocks before the last one move away from the rows by one block more.
        if i > 1:
            factor = row_of(factor_shared.load(gl.SliceLayout(1, TILE)), i - 1)[None, None, :]
            outer = gl.where(b < i - 1, outer * factor, outer)
        share_parts(high, low, gl.where(b == i, inner, gl.where(b < i, outer, 0.0)))
        rows = i * BLOCK + r
        strong = gl.load(beta + (row + rows).to(gl.int64) * beta_stride + head, mask=rows < length, other=0)
        strong = gl.where(rows < length, sigmoid(strong.to(gl.float32)), 0.0)
        square = here * CHUNK * CHUNK + rows[:, None] * CHUNK + s
        a = strong[:, None] * block_products(k_high, k_low, high, low, i)
        gl.store(lower + square, a, mask=s < rows[:, None])
        parts = halves(block_products(q_high, q_low, high, low, i))
        gl.store(q_k_high + square, parts[0], mask=s <= rows[:, None])
        gl.store(q_k_low + square, parts[1], mask=s <= rows[:, None])
