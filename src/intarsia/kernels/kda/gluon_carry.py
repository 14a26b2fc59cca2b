# mypy: ignore-errors
"""The state from chunk to chunk, and what rows read, for heads of 128 columns, on wgmma.

A program holds 64 value columns of one head's state, or all 128, transposed, in its registers: value by key.
A program holds 64 value columns of one head's state, or all, transposed, in its registers: value by key.
the next state, so that nothing of the chain passes through shared memory. The right operands, what
`gluon_terms.py` leaves, arrive there a chunk ahead.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents

from intarsia.kernels.kda.gluon_rows import CHUNK, LOG2E, D, halves, part_of_one

STAGES = gl.constexpr(2)
# A chunk's rows by all values, written value by row without conflicts.
STAGED = gl.constexpr(gl.SwizzledSharedLayout(8, 2, 4, [1, 0]))
OUT = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [8, 1], [1, 0]))  # [64 rows, 128 values], eight warps
BYTES = gl.constexpr(3 * 2 * 2 * 64 * 128)  # of the tiles of a chunk


@gluon.constexpr_function
def state_layout(VALUES):
    """[VALUES, 128 keys], 16 values a warp."""
    return gl.NVMMADistributedLayout([3, 0], [VALUES // 16, 1], [16, 128, 16])


@gluon.constexpr_function
def rows_layout(VALUES):
    """[VALUES, 64 rows], 16 values a warp."""
    return gl.NVMMADistributedLayout([3, 0], [VALUES // 16, 1], [16, 64, 16])


@gluon.jit
def total_of(values, where):
    return gl.sum(gl.where(where, values, 0), 0)


@gluon.jit
def segment_bounds(
    starts, positions, first_segment, segments, segment, SEGMENTS: gl.constexpr, WARPS: gl.constexpr
):
    """First row, row count and position of a prompt segment, its first chunk and the one after its last."""
    s = gl.arange(0, SEGMENTS, layout=gl.BlockedLayout([1], [32], [WARPS], [0]))
    begins = gl.load(starts + first_segment + s, mask=s < segments, other=0)
    ends = gl.load(starts + first_segment + s + 1, mask=s < segments, other=0)
    counts = ends - begins
    at = gl.load(positions + begins, mask=counts > 0, other=0)
    chunks = gl.where(counts > 0, (at + counts + CHUNK - 1) // CHUNK - at // CHUNK, 0)
    chunk = total_of(chunks, s < segment)
    here = s == segment
    return (
        total_of(begins, here), total_of(counts, here), total_of(at, here),
        chunk, chunk + total_of(chunks, here),
    )  # fmt: skip


@gluon.jit
def remember(
    raw,
    stride,
    ring,
    channel,
    row,
    count,
    position,
    C,
    RING: gl.constexpr,
    SLOTS: gl.constexpr,
    RAW: gl.constexpr,
):
    """A segment's last raw columns, to their slots of the stream's ring."""
    kept = gl.minimum(count, RING)
    e = gl.arange(0, SLOTS, layout=gl.SliceLayout(1, RAW))[:, None]
    at = count - kept + e
    here = (e < kept) & (channel >= 0)
    values = gl.load(raw + (row + at).to(gl.int64) * stride + channel, mask=here, other=0)
    gl.store(ring + ((position + at) % RING) * C + channel, values, mask=here)


@gluon.jit
def fetch(keys, rest, tiles, barrier, here, stage, pred):
    """Ask for what a chunk contributes: w, query and rest, each in two parts."""
    at = here * 4 * D
    tma.async_copy_global_to_shared(keys, [at, 0], barrier, tiles[0].index(stage), pred=pred)
    tma.async_copy_global_to_shared(keys, [at + 2 * D, 0], barrier, tiles[1].index(stage), pred=pred)
    tma.async_copy_global_to_shared(rest, [here * 2 * CHUNK, 0], barrier, tiles[2].index(stage), pred=pred)


@gluon.jit
def as_left(x, LEFT: gl.constexpr):
    parts = halves(x)
    return gl.convert_layout(parts[0], LEFT), gl.convert_layout(parts[1], LEFT)


@gluon.jit
def products(left, right, SIZE: gl.constexpr, total):
    """`total` + left right of pairs of parts, not waited for; the right ones lie one behind the other."""
    high = right.slice(0, SIZE, 0)
    low = right.slice(SIZE, SIZE, 0)
    total = warpgroup_mma(left[1], high, total, is_async=True)
    total = warpgroup_mma(left[0], low, total, is_async=True)
    return warpgroup_mma(left[0], high, total, is_async=True)


@gluon.jit
def clear_rows(out, row, end, head, H: gl.constexpr):
    """Zeros for the rows that belong to no stream."""
    t = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, OUT))[:, None]
    c = gl.arange(0, D, layout=gl.SliceLayout(0, OUT))[None, :]
    nothing = gl.zeros([CHUNK, D], out.dtype.element_ty, OUT)
    for first in range(row, end, CHUNK):
        at = (first + t).to(gl.int64) * (H * D) + head * D + c
        gl.store(out + at, nothing, mask=(first + t < end) & (c >= 0))


@gluon.jit
def store_rows(seen, gate, gate_stride, norm, out, row, length, head, query_scale, eps, H: gl.constexpr):
    """What a chunk's rows read, by queries of unit length: scaled, normed and gated, into out [R, H D]."""
    t = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, OUT))[:, None]
    c = gl.arange(0, D, layout=gl.SliceLayout(0, OUT))[None, :]
    inside = (t < length) & (c >= 0)
    at = (row + t).to(gl.int64)
    z = gl.load(gate + at * gate_stride + head * D + c, mask=inside, other=0).to(gl.float32)
    weight = gl.load(norm + c).to(gl.float32)
    o = query_scale * seen.load(OUT)
    o = o * gl.rsqrt(gl.sum(o * o, 1) / D + eps)[:, None] * weight * part_of_one(z * LOG2E)
    gl.store(out + at * (H * D) + head * D + c, o.to(out.dtype.element_ty), mask=inside)


