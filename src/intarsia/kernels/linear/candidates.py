"""The configurations that products in registers may run with; none of them touches a bit.

The ranges of K are part of a row's bits, so they are part of the shape that a configuration is for: rows of
all matrices together, columns, ranges. One kernel takes up to 32 rows (`plan.Few`), one any number
(`plan.Many`), and one many (`plan.Wide`). Who adds a field or a legal value to either adds it here.
"""

from collections.abc import Iterator
from dataclasses import replace

from intarsia.kernels.linear import plan
from intarsia.kernels.tuning import Configuration, Site, Tunable, offer

LINEAR, SWIGLU = "linear", "linear_swiglu"
FEW_ROWS = 16
# Narrow matrices may take as many rows so: one launch instead of three.
_FEW_OF_NARROW, _NARROW = 32, 512
BUCKETS = (8, FEW_ROWS, 32, 64, 128, 256, 512, 1024, 2048, 8192)
_FORMATS = ("BF16", "MXFP8", "FP8_PB_WO")
_MOST = 1 << 32
_WARPS = 16  # of a program
_TILES = ((64, 32, 4), (64, 64, 4), (64, 128, 4), (128, 64, 8), (128, 128, 8), (128, 256, 8), (256, 128, 8))
_SHARED_BYTES = 220_000


def refuse(site: Site) -> str:
    """Why there are no such products, or the empty string."""
    if len(site.formats) != 1 or site.formats[0] not in _FORMATS:
        return f"weights in {'+'.join(site.formats)}; one of {', '.join(_FORMATS)} is needed"
    if len(site.shape) != 3:
        return "a shape that is not rows of the weights, columns and ranges"
    rows, columns, ranges = site.shape
    if not 0 < rows * columns < _MOST or rows <= 0 or columns % plan.STEP:
        return f"weights of {rows} x {columns}"
    if ranges not in (1, 2, 4, 8) or columns % (plan.STEP * ranges):
        return f"{ranges} ranges of {columns} columns"
    return ""


def default(site: Site) -> Configuration:
    """What runs where nothing was tuned, at the largest row count of the bucket."""
    (form,), (rows, columns, ranges) = site.formats, site.shape
    return plan.shape(ranges, rows, columns, site.rows, form)


def candidates(site: Site) -> tuple[Configuration, ...]:
    """All that may run, the default first."""
    own: list[plan.Shape] = []
    if site.rows <= FEW_ROWS or (site.rows <= _FEW_OF_NARROW and site.shape[0] <= _NARROW):
        own += _few(site)
    if site.rows >= FEW_ROWS:
        own += _many(site)
    if site.rows > 128:
        own += _wide(site)
    return tuple(dict.fromkeys([default(site), *own]))


def _few(site: Site) -> Iterator[plan.Few]:
    (form,), (rows, columns, ranges) = site.formats, site.shape
    start = replace(plan.few(ranges, rows, columns, _bytes(form), site.rows), chunks=2)
    steps = columns * _bytes(form) // (ranges * 64 * start.chunks)
    # Groups of eight rows come in pairs; a tile of blocks lies in one block.
    shapes = [
        (warps, groups * 8 * warps)
        for warps in (1, 2, 4, 8)
        for groups in (2, 4)
        if 4 <= ranges * warps <= _WARPS and groups * 8 * warps <= min(128, 2 * start.tile)
    ]
    for warps, tile in shapes:
        for depth in (d for d in (1, 2, 4) if steps % d == 0):
            for ahead in {1, min(depth, 2)}:
                yield replace(start, warps=warps, tile=tile, depth=depth, ahead=ahead)


def _many(site: Site) -> Iterator[plan.Many]:
    """The default changed in one respect, and other tiles."""
    (form,), (rows, columns, ranges) = site.formats, site.shape
    start = plan.many(ranges, rows, columns, site.rows, form)
    made = [start, replace(start, fine=not start.fine)]
    made += [replace(start, stages=stages) for stages in (2, 3, 4)]
    made += [replace(start, lead=lead) for lead in (2, 4, 8)]
    made += [replace(start, group=group) for group in (512, 1024, 2048) if site.rows > 512]
    made += [
        replace(start, tile=tile, rows=rows, warps=warps, parts=parts)
        for tile, rows, warps in _TILES
        for parts in (1, 2)
    ]
    if ranges > 1:
        made += [replace(one, apart=not start.apart) for one in made]
    for one in made:
        if _fits(one, form, columns // ranges // plan.STEP, ranges, site.rows):
            yield one


def _wide(site: Site) -> Iterator[plan.Wide]:
    """Both widths, and more or fewer buffers, words on their way and rows that go together."""
    (form,), (_, _, ranges) = site.formats, site.shape
    for rows in (256, 128):
        # A block's product stands beside the sum.
        if rows <= site.rows and not (form == "FP8_PB_WO" and rows > 128):
            start = plan.Wide(rows, 4, 2, 1024, ranges > 1)
            yield from (start, replace(start, stages=3), replace(start, lead=4))
            yield from (replace(start, group=group) for group in (512, 2048) if site.rows > 512)


def _fits(one: plan.Many, form: str, steps: int, ranges: int, rows: int) -> bool:
    """Whether the kernel's buffers and registers hold it."""
    several = ranges > 1 and not one.apart
    return (
        one.rows <= max(32, rows)
        and one.stages * one.rows * plan.STEP * 2 <= _SHARED_BYTES
        and one.parts * one.tile * one.rows <= 128 * 32 * one.warps
        and not (several and steps % one.stages)
        # A block's product stands beside the sum.
        and not (form == "FP8_PB_WO" and (one.parts > 1 or one.tile > plan.STEP or one.rows > 128))
    )


def _bytes(form: str) -> int:
    return 2 if form == "BF16" else 1


for _operation in (LINEAR, SWIGLU):
    offer(Tunable(_operation, BUCKETS, refuse, default, candidates))
