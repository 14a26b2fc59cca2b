"""CSF: block scales of FP4 weights, compressed without loss.

Three codecs: `nvfp4_slab` and `mxfp4_slab` (slab.py), `csf_32x2_v1` (block.py). A matrix's components are
tensors by suffix, to be appended to the scale's own name with a dot.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from intarsia.core.errors import Violation
from intarsia.formats.base import require_inside
from intarsia.formats.csf.block import BLOCK, Block
from intarsia.formats.csf.slab import MXFP4_SLAB, NVFP4_SLAB, Slab
from intarsia.formats.errors import CsfError

__all__ = [
    "CODECS",
    "check",
    "components",
    "cut",
    "decode",
    "decode_into",
    "encode",
    "is_canonical",
    "require_shapes",
]

CODECS: dict[str, Slab | Block] = {codec.name: codec for codec in (NVFP4_SLAB, MXFP4_SLAB, BLOCK)}


def _codec(name: str) -> Slab | Block:
    if name not in CODECS:
        raise CsfError("scale codec", found=repr(name), expected="one of " + ", ".join(CODECS))
    return CODECS[name]


def components(codec: str) -> tuple[str, ...]:
    """The suffixes of a codec's components. Raises CsfError for an unknown codec."""
    return _codec(codec).components


def encode(scales: Tensor, codec: str) -> dict[str, Tensor]:
    """The canonical components of scale bytes [R, C]: uint8, or an eight-bit float by its bytes."""
    chosen = _codec(codec)
    if scales.ndim != 2 or scales.element_size() != 1:
        found = f"{scales.dtype} {list(scales.shape)}"
        raise CsfError(codec, found=found, expected="one matrix [rows, columns] of bytes")
    return chosen.encode(scales.contiguous().view(torch.uint8))


def require_shapes(components: Mapping[str, Tensor], rows: int, columns: int, codec: str) -> None:
    """Raises CsfError unless the components have the dtypes and shapes of such a matrix; reads no values."""
    _codec(codec).require_shapes(components, rows, columns)


def decode_into(components: Mapping[str, Tensor], out: Tensor, codec: str) -> None:
    """Writes the scale bytes into `out` [R, C], contiguous and of any one-byte dtype.

    Raises CsfError naming the component that breaks a rule; `out` is then unchanged.
    """
    if out.ndim != 2 or out.element_size() != 1 or not out.is_contiguous():
        found = f"{out.dtype} {list(out.shape)}"
        raise CsfError(codec, found=found, expected="a contiguous matrix [rows, columns] of bytes to fill")
    _codec(codec).decode_into(components, out.view(torch.uint8))


def decode(components: Mapping[str, Tensor], rows: int, columns: int, codec: str) -> Tensor:
    """The scale bytes uint8 [rows, columns]. Raises CsfError naming the component that breaks a rule."""
    chosen = _codec(codec)
    chosen.require_shapes(components, rows, columns)  # before memory is taken for a matrix of that size
    device = components[chosen.components[0]].device
    out = torch.empty(rows, columns, dtype=torch.uint8, device=device)
    chosen.decode_into(components, out)
    return out


def cut(
    components: Mapping[str, Tensor], shape: tuple[int, int], rows: range, columns: range, codec: str
) -> dict[str, Tensor]:
    """The components of a part of a matrix of `shape`, without decoding.

    Raises CsfError for the components, CutError for a part that is empty, outside, or would split a slab or
    block.
    """
    chosen = _codec(codec)
    chosen.require_shapes(components, *shape)
    require_inside(codec, rows, shape[0], columns, shape[1])
    return chosen.cut(components, shape, rows, columns)


def check(
    components: Mapping[str, Tensor], rows: int, columns: int, codec: str, where: str = ""
) -> list[Violation]:
    """Every rule that the components break; empty when they decode. `where` is the scale's own name."""
    try:
        found = _codec(codec).problems(components, rows, columns)
    except CsfError as error:
        return [Violation("csf-matrix", where or codec, error.found, error.expected)]
    return [replace(item, where=f"{where}.{item.where}" if where else item.where) for item in found]


def is_canonical(components: Mapping[str, Tensor], rows: int, columns: int, codec: str) -> bool:
    """Whether encoding the decoded scales gives these components back, byte for byte."""
    again = encode(decode(components, rows, columns, codec), codec)
    return all(torch.equal(_bytes(tensor), _bytes(components[name])) for name, tensor in again.items())


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
