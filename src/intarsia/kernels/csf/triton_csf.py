# mypy: ignore-errors
"""Expanding slab-compressed scales: a byte is its row's base and a code, unless an exception replaces it."""

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
