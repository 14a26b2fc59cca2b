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


@gluon.jit
def row_done(
    state,
    before,
    row,
    j,
    position,
    inputs,
    strides,
    targets,
    channels,
    constants,
    numbers,
    shared,
    H: gl.constexpr,
    RING: gl.constexpr,
):
    """The state after a row, kept with its raw columns and what it reads; and the columns before the next."""
    C: gl.constexpr = 3 * H * D
    at = row.to(gl.int64)
    copies, place, ring, out = targets
    head, qk, own, c, cv = channels
    qk_taps, v_taps, strength, bias, weight = constants
    lower_bound, query_scale, eps, unit_eps = numbers
    qk_new = gl.load(inputs[0] + at * strides[0] + qk)
    v_new = gl.load(inputs[0] + at * strides[0] + own)
    write = sigmoid(gl.load(inputs[3] + at * strides[3] + head).to(gl.float32))
    shifted = gl.load(inputs[1] + at * strides[1] + c).to(gl.float32) + bias
    z = gl.load(inputs[2] + at * strides[2] + cv).to(gl.float32)
    shared[2].store(gl.exp(lower_bound * sigmoid(strength * shifted)))
    shared[0].store(convolved(before[0], qk_new, qk_taps))
    shared[1].store(convolved(before[1], v_new, v_taps))
    state, o = advanced(state, shared, write, query_scale, unit_eps)
    gl.store(copies + j.to(gl.int64) * (H * D * D) + place, state)
    slot = ring + ((position + j) % RING) * C
    gl.store(slot + qk, qk_new)
    gl.store(slot + own, v_new)
    gl.store(out + at * (H * D) + cv, normed(o, shared, weight, z, eps).to(out.dtype.element_ty))
    return state, ((before[0][1], before[0][2], qk_new), (before[1][1], before[1][2], v_new))


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
    before = (columns_before(ring, qk, position, C, RING), columns_before(ring, own, position, C, RING))
    c = head * D + gl.arange(0, D, layout=CHANNELS)
    cv = head * D + gl.arange(0, D, layout=VALUES)
    constants = (
        taps_of(taps, qk),
        taps_of(taps, own),
        gl.exp(gl.load(a_log + head).to(gl.float32)),
        gl.load(dt_bias + c).to(gl.float32),
        gl.load(norm + gl.arange(0, D, layout=VALUES)).to(gl.float32),
    )
    inputs = (raw, decay, gate, beta)
    strides = (raw_stride, decay_stride, gate_stride, beta_stride)
    targets = (copies, place, ring, out)
    channels = (head, qk, own, c, cv)
    numbers = (lower_bound, query_scale, eps, unit_eps)
    shared = vectors_shared()
    settled(OVERLAP)
    if COPIES == 1:  # no segment has more rows than copies
        row_done(
            state, before, first, first - first, position, inputs, strides, targets, channels, constants,
            numbers, shared, H, RING,
        )  # fmt: skip
    else:
        for row in range(first, end):
            state, before = row_done(
                state, before, row, row - first, position, inputs, strides, targets, channels, constants,
                numbers, shared, H, RING,
            )  # fmt: skip
