# mypy: ignore-errors
"""The state from chunk to chunk of every prompt, and what each chunk reads of it."""

import triton
import triton.language as tl

from intarsia.kernels.kda.triton_parts import CHUNK, ENTRY, entry, halves, product, segments_of, sigmoid


@triton.jit
def remember(raw, stride, ring, channel, row, count, position, C, RING: tl.constexpr, SLOTS: tl.constexpr):
    """A segment's last raw columns, to their slots of the stream's ring."""
    kept = tl.minimum(count, RING)
    e = tl.arange(0, SLOTS)[:, None]
    at = count - kept + e
    values = tl.load(raw + (row + at).to(tl.int64) * stride + channel, mask=e < kept, other=0)
    tl.store(ring + ((position + at) % RING) * C + channel, values, mask=e < kept)


@triton.jit
def after_chunk(
    here,
    state,
    value,
    u,
    w_high,
    w_low,
    rest_high,
    rest_low,
    keep,
    state_high,
    state_low,
    change_high,
    change_low,
    D: tl.constexpr,
    VALUES: tl.constexpr,
):
    """The state after a chunk, of the one before it, and what is kept of both for `read_chunks`."""
    dtype: tl.constexpr = state_high.dtype.element_ty
    key = tl.arange(0, D)[:, None]
    at = here * CHUNK * D + tl.arange(0, CHUNK)[:, None] * D
    along = at + tl.arange(0, D)[None, :]
    w = (tl.load(w_high + along), tl.load(w_low + along))
    state_parts = halves(state, dtype)
    tl.store(state_high + here * D * D + key * D + value, state_parts[0])
    tl.store(state_low + here * D * D + key * D + value, state_parts[1])
    known = product(w, state_parts, tl.zeros((CHUNK, VALUES), tl.float32))
    change = halves(tl.load(u + at + value) - known, dtype)
    tl.store(change_high + at + value, change[0])
    tl.store(change_low + at + value, change[1])
    rest = (tl.trans(tl.load(rest_high + along)), tl.trans(tl.load(rest_low + along)))
    return product(rest, change, state * tl.load(keep + here * D + key))


