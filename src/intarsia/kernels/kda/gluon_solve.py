# mypy: ignore-errors
"""`solve_chunk` of `triton_chunk.py` for heads of 128 columns: matrices pass through shared memory."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from intarsia.kernels.kda.gluon_chunk import (
    BLOCK,
    BLOCKS,
    CHUNK,
    OPERAND,
    TILE,
    D,
    convolved,
    exp,
    halves,
    indices,
    share_parts,
    sigmoid,
    store_parts,
)

SMALL = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [4, 1, 2], [1, 16, 8]))
SQUARE = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [4, 2], [16, 8]))
SMALL_OPERAND = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))


@gluon.jit
def product(a, b, LAYOUT: gl.constexpr, total):
    """`total` + a b of pairs of parts in shared memory."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, LAYOUT, 2)
    left, left_low = a[0].load(LEFT), a[1].load(LEFT)
    right, right_low = b[0].load(RIGHT), b[1].load(RIGHT)
    total = mma_v2(left_low, right, total)
    total = mma_v2(left, right_low, total)
    return mma_v2(left, right, total)


@gluon.jit
def share(shared, values):
    parts = halves(values)
    shared[0].store(parts[0])
    shared[1].store(parts[1])


@gluon.jit
def joins(row, column, SIZE: gl.constexpr):
    """Where a matrix joins two diagonal blocks of SIZE into one of twice the size."""
    return (row // SIZE == column // SIZE + 1) & (row // (2 * SIZE) == column // (2 * SIZE))


@gluon.jit
def doubled(x, n, where, LAYOUT: gl.constexpr, x_shared, n_shared, through_shared):
    """From the inverse of diagonal blocks of one size that of blocks of twice the size; n joins pairs."""
    share(n_shared, gl.where(where, n, 0.0))
    share(x_shared, x)
    nothing = gl.zeros(x.shape, gl.float32, LAYOUT)
    share(through_shared, product(n_shared, x_shared, LAYOUT, nothing))
    return x - product(x_shared, through_shared, LAYOUT, nothing)


@gluon.jit
def diagonal_inverses(lower):
    """In place of each diagonal block of A the inverse of the identity plus that block."""
    b = gl.arange(0, BLOCKS, layout=gl.SliceLayout(1, gl.SliceLayout(2, SMALL)))[:, None, None]
    t = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, gl.SliceLayout(2, SMALL)))[None, :, None]
    s = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, gl.SliceLayout(1, SMALL)))[None, None, :]
    square = (b * BLOCK + t) * CHUNK + b * BLOCK + s
    n = gl.load(lower + square, mask=(t > s) & (b >= 0), other=0)
    x = gl.where((t == s) & (b >= 0), 1.0, 0.0) - gl.where(joins(t, s, 1) & (b >= 0), n, 0.0)
    shape: gl.constexpr = [BLOCKS, BLOCK, BLOCK]
    x_shared = parts_of(shape, SMALL_OPERAND)
    n_shared = parts_of(shape, SMALL_OPERAND)
    through = parts_of(shape, SMALL_OPERAND)
    x = doubled(x, n, joins(t, s, 2) & (b >= 0), SMALL, x_shared, n_shared, through)
    x = doubled(x, n, joins(t, s, 4) & (b >= 0), SMALL, x_shared, n_shared, through)
    x = doubled(x, n, joins(t, s, 8) & (b >= 0), SMALL, x_shared, n_shared, through)
    gl.store(lower + square, x)


@gluon.jit
def parts_of(shape: gl.constexpr, LAYOUT: gl.constexpr):
    high = gl.allocate_shared_memory(gl.bfloat16, shape, LAYOUT)
    return high, gl.allocate_shared_memory(gl.bfloat16, shape, LAYOUT)


@gluon.jit
def solve_chunk(
    raw,
    raw_stride,
    beta,
    beta_stride,
    taps,
    window,
    streams,
    table,
    lower,
    ends,
    u,
    w_high,
    w_low,
    H: gl.constexpr,
    RING: gl.constexpr,
):
    """u and w [64, 128] of every chunk and head. The grid is [heads, chunks]."""
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
    lower += here * CHUNK * CHUNK
    diagonal_inverses(lower)
    b, t, c = indices(TILE)
    j = b * BLOCK + t
    along = here * CHUNK * D + j * D + c
    strong = gl.load(beta + (row + j).to(gl.int64) * beta_stride + head, mask=j < length, other=0)
    strong = gl.where(j < length, sigmoid(strong.to(gl.float32)), 0.0)
    v = convolved(raw, raw_stride, ring, taps, row, length, position, before, (2 * H + head) * D, C, RING)
    tile = parts_of([CHUNK, D], OPERAND)
    share_parts(tile[0], tile[1], strong * v)
    gl.thread_barrier()
    r = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, SQUARE))[:, None]
    s = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, SQUARE))[None, :]
    x = gl.load(lower + r * CHUNK + s, mask=r // BLOCK == s // BLOCK, other=0)
    n = gl.load(lower + r * CHUNK + s, mask=r // BLOCK > s // BLOCK, other=0)
    x_shared = parts_of([CHUNK, CHUNK], OPERAND)
    n_shared = parts_of([CHUNK, CHUNK], OPERAND)
    through = parts_of([CHUNK, CHUNK], OPERAND)
    x = doubled(x, n, joins(r, s, 16), SQUARE, x_shared, n_shared, through)
    x = doubled(x, n, joins(r, s, 32), SQUARE, x_shared, n_shared, through)
    share(x_shared, x)
    nothing = gl.zeros([CHUNK, D], gl.float32, SQUARE)
    cv = gl.arange(0, D, layout=gl.SliceLayout(0, SQUARE))[None, :]
    place = here * CHUNK * D + r * D + cv
    gl.store(u + place, product(x_shared, tile, SQUARE, nothing))
    k = gl.load(w_high + along).to(gl.float32) + gl.load(w_low + along).to(gl.float32)
    blocks = gl.arange(0, BLOCKS, layout=gl.SliceLayout(1, gl.SliceLayout(1, TILE)))[:, None]
    ce = gl.arange(0, D, layout=gl.SliceLayout(0, gl.SliceLayout(1, TILE)))[None, :]
    start = gl.load(ends + here * 2 * BLOCKS * D + (BLOCKS + blocks) * D + ce)
    share_parts(tile[0], tile[1], strong * k * exp(start)[:, None, :])
    store_parts(w_high, w_low, place, product(x_shared, tile, SQUARE, nothing))
