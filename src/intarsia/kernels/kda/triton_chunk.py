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

from intarsia.kernels.kda.triton_parts import CHUNK, ENTRY, halves, load_parts, product, sigmoid, store_parts

BLOCK = tl.constexpr(16)
BLOCKS = tl.constexpr(4)
TAPS = tl.constexpr(4)


@triton.jit
def convolved(
    raw, stride, ring, taps, row, length, position, before, begin, D: tl.constexpr, C, RING: tl.constexpr
):
    """SiLU of the causal convolution of D channels of a chunk's rows, float32 [64, D]; zero from `length` on.

    Columns before the segment come from the stream's ring, those before the sequence are zero.
    """
    j = tl.arange(0, CHUNK)[:, None]
    channel = begin + tl.arange(0, D)[None, :]
    # A channel's taps lie side by side: loaded as one number of 16 bytes, and taken apart.
    table = tl.load(taps + (begin + tl.arange(0, D)[:, None]) * TAPS + tl.arange(0, TAPS)[None, :])
    even, odd = tl.split(tl.reshape(table.to(tl.float32), (D, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    weights = (first, second, third, fourth)
    total = tl.zeros((CHUNK, D), tl.float32)
    for tap in tl.static_range(TAPS):
        offset = j - (TAPS - 1) + tap
        inside = (j < length) & (before + offset >= 0)
        here = tl.load(raw + (row + offset).to(tl.int64) * stride + channel, mask=inside, other=0)
        if tap < TAPS - 1:  # noqa: SIM102 (the compiler decides the outer one)
            if before < TAPS - 1:
                at = position + offset
                kept = (j < length) & (before + offset < 0) & (at >= 0)
                here += tl.load(ring + (at % RING) * C + channel, mask=kept, other=0)
        total += here.to(tl.float32) * weights[tap][None, :]
    return total * sigmoid(total)


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
def block_sums(g, D: tl.constexpr):
    """The log decay [64, D] summed inside each block; sums [4, D] of whole blocks, and of those before."""
    since = tl.cumsum(tl.reshape(g, (BLOCKS, BLOCK, D)), 1)
    last = tl.arange(0, BLOCK)[None, :, None] == BLOCK - 1
    end = tl.sum(tl.where(last, since, 0.0), 1)
    earlier = tl.arange(0, BLOCKS)[:, None, None] > tl.arange(0, BLOCKS)[None, :, None]
    return tl.reshape(since, (CHUNK, D)), end, tl.sum(tl.where(earlier, end[None, :, :], 0.0), 1)


@triton.jit
def block_rows(
    i: tl.constexpr,
    here,
    columns,
    k_rows,
    q_rows,
    beta,
    beta_stride,
    row,
    length,
    head,
    lower,
    q_k,
    D: tl.constexpr,
):
    """A and the products of q with k for the rows of block i, with `columns` [64, D] relative to its start.

    The 16 rows of k and those of q go in as one operand.
    """
    r = tl.arange(0, 2 * BLOCK)[:, None]
    c = tl.arange(0, D)[None, :]
    t = i * BLOCK + r % BLOCK
    along = here * CHUNK * D + t * D + c
    high = tl.load(tl.where(r < BLOCK, k_rows[0], q_rows[0]) + along)
    low = tl.load(tl.where(r < BLOCK, k_rows[1], q_rows[1]) + along)
    parts = halves(columns, high.dtype)
    operand = (tl.trans(parts[0]), tl.trans(parts[1]))
    value = product((high, low), operand, tl.zeros((2 * BLOCK, CHUNK), tl.float32))
    s = tl.arange(0, CHUNK)[None, :]
    strong = tl.load(beta + (row + t).to(tl.int64) * beta_stride + head, mask=t < length, other=0)
    strong = tl.where(t < length, sigmoid(strong.to(tl.float32)), 0.0)
    square = here * CHUNK * CHUNK + t * CHUNK + s
    tl.store(lower + square, strong * value, mask=(r < BLOCK) & (s < t))
    parts = halves(value, high.dtype)
    below = (r >= BLOCK) & (s <= t)
    tl.store(q_k[0] + square, parts[0], mask=below)
    tl.store(q_k[1] + square, parts[1], mask=below)


@triton.jit
def diagonal_inverses(lower, here, dtype: tl.constexpr):
    """In place of each diagonal block of A the inverse of the identity plus that block."""
    b = tl.arange(0, BLOCKS)[:, None, None]
    t = tl.arange(0, BLOCK)[None, :, None]
    s = tl.arange(0, BLOCK)[None, None, :]
    square = here * CHUNK * CHUNK + (b * BLOCK + t) * CHUNK + b * BLOCK + s
    n = tl.load(lower + square, mask=t > s, other=0)
    x = tl.where(t == s, 1.0, 0.0) - tl.where(joins(t, s, 1), n, 0.0)
    x = doubled(x, n, t, s, 2, dtype)
    x = doubled(x, n, t, s, 4, dtype)
    tl.store(lower + square, doubled(x, n, t, s, 8, dtype))


@triton.jit
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
    H: tl.constexpr,
    D: tl.constexpr,
    RING: tl.constexpr,
):
    """What of `ChunkTerms` needs no inverse, and A, for every chunk and head. The grid is [heads, chunks].

    query and rest [64, D]; q_k [64, 64] without what is above its diagonal; keep [D]; lower [64, 64], A
    below its diagonal; w [64, D], k exp(L); ends [8, D], the sums E of blocks and those of the blocks before.
    `change` [64, D] is room to work in, which a later kernel fills: registers change hands through memory.
    """
    head = tl.program_id(0)
    entry = table + tl.program_id(1) * ENTRY
    row, length = tl.load(entry), tl.load(entry + 1)
    position, before = tl.load(entry + 2), tl.load(entry + 3)
    if length <= 0:
        return
    here = (tl.program_id(1) * H + head).to(tl.int64)
    C: tl.constexpr = 3 * H * D
    c = tl.arange(0, D)[None, :]
    j = tl.arange(0, CHUNK)[:, None]
    block = j // BLOCK
    along = here * CHUNK * D + j * D + c
    ring = window + tl.load(streams + row).to(tl.int64) * RING * C
    f = tl.load(decay + (row + j).to(tl.int64) * decay_stride + head * D + c, mask=j < length, other=0)
    shifted = f.to(tl.float32) + tl.load(dt_bias + head * D + c).to(tl.float32)
    strength = tl.exp(tl.load(a_log + head).to(tl.float32))
    g = tl.where(j < length, lower_bound * sigmoid(strength * shifted), 0.0)
    since, end, start = block_sums(g, D)
    ends += here * 2 * BLOCKS * D
    b = tl.arange(0, BLOCKS)[:, None]
    tl.store(ends + b * D + c, end)
    tl.store(ends + (BLOCKS + b) * D + c, start)
    whole = tl.sum(end, 0)
    tl.store(keep + here * D + tl.arange(0, D), tl.exp(whole))
    tl.debug_barrier()
    end = tl.load(ends + block * D + c)
    start = tl.load(ends + (BLOCKS + block) * D + c)
    shrunk = tl.exp(since)
    q = convolved(raw, raw_stride, ring, taps, row, length, position, before, head * D, D, C, RING)
    q = unit(q, unit_eps) * (query_scale * shrunk)
    store_parts(change_high, change_low, along, q)
    store_parts(query_high, query_low, along, q * tl.exp(start))
    k = convolved(raw, raw_stride, ring, taps, row, length, position, before, (H + head) * D, D, C, RING)
    k = unit(k, unit_eps)
    store_parts(w_high, w_low, along, k * shrunk)
    inner = k * tl.exp(-since)
    outer = k * tl.exp(end - since)
    store_parts(rest_high, rest_low, along, outer * tl.exp(whole[None, :] - start - end))
    tl.debug_barrier()
    for i in tl.static_range(BLOCKS):
        if i > 1:
            # Blocks before the last one move away from the rows by one block more.
            outer = tl.where(block < i - 1, outer * tl.exp(tl.load(ends + (i - 1) * D + c)), outer)
        columns = tl.where(block == i, inner, tl.where(block < i, outer, 0.0))
        block_rows(
            i, here, columns, (w_high, w_low), (change_high, change_low), beta, beta_stride, row, length,
            head, lower, (q_k_high, q_k_low), D,
        )  # fmt: skip


@triton.jit
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
    H: tl.constexpr,
    D: tl.constexpr,
    RING: tl.constexpr,
):
    """u and w [64, D] of every chunk and head, from what `decayed_products` leaves; the grid is the same."""
    head = tl.program_id(0)
    entry = table + tl.program_id(1) * ENTRY
    row, length = tl.load(entry), tl.load(entry + 1)
    position, before = tl.load(entry + 2), tl.load(entry + 3)
    if length <= 0:
        return
    here = (tl.program_id(1) * H + head).to(tl.int64)
    dtype: tl.constexpr = w_high.dtype.element_ty
    C: tl.constexpr = 3 * H * D
    c = tl.arange(0, D)[None, :]
    j = tl.arange(0, CHUNK)[:, None]
    block = j // BLOCK
    along = here * CHUNK * D + j * D + c
    ring = window + tl.load(streams + row).to(tl.int64) * RING * C
    diagonal_inverses(lower, here, dtype)
    strong = tl.load(beta + (row + j).to(tl.int64) * beta_stride + head, mask=j < length, other=0)
    strong = tl.where(j < length, sigmoid(strong.to(tl.float32)), 0.0)
    k_parts = load_parts(w_high, w_low, along)
    start = tl.load(ends + here * 2 * BLOCKS * D + (BLOCKS + block) * D + c)
    k_grown = strong * tl.exp(start) * (k_parts[0].to(tl.float32) + k_parts[1].to(tl.float32))
    v = convolved(raw, raw_stride, ring, taps, row, length, position, before, (2 * H + head) * D, D, C, RING)
    tl.debug_barrier()
    i = tl.arange(0, CHUNK)[None, :]
    square = here * CHUNK * CHUNK + j * CHUNK + i
    x = tl.load(lower + square, mask=block == i // BLOCK, other=0)
    n = tl.load(lower + square, mask=block > i // BLOCK, other=0)
    x = doubled(x, n, j, i, 16, dtype)
    x_parts = halves(doubled(x, n, j, i, 32, dtype), dtype)
    nothing = tl.zeros((CHUNK, D), tl.float32)
    store_parts(w_high, w_low, along, product(x_parts, halves(k_grown, dtype), nothing))
    tl.store(u + along, product(x_parts, halves(strong * v, dtype), nothing))
