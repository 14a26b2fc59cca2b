"""Faults put into the loader's own cut: what it is told to read and where to put it, changed before it loads.

A fault that the loader refuses is as good as seen. Faults of compressed scales move by whole slabs or blocks,
which is as little as their cut takes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from intarsia.loading.layout import Arranged, Region

CODEC_ROWS, CODEC_COLUMNS = 32, 2
"""Rows and columns of scales that both codecs can be cut by."""

Fault = Callable[[Arranged], Arranged]
"""The faulty arrangement of a weight; the same one where the fault cannot be in it."""


@dataclass(frozen=True, slots=True)
class LoaderFault:
    """One fault."""

    name: str
    change: Fault


def loader_faults() -> tuple[LoaderFault, ...]:
    """All of them."""
    return tuple(LoaderFault(f"loader: {name}", change) for name, change in _FAULTS.items())


def _moved(suffixes: tuple[str, ...], axis: int) -> Fault:
    """The region of some tensors begins earlier along an axis, by the least that its form allows."""

    def change(arranged: Arranged) -> Arranged:
        if arranged.regions is None:
            return arranged
        codecs = {piece.suffix: piece.codec for piece in arranged.pieces}
        regions: Mapping[str, Region] = {
            suffix: _earlier(region, axis, codecs.get(suffix)) if suffix in suffixes else region
            for suffix, region in arranged.regions.items()
        }
        return replace(arranged, regions=regions)

    return change


def _earlier(region: Region, axis: int, codec: str | None) -> Region:
    # The columns of block scales [a, 1, b, 1] are their third dimension.
    dim = 2 if axis == 1 and len(region.starts) == 4 else axis
    step = 1 if codec is None else (CODEC_ROWS, CODEC_COLUMNS)[axis]
    if len(region.starts) <= dim or region.starts[dim] < step:
        return region
    starts = tuple(start - step if at == dim else start for at, start in enumerate(region.starts))
    return replace(region, starts=starts)


def _whole_share_earlier(arranged: Arranged) -> Arranged:
    """The share of the rank before, where it is as large."""
    if arranged.regions is None:
        return arranged
    regions = {}
    for suffix, region in arranged.regions.items():
        starts = tuple(
            max(0, s - n) if n < w else s
            for s, n, w in zip(region.starts, region.counts, region.whole, strict=True)
        )
        regions[suffix] = replace(region, starts=starts)
    return replace(arranged, regions=regions)


def _origin_dropped(arranged: Arranged) -> Arranged:
    return replace(arranged, origin=(0, 0))


def _parts_swapped(arranged: Arranged) -> Arranged:
    last = arranged.module.parts - 1
    return replace(
        arranged, pieces=tuple(replace(piece, part=last - piece.part) for piece in arranged.pieces)
    )


def _experts_swapped(arranged: Arranged) -> Arranged:
    if arranged.module.stack != "experts" or arranged.module.shape[0] % 2:
        return arranged
    return replace(arranged, pieces=tuple(replace(p, expert=p.expert ^ 1) for p in arranged.pieces))


def _scales_of_the_other_part(arranged: Arranged) -> Arranged:
    last = arranged.module.parts - 1
    return replace(
        arranged,
        pieces=tuple(
            replace(piece, part=last - piece.part) if piece.suffix.startswith("weight_scale") else piece
            for piece in arranged.pieces
        ),
    )


_SCALES = ("weight_scale", "weight_scale_inv")
_FAULTS: dict[str, Fault] = {
    "element rows begin too early": _moved(("weight",), 0),
    "element columns begin too early": _moved(("weight",), 1),
    "scale rows begin too early": _moved(_SCALES, 0),
    "scale columns begin too early": _moved(_SCALES, 1),
    "the share of the rank before": _whole_share_earlier,
    "origin dropped": _origin_dropped,
    "gate and up swapped": _parts_swapped,
    "scales of gate and up swapped": _scales_of_the_other_part,
    "neighbouring experts swapped": _experts_swapped,
}
