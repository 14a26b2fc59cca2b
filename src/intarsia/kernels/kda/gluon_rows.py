# mypy: ignore-errors
"""The rows of a prompt's chunk in Gluon: convolved columns and decays, in registers of eight warps.

A tile [2, 32, 128] is a chunk of 64 rows in two halves; a thread has eight columns of four rows in sequence.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LOG2E = gl.constexpr(1.4426950408889634)
# Powers of two that keep the factors of rows, 2^(TOP - 231) .. 2^TOP, and those of columns, the inverses of
# these times 2^LIFT, within bfloat16 with all their bits.
TOP = gl.constexpr(120)
LIFT = gl.constexpr(9)
D = gl.constexpr(128)
CHUNK = gl.constexpr(64)
HALF = gl.constexpr(32)
BLOCK = gl.constexpr(16)
BLOCKS = gl.constexpr(4)
TAPS = gl.constexpr(4)
TILE = gl.constexpr(gl.BlockedLayout([1, 4, 8], [1, 2, 16], [2, 4, 1], [2, 1, 0]))  # [2, 32, 128]
GROUP = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [8, 1], [1, 0]))  # [16, 128], each of four rows
SUMS = gl.constexpr(gl.BlockedLayout([1, 16, 2], [1, 1, 32], [4, 1, 2], [2, 1, 0]))  # [4, 16, 128]
TABLE = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]],
        [[8, 0], [16, 0], [32, 0], [64, 0], [0, 0]],
        [[0, 0], [0, 0], [0, 0]],
        [],
        [128, 4],
    )
)
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))


@gluon.jit
def power(x):
    """Two to the x, with results below the smallest normal number as zero, which saves half of the
    instructions.
    """
    return gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def inverse_of(x):
    return gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def part_of_one(x):
    """1 / (1 + 2^-x): the sigmoid of x / log2(e)."""
    return inverse_of(1 + power(-x))


@gluon.jit
def add(a, b):
    return a + b


@gluon.jit
def lesser(a, b):
    return gl.minimum(a, b)


@gluon.jit
def halves(x):
    """High part, cut off, and low part, rounded: together 16 bits."""
    high = (x.to(gl.int32, bitcast=True) & -65536).to(gl.float32, bitcast=True)
    return high.to(gl.bfloat16), (x - high).to(gl.bfloat16)


@gluon.jit
def parts_of(shape: gl.constexpr, LAYOUT: gl.constexpr):
    high = gl.allocate_shared_memory(gl.bfloat16, shape, LAYOUT)
    return high, gl.allocate_shared_memory(gl.bfloat16, shape, LAYOUT)


@gluon.jit
def share(shared, values):
    parts = halves(values)
    shared[0].store(parts[0])
    shared[1].store(parts[1])


@gluon.jit
def taps_of(taps, begin):
    """The four taps of the 128 channels from `begin` on, oldest first; a channel's lie side by side."""
    COLUMNS: gl.constexpr = gl.SliceLayout(0, GROUP)
    channel = begin + gl.arange(0, D, layout=gl.SliceLayout(1, TABLE))
    tap = gl.arange(0, TAPS, layout=gl.SliceLayout(0, TABLE))
    table = gl.load(taps + channel[:, None] * TAPS + tap[None, :]).to(gl.float32)
    even, odd = gl.split(gl.reshape(table, [D, 2, 2]))
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    return (
        gl.convert_layout(first, COLUMNS, assert_trivial=True)[None, :],
        gl.convert_layout(second, COLUMNS, assert_trivial=True)[None, :],
        gl.convert_layout(third, COLUMNS, assert_trivial=True)[None, :],
        gl.convert_layout(fourth, COLUMNS, assert_trivial=True)[None, :],
    )


