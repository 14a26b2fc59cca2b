"""The launches of experts in tiles: x and the choices in order, two products, and their weighted sum."""

from math import gcd
from typing import Any, cast

import torch
from torch import Tensor

from intarsia.kernels.aside import join
from intarsia.kernels.choice import GLUON, Case, offer
from intarsia.kernels.device import begun_early, on_device_of
from intarsia.kernels.errors import KernelError
from intarsia.kernels.experts import packed, plan
from intarsia.kernels.experts.grouping import Groups, NoGroups
from intarsia.kernels.experts.packed import PackedExperts
from intarsia.kernels.experts.plan import Few, Form, Many, Single
from intarsia.kernels.experts.resident import TILE
from intarsia.kernels.router import Routing
from intarsia.kernels.tuning import tuned

MOST_ROWS = 8192
"""Rows that run at once: what lies between the products takes 250 KB a row at GLM-5.3-Flash's widths."""
_OVERLAP_UP_TO = 128  # rows for which kernels start before the one before them has ended
_COMBINE_SIZE = 512
_EXPAND_SIZE = 1024
_RELEASED = 0.5  # of gate and up rows' steps before the next product may begin: see `_single_product`
_RESIDENT_REGISTERS = 128  # at most: compressed scales take a few more than four programs have


def refuse(case: Case) -> str:
    """Why experts in tiles cannot run a case, or the empty string; shape: experts, inner width, width."""
    gate_up, down = case.formats
    if gate_up != down:
        return f"gate and up in {gate_up}, down in {down}; one format is needed"
    if case.dtype != torch.bfloat16:
        return f"rows of {str(case.dtype).removeprefix('torch.')}; bfloat16 is needed"
    return packed.refusal(gate_up, case.shape)


offer("experts", refuse, GLUON)


def tuned_form(gate_up: PackedExperts, down: PackedExperts, rows: int, top: int) -> Form | None:
    """What was found to be faster on this device than `plan.form_of`'s (see `candidates`), or None."""
    scales = "expanded" if isinstance(gate_up.scales, Tensor) else "compressed"
    shape = (gate_up.shape[0], down.shape[2], gate_up.shape[2], top)
    found = tuned("experts", (gate_up.format, scales), shape, rows, gate_up.device)
    return cast(Form | None, found)


def takes_arranged(gate_up: PackedExperts, down: PackedExperts, rows: int, top: int) -> bool:
    """Whether so many rows need nothing but x in the products' order."""
    return not plan.needs_lists(_form(gate_up, down, rows, top), rows * top)


