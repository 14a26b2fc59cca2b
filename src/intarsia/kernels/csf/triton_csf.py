# mypy: ignore-errors
"""Expanding compressed scales: a byte is the sum of a base and a code, unless an exception replaces it."""

import triton
import triton.language as tl


@triton.jit
def _first_at_least(words, begin, end, position):
    """The first index from `begin` to `end` whose exception is at `position` or later; they are in order."""
    low, high = begin, end
    for _ in range(25):  # a matrix has at most 2^24 scales
        middle = (low + high) // 2
        going = low < high
        found = tl.load(words + middle, mask=going, other=0) & 0xFFFFFF
        low = tl.where(going & (found < position), middle + 1, low)
        high = tl.where(going & (found >= position), middle, high)
    return low


@triton.jit
def expand_slabs(streams, words, starts, places, out, fault, slabs, pairs, PAIRS: tl.constexpr):
    """One program a slab of 16 rows of one matrix.

    streams [matrices, slabs, 16 + 16 * pairs] uint8 · words int32 of all matrices, those of matrix i from
    starts[i] to starts[i + 1] · places [matrices]: where each matrix begins in `out`, in pairs of bytes.
    `fault` is set for a base above 240, and for exceptions out of order or beyond the matrix: the ranges of
    all slabs follow each other, and every exception is compared with the one before it.
    """
    slab, matrix = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, 16)
    stream = streams + (matrix.to(tl.int64) * slabs + slab) * (16 + 16 * pairs)
    base = tl.load(stream + row).to(tl.int32)
    pair = tl.arange(0, PAIRS)
    real = (pair < pairs)[None, :]
    inside = row[:, None] * pairs + pair[None, :]
    code = tl.load(stream + 16 + inside, mask=real, other=0).to(tl.int32)
    low, high = base[:, None] + (code & 15), base[:, None] + (code >> 4)
    target = out + tl.load(places + matrix) + slab.to(tl.int64) * (16 * pairs)
    tl.store(target + inside, (low | (high << 8)).to(tl.int16), mask=real)

    begin, end = tl.load(starts + matrix), tl.load(starts + matrix + 1)
    count = 32 * pairs  # scales of a slab
    first = _first_at_least(words, begin, end, slab * count)
    last = _first_at_least(words, begin, end, (slab + 1) * count)
    wrong = (tl.max(base, axis=0) > 240) | (first > last)
    wrong = wrong | ((slab == 0) & (first != begin)) | ((slab == slabs - 1) & (last != end))
    tl.debug_barrier()  # exceptions replace what was written above
    target_bytes = target.to(tl.pointer_type(tl.uint8))
    lane = tl.arange(0, 128)
    some = first
    while some < last:
        index = some + lane
        mine = index < last
        word = tl.load(words + index, mask=mine, other=0)
        before = tl.load(words + index - 1, mask=mine & (index > begin), other=0) & 0xFFFFFF
        position = word & 0xFFFFFF
        wrong = wrong | (tl.max((mine & (index > begin) & (before >= position)).to(tl.int32), axis=0) > 0)
        place = position - slab * count
        good = mine & (place >= 0) & (place < count)
        tl.store(target_bytes + place, (word >> 24).to(tl.uint8), mask=good)
        some += 128
    if wrong:
        tl.store(fault, 1)


@triton.jit
def expand_blocks(
    bases,
    codes,
    counts,
    positions,
    values,
    starts,
    places,
    out,
    fault,
    bands,
    pairs,
    PAIRS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program a band of 32 rows of one matrix: its blocks of 32 x 2.

    bases and counts [matrices, bands, pairs] · codes [matrices, bands, pairs, 32] · positions and values of
    all matrices, those of matrix i from starts[i] to starts[i + 1], block after block · places [matrices]:
    where each matrix begins in `out`, in pairs of bytes. `fault` is set for a base above 240, a count or
    position above 63, positions of a block out of order, and counts that do not add up.
    """
    band, matrix = tl.program_id(0), tl.program_id(1)
    first_block = matrix.to(tl.int64) * bands * pairs
    some = tl.arange(0, CHUNK)
    before, at = 0, 0
    while at < band * pairs:  # escapes of the bands above
        before += tl.sum(
            tl.load(counts + first_block + at + some, mask=at + some < band * pairs, other=0).to(tl.int32),
            axis=0,
        )
        at += CHUNK
    pair = tl.arange(0, PAIRS)
    real = pair < pairs
    block = first_block + band * pairs + pair
    count = tl.load(counts + block, mask=real, other=0).to(tl.int32)
    base = tl.load(bases + block, mask=real, other=0).to(tl.int32)
    ends = tl.cumsum(count, axis=0)
    total = tl.sum(count, axis=0)
    row = tl.arange(0, 32)
    code = tl.load(codes + block[:, None] * 32 + row[None, :], mask=real[:, None], other=0).to(tl.int32)
    low, high = base[:, None] + (code & 15), base[:, None] + (code >> 4)
    target = out + tl.load(places + matrix) + band.to(tl.int64) * (32 * pairs)
    both = tl.trans((low | (high << 8)).to(tl.int16))
    tl.store(target + row[:, None] * pairs + pair[None, :], both, mask=real[None, :])

    begin = tl.load(starts + matrix)
    length = tl.load(starts + matrix + 1) - begin
    wrong = (tl.max(base, axis=0) > 240) | (tl.max(count, axis=0) > 63) | (before + total > length)
    wrong = wrong | ((band == bands - 1) & (before + total != length))
    last = tl.minimum(before + total, length)
    tl.debug_barrier()  # escapes replace what was written above
    target_bytes = target.to(tl.pointer_type(tl.uint8))
    lane = tl.arange(0, 64)
    at = before
    while at < last:
        mine = at + lane < last
        place = at + lane - before  # among the band's escapes
        own = tl.sum((ends[None, :] <= place[:, None]).to(tl.int32), axis=1)
        previous = tl.sum((ends[None, :] <= place[:, None] - 1).to(tl.int32), axis=1)
        position = tl.load(positions + begin + at + lane, mask=mine, other=0).to(tl.int32)
        earlier = tl.load(positions + begin + at + lane - 1, mask=mine & (place > 0), other=0).to(tl.int32)
        unordered = mine & (place > 0) & (own == previous) & (earlier >= position)
        wrong = wrong | (tl.max((unordered | (mine & (position > 63))).to(tl.int32), axis=0) > 0)
        value = tl.load(values + begin + at + lane, mask=mine, other=0)
        spot = (position >> 1) * (2 * pairs) + 2 * own + (position & 1)
        tl.store(target_bytes + spot, value, mask=mine & (own < pairs) & (position < 64))
        at += 64
    if wrong:
        tl.store(fault, 1)