@triton.jit(do_not_specialize=["first_segment", "segments", "first_chunk", "chunks_at_once"])
def carry_state(
    raw,
    raw_stride,
    u,
    w_high,
    w_low,
    rest_high,
    rest_low,
    keep,
    state_high,
    state_low,
    change_high,
    change_low,
    memory,
    window,
    current,
    starts,
    streams,
    positions,
    first_segment,
    segments,
    first_chunk,
    chunks_at_once,
    H: tl.constexpr,
    D: tl.constexpr,
    VALUES: tl.constexpr,
    COPIES: tl.constexpr,
    RING: tl.constexpr,
    SLOTS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Walks over a segment's chunks that are at hand: the state before each goes to `state` [D, D], what its
    rows change to `change` [64, D], both in two parts, and the last state to the stream's memory.

    A program owns VALUES value columns of one head. The grid is [heads * D / VALUES, prompt segments].
    """
    head = tl.program_id(0) // (D // VALUES)
    part = tl.program_id(0) % (D // VALUES)
    begins, counts, firsts, lengths, throughs = segments_of(
        starts, positions, first_segment, segments, SEGMENTS
    )
    segment = tl.program_id(1)
    begin = entry(begins, segment, SEGMENTS)
    count = entry(counts, segment, SEGMENTS)
    position = entry(firsts, segment, SEGMENTS)
    through = entry(throughs, segment, SEGMENTS)
    chunk = through - entry(lengths, segment, SEGMENTS)
    low = tl.maximum(chunk, first_chunk)
    high = tl.minimum(through, first_chunk + chunks_at_once)
    if low >= high:
        return
    stream = tl.load(streams + begin).to(tl.int64)
    C: tl.constexpr = 3 * H * D
    key = tl.arange(0, D)[:, None]
    value = part * VALUES + tl.arange(0, VALUES)[None, :]
    copy = tl.where(low == chunk, tl.load(current + stream), 0).to(tl.int64)
    copies = memory + (stream * COPIES * H + head) * D * D + key * D + value
    state = tl.load(copies + copy * H * D * D)
    if STAGES:
        for index in tl.range(low - first_chunk, high - first_chunk, num_stages=STAGES):
            here = (index * H + head).to(tl.int64)
            state = after_chunk(
                here, state, value, u, w_high, w_low, rest_high, rest_low, keep, state_high, state_low,
                change_high, change_low, D, VALUES,
            )  # fmt: skip
    else:
        index = low - first_chunk
        while index < high - first_chunk:
            here = (index * H + head).to(tl.int64)
            state = after_chunk(
                here, state, value, u, w_high, w_low, rest_high, rest_low, keep, state_high, state_low,
                change_high, change_low, D, VALUES,
            )  # fmt: skip
            index += 1
    tl.store(copies, state)
    if (part == 0) & (high == through):
        ring = window + stream * RING * C
        c = head * D + tl.arange(0, D)[None, :]
        remember(raw, raw_stride, ring, c, begin, count, position, C, RING, SLOTS)
        remember(raw, raw_stride, ring, c + H * D, begin, count, position, C, RING, SLOTS)
        remember(raw, raw_stride, ring, c + 2 * H * D, begin, count, position, C, RING, SLOTS)


@triton.jit(do_not_specialize=["last", "rows"])
def read_chunks(
    query_high,
    query_low,
    q_k_high,
    q_k_low,
    state_high,
    state_low,
    change_high,
    change_low,
    gate,
    gate_stride,
    norm,
    out,
    starts,
    last,
    table,
    rows,
    eps,
    H: tl.constexpr,
    D: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
):
    """What the rows of every chunk read, normed and gated, into out [R, H D]. starts[last] is the
    number of real rows. The grid is [heads, chunks]; programs behind the last chunk clear the padding rows.
    """
    head = tl.program_id(0)
    place = table + tl.program_id(1) * ENTRY
    row, length, to_come = tl.load(place), tl.load(place + 1), tl.load(place + 4)
    j = tl.arange(0, CHUNK)[:, None]
    c = tl.arange(0, D)[None, :]
    if to_come <= 0:
        padding = tl.load(starts + last) - to_come * CHUNK + j
        nothing = tl.zeros((CHUNK, D), tl.float32).to(out.dtype.element_ty)
        tl.store(out + padding.to(tl.int64) * H * D + head * D + c, nothing, mask=padding < rows)
        return
    here = (tl.program_id(1) * H + head).to(tl.int64)
    d = tl.arange(0, DEPTH)
    total = tl.zeros((CHUNK, D), tl.float32)
    for k in tl.range(0, D, DEPTH, num_stages=STAGES):
        left = here * CHUNK * D + j * D + k + d[None, :]
        right = here * D * D + (k + d[:, None]) * D + c
        query = (tl.load(query_high + left), tl.load(query_low + left))
        total = product(query, (tl.load(state_high + right), tl.load(state_low + right)), total)
    for k in tl.range(0, CHUNK, DEPTH, num_stages=STAGES):
        left = here * CHUNK * CHUNK + j * CHUNK + k + d[None, :]
        right = here * CHUNK * D + (k + d[:, None]) * D + c
        below = k + d[None, :] <= j
        q_k = (tl.load(q_k_high + left, mask=below, other=0), tl.load(q_k_low + left, mask=below, other=0))
        total = product(q_k, (tl.load(change_high + right), tl.load(change_low + right)), total)
    weight = tl.load(norm + c).to(tl.float32)
    at = (row + j).to(tl.int64)
    z = tl.load(gate + at * gate_stride + head * D + c, mask=j < length, other=0).to(tl.float32)
    total = total * tl.rsqrt(tl.sum(total * total, 1) / D + eps)[:, None] * weight * sigmoid(z)
    tl.store(out + at * H * D + head * D + c, total.to(out.dtype.element_ty), mask=j < length)
