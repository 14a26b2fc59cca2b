"""The configurations that experts in tiles may run with; none of them touches a bit.

Their shape is experts, inner width, width and experts a row; their formats are that of the codes, and whether
block scales are expanded or compressed. Who adds a field or a legal value to `plan.Few`, `Many` or
`Single` adds it here.
"""

from collections.abc import Iterator
from dataclasses import replace

from intarsia.kernels.experts import packed, plan
from intarsia.kernels.experts.grouping import MOST_UNSORTED
from intarsia.kernels.experts.plan import Few, Many, Single
from intarsia.kernels.experts.resident import TILE
from intarsia.kernels.tuning import Configuration, Site, Tunable, offer

EXPERTS = "experts"
SCALES = ("expanded", "compressed")
BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_MOST = 1 << 20


def refuse(site: Site) -> str:
    """Why there are no such experts, or the empty string."""
    if len(site.formats) != 2 or site.formats[1] not in SCALES:
        return f"formats {'+'.join(site.formats)}; a format and one of {', '.join(SCALES)} are needed"
    if len(site.shape) != 4 or not all(0 < size < _MOST for size in site.shape):
        return "a shape that is not experts, inner width, width and experts a row"
    return packed.refusal(site.formats[0], site.shape[:3])


def default(site: Site) -> Configuration:
    """What runs where nothing was tuned, at the largest row count of the bucket."""
    experts, inner, width, top = site.shape
    compressed = site.formats[1] == SCALES[1]
    return plan.form_of(site.rows, site.rows * top, experts, min(inner, width), compressed)


def candidates(site: Site) -> tuple[Configuration, ...]:
    """All that may run, the default first: forms for fewer and for more pairs, and more or less in flight."""
    return tuple(dict.fromkeys([default(site), *_others(site)]))


def _others(site: Site) -> Iterator[Configuration]:
    experts, inner, width, top = site.shape
    mean = site.rows * top / experts  # pairs of an expert
    if site.rows == 1 and site.formats[1] == SCALES[0] and top <= MOST_UNSORTED:
        yield from (Single(gate_up, down) for gate_up in (4, 8) for down in (4, 8))
    for form in plan.forms():
        if not mean / 4 <= form.pairs <= max(32, 4 * mean):
            continue
        if isinstance(form, Few):
            for depth in (2, 3, 4, 6, 8):
                yield replace(form, depth=depth)
            yield replace(form, early_x=not form.early_x)
            yield replace(form, quarters=6 - form.quarters)
            yield replace(form, pairs=16 if form.pairs == 24 else form.pairs)
            yield replace(form, registers=None if form.registers else 128)
            if site.rows * top <= MOST_UNSORTED:
                yield replace(form, lists=not form.lists)
        else:
            yield from _many(form, min(inner, width))


def _many(form: Many, columns: int) -> Iterator[Many]:
    for stages, depth in ((form.stages, 2), (form.stages, 3), (2, 2), (3, 2), (4, 2)):
        fits = stages * form.pairs * TILE * 2 <= 200_000
        if fits and stages * TILE <= columns:
            yield replace(form, stages=stages, depth=depth)
    yield replace(form, narrower=() if form.narrower else (form.pairs // 2,) if form.pairs > 32 else ())


offer(Tunable(EXPERTS, BUCKETS, refuse, default, candidates))
