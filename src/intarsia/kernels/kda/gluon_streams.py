# mypy: ignore-errors
"""The recurrent form for many streams of a row each, heads of 128 columns: programs stay, states come ahead.

A program deals with one head of every so many streams, one after the other. While it works on one state the
next two are on their way to shared memory, and the next row to registers, so that memory never rests. A row's
arithmetic is that of `gluon_step.py`, bit for bit.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from intarsia.kernels.kda.gluon_delta import (
    CHANNELS,
    STATE,
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

STAGES = gl.constexpr(3)
BYTES = gl.constexpr(4 * 128 * 128)


@gluon.jit
def located(starts, streams, positions, segment, segments, rows):
    """A segment's row, its stream and position, and whether there is such a row."""
    here = gl.minimum(segment, segments - 1)
    first = gl.load(starts + here)
    end = gl.load(starts + here + 1)
    row = gl.minimum(first, rows - 1)
    stream = gl.maximum(gl.load(streams + row), 0)
    return row, stream, gl.load(positions + row), (first < end) & (segment < segments)


@gluon.jit
def fetch(states, tiles, ready, stream, head, stage, pred, H: gl.constexpr):
    """Ask for a state."""
    mbarrier.expect(ready.index(stage), BYTES, pred=pred)
    at = (stream * H + head) * D
    tma.async_copy_global_to_shared(states, [at, 0], ready.index(stage), tiles.index(stage), pred=pred)


@gluon.jit
def loaded(inputs, strides, window, place, head, qk, own, cv, H: gl.constexpr, RING: gl.constexpr):
    """What a row brings: raw columns, its own and those before it, decay, gate and beta."""
    C: gl.constexpr = 3 * H * D
    at = place[0].to(gl.int64)
    ring = window + place[1].to(gl.int64) * RING * C
    raw = inputs[0] + at * strides[0]
    return (
        gl.load(raw + qk),
        gl.load(raw + own),
        columns_before(ring, qk, place[2], C, RING),
        columns_before(ring, own, place[2], C, RING),
        gl.load(inputs[1] + at * strides[1] + (own - 2 * H * D)),
        gl.load(inputs[2] + at * strides[2] + cv),
        gl.load(inputs[3] + at * strides[3] + head),
    )


@gluon.jit(do_not_specialize=["rows", "segments", "all_segments"])
def recurrent_streams(
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
    states,
    starts,
    streams,
    positions,
    out,
    rows,
    segments,
    all_segments,
    lower_bound,
    query_scale,
    eps,
    unit_eps,
    H: gl.constexpr,
    RING: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """As `recurrent_rows`, where none of the first `segments` has more than one row and a stream one copy of
    its state. `states` describes tiles [128, 128] of memory.

    The grid is a multiple of H.
    """
    C: gl.constexpr = 3 * H * D
    head = gl.program_id(0) % H
    begin = gl.program_id(0) // H
    step = gl.num_programs(0) // H
    tiles = gl.allocate_shared_memory(gl.float32, [STAGES, D, D], states.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    gl.thread_barrier()
    now = located(starts, streams, positions, begin, segments, rows)
    then = located(starts, streams, positions, begin + step, segments, rows)
    after = located(starts, streams, positions, begin + 2 * step, segments, rows)
    fetch(states, tiles, ready, now[1], head, 0, begin < segments, H)
    fetch(states, tiles, ready, then[1], head, 1, begin + step < segments, H)
    place = places()
    qk, own = channels_of(head, H)
    cv = head * D + gl.arange(0, D, layout=VALUES)
    qk_taps = taps_of(taps, qk)
    v_taps = taps_of(taps, own)
    strength = gl.exp(gl.load(a_log + head).to(gl.float32))
    bias = gl.load(dt_bias + head * D + gl.arange(0, D, layout=CHANNELS)).to(gl.float32)
    weight = gl.load(norm + gl.arange(0, D, layout=VALUES)).to(gl.float32)
    shared = vectors_shared()
    inputs = (raw, decay, gate, beta)
    strides = (raw_stride, decay_stride, gate_stride, beta_stride)
    settled(OVERLAP)
    if begin == 0:
        clear_rows(out, gl.load(starts + all_segments), rows, head, H)
    x = loaded(inputs, strides, window, now, head, qk, own, cv, H, RING)
    for n in range((segments - begin + step - 1) // step):
        segment = begin + n * step
        gl.thread_barrier()  # every warp has the state that lay where the next but one comes
        fetch(states, tiles, ready, after[1], head, (n + 2) % STAGES, segment + 2 * step < segments, H)
        later = located(starts, streams, positions, segment + 3 * step, segments, rows)
        ahead = loaded(inputs, strides, window, then, head, qk, own, cv, H, RING)
        shared[2].store(gl.exp(lower_bound * sigmoid(strength * (x[4].to(gl.float32) + bias))))
        shared[0].store(convolved(x[2], x[0], qk_taps))
        shared[1].store(convolved(x[3], x[1], v_taps))
        mbarrier.wait(ready.index(n % STAGES), n // STAGES % 2)
        state = tiles.index(n % STAGES).load(STATE)
        state, o = advanced(state, shared, sigmoid(x[6].to(gl.float32)), query_scale, unit_eps)
        y = normed(o, shared, weight, x[5].to(gl.float32), eps)
        if now[3]:
            stream = now[1].to(gl.int64)
            gl.store(memory + (stream * H + head) * D * D + place, state)
            slot = window + stream * RING * C + now[2] % RING * C
            gl.store(slot + qk, x[0])
            gl.store(slot + own, x[1])
            gl.store(out + now[0].to(gl.int64) * (H * D) + cv, y.to(out.dtype.element_ty))
        now, then, after, x = then, after, later, ahead
    for i in gl.static_range(STAGES):
        mbarrier.invalidate(ready.index(i))
