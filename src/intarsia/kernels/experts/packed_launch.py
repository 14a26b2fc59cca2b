"""Experts in tiles: which kernel for how many rows, and the launches.

The two products add in the same order whatever their configuration, so all of these choices touch no bits.
"""

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from intarsia.kernels.aside import join
from intarsia.kernels.choice import GLUON, Case, offer
from intarsia.kernels.device import on_device_of
from intarsia.kernels.errors import KernelError
from intarsia.kernels.experts import packed
from intarsia.kernels.experts.grouping import MOST_UNSORTED, Groups, NoGroups
from intarsia.kernels.experts.packed import PackedExperts
from intarsia.kernels.experts.resident import TILE
from intarsia.kernels.router import Routing
from intarsia.kernels.tuning import tuned

MOST_ROWS = 8192
"""Rows that run at once: what lies between the products takes 250 KB a row at GLM-5.3-Flash's widths."""
_OVERLAP_UP_TO = 128  # rows for which kernels start before the one before them has ended
_COMBINE_SIZE = 512
_EXPAND_SIZE = 1024
_RESIDENT_REGISTERS = 128  # at most: compressed scales take a few more than four programs have
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


Form = Few | Many

# By rows, then by the mean number of pairs an expert: where a block's time times the blocks that an expert
# needs on average crosses the next form's, from times measured at 1 to 8,192 rows of GLM-5.3-Flash.
_ONE_ROW = Few(pairs=8, quarters=2, depth=4, early_x=True, passing=True, lists=False)
_FORMS: tuple[tuple[float, Form], ...] = (
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


def forms() -> tuple[Form, ...]:
    """All that run where nothing was tuned."""
    return _ONE_ROW, _ONE_NARROW_ROW, *(form for _, form in _FORMS)


def refuse(case: Case) -> str:
    """Why experts in tiles cannot run a case, or the empty string; shape: experts, inner width, width."""
    gate_up, down = case.formats
    if gate_up != down:
        return f"gate and up in {gate_up}, down in {down}; one format is needed"
    if case.dtype != torch.bfloat16:
        return f"rows of {str(case.dtype).removeprefix('torch.')}; bfloat16 is needed"
    return packed.refusal(gate_up, case.shape)


offer("experts", refuse, GLUON)


def form_of(rows: int, pairs: int, experts: int, width: int) -> Form:
    """The kernel of a step; `width` is the smaller number of columns."""
    mean = pairs / experts
    narrow = width <= _NARROW
    if rows <= 2:
        return _ONE_NARROW_ROW if narrow else _ONE_ROW
    if narrow and mean <= _NARROW_MEAN:
        return _ONE_ROW
    fitting = [(most, form) for most, form in _FORMS if isinstance(form, Few) or form.stages * TILE <= width]
    return next((form for most, form in fitting if mean <= most), fitting[-1][1])


def tuned_form(gate_up: PackedExperts, down: PackedExperts, rows: int, top: int) -> Form | None:
    """What was found to be faster on this device than `form_of`'s (see `candidates`), or None."""
    scales = "expanded" if isinstance(gate_up.scales, Tensor) else "compressed"
    shape = (gate_up.shape[0], down.shape[2], gate_up.shape[2], top)
    found = tuned("experts", (gate_up.format, scales), shape, rows, gate_up.device)
    return cast(Form | None, found)


def needs_lists(form: Form, pairs: int) -> bool:
    """Whether pairs are sorted into blocks before the products."""
    return isinstance(form, Many) or form.lists or pairs > MOST_UNSORTED


def takes_arranged(gate_up: PackedExperts, down: PackedExperts, rows: int, top: int) -> bool:
    """Whether so many rows need nothing but x in the products' order."""
    return not needs_lists(_form(gate_up, down, rows, top), rows * top)


def programs(pairs: int, blocks: int, experts: int) -> int:
    """How many programs each part of the weights has for few rows, to which `blocks` in lists are dealt.

    The host knows the most blocks that there can be, and most steps have fewer. A program without one costs
    a microsecond of its place on a multiprocessor, and at few pairs there would be thousands. At more, most
    programs would take two, and the last to begin would end late.
    """
    return min(blocks, -(-experts // 2)) if pairs <= _DEALT_PAIRS else blocks


def _form(gate_up: PackedExperts, down: PackedExperts, rows: int, top: int) -> Form:
    experts, width, inner = gate_up.shape[0], gate_up.shape[2], down.shape[2]
    return tuned_form(gate_up, down, rows, top) or form_of(rows, rows * top, experts, min(width, inner))


def launch(
    x: Tensor,
    routing: Routing,
    gate_up: PackedExperts,
    down: PackedExperts,
    limit: float,
    plus: Tensor | None = None,
) -> Tensor:
    """Weighted sum, float32 [R, D], of each row's experts, and `plus` where given; padding rows get zeros and
    `plus`.

    gate_up [E, 2I, D] and down [E, D, I]. What SwiGLU gives is rounded to bfloat16; everything else is
    float32. The host looks at no value. Values of x must be below 2^63.
    """
    if not gate_up.gated or down.gated or gate_up.global_scales.shape[1] > 2:
        raise KernelError(
            "experts",
            found="stacks in tiles that are not gate and up rows, and then down",
            action="pack them with gated=True and gated=False",
        )
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=torch.float32, device=x.device)
    chosen, weights = routing.experts.contiguous(), routing.weights.contiguous()
    x = x.contiguous()
    with on_device_of(x):
        for begin in range(0, rows, MOST_ROWS):
            part = slice(begin, min(rows, begin + MOST_ROWS))
            arranged = None if routing.arranged is None else routing.arranged[part]
            run = Run(chosen[part], gate_up, down, limit, arranged)
            parts = run.products(x[part])
            join(x)  # `plus` may be made aside until here
            run.combine(parts, weights[part], None if plus is None else plus[part], out[part])
    return out


class Run:
    """The launches of some rows."""

    def __init__(
        self,
        chosen: Tensor,
        gate_up: PackedExperts,
        down: PackedExperts,
        limit: float,
        arranged: Tensor | None = None,
    ) -> None:
        """`arranged`: x in the order of products of few rows, where it is there already."""
        from intarsia.kernels.experts import gluon_decode, gluon_prefill, triton_experts, triton_packing

        self.few_rows, self.many_rows = gluon_decode.few_rows, gluon_prefill.many_rows
        self.combine_rows, self.expand_scales = triton_experts.combine, triton_packing.expand_scales
        self.chosen, self.gate_up, self.down, self.limit = chosen, gate_up, down, float(limit)
        self.arranged = arranged
        self.rows, self.top = chosen.shape
        self.pairs = chosen.numel()
        self.width, self.inner = gate_up.shape[2], down.shape[2]
        self.form = _form(gate_up, down, self.rows, self.top)
        self.sorted = needs_lists(self.form, self.pairs)
        self.overlap = self.rows <= _OVERLAP_UP_TO
        self.options = {"launch_pdl": True} if self.overlap else {}

    def products(self, x: Tensor) -> Tensor:
        """float32 [pairs, D] of each pair, without its weight."""
        self.group(x)
        inner = torch.empty(self.pairs, self.inner, dtype=torch.bfloat16, device=x.device)
        parts = torch.empty(self.pairs, self.width, dtype=torch.float32, device=x.device)
        self.product(self.groups.x, self.gate_up, inner)
        self.product(inner, self.down, parts)
        return parts

    def group(self, x: Tensor) -> None:
        many = isinstance(self.form, Many)
        experts, each = self.gate_up.shape[0], self.form.pairs
        self.groups: Groups | NoGroups
        if self.sorted:
            self.groups = Groups(x, self.chosen, experts, each, many=many, overlap=self.overlap)
        else:
            self.groups = NoGroups(x, self.chosen, overlap=self.overlap, arranged=self.arranged)

    def combine(self, parts: Tensor, weights: Tensor, plus: Tensor | None, out: Tensor) -> None:
        self.combine_rows[(self.rows, -(-self.width // _COMBINE_SIZE))](
            parts,
            self.chosen,
            weights,
            parts if plus is None else plus,
            out,
            self.width,
            TOP=self.top,
            PLUS=plus is not None,
            SIZE=_COMBINE_SIZE,
            OVERLAP=self.overlap,
            num_warps=4,
            **self.options,
        )

    def product(self, x: Tensor, weight: PackedExperts, out: Tensor) -> None:
        """Gate and up rows: SwiGLU [pairs, I] in places of the order; else rows [pairs, D] of pairs."""
        _, n, k = weight.shape
        common: dict[str, Any] = {
            "N": n,
            "K": k,
            "PARTS": weight.global_scales.shape[1],
            "GATED": weight.gated,
            "QUARTERS": self.form.quarters,
            "DEPTH": min(self.form.depth, k // TILE),
        }
        codes = weight.codes.view(torch.int32)
        lists, blocks = self.groups.lists, self.groups.blocks
        rest = (out, self.limit)
        if isinstance(self.form, Few):
            count = programs(self.pairs, blocks, weight.shape[0]) if self.sorted else blocks
            operands = (x.view(torch.int32), codes, *_scales_of(weight), weight.global_scales, *lists, blocks)
            options = self._few_options(weight) | {"ONCE": count == blocks}
            self.few_rows[(n // (32 * self.form.quarters), count)](*operands, *rest, **common, **options)
        else:
            grid = (n // (64 * self.form.quarters), blocks)
            many = (*_descriptors(x), codes, self._plain_scales(weight), weight.global_scales, *lists)
            options = {"WIDTHS": (*self.form.narrower, self.form.pairs), "STAGES": self.form.stages}
            if self.form.registers:
                options["maxnreg"] = self.form.registers
            self.many_rows[grid](*many, *rest, **common, **options, num_warps=8)

    def _few_options(self, weight: PackedExperts) -> dict[str, Any]:
        form = cast(Few, self.form)
        overlap = (1 if weight.gated else 2) if self.overlap else 0
        options = {"TOP": self.top, "EARLY_X": form.early_x, "PASSING": form.passing, "OVERLAP": overlap}
        options |= {"NT": form.pairs, "SORTED": self.sorted, "num_warps": 4}
        resident = not isinstance(weight.scales, Tensor)
        options |= {"RESIDENT": resident} | self.options
        most = form.registers or (_RESIDENT_REGISTERS if resident and form.quarters == 4 else None)
        return options | ({"maxnreg": most} if most else {})

    def _plain_scales(self, weight: PackedExperts) -> Tensor:
        """Scales in tiles, as words: written out for this step where they are compressed."""
        scales = weight.scales
        if isinstance(scales, Tensor):
            return scales.view(torch.int32)
        out = torch.empty(scales.shape, dtype=torch.uint8, device=weight.device).view(torch.int32)
        experts, tiles, steps = scales.nibbles.shape[:3]
        grid = (experts * tiles, -(-steps * TILE // _EXPAND_SIZE))
        parts = (scales.nibbles, scales.bases, scales.marks, scales.records)
        self.expand_scales[grid](*parts, out, STEPS=steps, SIZE=_EXPAND_SIZE, num_warps=4)
        return out


def _scales_of(weight: PackedExperts) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Words of scales, or nibbles, bases, marks and records; what does not exist is the codes."""
    scales = weight.scales
    if isinstance(scales, Tensor):
        words = scales.view(torch.int32)
        return words, words, words, words
    return scales.nibbles, scales.bases, scales.marks, scales.records


def _descriptors(x: Tensor) -> tuple[Any, ...]:
    """Tiles of x for the copy engine, 32 to 256 rows of 128 columns."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    layout = gl.NVMMASharedLayout(128, 16, 2)
    return tuple(TensorDescriptor.from_tensor(x, [rows, TILE], layout) for rows in (32, 64, 128, 256))
