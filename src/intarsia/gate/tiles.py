"""Experts in tiles, laid out a second time: where each row and each bit of the stored bytes goes, in loops.

The layout is the one that a GPU's kernels read NVFP4 experts in. Rows of a tile of 128 stand as [quarter 4,
place 32], columns as steps of 128:

    codes   [tile, step, quarter, place, lane 4, 16 bytes]
    scales  [tile, step, place, lane 4, quarter, 2 bytes]

This says for a row of the matrix where it stands; the kernels' own code says it the other way round.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from intarsia import formats
from intarsia.gate.compare import Difference, Finding, byte_differences, cell_of, raw
from intarsia.gate.packer import Packed
from intarsia.kernels.experts import PackedExperts
from intarsia.kernels.experts.resident import ResidentScales

Bytes = NDArray[np.uint8]
TILE = 128


def compare_tiles(name: str, held: PackedExperts, packed: Packed, rank: int, ranks: int) -> Finding:
    """Hold experts in tiles against the second packing, byte for byte and by what they decode to."""
    experts, rows = held.shape[:2]
    codes, scales = (
        np.frombuffer(packed.tensors[suffix], dtype=np.uint8).reshape(experts, rows, -1)
        for suffix in ("weight", "weight_scale")
    )
    compressed = isinstance(held.scales, ResidentScales)
    differences = [
        *byte_differences("codes in tiles", raw(held.codes), laid_out_codes(codes, held.gated).reshape(-1)),
        *byte_differences(
            "scales in tiles", held_scales(held), laid_out_scales(scales, held.gated).reshape(-1)
        ),
        *_others(held, packed),
    ]
    if not differences:
        differences += _values(held, packed)
    kind, codec = packed.format + (" in tiles, compressed" if compressed else " in tiles"), packed.codec
    cell = cell_of((packed.format, codec), packed.part, shown=kind)
    total = sum(len(data) for data in packed.tensors.values())
    return Finding(name, rank, ranks, cell, packed.part, packed.origin, total, tuple(differences))


def laid_out_codes(codes: Bytes, gated: bool) -> Bytes:
    """Codes [experts, rows, columns / 2] in tiles, the bits of every word moved."""
    experts, rows, width = codes.shape
    steps = width // 64
    out = np.empty((experts, rows // TILE, steps, 4, 32, 64), dtype=np.uint8)
    for row in range(rows):
        tile, quarter, place = stands_at(row, rows, gated)
        words = np.ascontiguousarray(codes[:, row]).view("<u4")
        out[:, tile, :, quarter, place] = moved_bits(words).view(np.uint8).reshape(experts, steps, 64)
    return out


def laid_out_scales(scales: Bytes, gated: bool) -> Bytes:
    """Scales [experts, rows, columns / 16] in tiles."""
    experts, rows, width = scales.shape
    steps = width // 8
    out = np.empty((experts, rows // TILE, steps, 32, 4, 4, 2), dtype=np.uint8)
    for row in range(rows):
        tile, quarter, place = stands_at(row, rows, gated)
        out[:, tile, :, place, :, quarter] = scales[:, row].reshape(experts, steps, 4, 2)
    return out


def stands_at(row: int, rows: int, gated: bool) -> tuple[int, int, int]:
    """Tile, quarter and place of a row.

    Of gate and up rows a tile holds 64 each, gate rows in quarters 0 and 2 and up rows in 1 and 3. Row
    `ttwwhii` (bits) of each 128 gate rows comes at `wwiitth` among them.
    """
    if not gated:
        return row // TILE, row % TILE // 32, row % 32
    up, row = divmod(row, rows // 2)
    t, w, h, i = row >> 5 & 3, row >> 3 & 3, row >> 2 & 1, row & 3
    at = row // TILE * TILE + (w << 5 | i << 3 | t << 1 | h)
    return at // 64, at % 64 // 32 * 2 + up, at % 32


def bit_goes_to(code: int, bit: int) -> int:
    """Where a bit of one of a word's eight codes goes: bits 0 to 2 are its magnitude, bit 3 its sign.

    Codes n and n + 4 share a kind of place, in the low and the high half of the word. As the operand wants
    them, magnitudes are at 8:6 and the sign at 15; those of code 1 are there after a rotation by 10 to the
    left, those of code 2 after 13, and those of code 3 after a product.
    """
    half, pair = divmod(code, 4)
    if pair == 3:
        return 16 * half + (4, 0, 1, 3)[bit]
    operand = 16 * half + (6, 7, 8, 15)[bit]
    return (operand - (0, 10, 13)[pair]) % 32


def moved_bits(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Words of eight codes with every bit where it goes."""
    out = np.zeros_like(words)
    for code in range(8):
        for bit in range(4):
            out |= (words >> np.uint32(4 * code + bit) & np.uint32(1)) << np.uint32(bit_goes_to(code, bit))
    return out


def held_scales(held: PackedExperts) -> Bytes:
    """The bytes of the scales that are held, compressed ones written out one lane at a time."""
    if isinstance(held.scales, torch.Tensor):
        return raw(held.scales)
    compact = held.scales
    nibbles = raw(compact.nibbles).reshape(-1, 4)  # a lane's byte of each quarter
    experts, tiles, steps = compact.nibbles.shape[:3]
    bases = raw(compact.bases).reshape(experts * tiles, 1, 32, 1, 4)
    spread = np.broadcast_to(bases, (experts * tiles, steps, 32, 4, 4)).reshape(-1, 4)
    out = np.empty((len(nibbles), 4, 2), dtype=np.uint8)
    out[..., 0], out[..., 1] = (nibbles & 15) + spread, (nibbles >> 4) + spread
    records = raw(compact.records).reshape(-1, 8)
    for warp, mark in enumerate(compact.marks.detach().cpu().reshape(-1).tolist()):
        record = mark >> 32
        for lane in range(32):
            if mark >> lane & 1:
                out[32 * warp + lane] = records[record].reshape(4, 2)
                record += 1
    return out.reshape(-1)


def _others(held: PackedExperts, packed: Packed) -> Iterator[Difference]:
    for suffix in sorted((packed.tensors.keys() | held.others.keys()) - {"weight", "weight_scale"}):
        if suffix not in held.others or suffix not in packed.tensors:
            yield Difference(suffix, "only in one of both", "in both")
            continue
        expected = np.frombuffer(packed.tensors[suffix], dtype=np.uint8)
        yield from byte_differences(suffix, raw(held.others[suffix]), expected)
    wide = np.frombuffer(packed.tensors["weight_scale_2"], dtype=np.uint8)
    if raw(held.global_scales).tobytes() != wide.tobytes():
        yield from byte_differences("global scales of the kernel", raw(held.global_scales), wide)


def _values(held: PackedExperts, packed: Packed) -> Iterator[Difference]:
    """What the network's own way back from tiles decodes to."""
    theirs = packed.values.reshape(held.shape)
    for index in range(held.shape[0]):
        stored = held.expert(index)
        ours = formats.get(stored.format).decode(stored, torch.float32).cpu().numpy()
        wrong = np.flatnonzero(ours.view(np.uint32) != theirs[index].view(np.uint32))
        if len(wrong):
            found, expected = ours.reshape(-1)[wrong[0]], theirs[index].reshape(-1)[wrong[0]]
            yield Difference(
                f"values of expert {index} ({len(wrong)})", f"{found:g}", f"{expected:g}", int(wrong[0])
            )
