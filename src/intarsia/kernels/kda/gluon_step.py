# mypy: ignore-errors
"""The recurrent form of KDA in one launch for heads of 128 columns, with the registers' layout chosen.

Four warps hold the state [key, value] of one head of one stream in registers, each a quarter of the value
columns with all keys. So a sum over keys stays inside a warp: additions in a thread, then two exchanges
between lanes. What is a vector over keys is worked out by every warp for itself, four channels a lane, and
handed round through shared memory. Only the output norm's sum crosses warps.

With a = exp(g) a row needs S^T (a k) and S^T (a q), both from one pass over the state as it was; then
d = beta (v - S^T (a k)), the new state is diag(a) S + k d^T, and what the row reads is S^T (a q) + (k . q) d.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_wait

D = gl.constexpr(128)
TAPS = gl.constexpr(4)


@gluon.jit
def sigmoid(x):
    return 1 / (1 + gl.exp(-x))


@gluon.jit
def taps_of(taps, begin, LAYOUT: gl.constexpr, TABLE: gl.constexpr):
    """The four taps of the 128 channels from `begin` on, oldest first; a channel's lie side by side."""
    channel = begin + gl.arange(0, D, layout=gl.SliceLayout(1, TABLE))
    tap = gl.arange(0, TAPS, layout=gl.SliceLayout(0, TABLE))
    table = gl.load(taps + channel[:, None] * TAPS + tap[None, :]).to(gl.float32)
    even, odd = gl.split(gl.reshape(table, [D, 2, 2]))
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    return (
        gl.convert_layout(first, LAYOUT, assert_trivial=True),
        gl.convert_layout(second, LAYOUT, assert_trivial=True),
        gl.convert_layout(third, LAYOUT, assert_trivial=True),
        gl.convert_layout(fourth, LAYOUT, assert_trivial=True),
    )


@gluon.jit
def convolved(
    raw,
    raw_stride,
    ring,
    taps,
    first,
    j,
    position,
    begin,
    C: gl.constexpr,
    RING: gl.constexpr,
    LAYOUT: gl.constexpr,
    TABLE: gl.constexpr,
):
    """SiLU of the causal convolution of 128 channels at row `j` of a segment, and the row's raw columns.

    Columns before the segment come from the stream's ring, those before the sequence are zero.
    """
    channel = begin + gl.arange(0, D, layout=LAYOUT)
    weights = taps_of(taps, begin, LAYOUT, TABLE)
    new = gl.load(raw + (first + j).to(gl.int64) * raw_stride + channel)
    total = gl.zeros([D], gl.float32, LAYOUT)
    for tap in gl.static_range(TAPS - 1):
        offset = j - (TAPS - 1) + tap
        at = position + offset
        inside = gl.full([D], offset >= 0, gl.int1, LAYOUT)
        before = gl.full([D], (offset < 0) & (at >= 0), gl.int1, LAYOUT)
        here = gl.load(raw + (first + offset).to(gl.int64) * raw_stride + channel, mask=inside, other=0)
        earlier = gl.load(ring + (at % RING) * C + channel, mask=before, other=0)
        total += (here + earlier).to(gl.float32) * weights[tap]
    total += new.to(gl.float32) * weights[3]
    return total / (1 + gl.exp(-total)), new


@gluon.jit
def add_pairs(a, b, c, d):
    return a + c, b + d


@gluon.jit
def clear_rows(out, first, end, head, H: gl.constexpr, LAYOUT: gl.constexpr):
    """Zeros for the rows that belong to no stream."""
    c = gl.arange(0, D, layout=LAYOUT)
    nothing = gl.zeros([D], out.dtype.element_ty, LAYOUT)
    for row in range(first, end):
        gl.store(out + row.to(gl.int64) * H * D + head * D + c, nothing)


