# mypy: ignore-errors
"""The state from chunk to chunk, and what rows read, for heads of 128 columns, on wgmma.

A program holds 64 value columns of one head's state, transposed, in its registers: value by key. They are the
left operand of what a chunk's rows read and change, and the change in turn is the left operand of the next
state, so that nothing of the chain passes through shared memory. The right operands, what `gluon_terms.py`
leaves, arrive there a chunk ahead.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from intarsia.kernels.kda.gluon_rows import CHUNK, D, halves

VALUES = gl.constexpr(64)
STATE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))  # [64 values, 128 keys]
ROWS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))  # [64 values, 64 rows]
LEFT = gl.constexpr(gl.DotOperandLayout(0, ROWS, 2))
SEGMENT = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
RAW = gl.constexpr(gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0]))
STAGES = gl.constexpr(2)
BYTES = gl.constexpr(3 * 2 * 2 * 64 * 128)  # of the tiles of a chunk


@gluon.jit
def total_of(values, where):
    return gl.sum(gl.where(where, values, 0), 0)


@gluon.jit
def segment_bounds(starts, positions, first_segment, segments, segment, SEGMENTS: gl.constexpr):
    """First row, row count and position of a prompt segment, its first chunk and the one after its last."""
    s = gl.arange(0, SEGMENTS, layout=SEGMENT)
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
def as_left(x):
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


@gluon.jit(do_not_specialize=["first_segment", "segments", "first_chunk", "chunks_at_once"])
def carry_state(
    keys,
    rest,
    values,
    keep,
    read,
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
    H: gl.constexpr,
    COPIES: gl.constexpr,
    RING: gl.constexpr,
    SLOTS: gl.constexpr,
    SEGMENTS: gl.constexpr,
):
    """Walks over a segment's chunks that are at hand: what their rows read goes to `read` [64, D], the last
    state to the stream's memory.

    The grid is [heads * D / VALUES, prompt segments].
    """
    head = gl.program_id(0) // (D // VALUES)
    part = gl.program_id(0) % (D // VALUES)
    begin, count, position, chunk, through = segment_bounds(
        starts, positions, first_segment, segments, gl.program_id(1), SEGMENTS
    )
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
        left = as_left(state)
        mbarrier.wait(ready.index(stage), phase)
        change = products(left, tiles[0].index(stage), D, change)
        seen = products(left, tiles[1].index(stage), D, seen)
        change = warpgroup_mma_wait(3, [change])
        state = state * kept[None, :]
        moved = as_left(change)
        seen = warpgroup_mma_wait(0, [seen])
        state = products(moved, tiles[2].index(stage), CHUNK, state)
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
        remember(raw, raw_stride, ring, c, begin, count, position, C, RING, SLOTS)
        remember(raw, raw_stride, ring, c + H * D, begin, count, position, C, RING, SLOTS)
        remember(raw, raw_stride, ring, c + 2 * H * D, begin, count, position, C, RING, SLOTS)
