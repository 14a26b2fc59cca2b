"""Which kernel of experts in tiles runs with how many rows, and with what.

The two products add in the same order whatever their configuration, so all of these choices touch no bits.
"""

from dataclasses import dataclass, replace

from intarsia.kernels.experts.grouping import MOST_UNSORTED
from intarsia.kernels.experts.resident import TILE

_DEALT_PAIRS = 256  # for more there is a program for each block


@dataclass(frozen=True, slots=True)
class Few:
    """gluon_decode.few_rows: pairs of a block, quarters of a tile, steps of weights in flight.

    registers: the most a thread may have, where the compiler's own number costs a program a multiprocessor.
    lists: a kernel before it sorts pairs into blocks and arranges x; else, up to 64 pairs, each program finds
    its block for itself.
    """

    pairs: int
    quarters: int
    depth: int
    early_x: bool
    passing: bool = False
    registers: int | None = None
    lists: bool = True


@dataclass(frozen=True, slots=True)
class Many:
    """gluon_prefill.many_rows: pairs of a block, blocks of 64 rows, tiles of x and steps of weights ahead.

    narrower: ascending numbers of pairs below `pairs`, in multiples of 32: of a block that has no more only
    so many are multiplied.
    """

    pairs: int
    quarters: int
    stages: int
    depth: int
    narrower: tuple[int, ...] = ()
    registers: int | None = None


@dataclass(frozen=True, slots=True)
class Single:
    """gluon_single.one_row, of one row and scales that are not compressed: the most steps of weights in
    flight, of gate and up rows and of down rows.
    """

    gate_up: int
    down: int


Form = Few | Many | Single

# By rows, then by the mean number of pairs an expert: where a block's time times the blocks that an expert
# needs on average crosses the next form's, from times measured at 1 to 8,192 rows of GLM-5.3-Flash.
_ONE_ROW = Few(pairs=8, quarters=2, depth=4, early_x=True, passing=True, lists=False)
_FORMS: tuple[tuple[float, Few | Many], ...] = (
    (5, Few(pairs=8, quarters=4, depth=2, early_x=True, lists=False)),
    (17, Few(pairs=24, quarters=4, depth=2, early_x=False, registers=128)),
    (66, Many(pairs=64, quarters=2, stages=3, depth=2, narrower=(32,), registers=128)),
    (130, Many(pairs=128, quarters=2, stages=3, depth=2, narrower=(64,))),
    (float("inf"), Many(pairs=256, quarters=2, stages=2, depth=2, narrower=(64, 128, 192))),
)
# A share of an expert this narrow has too few programs at few rows, unless each takes half as many of its
# rows: up to which number of pairs an expert.
_NARROW, _NARROW_MEAN = 1024, 0.5
_ONE_NARROW_ROW = replace(_ONE_ROW, registers=128)
_SINGLE, _NARROW_SINGLE = Single(gate_up=4, down=4), Single(gate_up=8, down=4)


def forms() -> tuple[Few | Many, ...]:
    """All that run where nothing was tuned, of those for any number of rows."""
    return _ONE_ROW, _ONE_NARROW_ROW, *(form for _, form in _FORMS)


def form_of(rows: int, pairs: int, experts: int, width: int, compressed: bool = False) -> Form:
    """The kernel of a step; `width` is the smaller number of columns, and scales may be `compressed`."""
    mean = pairs / experts
    narrow = width <= _NARROW
    if rows == 1 and not compressed and pairs <= MOST_UNSORTED:
        return _NARROW_SINGLE if narrow else _SINGLE
    if rows <= 2:
        return _ONE_NARROW_ROW if narrow else _ONE_ROW
    if narrow and mean <= _NARROW_MEAN:
        return _ONE_ROW
    fitting = [(most, form) for most, form in _FORMS if isinstance(form, Few) or form.stages * TILE <= width]
    return next((form for most, form in fitting if mean <= most), fitting[-1][1])


def needs_lists(form: Form, pairs: int) -> bool:
    """Whether pairs are sorted into blocks before the products."""
    return isinstance(form, Many) or pairs > MOST_UNSORTED or (isinstance(form, Few) and form.lists)


def programs(pairs: int, blocks: int, experts: int) -> int:
    """How many programs each part of the weights has for few rows, to which `blocks` in lists are dealt.

    The host knows the most blocks that there can be, and most steps have fewer. A program without one costs
    a microsecond of its place on a multiprocessor, and at few pairs there would be thousands. At more, most
    programs would take two, and the last to begin would end late.
    """
    return min(blocks, -(-experts // 2)) if pairs <= _DEALT_PAIRS else blocks
