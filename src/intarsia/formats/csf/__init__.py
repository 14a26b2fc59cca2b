"""CSF: block scales of FP4 weights, compressed without loss.

Three codecs: `nvfp4_slab` and `mxfp4_slab` (slab.py), `csf_32x2_v1` (block.py). A matrix's components are
tensors by suffix, to be appended to the scale's own name with a dot.
"""

from collections.abc import Mapping

import torch

from intarsia.core.errors import Violation
from intarsia.formats.csf.block import BLOCK, Block
from intarsia.formats.csf.slab import MXFP4_SLAB, NVFP4_SLAB, Slab
from intarsia.formats.errors import CsfError, CutError

__all__ = ["CODECS", "check", "components", "cut", "decode", "decode_into", "encode", "is_canonical"]

CODECS: dict[str, Slab | Block] = {codec.name: codec for codec in (NVFP4_SLAB, MXFP4_SLAB, BLOCK)}


def _codec(name: str) -> Slab | Block:
    if name not in CODECS:
        raise CsfError("scale codec", found=repr(name), expected="one of " + ", ".join(CODECS))
    return CODECS[name]


def components(codec: str) -> tuple[str, ...]:
    """The suffixes of a codec's components. Raises CsfError for an unknown codec."""
    return _codec(codec).components


def encode(scales: torch.Tensor, codec: str) -> dict[str, torch.Tensor]:
    """The canonical components of scale bytes [R, C] (uint8, or an eight-bit float by its bytes)."""
    chosen = _codec(codec)
    if scales.ndim != 2 or scales.element_size() != 1:
        found = f"{scales.dtype} {list(scales.shape)}"
        raise CsfError(codec, found=found, expected="one matrix [rows, columns] of bytes")
    return chosen.encode(scales.view(torch.uint8).contiguous())


def decode_into(components: Mapping[str, torch.Tensor], out: torch.Tensor, codec: str) -> None:
    """Writes the scale bytes into `out` [R, C], contiguous, of any one-byte dtype. Raises CsfError naming a
    component.
    """
    if out.ndim != 2 or out.element_size() != 1 or not out.is_contiguous():
        found = f"{out.dtype} {list(out.shape)}"
        raise CsfError(
            codec, found=found, expected="a contiguous matrix [rows, columns] of bytes to decode into"
        )
    _codec(codec).decode_into(components, out.view(torch.uint8))


def decode(components: Mapping[str, torch.Tensor], rows: int, columns: int, codec: str) -> torch.Tensor:
    """The scale bytes uint8 [rows, columns]. Raises CsfError naming the component that breaks a rule."""
    chosen = _codec(codec)
    chosen.require_matrix(rows, columns)
    device = next((tensor.device for tensor in components.values()), torch.device("cpu"))
    out = torch.empty(rows, columns, dtype=torch.uint8, device=device)
    chosen.decode_into(components, out)
    return out


def cut(
    components: Mapping[str, torch.Tensor], shape: tuple[int, int], rows: range, columns: range, codec: str
) -> dict[str, torch.Tensor]:
    """The components of a part of a matrix of `shape`, without decoding. Raises CsfError, or CutError for the
    part.
    """
    chosen = _codec(codec)
    for axis, wanted, size in (("rows", rows, shape[0]), ("columns", columns, shape[1])):
        if wanted.step != 1 or not 0 <= wanted.start < wanted.stop <= size:
            raise CutError(
                f"cut of {codec}",
                found=f"{axis} {wanted.start}:{wanted.stop}:{wanted.step}",
                expected=f"a range with step 1 and at least one of {size} {axis}",
            )
    return chosen.cut(components, shape, rows, columns)


def check(
    components: Mapping[str, torch.Tensor], rows: int, columns: int, codec: str, where: str = ""
) -> list[Violation]:
    """The rule that the components break, as a violation; empty when they decode."""
    try:
        decode(components, rows, columns, codec)
    except CsfError as error:
        return [Violation("csf", where or error.where, error.found, error.expected, error.action)]
    return []


def is_canonical(components: Mapping[str, torch.Tensor], rows: int, columns: int, codec: str) -> bool:
    """Whether encoding the decoded scales gives these components back, byte for byte."""
    again = encode(decode(components, rows, columns, codec), codec)
    return all(
        torch.equal(
            again[name].view(-1).view(torch.uint8), components[name].contiguous().view(-1).view(torch.uint8)
        )
        for name in again
    )
