# mypy: ignore-errors
"""What every chunk of a prompt contributes whatever the state before it, for all chunks and heads at once.

The mathematics is that of `chunk.py`. A chunk's 64 rows are four blocks of 16. With L the sum of the log
decay since the block began, and E what it sums to at the block's end, every exponent formed is at least -80
(L) or at most 80 (-L, inside a block), so factors stay within float32; products of blocks that lie further
apart take the E of the blocks between.

    same block:      (k_t exp(L_t)) . (k_s exp(-L_s))
    earlier block:   (k_t exp(L_t)) . (k_s exp(E - L_s)) exp(sum of E of the blocks between)

(I + A)^-1 is formed by doubling: with X the inverse of the diagonal blocks of one size and N the part of A
that joins pairs of them, X - X N X is that of twice the size. All entries stay below one in size, since they
say how much of a value is left of it later.
"""

import triton
import triton.language as tl

from intarsia.kernels.kda.triton_parts import CHUNK, chunk_at, halves, product, sigmoid

BLOCK = tl.constexpr(16)
BLOCKS = tl.constexpr(4)


@triton.jit
def convolved(
    raw, stride, ring, taps, row, length, position, before, channel, C, RING: tl.constexpr, TAPS: tl.constexpr
):
    """SiLU of the causal convolution of a chunk's rows, float32 [64, D]; zero from `length` on.

    Columns before the segment come from the stream's ring, those before the sequence are zero.
    """
    j = tl.arange(0, CHUNK)[:, None]
    total = tl.zeros((CHUNK, channel.shape[1]), tl.float32)
    for tap in tl.static_range(TAPS):
        offset = j - (TAPS - 1) + tap
        inside = (j < length) & (before + offset >= 0)
        here = tl.load(raw + (row + offset).to(tl.int64) * stride + channel, mask=inside, other=0)
        if before < TAPS - 1:
            at = position + offset
            kept = (j < length) & (before + offset < 0) & (at >= 0)
            here += tl.load(ring + (at % RING) * C + channel, mask=kept, other=0)
        total += here.to(tl.float32) * tl.load(taps + channel * TAPS + tap).to(tl.float32)
    return total / (1 + tl.exp(-total))


@triton.jit
def unit(x, eps):
    return x * tl.rsqrt(tl.sum(x * x, 1) + eps)[:, None]


