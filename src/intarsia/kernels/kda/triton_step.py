# mypy: ignore-errors
"""The recurrent form of KDA in one launch: convolution, gates, delta rule, norm and output gate.

A program owns one head of one stream and keeps its state [key, value] in registers while it walks over the
rows of the segment; rows are dealt with one after the other by the same instructions, so how many there are
changes no bits. Both products with the state come from one pass over it: with S' = diag(exp g) S and d =
beta (v - S'^T k), the new state is S' + k d^T and what the row reads is S'^T q + (k . q) d.
"""

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def convolved(raw, ring, taps, first, j, position, channel, C, RING: tl.constexpr, TAPS: tl.constexpr):
    """SiLU of the causal convolution at row `j` of a segment that begins at row `first` and at `position`.

    Columns before the segment come from the stream's ring, those before the sequence are zero. The raw column
    of the row itself goes into the ring.
    """
    total = tl.zeros(channel.shape, tl.float32)
    for tap in tl.static_range(TAPS):
        offset = j - (TAPS - 1) + tap
        at = position + offset
        inside = (offset >= 0) & (channel >= 0)
        before = (offset < 0) & (at >= 0) & (channel >= 0)
        here = tl.load(raw + (first + offset).to(tl.int64) * C + channel, mask=inside, other=0).to(tl.float32)
        earlier = tl.load(ring + (at % RING) * C + channel, mask=before, other=0).to(tl.float32)
        value = tl.where(inside, here, earlier)
        total += value * tl.load(taps + channel * TAPS + tap).to(tl.float32)
        if tap == TAPS - 1:
            tl.store(ring + (at % RING) * C + channel, value.to(ring.dtype.element_ty))
    return total / (1 + tl.exp(-total))


@triton.jit
def add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def recurrent_rows(
    raw,
    decay,
    beta,
    gate,
    taps,
    a_log,
    dt_bias,
    norm,
    window,
    memory,
    current,
    starts,
    streams,
    positions,
    out,
    lower_bound,
    query_scale,
    eps,
    unit_eps,
    H: tl.constexpr,
    D: tl.constexpr,
    COPIES: tl.constexpr,
    RING: tl.constexpr,
    TAPS: tl.constexpr,
):
    """raw [R, 3 H D]; decay, gate, out [R, H D]; beta [R, H]; taps [3 H D, TAPS]; window [streams,
    RING, 3 H D]; memory [streams, COPIES, H, D, D]. The grid is [heads, segments].
    """
    head = tl.program_id(0)
    first = tl.load(starts + tl.program_id(1))
    end = tl.load(starts + tl.program_id(1) + 1)
    stream = tl.load(streams + first).to(tl.int64)
    position = tl.load(positions + first)
    C: tl.constexpr = 3 * H * D
    c = tl.arange(0, D)
    ring = window + stream * RING * C
    copies = memory + (stream * COPIES * H + head) * D * D
    place = c[:, None] * D + c[None, :]
    state = tl.load(copies + tl.load(current + stream).to(tl.int64) * H * D * D + place)
    strength = tl.exp(tl.load(a_log + head).to(tl.float32))
    bias = tl.load(dt_bias + head * D + c).to(tl.float32)
    j = 0
    while first + j < end:
        row = (first + j).to(tl.int64)
        q = convolved(raw, ring, taps, first, j, position, head * D + c, C, RING, TAPS)
        k = convolved(raw, ring, taps, first, j, position, (H + head) * D + c, C, RING, TAPS)
        v = convolved(raw, ring, taps, first, j, position, (2 * H + head) * D + c, C, RING, TAPS)
        at = row * H * D + head * D + c
        shifted = tl.load(decay + at).to(tl.float32) + bias
        kept = tl.exp(lower_bound * sigmoid(strength * shifted))
        write = sigmoid(tl.load(beta + row * H + head).to(tl.float32))
        q = q * tl.rsqrt(tl.sum(q * q, 0) + unit_eps) * query_scale
        k = k * tl.rsqrt(tl.sum(k * k, 0) + unit_eps)
        state = state * kept[:, None]
        known, read = tl.reduce((state * k[:, None], state * q[:, None]), 0, add_pairs)
        change = write * (v - known)
        state = state + k[:, None] * change[None, :]
        tl.store(copies + j * H * D * D + place, state)
        o = read + change * tl.sum(k * q, 0)
        o = o * tl.rsqrt(tl.sum(o * o, 0) / D + eps) * tl.load(norm + c).to(tl.float32)
        y = o * sigmoid(tl.load(gate + at).to(tl.float32))
        tl.store(out + at, y.to(out.dtype.element_ty))
        j += 1
