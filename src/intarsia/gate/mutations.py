"""Faults that a loader could have, put into what a rank holds: the gate has to see every one of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from intarsia.formats.stored import Stored
from intarsia.kernels.weights import Weight

Change = Callable[[Weight], Weight | None]
"""The faulty weight, or None where the fault cannot be in such a weight."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One fault."""

    name: str
    change: Change


def mutations() -> tuple[Mutation, ...]:
    """All faults that are made out of a correct weight; `wrong_rank` needs another rank's too."""
    return tuple(Mutation(name.replace("_", " "), change) for name, change in _CHANGES.items())


def altered(weight: Weight, changed: Weight) -> bool:
    """True when a mutation made a difference that can be seen: some weights have equal neighbours."""
    if isinstance(weight, Tensor) or isinstance(changed, Tensor):
        return not (isinstance(weight, Tensor) and isinstance(changed, Tensor) and _same(weight, changed))
    if (weight.origin, weight.row_parts, weight.format) != (
        changed.origin,
        changed.row_parts,
        changed.format,
    ):
        return True
    return any(not _same(tensor, changed[suffix]) for suffix, tensor in weight.items())


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(_raw(a), _raw(b))


def _raw(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _on_bytes(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The tensor with its bytes changed, shape and dtype kept."""
    whole = tensor.contiguous()
    size = whole.element_size()
    shape = (*whole.shape[:-1], whole.shape[-1] * size) if whole.ndim else (size,)
    changed = change(whole.reshape(-1).view(torch.uint8).reshape(shape).clone())
    return changed.contiguous().reshape(-1).view(whole.dtype).reshape(whole.shape)


def _put(weight: Weight, suffix: str, change: Callable[[Tensor], Tensor]) -> Weight | None:
    if isinstance(weight, Tensor):
        return change(weight) if suffix == "weight" and weight.ndim else None
    if suffix == "scale":
        suffix = next((name for name in ("weight_scale", "weight_scale_inv") if name in weight), "")
    if suffix not in weight or not weight[suffix].ndim:
        return None
    tensors: Mapping[str, Tensor] = {**weight.tensors, suffix: change(weight[suffix])}
    return replace(weight, tensors=tensors)


def _rolled(suffix: str, dim: int) -> Change:
    def change(weight: Weight) -> Weight | None:
        def roll(tensor: Tensor) -> Tensor:
            axis = _axis(weight, tensor, dim)
            return _roll(tensor, axis)

        return _put(weight, suffix, roll)

    return change


def _axis(weight: Weight, tensor: Tensor, dim: int) -> int:
    """The dimension of rows (-2) or columns (-1); block scales [a, 1, b, 1] have ones between."""
    lead = len(weight.shape) - 2 if isinstance(weight, Stored) else 0
    if tensor.ndim == lead + 4:
        return lead if dim == -2 else lead + 2
    return tensor.ndim + dim if tensor.ndim + dim >= 0 else 0


def _roll(tensor: Tensor, axis: int) -> Tensor:
    index = torch.arange(tensor.shape[axis], device=tensor.device).roll(1)
    return _select(tensor, axis, index)


def _select(tensor: Tensor, axis: int, index: Tensor) -> Tensor:
    if tensor.element_size() == 1:
        return tensor.contiguous().view(torch.uint8).index_select(axis, index).view(tensor.dtype)
    return tensor.index_select(axis, index)


def _swap_experts(weight: Weight) -> Weight | None:
    if len(weight.shape) != 3 or weight.shape[0] < 2 or isinstance(weight, Tensor):
        return None
    order = torch.arange(weight.shape[0])
    order[0], order[1] = 1, 0
    return weight.map(lambda tensor: _select(tensor, 0, order.to(tensor.device)) if tensor.ndim else tensor)


def _swap_expert_scales(weight: Weight) -> Weight | None:
    if len(weight.shape) != 3 or weight.shape[0] < 2:
        return None
    return _put(weight, "scale", lambda tensor: _roll(tensor, 0))


def _swap_global_scales(weight: Weight) -> Weight | None:
    if isinstance(weight, Tensor) or "weight_scale_2" not in weight or weight["weight_scale_2"].ndim == 0:
        return None
    return _put(weight, "weight_scale_2", lambda tensor: tensor.flip(-1))


def _halves(suffix: str) -> Change:
    def change(weight: Weight) -> Weight | None:
        def swap(tensor: Tensor) -> Tensor:
            axis = _axis(weight, tensor, -2)
            half = tensor.shape[axis] // 2
            index = torch.arange(tensor.shape[axis], device=tensor.device).roll(half)
            return _select(tensor, axis, index)

        return _put(weight, suffix, swap)

    return change


def _gate_up_swapped(weight: Weight) -> Weight | None:
    changed = _halves("weight")(weight)
    return _halves("scale")(changed) or changed if changed is not None else None


def _nibbles(weight: Weight) -> Weight | None:
    if isinstance(weight, Tensor) or weight["weight"].dtype != torch.uint8:
        return None
    return _put(weight, "weight", lambda tensor: (tensor >> 4) | (tensor << 4))


def _origin(row: int, column: int) -> Change:
    """Forget an origin along an axis, or (without one) claim one."""

    def change(weight: Weight) -> Weight | None:
        if not isinstance(weight, Stored) or weight.format != "FP8_PB_WO":
            return None
        top, left = weight.origin
        return replace(weight, origin=(64 - top if row else top, 64 - left if column else left))

    return change


def _one_byte(suffix: str, place: float, change: Callable[[Tensor], Tensor]) -> Change:
    def edit(weight: Weight) -> Weight | None:
        def poke(tensor: Tensor) -> Tensor:
            def inside(data: Tensor) -> Tensor:
                flat = data.view(-1)
                at = min(len(flat) - 1, int(place * len(flat)))
                flat[at] = change(flat[at])
                return data

            return _on_bytes(tensor, inside)

        return _put(weight, suffix, poke)

    return edit


def _scalar_off(weight: Weight) -> Weight | None:
    """The number that scales a whole matrix, off by its last bit."""
    suffix = "weight_scale"
    if isinstance(weight, Tensor) or weight.format != "FP8":
        return None

    def inside(data: Tensor) -> Tensor:
        data.view(-1)[0] ^= 1
        return data

    return replace(weight, tensors={**weight.tensors, suffix: _on_bytes(weight[suffix], inside)})


def _moved_exception(weight: Weight) -> Weight | None:
    """One scale lands a place too far, as with an exception position that is off by one."""

    def move(tensor: Tensor) -> Tensor:
        def inside(data: Tensor) -> Tensor:
            flat = data.view(-1)
            steps = (flat[1:] != flat[:-1]).nonzero()
            if len(steps):
                at = int(steps[0])
                flat[at], flat[at + 1] = flat[at + 1].clone(), flat[at].clone()
            return data

        return _on_bytes(tensor, inside)

    return _put(weight, "scale", move)


def _zeroed(suffix: str) -> Change:
    def change(weight: Weight) -> Weight | None:
        def blank(tensor: Tensor) -> Tensor:
            def inside(data: Tensor) -> Tensor:
                data.view(-1)[-1:] = 0
                data.view(-1)[: max(1, data.numel() // 8)] = 0
                return data

            return _on_bytes(tensor, inside)

        return _put(weight, suffix, blank)

    return change


def _repeated_row(weight: Weight) -> Weight | None:
    """The last row stands in for none: a share read one row too early."""
    return _put(
        weight, "weight", lambda tensor: _select(tensor, _axis(weight, tensor, -2), _clamped(weight, tensor))
    )


def _clamped(weight: Weight, tensor: Tensor) -> Tensor:
    count = tensor.shape[_axis(weight, tensor, -2)]
    return (torch.arange(count, device=tensor.device) - 1).clamp(min=0)


def _rounded(weight: Weight) -> Weight | None:
    """A wide number that went through BF16."""
    if isinstance(weight, Tensor):
        return weight.bfloat16().float() if weight.dtype == torch.float32 else None
    suffix = next((name for name, t in weight.items() if t.dtype == torch.float32), None)
    return _put(weight, suffix, lambda tensor: tensor.bfloat16().float()) if suffix else None


def _parts_forgotten(weight: Weight) -> Weight | None:
    if not isinstance(weight, Stored) or weight.row_parts == 1:
        return None
    if (weight.origin[0] + weight.rows // weight.row_parts) % 128 == 0:
        return None  # each part fills its last block, so one grid says the same
    return replace(weight, row_parts=1)


_CHANGES: dict[str, Change] = {
    "elements_shifted_by_a_row": _rolled("weight", -2),
    "elements_shifted_by_a_column": _rolled("weight", -1),
    "scales_shifted_by_a_row": _rolled("scale", -2),
    "scales_shifted_by_a_column": _rolled("scale", -1),
    "two_experts_swapped": _swap_experts,
    "scales_of_experts_rotated": _swap_expert_scales,
    "global_scales_of_gate_and_up_swapped": _swap_global_scales,
    "gate_and_up_swapped": _gate_up_swapped,
    "elements_of_gate_and_up_swapped": _halves("weight"),
    "scales_of_gate_and_up_swapped": _halves("scale"),
    "nibbles_in_the_other_order": _nibbles,
    "row_origin_dropped": _origin(1, 0),
    "column_origin_dropped": _origin(0, 1),
    "both_origins_dropped": _origin(1, 1),
    "blocks_of_row_parts_forgotten": _parts_forgotten,
    "first_element_byte_flipped": _one_byte("weight", 0.0, lambda byte: byte ^ 1),
    "last_element_byte_flipped": _one_byte("weight", 1.0, lambda byte: byte ^ 0x80),
    "middle_scale_byte_off_by_one": _one_byte("scale", 0.5, lambda byte: byte + 1),
    "last_scale_byte_flipped": _one_byte("scale", 1.0, lambda byte: byte ^ 1),
    "global_scale_off_by_a_bit": _one_byte("weight_scale_2", 0.0, lambda byte: byte ^ 1),
    "scale_of_a_whole_matrix_off_by_a_bit": _scalar_off,
    "exception_one_place_off": _moved_exception,
    "elements_zeroed": _zeroed("weight"),
    "scales_zeroed": _zeroed("scale"),
    "row_read_one_too_early": _repeated_row,
    "wide_numbers_rounded": _rounded,
}
