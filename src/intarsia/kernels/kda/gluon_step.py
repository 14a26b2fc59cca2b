# mypy: ignore-errors
"""The recurrent form of KDA in one launch for heads of 128 columns: a program for every segment and head.

Everything that no launch before has written, the state and the columns before the segment among it, is read
before the launch before has ended.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from intarsia.kernels.kda.gluon_delta import (
    CHANNELS,
    VALUES,
    D,
    advanced,
    channels_of,
    clear_rows,
    columns_before,
    convolved,
    normed,
    places,
    settled,
    sigmoid,
    taps_of,
    vectors_shared,
)


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

    The grid is [heads, recurrent segments + 1]; the last programs clear the padding rows.
    """
    C: gl.constexpr = 3 * H * D
    head = gl.program_id(0)
    segment = gl.program_id(1)
    if segment == gl.num_programs(1) - 1:
        settled(OVERLAP)
        clear_rows(out, gl.load(starts + segments), rows, head, H)
        return
    # Where every segment has one row its stream is that of the row of its own number: read along with the
    # starts, not after them.
    likely = gl.minimum(segment, rows - 1)
    stream_number = gl.load(streams + likely)
    position = gl.load(positions + likely)
    first = gl.load(starts + segment)
    end = gl.load(starts + segment + 1)
    if first >= end:
        settled(OVERLAP)
        return
    if first != segment:
        stream_number = gl.load(streams + first)
        position = gl.load(positions + first)
    stream = stream_number.to(gl.int64)
    copies = memory + (stream * COPIES * H + head) * D * D
    place = places()
    if COPIES > 1:
        state = gl.load(copies + gl.load(current + stream).to(gl.int64) * (H * D * D) + place)
    else:
        state = gl.load(copies + place)
    ring = window + stream * RING * C
    qk, own = channels_of(head, H)
    qk_before = columns_before(ring, qk, position, C, RING)
    v_before = columns_before(ring, own, position, C, RING)
    qk_taps = taps_of(taps, qk)
    v_taps = taps_of(taps, own)
    c = head * D + gl.arange(0, D, layout=CHANNELS)
    cv = head * D + gl.arange(0, D, layout=VALUES)
    strength = gl.exp(gl.load(a_log + head).to(gl.float32))
    bias = gl.load(dt_bias + c).to(gl.float32)
    weight = gl.load(norm + gl.arange(0, D, layout=VALUES)).to(gl.float32)
    shared = vectors_shared()
    settled(OVERLAP)
    for row in range(first, end):
        j = row - first
        at = row.to(gl.int64)
        qk_new = gl.load(raw + at * raw_stride + qk)
        v_new = gl.load(raw + at * raw_stride + own)
        write = sigmoid(gl.load(beta + at * beta_stride + head).to(gl.float32))
        shifted = gl.load(decay + at * decay_stride + c).to(gl.float32) + bias
        z = gl.load(gate + at * gate_stride + cv).to(gl.float32)
        shared[2].store(gl.exp(lower_bound * sigmoid(strength * shifted)))
        shared[0].store(convolved(qk_before, qk_new, qk_taps))
        shared[1].store(convolved(v_before, v_new, v_taps))
        qk_before = (qk_before[1], qk_before[2], qk_new)
        v_before = (v_before[1], v_before[2], v_new)
        state, o = advanced(state, shared, write, query_scale, unit_eps)
        gl.store(copies + j.to(gl.int64) * (H * D * D) + place, state)
        slot = ring + ((position + j) % RING) * C
        gl.store(slot + qk, qk_new)
        gl.store(slot + own, v_new)
        gl.store(out + at * (H * D) + cv, normed(o, weight, z, eps).to(out.dtype.element_ty))
