"""Faults that laying experts out in tiles could have: the gate has to see every one of them."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from intarsia.kernels.experts import PackedExperts
from intarsia.kernels.experts.resident import ResidentScales

TileChange = Callable[[PackedExperts], PackedExperts | None]
"""The faulty experts, or None where the fault cannot be in such ones."""


def tile_mutations() -> dict[str, TileChange]:
    """All faults by name."""
    return {f"tiles: {name}": change for name, change in _CHANGES.items()}


def _codes(change: Callable[[Tensor], Tensor]) -> TileChange:
    """A change of codes as [experts, tile, step, quarter 4, place 32, lane 4, 16 bytes]."""

    def faulty(held: PackedExperts) -> PackedExperts:
        experts, rows, columns = held.shape
        view = held.codes.view(experts, rows // 128, columns // 128, 4, 32, 4, 16)
        return replace(held, codes=change(view).reshape(held.codes.shape))

    return faulty


def _scales(change: Callable[[Tensor], Tensor]) -> TileChange:
    """A change of scales as [experts, tile, step, place 32, lane 4, quarter 4, 2 bytes]."""

    def faulty(held: PackedExperts) -> PackedExperts | None:
        if not isinstance(held.scales, Tensor):
            return None
        experts, rows, columns = held.shape
        view = held.scales.view(experts, rows // 128, columns // 128, 32, 4, 4, 2)
        return replace(held, scales=change(view).reshape(held.scales.shape))

    return faulty


def _compressed(part: str, change: Callable[[Tensor], Tensor]) -> TileChange:
    def faulty(held: PackedExperts) -> PackedExperts | None:
        if not isinstance(held.scales, ResidentScales):
            return None
        parts = {name: getattr(held.scales, name) for name in ("nibbles", "bases", "marks", "records")}
        parts[part] = change(parts[part].clone())
        return replace(held, scales=ResidentScales(held.scales.shape, **parts))

    return faulty


def _words(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda codes: change(codes.reshape(-1).view(torch.int32)).view(torch.uint8)


def _first_off(tensor: Tensor) -> Tensor:
    tensor.view(-1)[0] += 1
    return tensor


def _global_off(held: PackedExperts) -> PackedExperts:
    return replace(held, global_scales=held.global_scales * 2)


def _quarters_exchanged(codes: Tensor) -> Tensor:
    return codes[:, :, :, [1, 0, 3, 2]]


_CHANGES: dict[str, TileChange] = {
    "places one too far": _codes(lambda codes: codes.roll(1, 4)),
    "lanes one too far": _codes(lambda codes: codes.roll(1, 5)),
    "quarters exchanged": _codes(_quarters_exchanged),
    "experts rotated": _codes(lambda codes: codes.roll(1, 0)),
    "codes 0 and 4 of a word exchanged": _codes(_words(lambda words: words << 16 | words >> 16 & 0xFFFF)),
    "bits of a word one place off": _codes(_words(lambda words: words << 1)),
    "scales of places one too far": _scales(lambda scales: scales.roll(1, 3)),
    "scales of quarters one too far": _scales(lambda scales: scales.roll(1, 5)),
    "two scales of a lane exchanged": _scales(lambda scales: scales.flip(6)),
    "base of a compressed row off": _compressed("bases", _first_off),
    "compressed scale off": _compressed("nibbles", _first_off),
    "exceptions one record too far": _compressed("records", lambda records: records.roll(1, 0)),
    "global scale of the kernel off": _global_off,
}
