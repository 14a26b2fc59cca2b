# mypy: ignore-errors
"""What the kernels of the prompt form share: where a chunk lies, and products of numbers in two parts.

Tensor cores multiply bfloat16. A float32 number goes in as two of them, high + low, and a product as three,
which keeps 16 bits: high * high + high * low + low * high, summed in float32.
"""

import triton
import triton.language as tl

CHUNK = tl.constexpr(64)
ENTRY = tl.constexpr(8)  # numbers of the table of chunks for each


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), with a division in fewer instructions."""
    root = tl.rsqrt(1 + tl.exp(-x))
    return root * root


@triton.jit
def halves(x, dtype: tl.constexpr):
    """High and low part; where `dtype` is float32 (the interpreter's, for one) the low part is zero."""
    high = x.to(dtype)
    return high, (x - high.to(tl.float32)).to(dtype)


@triton.jit
def product(a, b, total):
    """`total` + a b of pairs of parts."""
    if a[0].dtype == tl.float32:
        return tl.dot(a[0] + a[1], b[0] + b[1], total, input_precision="ieee")
    total = tl.dot(a[1], b[0], total)
    total = tl.dot(a[0], b[1], total)
    return tl.dot(a[0], b[0], total)


@triton.jit
def load_parts(high, low, at):
    return tl.load(high + at), tl.load(low + at)


@triton.jit
def store_parts(high, low, at, values):
    parts = halves(values, high.dtype.element_ty)
    tl.store(high + at, parts[0])
    tl.store(low + at, parts[1])


@triton.jit
def segments_of(starts, positions, first_segment, segments, SEGMENTS: tl.constexpr):
    """First row, row count, first position, chunk count and chunks up to its end of every prompt segment."""
    s = tl.arange(0, SEGMENTS)
    begin = tl.load(starts + first_segment + s, mask=s < segments, other=0)
    end = tl.load(starts + first_segment + s + 1, mask=s < segments, other=0)
    count = tl.maximum(end - begin, 0)
    position = tl.load(positions + begin, mask=count > 0, other=0)
    last = (position + count + CHUNK - 1) // CHUNK
    chunks = tl.where(count > 0, last - position // CHUNK, 0)
    return begin, count, position, chunks, tl.cumsum(chunks, 0)


@triton.jit
def entry(values, index, SEGMENTS: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, SEGMENTS) == index, values, 0), 0)


@triton.jit(do_not_specialize=["first_segment", "segments", "first_chunk"])
def plan_chunks(
    starts,
    positions,
    table,
    first_segment,
    segments,
    first_chunk,
    SEGMENTS: tl.constexpr,
    ENTRY: tl.constexpr,
):
    """Where the chunks of all prompts lie: for a program's chunk, counted from `first_chunk`, an entry with
    its first row, how many rows it has (0 behind the last chunk), its first row's position, how many rows of
    its segment come before it, and how many chunks lie between it and the last.
    """
    chunk = first_chunk + tl.program_id(0)
    begin, count, position, chunks, through = segments_of(
        starts, positions, first_segment, segments, SEGMENTS
    )
    segment = tl.sum((through <= chunk).to(tl.int32), 0)
    before = entry(through - chunks, segment, SEGMENTS)
    row = entry(begin, segment, SEGMENTS)
    rows = entry(count, segment, SEGMENTS)
    at = entry(position, segment, SEGMENTS)
    grid = (at // CHUNK + chunk - before) * CHUNK
    first = tl.maximum(at, grid)
    left = tl.sum(chunks, 0) - chunk
    length = tl.where(left > 0, tl.minimum(at + rows, grid + CHUNK) - first, 0)
    place = table + tl.program_id(0) * ENTRY
    tl.store(place, row + first - at)
    tl.store(place + 1, length)
    tl.store(place + 2, first)
    tl.store(place + 3, first - at)
    tl.store(place + 4, left)
