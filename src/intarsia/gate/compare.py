"""What a rank holds against what it should hold: byte for byte, and after decoding."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from intarsia import formats
from intarsia.formats.stored import Stored
from intarsia.gate.packer import Packed
from intarsia.gate.shares import COLUMNS, ROWS, Part
from intarsia.kernels.weights import Weight

BLOCKS = {"FP8_PB_WO": (128, 128), "MXFP8": (1, 32), "MXFP4": (1, 32), "NVFP4": (1, 16)}
CODEC_BLOCKS = {"nvfp4_slab": (16, 32), "csf_32x2_v1": (32, 32)}
"""Rows and columns of the weight that share a stored entry of its scales."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of cut: stored form, axis, and whether the share begins and ends between blocks."""

    form: str
    axis: str
    aligned: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it should be. `offset` is the first byte (or value) that differs."""

    what: str
    found: str
    expected: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One weight of one rank, compared."""

    name: str
    rank: int
    ranks: int
    cell: Cell
    part: Part
    origin: tuple[int, int]
    nbytes: int
    differences: tuple[Difference, ...]


def cell_of(form: tuple[str, str], part: Part, *, shown: str = "") -> Cell:
    """The kind of cut that a part of a weight of this form and codec is; `shown` as, if not as the form."""
    kind, codec = form
    axis = {None: "whole", ROWS: "rows", COLUMNS: "columns"}[part.axis]
    blocks = CODEC_BLOCKS.get(codec) or BLOCKS.get(kind, (1, 1))
    unit = blocks[part.axis] if part.axis is not None else 1
    kind = shown or kind
    name = f"{kind} + {codec}" if codec else kind
    return Cell(name, axis, part.start % unit == 0 and part.stop % unit == 0)


def compare(name: str, held: Weight, packed: Packed, rank: int, ranks: int) -> Finding:
    """Hold what a rank has against the second packing of it."""
    tensors = dict(held.tensors) if isinstance(held, Stored) else {"weight": held}
    differences = [*_bytes(tensors, packed.tensors)]
    if isinstance(held, Stored):
        same_format = held.format == packed.format or held.format.removeprefix("W4A16_") == packed.format
        if not same_format:
            differences.append(Difference("format", held.format, packed.format))
        if held.origin != packed.origin:
            differences.append(Difference("origin", str(held.origin), str(packed.origin)))
    if not differences or all(item.what == "origin" for item in differences):
        differences += _values(held, packed)
    total = sum(len(data) for data in packed.tensors.values())
    form = packed.format if isinstance(held, Stored) else "plain", packed.codec
    return Finding(
        name, rank, ranks, cell_of(form, packed.part), packed.part, packed.origin, total, tuple(differences)
    )


def _bytes(held: Mapping[str, torch.Tensor], packed: Mapping[str, bytes]) -> Iterator[Difference]:
    for suffix in held.keys() | packed.keys():
        if suffix not in held or suffix not in packed:
            found, expected = ("there", "none") if suffix in held else ("none", "there")
            yield Difference(suffix, found, expected)
            continue
        yield from byte_differences(suffix, raw(held[suffix]), np.frombuffer(packed[suffix], dtype=np.uint8))


def byte_differences(what: str, ours: NDArray[np.uint8], theirs: NDArray[np.uint8]) -> Iterator[Difference]:
    """Where two runs of bytes differ first, if they do."""
    if len(ours) != len(theirs):
        yield Difference(what, f"{len(ours)} bytes", f"{len(theirs)} bytes")
        return
    wrong = np.flatnonzero(ours != theirs)
    if len(wrong):
        at = int(wrong[0])
        yield Difference(f"{what} ({len(wrong)} bytes)", f"0x{ours[at]:02x}", f"0x{theirs[at]:02x}", at)


def _values(held: Weight, packed: Packed) -> Iterator[Difference]:
    """Both decoded: two packings with one wrong layout would agree byte for byte."""
    try:
        ours = decoded(held).reshape(-1)
    except Exception as error:  # whatever is wrong with what the rank holds is a finding
        yield Difference("decoding", f"{type(error).__name__}: {error}"[:200], "values")
        return
    theirs = packed.values.reshape(-1)
    if len(ours) != len(theirs):
        yield Difference("values", f"{len(ours)}", f"{len(theirs)}")
        return
    wrong = np.flatnonzero(ours.view(np.uint32) != theirs.view(np.uint32))
    if len(wrong):
        at = int(wrong[0])
        yield Difference(f"values ({len(wrong)})", f"{ours[at]:g}", f"{theirs[at]:g}", at)


def decoded(held: Weight) -> NDArray[np.float32]:
    """What the network computes with: the values by the product's own decoder, float32."""
    if isinstance(held, Stored):
        values = formats.get(held.format).decode(held, torch.float32)
    else:
        values = held.float()
    result: NDArray[np.float32] = values.cpu().contiguous().numpy()
    return result


def raw(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """A tensor's bytes in C order, on the host."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    result: NDArray[np.uint8] = flat.numpy()
    return result