def _form(gate_up: PackedExperts, down: PackedExperts, rows: int, top: int) -> Form:
    experts, width, inner = gate_up.shape[0], gate_up.shape[2], down.shape[2]
    compressed = not isinstance(gate_up.scales, Tensor)
    return tuned_form(gate_up, down, rows, top) or plan.form_of(
        rows, rows * top, experts, min(width, inner), compressed
    )


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
        from intarsia.kernels.experts import (
            gluon_decode,
            gluon_prefill,
            gluon_single,
            triton_experts,
            triton_packing,
        )

        self.one_row = gluon_single.one_row
        self.few_rows, self.many_rows = gluon_decode.few_rows, gluon_prefill.many_rows
        self.wait_first, self.wait_for_x = gluon_decode.WAIT_FIRST.value, gluon_decode.WAIT_FOR_X.value
        self.combine_rows, self.expand_scales = triton_experts.combine, triton_packing.expand_scales
        self.chosen, self.gate_up, self.down, self.limit = chosen, gate_up, down, float(limit)
        self.arranged = arranged
        self.rows, self.top = chosen.shape
        self.pairs = chosen.numel()
        self.width, self.inner = gate_up.shape[2], down.shape[2]
        self.form = _form(gate_up, down, self.rows, self.top)
        self.sorted = plan.needs_lists(self.form, self.pairs)
        self.overlap = self.rows <= _OVERLAP_UP_TO

    def products(self, x: Tensor) -> Tensor:
        """float32 [pairs, D] of each pair, without its weight."""
        self.group(x)
        inner = torch.empty(self.pairs, self.inner, dtype=torch.bfloat16, device=x.device)
        parts = torch.empty(self.pairs, self.width, dtype=torch.float32, device=x.device)
        self.product(self.groups.x, self.gate_up, inner)
        self.product(inner, self.down, parts)
        return parts

    def group(self, x: Tensor) -> None:
        experts = self.gate_up.shape[0]
        self.groups: Groups | NoGroups
        if self.sorted and not isinstance(self.form, Single):
            many, each = isinstance(self.form, Many), self.form.pairs
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
            num_warps=4,
            **begun_early(self.overlap),
        )

    def product(self, x: Tensor, weight: PackedExperts, out: Tensor) -> None:
        """Gate and up rows: SwiGLU [pairs, I] in places of the order; else rows [pairs, D] of pairs."""
        if isinstance(self.form, Single):
            self._single_product(self.form, x, weight, out)
        else:
            self._product_of_blocks(self.form, x, weight, out)

    def _product_of_blocks(self, form: Few | Many, x: Tensor, weight: PackedExperts, out: Tensor) -> None:
        _, n, k = weight.shape
        common: dict[str, Any] = {
            "N": n,
            "K": k,
            "PARTS": weight.global_scales.shape[1],
            "GATED": weight.gated,
            "QUARTERS": form.quarters,
            "DEPTH": min(form.depth, k // TILE),
        }
        codes = weight.codes.view(torch.int32)
        lists, blocks = self.groups.lists, self.groups.blocks
        rest = (out, self.limit)
        if isinstance(form, Few):
            count = plan.programs(self.pairs, blocks, weight.shape[0]) if self.sorted else blocks
            operands = (x.view(torch.int32), codes, *_scales_of(weight), weight.global_scales, *lists, blocks)
            options = self._few_options(weight) | {"ONCE": count == blocks}
            self.few_rows[(n // (32 * form.quarters), count)](*operands, *rest, **common, **options)
        else:
            grid = (n // (64 * form.quarters), blocks)
            many = (*_descriptors(x), codes, self._plain_scales(weight), weight.global_scales, *lists)
            options = {"WIDTHS": (*form.narrower, form.pairs), "STAGES": form.stages}
            if form.registers:
                options["maxnreg"] = form.registers
            self.many_rows[grid](*many, *rest, **common, **options, num_warps=8)

    def _single_product(self, form: Single, x: Tensor, weight: PackedExperts, out: Tensor) -> None:
        """Programs of the next product that begin with this one take the room on multiprocessors that the
        shared expert's need beside it; later ones have their first weights in time too.
        """
        _, n, k = weight.shape
        codes, scales = weight.codes.view(torch.int32), self._plain_scales(weight)
        depth = gcd(form.gate_up if weight.gated else form.down, k // TILE)
        self.one_row[(n // 64, self.pairs)](
            x.view(torch.int32),
            codes,
            scales,
            weight.global_scales,
            self.chosen,
            out,
            self.limit,
            N=n,
            K=k,
            PARTS=weight.global_scales.shape[1],
            GATED=weight.gated,
            DEPTH=depth,
            RELEASE=int(k // TILE * _RELEASED) // depth * depth,
            num_warps=4,
            **begun_early(self.overlap),
        )

    def _few_options(self, weight: PackedExperts) -> dict[str, Any]:
        form = cast(Few, self.form)
        resident = not isinstance(weight.scales, Tensor)
        waits = self.wait_first if weight.gated else self.wait_for_x
        options = begun_early(self.overlap) | {
            "OVERLAP": waits if self.overlap else 0,
            "TOP": self.top,
            "SORTED": self.sorted,
            "NT": form.pairs,
            "EARLY_X": form.early_x,
            "PASSING": form.passing,
            "RESIDENT": resident,
            "num_warps": 4,
        }
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
