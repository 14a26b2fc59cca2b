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
def convolved(
    raw, stride, ring, taps, first, j, position, channel, C, RING: tl.constexpr, TAPS: tl.constexpr
):
    """SiLU of the causal convolution at row `j` of a segment that begins at row `first` and at `position`,
    and the raw column of the row itself.

    Columns before the segment come from the stream's ring, those before the sequence are zero.
    """
    total = tl.zeros(channel.shape, tl.float32)
    value = tl.zeros(channel.shape, tl.float32)
    for tap in tl.static_range(TAPS):
        offset = j - (TAPS - 1) + tap
        at = position + offset
        inside = (offset >= 0) & (channel >= 0)
        before = (offset < 0) & (at >= 0) & (channel >= 0)
        here = tl.load(raw + (first + offset).to(tl.int64) * stride + channel, mask=inside, other=0).to(
            tl.float32
        )
        earlier = tl.load(ring + (at % RING) * C + channel, mask=before, other=0).to(tl.float32)
        value = tl.where(inside, here, earlier)
        total += value * tl.load(taps + channel * TAPS + tap).to(tl.float32)
    return total / (1 + tl.exp(-total)), value


@triton.jit
def add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit(do_not_specialize=["rows", "segments"])
def recurrent_rows(
    raw,
    raw_stride,
    decay,
    decay_stride,
    beta,
    beta_stride,
    gate,
    gate_stride,
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
    rows,
    segments,
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
    RING, 3 H D]; memory [streams, COPIES, H, D, D]; starts up to the end of all `segments`. The grid is
    [heads, recurrent segments + 1]; the last programs clear the padding rows.
    """
    head = tl.program_id(0)
    segment = tl.program_id(1)
    c = tl.arange(0, D)
    if segment == tl.num_programs(1) - 1:
        row = tl.load(starts + segments)
        while row < rows:
            nothing = tl.zeros((D,), tl.float32).to(out.dtype.element_ty)
            tl.store(out + row.to(tl.int64) * H * D + head * D + c, nothing)
            row += 1
        return
    first = tl.load(starts + segment)
    end = tl.load(starts + segment + 1)
    if first >= end:
        return
    stream = tl.load(streams + first).to(tl.int64)
    position = tl.load(positions + first)
    C: tl.constexpr = 3 * H * D
    ring = window + stream * RING * C
    copies = memory + (stream * COPIES * H + head) * D * D
    place = c[:, None] * D + c[None, :]
    state = tl.load(copies + tl.load(current + stream).to(tl.int64) * H * D * D + place)
    strength = tl.exp(tl.load(a_log + head).to(tl.float32))
    bias = tl.load(dt_bias + head * D + c).to(tl.float32)
    j = 0
    while first + j < end:
        row = (first + j).to(tl.int64)
        q, new_q = convolved(raw, raw_stride, ring, taps, first, j, position, head * D + c, C, RING, TAPS)
        k, new_k = convolved(
            raw, raw_stride, ring, taps, first, j, position, (H + head) * D + c, C, RING, TAPS
        )
        v, new_v = convolved(
            raw, raw_stride, ring, taps, first, j, position, (2 * H + head) * D + c, C, RING, TAPS
        )
        shifted = tl.load(decay + row * decay_stride + head * D + c).to(tl.float32) + bias
        kept = tl.exp(lower_bound * sigmoid(strength * shifted))
        z = tl.load(gate + row * gate_stride + head * D + c).to(tl.float32)
        write = sigmoid(tl.load(beta + row * beta_stride + head).to(tl.float32))
        q = q * tl.rsqrt(tl.sum(q * q, 0) + unit_eps) * query_scale
        k = k * tl.rsqrt(tl.sum(k * k, 0) + unit_eps)
        state = state * kept[:, None]
        known, read = tl.reduce((state * k[:, None], state * q[:, None]), 0, add_pairs)
        change = write * (v - known)
        state = state + k[:, None] * change[None, :]
        tl.store(copies + j * H * D * D + place, state)
        slot = ring + ((position + j) % RING) * C + head * D + c
        tl.store(slot, new_q.to(ring.dtype.element_ty))
        tl.store(slot + H * D, new_k.to(ring.dtype.element_ty))
        tl.store(slot + 2 * H * D, new_v.to(ring.dtype.element_ty))
        o = read + change * tl.sum(k * q, 0)
        o = o * tl.rsqrt(tl.sum(o * o, 0) / D + eps) * tl.load(norm + c).to(tl.float32)
        tl.store(out + row * H * D + head * D + c, (o * sigmoid(z)).to(out.dtype.element_ty))
        j += 1