@triton.jit
def joins(row, column, SIZE: tl.constexpr):
    """Where a matrix joins two diagonal blocks of SIZE into one of twice the size."""
    return (row // SIZE == column // SIZE + 1) & (row // (2 * SIZE) == column // (2 * SIZE))


@triton.jit
def doubled(x, n, row, column, SIZE: tl.constexpr, dtype: tl.constexpr):
    """From the inverse of diagonal blocks of SIZE that of blocks of twice the size."""
    parts = halves(x, dtype)
    nothing = tl.zeros_like(x)
    through = product(halves(tl.where(joins(row, column, SIZE), n, 0.0), dtype), parts, nothing)
    return x - product(parts, halves(through, dtype), nothing)


@triton.jit
def store_parts(high, low, at, values):
    parts = halves(values, high.dtype.element_ty)
    tl.store(high + at, parts[0])
    tl.store(low + at, parts[1])


@triton.jit(do_not_specialize=["first_segment", "segments", "first_chunk"])
def chunk_terms(
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
    starts,
    streams,
    positions,
    lower,
    ends,
    u,
    w_high,
    w_low,
    query_high,
    query_low,
    q_k_high,
    q_k_low,
    rest_high,
    rest_low,
    keep,
    first_segment,
    segments,
    first_chunk,
    lower_bound,
    query_scale,
    unit_eps,
    H: tl.constexpr,
    D: tl.constexpr,
    RING: tl.constexpr,
    TAPS: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """The terms of `ChunkTerms`, those in two parts transposed as the next kernels multiply them.

    Of every chunk and head: lower [64, 64] and ends [4, D] are room to work in; u, w and query [64, D]; q_k
    [64, 64] without what is above its diagonal; rest [D, 64]; keep [D]. The grid is [heads, chunks].
    """
    head = tl.program_id(0)
    row, length, position, before, chunks = chunk_at(
        starts, positions, first_segment, segments, first_chunk + tl.program_id(1), SEGMENTS
    )
    if first_chunk + tl.program_id(1) >= chunks:
        return
    here = (tl.program_id(1) * H + head).to(tl.int64)
    dtype: tl.constexpr = w_high.dtype.element_ty
    C: tl.constexpr = 3 * H * D
    lower += here * CHUNK * CHUNK
    ends += here * BLOCKS * D
    c = tl.arange(0, D)[None, :]
    j = tl.arange(0, CHUNK)[:, None]
    ring = window + tl.load(streams + row).to(tl.int64) * RING * C
    k = convolved(
        raw, raw_stride, ring, taps, row, length, position, before, (H + head) * D + c, C, RING, TAPS
    )
    q = convolved(raw, raw_stride, ring, taps, row, length, position, before, head * D + c, C, RING, TAPS)
    k = unit(k, unit_eps)
    q = unit(q, unit_eps) * query_scale
    f = tl.load(decay + (row + j).to(tl.int64) * decay_stride + head * D + c, mask=j < length, other=0)
    shifted = f.to(tl.float32) + tl.load(dt_bias + head * D + c).to(tl.float32)
    strength = tl.exp(tl.load(a_log + head).to(tl.float32))
    g = tl.where(j < length, lower_bound * sigmoid(strength * shifted), 0.0)
    since = tl.cumsum(tl.reshape(g, (BLOCKS, BLOCK, D)), 1)
    b = tl.arange(0, BLOCKS)[:, None, None]
    t = tl.arange(0, BLOCK)[None, :, None]
    end = tl.sum(tl.where(t == BLOCK - 1, since, 0.0), 1)
    earlier = tl.arange(0, BLOCKS)[:, None, None] > tl.arange(0, BLOCKS)[None, :, None]
    start = tl.sum(tl.where(earlier, end[None, :, :], 0.0), 1)
    whole = tl.sum(end, 0)
    k3 = tl.reshape(k, (BLOCKS, BLOCK, D))
    q3 = tl.reshape(q, (BLOCKS, BLOCK, D))
    shrunk = tl.exp(since)
    to_end = k3 * tl.exp(end[:, None, :] - since)
    c3 = tl.arange(0, D)[None, None, :]
    u += here * CHUNK * D
    # Rows of other blocks are read back from memory, which is how registers change hands here.
    tl.store(u + (b * BLOCK + t) * D + c3, to_end)
    tl.store(ends + tl.arange(0, BLOCKS)[:, None] * D + c, end)
    rest = tl.reshape(to_end * tl.exp(whole[None, :] - start - end)[:, None, :], (CHUNK, D))
    place = here * CHUNK * D + tl.arange(0, D)[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    store_parts(rest_high, rest_low, place, tl.trans(rest))
    tl.store(keep + here * D + tl.arange(0, D), tl.exp(whole))
    grown = shrunk * tl.exp(start)[:, None, :]
    whole_place = here * CHUNK * D + j * D + c
    store_parts(query_high, query_low, whole_place, tl.reshape(q3 * grown, (CHUNK, D)))
    k_grown = tl.reshape(k3 * grown, (CHUNK, D))
    k_rows, q_rows = halves(k3 * shrunk, dtype), halves(q3 * shrunk, dtype)
    strong = sigmoid(
        tl.load(beta + (row + j).to(tl.int64) * beta_stride + head, mask=j < length, other=0).to(tl.float32)
    )
    strong = tl.where(j < length, strong, 0.0)
    strong3 = tl.reshape(strong, (BLOCKS, BLOCK, 1))
    s = tl.arange(0, BLOCK)[None, None, :]
    nothing = tl.zeros((BLOCKS, BLOCK, BLOCK), tl.float32)
    columns = halves(tl.permute(k3 * tl.exp(-since), (0, 2, 1)), dtype)
    n = tl.where(t > s, strong3 * product(k_rows, columns, nothing), 0.0)
    q_k = tl.where(t >= s, product(q_rows, columns, nothing), 0.0)
    square = here * CHUNK * CHUNK + (b * BLOCK + t) * CHUNK + b * BLOCK + s
    store_parts(q_k_high, q_k_low, square, q_k)
    x = tl.where(t == s, 1.0, 0.0) - tl.where(joins(t, s, 1), n, 0.0)
    x = doubled(x, n, t, s, 2, dtype)
    x = doubled(x, n, t, s, 4, dtype)
    x = doubled(x, n, t, s, 8, dtype)
    tl.store(lower + (b * BLOCK + t) * CHUNK + b * BLOCK + s, x)
    tl.debug_barrier()
    for apart in tl.static_range(1, BLOCKS):
        from_block = b - apart
        column = tl.load(u + (from_block * BLOCK + t) * D + c3, mask=from_block >= 0, other=0)
        between = tl.zeros((BLOCKS, 1, D), tl.float32)
        for step in tl.static_range(1, apart):
            between += tl.load(ends + (b - step) * D + c3, mask=from_block >= 0, other=0)
        if apart > 1:
            column *= tl.exp(between)
        columns = halves(tl.permute(column, (0, 2, 1)), dtype)
        value = strong3 * product(k_rows, columns, nothing)
        tl.store(lower + (b * BLOCK + t) * CHUNK + from_block * BLOCK + s, value, mask=from_block >= 0)
        parts = halves(product(q_rows, columns, nothing), dtype)
        square = here * CHUNK * CHUNK + (b * BLOCK + t) * CHUNK + from_block * BLOCK + s
        tl.store(q_k_high + square, parts[0], mask=from_block >= 0)
        tl.store(q_k_low + square, parts[1], mask=from_block >= 0)
    v = convolved(
        raw, raw_stride, ring, taps, row, length, position, before, (2 * H + head) * D + c, C, RING, TAPS
    )
    tl.debug_barrier()
    i = tl.arange(0, CHUNK)[None, :]
    same = j // BLOCK == i // BLOCK
    x = tl.load(lower + j * CHUNK + i, mask=same, other=0)
    n = tl.load(lower + j * CHUNK + i, mask=j // BLOCK > i // BLOCK, other=0)
    x = doubled(x, n, j, i, 16, dtype)
    x = doubled(x, n, j, i, 32, dtype)
    x_parts = halves(x, dtype)
    wide = tl.zeros((CHUNK, D), tl.float32)
    tl.store(u + j * D + c, product(x_parts, halves(strong * v, dtype), wide))
    store_parts(w_high, w_low, whole_place, product(x_parts, halves(strong * k_grown, dtype), wide))