@gluon.jit
def places(m: gl.constexpr):
    """The rows m - 3 after the first of each four."""
    return 4 * gl.arange(0, CHUNK // 4, layout=gl.SliceLayout(1, GROUP))[:, None] + (m - (TAPS - 1))


@gluon.jit
def raw_rows(first, stride, length, before, m: gl.constexpr):
    """Raw columns of the rows m - 3 after the first of each four; zero before the segment and from `length`
    on. `first` points to those three before it.
    """
    inside = (places(m) < length) & (before + places(m) >= 0)
    return gl.load(first + m * stride, mask=inside, other=0)


@gluon.jit
def ring_rows(ring, length, position, before, m: gl.constexpr, C, RING: gl.constexpr):
    """The same from the stream's ring, where they lie before the segment and the sequence has begun."""
    at = position + places(m)
    kept = (places(m) < length) & (before + places(m) < 0) & (at >= 0)
    return gl.load(ring + (at % RING) * C, mask=kept, other=0)


@gluon.jit
def mixed(x0, x1, x2, x3, weights):
    total = x0 * weights[0]
    total += x1 * weights[1]
    total += x2 * weights[2]
    total += x3 * weights[3]
    return total * part_of_one(total * LOG2E)


@gluon.jit
def convolved(
    raw, stride, ring, taps, row, length, position, before, begin, C: gl.constexpr, RING: gl.constexpr
):
    """SiLU of the causal convolution of 128 channels of a chunk's rows, [2, 32, 128].

    A thread has four rows in sequence, for which it loads seven. Rows from `length` on are finite.
    """
    channel = begin + gl.arange(0, D, layout=gl.SliceLayout(0, GROUP))[None, :]
    weights = taps_of(taps, begin)
    four = 4 * gl.arange(0, CHUNK // 4, layout=gl.SliceLayout(1, GROUP))[:, None]
    first = raw + (row + four - (TAPS - 1)).to(gl.int64) * stride + channel
    x0 = raw_rows(first, stride, length, before, 0)
    x1 = raw_rows(first, stride, length, before, 1)
    x2 = raw_rows(first, stride, length, before, 2)
    x3 = raw_rows(first, stride, length, before, 3).to(gl.float32)
    x4 = raw_rows(first, stride, length, before, 4).to(gl.float32)
    x5 = raw_rows(first, stride, length, before, 5).to(gl.float32)
    x6 = raw_rows(first, stride, length, before, 6).to(gl.float32)
    if before < TAPS - 1:
        x0 += ring_rows(ring + channel, length, position, before, 0, C, RING)
        x1 += ring_rows(ring + channel, length, position, before, 1, C, RING)
        x2 += ring_rows(ring + channel, length, position, before, 2, C, RING)
    x0, x1, x2 = x0.to(gl.float32), x1.to(gl.float32), x2.to(gl.float32)
    even = gl.join(mixed(x0, x1, x2, x3, weights), mixed(x2, x3, x4, x5, weights))
    odd = gl.join(mixed(x1, x2, x3, x4, weights), mixed(x3, x4, x5, x6, weights))
    rows = gl.permute(gl.join(even, odd), [0, 2, 3, 1])
    return gl.convert_layout(gl.reshape(rows, [2, HALF, D]), TILE, assert_trivial=True)


@gluon.jit
def length_of(x, eps):
    """One over the length of every row."""
    return gl.rsqrt(gl.sum(x * x, 2) + eps)[:, :, None]


@gluon.jit
def decays(decay, stride, dt_bias, a_log, lower_bound, row, length, head, grown, ends):
    """Into `grown` [64, 128] the factors of rows: 2^TOP exp of the log decay summed from the begin of a half
    to the row. Into `ends` [4, 128] half of what log2 of the decay sums to in blocks of 16 rows.

    Half a logarithm, since its power is a number where that of the whole is too small for one.
    """
    b = gl.arange(0, BLOCKS, layout=gl.SliceLayout(1, gl.SliceLayout(2, SUMS)))[:, None, None]
    t = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, gl.SliceLayout(2, SUMS)))[None, :, None]
    c = gl.arange(0, D, layout=gl.SliceLayout(0, gl.SliceLayout(1, SUMS)))[None, None, :]
    j = b * BLOCK + t
    inside = (j < length) & (c >= 0)
    of_block = decay + (row + b * BLOCK).to(gl.int64) * stride + head * D + c
    f = gl.load(of_block + t * stride, mask=inside, other=0)
    shifted = f.to(gl.float32) + gl.load(dt_bias + head * D + c).to(gl.float32)
    strength = gl.exp(gl.load(a_log + head).to(gl.float32)) * LOG2E
    g = gl.where(inside, (lower_bound * (0.5 * LOG2E)) * part_of_one(strength * shifted), 0.0)
    summed = gl.associative_scan(g, 1, add)
    ends.store(gl.reduce(summed, 1, lesser))  # sums only fall
    before = gl.where(b == 1, ends.slice(0, 1, 0).load(gl.SliceLayout(1, SUMS))[:, None, :], 0.0)
    before = gl.where(b == 3, ends.slice(2, 1, 0).load(gl.SliceLayout(1, SUMS))[:, None, :], before)
    root = power(summed + before) * 2.0 ** (TOP // 2)
    grown.store(gl.reshape(root * root, [CHUNK, D]))


@gluon.jit
def tile_of(shared):
    FLAT: gl.constexpr = gl.BlockedLayout([4, 8], [2, 16], [8, 1], [1, 0])
    return gl.convert_layout(gl.reshape(shared.load(FLAT), [2, HALF, D]), TILE, assert_trivial=True)
