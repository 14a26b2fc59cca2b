"""How the register kernels cut a product: what is part of a row's bits, and what is not."""

from dataclasses import dataclass

STEP = 128
"""Columns that all warps of a range multiply before the next ones; a block of FP8_PB_WO."""
_RANGES = (1, 2, 4, 8)
# Tiles of 16 rows times ranges: warps that a card of 132 multiprocessors needs to keep its memory busy.
_ENOUGH_WARPS = 1500
# Ranges -> warps side by side, and rows of the weight a program takes.
_FEW = {1: (4, 64), 2: (2, 32), 4: (1, 16), 8: (1, 16)}
# Rows that go through all weights before the next ones, so that what runs at once shares what it reads.
_GROUP = 1024


@dataclass(frozen=True, slots=True)
class Few:
    """Up to 16 rows of x: `warps` side by side in each of the ranges, `tile` rows of the weight, chunks of 64
    bytes a step, and steps of weights and of x on their way.
    """

    warps: int
    tile: int
    chunks: int
    depth: int
    ahead: int


@dataclass(frozen=True, slots=True)
class Many:
    """More rows of x: a program takes `parts` tiles of the weight and one of so many `rows`, with `warps`,
    buffers of x, and units of weights on their way (half a step of one tile each). `group`: rows that go
    through all weights before the next ones. `apart` where a range is a program.
    """

    tile: int
    parts: int
    rows: int
    warps: int
    stages: int
    lead: int
    group: int
    apart: bool


def ranges_of(rows: int, columns: int) -> int:
    """Into how many ranges the columns of matrices with so many rows together are cut.

    A function of the matrices alone, since the cut is part of every row's bits. 0 where no cut fits: a range
    is a whole number of steps, and of pairs of steps where there are several.
    """
    found = int(columns % STEP == 0)
    for choice in _RANGES[1:]:
        if found * -(-rows // 16) >= _ENOUGH_WARPS or columns % (2 * STEP * choice):
            break
        found = choice
    return found


def few(ranges: int, columns: int, each: int) -> Few:
    """The shape for up to 16 rows; `each` is the bytes of a weight."""
    warps, tile = _FEW[ranges]
    chunks = 2
    steps = columns * each // (ranges * 64 * chunks)
    depth = next(d for d in ((4, 2, 1) if each == 2 else (2, 1)) if steps % d == 0)
    # Steps of BF16 are short: x of the next one would come too late.
    return Few(warps, tile, chunks, depth, min(depth, each))


def many(ranges: int, weight_rows: int, columns: int, count: int, form: str) -> Many:
    """The shape for `count` rows, more than 16, of weights in a format."""
    steps = columns // ranges // STEP
    if count <= 128:
        rows = next(size for size in (32, 64, 128) if count <= size)
        apart = ranges > 1 and -(-weight_rows // 64) < 200
        # Two buffers of 64 rows leave room for four programs on a multiprocessor.
        most, lead = (4, 8) if rows == 32 else (2, 4)
        if rows == 128 and form == "FP8_PB_WO":
            lead = 2
        return Many(64, 1, rows, 4, _stages(most, steps, ranges > 1 and not apart), lead, _GROUP, apart)
    if form == "MXFP8" and count > 256:
        return Many(128, 2, 128, 8, 2, 4, _GROUP, False)
    most = 4 if form == "MXFP8" else 2
    # A block's product and its sum leave few registers for what is on its way.
    lead = 2 if form == "FP8_PB_WO" else 4
    return Many(128, 1, 128, 8, _stages(most, steps, ranges > 1), lead, _GROUP, False)


def _stages(most: int, steps: int, several: bool) -> int:
    """Buffers; where a program does several ranges they must divide the steps of one."""
    while several and steps % most:
        most //= 2
    return most
