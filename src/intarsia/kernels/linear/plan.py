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
# Programs of four warps that a card of 132 multiprocessors needs to keep its memory busy.
_ENOUGH_PROGRAMS, _SHORT_PROGRAMS = 200, 128
_MULTIPROCESSORS = 132
# Rows of the weight that keep a card busy in tiles of 64, and that do not in tiles of 128.
_WIDE, _NARROW = 8192, 512
_MOST_OF_A_CARD = 100  # programs that take a multiprocessor each


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
    through all weights before the next ones. `fine` where codes are decoded sixteen columns at a time,
    between the products, and `apart` where a range is a program.
    """

    tile: int
    parts: int
    rows: int
    warps: int
    stages: int
    lead: int
    group: int
    fine: bool
    apart: bool


@dataclass(frozen=True, slots=True)
class Wide:
    """Many rows of x: a program takes 128 rows of the weight and so many `rows`, each of two warpgroups half
    of the first. Buffers of 64 columns of x, halves of steps of weights on their way, `group` as in `Many`,
    and `shared` where the total of ranges lies in shared memory.
    """

    rows: int
    stages: int
    lead: int
    group: int
    shared: bool


Shape = Few | Many | Wide


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


def shape(ranges: int, weight_rows: int, columns: int, count: int, form: str) -> Shape:
    """What runs with `count` rows: `few` up to 16, but more than eight of whole MXFP8 rows multiply faster
    in `many`, and `wide` where it pays.
    """
    found = wide(ranges, weight_rows, count, form) if count > 256 else None
    if found:
        return found
    if count > 16 or (count > 8 and form == "MXFP8" and ranges == 1 and weight_rows >= _WIDE):
        return many(ranges, weight_rows, columns, count, form)
    return few(ranges, weight_rows, columns, 2 if form == "BF16" else 1, count)


def few(ranges: int, weight_rows: int, columns: int, each: int, count: int) -> Few:
    """The shape for up to 16 rows; `each` is the bytes of a weight."""
    # Programs of two ranges side by side read x twice as often: too often where it has many rows.
    warps, tile = (1, 16) if ranges == 2 and count <= 8 else _FEW[ranges]
    programs = -(-weight_rows // tile)
    chunks = 2
    steps = columns * each // (ranges * 64 * chunks)
    if count <= 8 and programs <= _MULTIPROCESSORS and steps == 4 * each:
        # A multiprocessor has one program at most: all of its weights may be on their way at once.
        return Few(warps, tile, chunks, steps, 2 if each == 1 else 1)
    if count <= 8 and programs > _MULTIPROCESSORS and each == 2 and ranges == 8:
        # Half as many registers for words on their way make room for twice as many programs.
        return Few(warps, tile, 1, 4, 2)
    depth = next(d for d in ((4, 2, 1) if each == 2 else (2, 1)) if steps % d == 0)
    # Two steps of more than eight rows of x beside the weights' would not fit the registers.
    ahead = min(depth, 2 if count <= 8 else each)
    if ranges == 1 and each == 1 and count <= 8 and _last_wave(programs, 5) > _last_wave(programs, 4):
        ahead = 1  # with which five programs fit a multiprocessor instead of four
    return Few(warps, tile, chunks, depth, ahead)


def _last_wave(programs: int, each: int) -> float:
    """How much of their time multiprocessors that hold `each` programs at once are full; 0 for one wave."""
    slots = _MULTIPROCESSORS * each
    return programs / (slots * -(-programs // slots)) if programs > slots else 0.0


def many(ranges: int, weight_rows: int, columns: int, count: int, form: str) -> Many:
    """The shape for `count` rows, more than eight, of weights in a format."""
    steps = columns // ranges // STEP
    several = ranges > 1
    if count <= 128:
        rows = next(size for size in (16, 32, 64, 128) if count <= size)
        apart = _apart(ranges, weight_rows, steps, rows)
        # Two buffers of 64 rows leave room for four programs on a multiprocessor, and so do short ranges.
        most, lead = (4, 8) if rows <= 32 and not apart else (2, 4)
        programs = -(-weight_rows // 64) * ranges
        if apart and rows <= 32 and steps > 2 and programs <= 3 * _MULTIPROCESSORS:
            # The fewer programs share a multiprocessor, the more of its x each has on its way.
            most = 4 if programs <= 2 * _MULTIPROCESSORS else 3
        if rows == 128 and form == "FP8_PB_WO":
            lead = 2
        fine = rows == 64 and form == "FP8_PB_WO" and apart and columns > 8192
        fine |= rows <= 32 and form == "MXFP8" and apart and most == 2 and 4 <= steps <= 6
        return Many(64, 1, rows, 4, _stages(most, steps, several and not apart), lead, _GROUP, fine, apart)
    if several and weight_rows <= _NARROW:
        most = 4 if form == "BF16" else 2
        return Many(64, 1, 64, 4, _stages(most, steps, True), 4, _GROUP, False, False)
    if form == "MXFP8" and count > 256 and not several:
        return Many(128, 1, 256, 8, 3, 4, _GROUP, False, False)
    if form == "BF16" and count > 512 and several and columns >= 1024:
        return Many(128, 2, 128, 8, 2, 4, _GROUP, False, False)
    most = 4 if form == "MXFP8" else 2
    group = _GROUP // 2 if columns > 8192 and form == "FP8_PB_WO" else _GROUP
    return Many(128, 1, 128, 8, _stages(most, steps, several), 4, group, form == "MXFP8" and several, False)


def _apart(ranges: int, weight_rows: int, steps: int, rows: int) -> bool:
    """Whether programs of 64 rows of the weight are too few to keep a card busy, unless a range is one.

    For few rows of x a program a multiprocessor is enough where a range of its own is over when its buffers
    are filled.
    """
    tiles = -(-weight_rows // 64)
    return ranges > 1 and tiles < (_SHORT_PROGRAMS if rows <= 32 and steps <= 8 else _ENOUGH_PROGRAMS)


def wide(ranges: int, weight_rows: int, count: int, form: str) -> Wide | None:
    """The shape for many rows of blocks, or of matrices that are cut, where its programs fill a card."""
    # The product of a block stands beside the sums, and leaves registers for half as many rows.
    rows = 128 if form == "FP8_PB_WO" else 256
    # The same for all counts that are tuned together.
    most = min(1 << (count - 1).bit_length(), 2048)
    programs = -(-weight_rows // 128) * -(-most // rows)
    if programs < _MOST_OF_A_CARD or (ranges == 1 and form != "FP8_PB_WO"):
        return None
    return Wide(rows, 4, 2, _GROUP, ranges > 1)


def _stages(most: int, steps: int, several: bool) -> int:
    """Buffers; where a program does several ranges they must divide the steps of one."""
    while several and steps % most:
        most //= 2
    return most