@gluon.jit(do_not_specialize=["first_segment", "segments", "first_chunk", "chunks_at_once", "rows"])
def carry_state(
    keys,
    rest,
    values,
    keep,
    read,
    gate,
    gate_stride,
    norm,
    out,
    raw,
    raw_stride,
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
    rows,
    query_scale,
    eps,
    H: gl.constexpr,
    COPIES: gl.constexpr,
    RING: gl.constexpr,
    SLOTS: gl.constexpr,
    SEGMENTS: gl.constexpr,
    VALUES: gl.constexpr,
    EARLY: gl.constexpr,
):
    """Walks over a segment's chunks that are at hand; the last state goes to the stream's memory. What rows
    read goes to `read` [64, D] where VALUES is half of a head, and normed and gated into out [`rows`, H D]
    where it is all of one; padding rows of `out` become zero then.

    The grid is [heads * D / VALUES, prompt segments].
    """
    if EARLY:
        gdc_launch_dependents()  # the next launch may begin beside this one
    STATE: gl.constexpr = state_layout(VALUES)
    ROWS: gl.constexpr = rows_layout(VALUES)
    LEFT: gl.constexpr = gl.DotOperandLayout(0, ROWS, 2)
    RAW: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [VALUES // 16, 1], [1, 0])
    head = gl.program_id(0) // (D // VALUES)
    part = gl.program_id(0) % (D // VALUES)
    begin, count, position, chunk, through = segment_bounds(
        starts, positions, first_segment, segments, gl.program_id(1), SEGMENTS, VALUES // 16
    )
    WHOLE: gl.constexpr = VALUES == D
    if WHOLE:  # noqa: SIM102 (the compiler decides the outer one)
        if (first_chunk == 0) & (gl.program_id(1) == 0):
            clear_rows(out, gl.load(starts + first_segment + segments), rows, head, H)
    low = gl.maximum(chunk, first_chunk)
    high = gl.minimum(through, first_chunk + chunks_at_once)
    if low >= high:
        return
    stream = gl.load(streams + begin).to(gl.int64)
    C: gl.constexpr = 3 * H * D
    value = part * VALUES + gl.arange(0, VALUES, layout=gl.SliceLayout(1, STATE))[:, None]
    key = gl.arange(0, D, layout=gl.SliceLayout(0, STATE))
    copy = gl.where(low == chunk, gl.load(current + stream), 0).to(gl.int64)
    copies = memory + (stream * COPIES * H + head) * D * D
    place = key[None, :] * D + value
    state = gl.load(copies + copy * H * D * D + place)

    tiles = (
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, 2 * D, CHUNK], keys.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, 2 * D, CHUNK], keys.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, 2 * CHUNK, D], rest.layout),
    )
    if WHOLE:
        staged = gl.allocate_shared_memory(gl.float32, [CHUNK, D], STAGED)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    mbarrier.expect(ready.index(0), BYTES)
    gl.thread_barrier()
    first = low - first_chunk
    last = high - first_chunk
    fetch(keys, rest, tiles, ready.index(0), first * H + head, 0, True)
    v = part * VALUES + gl.arange(0, VALUES, layout=gl.SliceLayout(1, ROWS))[:, None]
    n = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, ROWS))[None, :]
    turned = v * CHUNK + n
    straight = n * D + v
    size: gl.constexpr = CHUNK * D
    at = (first * H + head).to(gl.int64)
    change = gl.load(values + at * 2 * size + turned)
    seen = gl.load(values + at * 2 * size + size + turned)
    for index in range(first, last):
        stage = (index - first) % STAGES
        phase = (index - first) // STAGES % 2
        more = index + 1 < last
        here = index * H + head
        at = here.to(gl.int64)
        mbarrier.expect(ready.index(1 - stage), BYTES, pred=more)
        gl.thread_barrier()  # every warp is done with the chunk before
        fetch(keys, rest, tiles, ready.index(1 - stage), here + H, 1 - stage, more)
        kept = gl.load(keep + at * D + key)
        left = as_left(state, LEFT)
        mbarrier.wait(ready.index(stage), phase)
        change = products(left, tiles[0].index(stage), D, change)
        seen = products(left, tiles[1].index(stage), D, seen)
        change = warpgroup_mma_wait(3, [change])
        state = state * kept[None, :]
        moved = as_left(change, LEFT)
        seen = warpgroup_mma_wait(0, [seen])
        state = products(moved, tiles[2].index(stage), CHUNK, state)
        if WHOLE:
            grid = (position // CHUNK + first_chunk + index - chunk) * CHUNK
            begin_at = gl.maximum(position, grid)
            length = gl.minimum(position + count, grid + CHUNK) - begin_at
            row = begin + begin_at - position
            staged.permute([1, 0]).store(seen)
            store_rows(staged, gate, gate_stride, norm, out, row, length, head, query_scale, eps, H)
        else:
            gl.store(read + at * size + straight, seen)
        after = (here + gl.where(more, H, 0)).to(gl.int64)
        change = gl.load(values + after * 2 * size + turned)
        seen = gl.load(values + after * 2 * size + size + turned)
        state = warpgroup_mma_wait(0, [state])
    for i in gl.static_range(STAGES):
        mbarrier.invalidate(ready.index(i))
    gl.store(copies + place, state)
    if (part == 0) & (high == through):
        ring = window + stream * RING * C
        c = head * D + gl.arange(0, D, layout=gl.SliceLayout(0, RAW))[None, :]
        remember(raw, raw_stride, ring, c, begin, count, position, C, RING, SLOTS, RAW)
        remember(raw, raw_stride, ring, c + H * D, begin, count, position, C, RING, SLOTS, RAW)
        remember(raw, raw_stride, ring, c + 2 * H * D, begin, count, position, C, RING, SLOTS, RAW)