@gluon.jit(do_not_specialize=["rows", "segments"])
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
    H: gl.constexpr,
    COPIES: gl.constexpr,
    RING: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """raw [R, 3 H D]; decay, gate, out [R, H D]; beta [R, H]; taps [3 H D, 4]; window [streams, RING, 3 H D];
    memory [streams, COPIES, H, D, D]; starts up to the end of all `segments`.

    The grid is [heads, recurrent segments + 1]; the last programs clear the padding rows. What is read before
    `gdc_wait` was not written by the launch before.
    """
    STATE: gl.constexpr = gl.BlockedLayout([4, 4], [4, 8], [1, 4], [1, 0])
    KEYS: gl.constexpr = gl.SliceLayout(1, STATE)
    VALUES: gl.constexpr = gl.SliceLayout(0, STATE)
    EVERY_WARP: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    TABLE: gl.constexpr = gl.BlockedLayout([4, 4], [32, 1], [4, 1], [1, 0])
    VALUE_TABLE: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [1, 0], [2, 0]],
        [[4, 0], [8, 0], [16, 0], [0, 0], [0, 0]],
        [[32, 0], [64, 0]],
        [],
        [128, 4],
    )
    C: gl.constexpr = 3 * H * D
    head = gl.program_id(0)
    segment = gl.program_id(1)
    if segment == gl.num_programs(1) - 1:
        if OVERLAP:
            gdc_wait()
        clear_rows(out, gl.load(starts + segments), rows, head, H, EVERY_WARP)
        return
    # Where every segment has one row its stream is that of the row of its own number: read along with the
    # starts, not after them.
    likely = gl.minimum(segment, rows - 1)
    stream_number = gl.load(streams + likely)
    position = gl.load(positions + likely)
    first = gl.load(starts + segment)
    end = gl.load(starts + segment + 1)
    if first >= end:
        if OVERLAP:
            gdc_wait()
        return
    if first != segment:
        stream_number = gl.load(streams + first)
        position = gl.load(positions + first)
    stream = stream_number.to(gl.int64)
    copies = memory + (stream * COPIES * H + head) * D * D
    ring = window + stream * RING * C
    place = gl.arange(0, D, layout=KEYS)[:, None] * D + gl.arange(0, D, layout=VALUES)[None, :]
    if COPIES > 1:
        state = gl.load(copies + gl.load(current + stream).to(gl.int64) * (H * D * D) + place)
    else:
        state = gl.load(copies + place)
    c = head * D + gl.arange(0, D, layout=EVERY_WARP)
    cv = head * D + gl.arange(0, D, layout=VALUES)
    strength = gl.exp(gl.load(a_log + head).to(gl.float32))
    bias = gl.load(dt_bias + c).to(gl.float32)
    weight = gl.load(norm + gl.arange(0, D, layout=VALUES)).to(gl.float32)
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    kept_shared = gl.allocate_shared_memory(gl.float32, [D], SHARED)
    k_shared = gl.allocate_shared_memory(gl.float32, [D], SHARED)
    kept_k_shared = gl.allocate_shared_memory(gl.float32, [D], SHARED)
    kept_q_shared = gl.allocate_shared_memory(gl.float32, [D], SHARED)
    if OVERLAP:
        gdc_wait()
    for row in range(first, end):
        j = row - first
        at = row.to(gl.int64)
        shifted = gl.load(decay + at * decay_stride + c).to(gl.float32) + bias
        write = sigmoid(gl.load(beta + at * beta_stride + head).to(gl.float32))
        z = gl.load(gate + at * gate_stride + cv).to(gl.float32)
        q, new_q = convolved(
            raw, raw_stride, ring, taps, first, j, position, head * D, C, RING, EVERY_WARP, TABLE
        )
        k, new_k = convolved(
            raw, raw_stride, ring, taps, first, j, position, (H + head) * D, C, RING, EVERY_WARP, TABLE
        )
        v, new_v = convolved(
            raw, raw_stride, ring, taps, first, j, position, (2 * H + head) * D, C, RING, VALUES, VALUE_TABLE
        )
        kept = gl.exp(lower_bound * sigmoid(strength * shifted))
        q = q * gl.rsqrt(gl.sum(q * q, 0) + unit_eps) * query_scale
        k = k * gl.rsqrt(gl.sum(k * k, 0) + unit_eps)
        kq = gl.sum(k * q, 0)
        kept_k_shared.store(kept * k)
        kept_q_shared.store(kept * q)
        kept_shared.store(kept)
        k_shared.store(k)
        by_k = state * kept_k_shared.load(KEYS)[:, None]
        by_q = state * kept_q_shared.load(KEYS)[:, None]
        known, read = gl.reduce((by_k, by_q), 0, add_pairs)
        change = write * (v - known)
        state = state * kept_shared.load(KEYS)[:, None] + k_shared.load(KEYS)[:, None] * change[None, :]
        gl.store(copies + j.to(gl.int64) * (H * D * D) + place, state)
        slot = ring + ((position + j) % RING) * C
        gl.store(slot + c, new_q)
        gl.store(slot + c + H * D, new_k)
        gl.store(slot + cv + 2 * H * D, new_v)
        o = read + change * kq
        o = o * gl.rsqrt(gl.sum(o * o, 0) / D + eps) * weight
        gl.store(out + at * (H * D) + cv, (o * sigmoid(z)).to(out.dtype.element_ty))
