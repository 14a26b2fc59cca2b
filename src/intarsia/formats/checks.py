"""Checks of stored tensors against a format's contract, shared by all formats. Each returns violations."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from intarsia.core.errors import Violation

Shape = tuple[int, ...]


def tensor_set(
    tensors: Mapping[str, Tensor], needed: Iterable[str], optional: Iterable[str]
) -> list[Violation]:
    """A violation for every needed suffix that is missing, and every one that the format does not have."""
    needed, optional = tuple(needed), tuple(optional)
    expected = ", ".join(needed)
    found = [Violation("missing-tensor", name, "none", expected) for name in needed if name not in tensors]
    for name in tensors:
        if name not in needed and name not in optional:
            found.append(Violation("extra-tensor", name, "an unknown suffix", expected))
    return found


def dtype(name: str, tensor: Tensor, *allowed: torch.dtype) -> list[Violation]:
    """A violation unless the tensor has one of the dtypes."""
    if tensor.dtype in allowed:
        return []
    expected = " or ".join(str(kind).removeprefix("torch.") for kind in allowed)
    return [Violation("dtype", name, str(tensor.dtype).removeprefix("torch."), expected)]


def shape(name: str, tensor: Tensor, *allowed: Shape) -> list[Violation]:
    """A violation unless the tensor has one of the shapes."""
    if tuple(tensor.shape) in allowed:
        return []
    expected = " or ".join(str(list(size)) for size in allowed)
    if tensor.ndim == 1 and tensor.element_size() == 1 and name.startswith("weight_scale"):
        action = "a one-dimensional scale is swizzled for a kernel: write it row-major before storing"
        return [Violation("swizzled-scale", name, f"shape {list(tensor.shape)}", expected, action)]
    return [Violation("shape", name, f"shape {list(tensor.shape)}", f"shape {expected}")]


def matrix(name: str, tensor: Tensor) -> list[Violation]:
    """A violation unless the tensor is a matrix or a stack of matrices, and not empty."""
    if tensor.ndim in (2, 3) and tensor.numel():
        return []
    return [
        Violation("shape", name, f"shape {list(tensor.shape)}", "[rows, columns] or [experts, rows, columns]")
    ]


def global_scale(name: str, scale: Tensor, lead: Shape, rows: int) -> list[Violation]:
    """A violation unless the scale is float32 [*lead], or [*lead, parts] where the parts split the rows
    equally.
    """
    found = dtype(name, scale, torch.float32)
    size = tuple(scale.shape)
    parts = size[-1] if len(size) == len(lead) + 1 else 1
    if size not in (lead, (*lead, parts)) or parts < 1 or rows % parts:
        expected = f"shape {list(lead)}, or one dimension more for equal parts of {rows} rows"
        found.append(Violation("shape", name, f"shape {list(size)}", expected))
    return found


def input_scale(tensors: Mapping[str, Tensor], lead: Shape) -> list[Violation]:
    """A violation when there is an `input_scale` that is not a float32 scalar, or one an expert."""
    if "input_scale" not in tensors:
        return []
    scale = tensors["input_scale"]
    sizes = ((), (1,), lead, (*lead, 1))
    return dtype("input_scale", scale, torch.float32) + shape("input_scale", scale, *dict.fromkeys(sizes))


def positive(name: str, scale: Tensor) -> list[Violation]:
    """A violation unless every float32 or bfloat16 scale is finite and above zero."""
    bad = ~(torch.isfinite(scale) & (scale > 0))
    return bad_entries("bad-scale", name, scale, bad, "finite values above zero")


def e4m3_scales(name: str, scale: Tensor) -> list[Violation]:
    """Violations for E4M3 scales that are NaN or have the sign set."""
    bytes_ = scale.view(torch.uint8)
    nan = (bytes_ & 0x7F) == 0x7F
    return bad_entries("nan-scale", name, bytes_, nan, "no NaN byte (0x7F, 0xFF)") + bad_entries(
        "negative-scale", name, bytes_, (bytes_ > 0x7F) & ~nan, "no sign bit"
    )


def e8m0_scales(name: str, scale: Tensor) -> list[Violation]:
    """A violation for E8M0 exponents that are NaN."""
    return bad_entries("nan-scale", name, scale, scale == 0xFF, "no NaN byte (0xFF)")


def e4m3_elements(name: str, weight: Tensor) -> list[Violation]:
    """A violation for E4M3 elements that are NaN."""
    bytes_ = weight.view(torch.uint8)
    return bad_entries("nan-element", name, bytes_, (bytes_ & 0x7F) == 0x7F, "no NaN byte (0x7F, 0xFF)")


def bad_entries(rule: str, name: str, values: Tensor, bad: Tensor, expected: str) -> list[Violation]:
    """One violation that counts the bad entries and gives the place and value of the first."""
    count = int(bad.sum())
    if not count:
        return []
    spot = [int(at) for at in torch.nonzero(bad)[0]]
    value = values[tuple(spot)].item()
    shown = f"0x{value:02X}" if values.dtype == torch.uint8 else f"{value:g}"
    more = f", and {count - 1} more" if count > 1 else ""
    return [Violation(rule, name, f"{shown} at {spot}{more}", expected)]
