"""The part of a matrix that a rank has to encode for its share: whole blocks around it, and no more.

Encoding is a pure function of a block and of what the blocks share, so the bytes are those of the whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from intarsia import formats
from intarsia.loading.layout import Region

FEW_COLUMNS = 5 / 8
"""Of more of the columns no copy is made: it would not fit into what a step was planned to take."""


@dataclass(frozen=True, slots=True)
class Window:
    """Rows and columns of a matrix."""

    rows: range
    columns: range


def whole(shape: tuple[int, ...]) -> Window:
    """All of a matrix."""
    return Window(range(shape[-2]), range(shape[-1]))


def window_of(
    format_name: str, stored_format: str | None, shape: tuple[int, ...], regions: Mapping[str, Region] | None
) -> Window:
    """What of a matrix must be encoded to `format_name` for a share of it.

    Rows and columns begin and end between blocks, those of `stored_format` too where the source has one. A
    format with a scale a row needs all of its columns.
    """
    everything = whole(shape)
    if regions is None:
        return everything
    kind, region = formats.get(format_name), regions["weight"]
    tall, wide = kind.block
    if stored_format is not None:
        tall = max(tall, formats.get(stored_format).block[0])
    rows = _around(region.ranges[0], tall, shape[-2])
    per_byte = shape[-1] // region.whole[1]
    held = region.ranges[1]
    columns = _around(range(held.start * per_byte, held.stop * per_byte), wide, shape[-1])
    row_scaled = "weight_scale" in regions and _follows_rows_alone(regions["weight_scale"], shape)
    if row_scaled or len(columns) > FEW_COLUMNS * shape[-1]:
        columns = everything.columns
    return Window(rows, columns)


def within(
    format_name: str, regions: Mapping[str, Region] | None, window: Window, shape: tuple[int, ...]
) -> Mapping[str, Region] | None:
    """The regions of a matrix's tensors, counted from where the window's own tensors begin."""
    if regions is None or window == whole(shape):
        return regions
    kind = formats.get(format_name)
    before = kind.layout((window.rows.start, window.columns.start))
    inside = kind.layout((len(window.rows), len(window.columns)))
    return {
        suffix: replace(
            region,
            # A dimension of one entry (of block scales [a, 1, b, 1]) has nothing before it.
            starts=tuple(
                start - min(start, skipped)
                for start, skipped in zip(region.starts, before[suffix].shape, strict=True)
            ),
            whole=inside[suffix].shape,
        )
        for suffix, region in regions.items()
        if suffix in inside
    }


def _around(part: range, block: int, size: int) -> range:
    return range(part.start // block * block, min(-(-part.stop // block) * block, size))


def _follows_rows_alone(scale: Region, shape: tuple[int, ...]) -> bool:
    return bool(scale.whole) and scale.whole[0] == shape[-2] and len(scale.whole) == 1
