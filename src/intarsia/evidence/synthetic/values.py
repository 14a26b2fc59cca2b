"""Random weights in stored form, made directly: no wide copy, no encoder.

Codes are uniform (or Gaussian where the format holds them), scales vary from block to block, and what a
matrix decodes to has a standard deviation of about 1/sqrt(columns), so that activations keep their size from
layer to layer and routing spreads.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from intarsia import formats
from intarsia.families.glm5_next.inventory import TensorSpec
from intarsia.formats.stored import Stored

# Root mean square of E2M1 codes drawn uniformly: the magnitudes are 0, 0.5, 1, 1.5, 2, 3, 4 and 6.
E2M1_RMS = 2.926
EXCEPTION_SHARE = 0.003  # scales outside a window of 16 byte values, as published for GLM-5.3-Flash
SCALE_BASE = 0x58  # the middle of the E4M3 scale bytes, 16.0
FP8_STD = 32.0  # of the Gaussian stored as E4M3, well inside 448


def _nvfp4(rows: int, columns: int, g: torch.Generator) -> dict[str, Tensor]:
    weight = _bytes(256, (rows, columns // 2), g)
    row_base = SCALE_BASE - 8 + _bytes(6, (rows, 1), g)
    scales = row_base + _bytes(12, (rows, columns // 16), g)
    odd = torch.rand(scales.shape, generator=g, device=g.device) < EXCEPTION_SHARE
    scales = torch.where(odd, 0x08 + _bytes(0x70, (rows, columns // 16), g), scales)
    as_numbers = scales.view(torch.float8_e4m3fn).float()
    spread = E2M1_RMS * as_numbers.square().mean().sqrt()
    return {
        "weight": weight,
        "weight_scale": scales.view(torch.float8_e4m3fn),
        "weight_scale_2": (columns**-0.5 / spread).reshape(()),
    }


def _mxfp8(rows: int, columns: int, g: torch.Generator) -> dict[str, Tensor]:
    exponent = round(-torch.log2(torch.tensor(FP8_STD * columns**0.5)).item())
    shift = _bytes(3, (rows, columns // 32), g).to(torch.int16) - 1
    return {"weight": _e4m3(rows, columns, g), "weight_scale": (127 + exponent + shift).to(torch.uint8)}


def _fp8_block(rows: int, columns: int, g: torch.Generator) -> dict[str, Tensor]:
    grid = (-(-rows // 128), 1, -(-columns // 128), 1)
    factor = 0.5 + torch.rand(grid, generator=g, device=g.device)
    return {"weight": _e4m3(rows, columns, g), "weight_scale": factor * (columns**-0.5 / FP8_STD)}


_MAKERS: dict[str, Callable[[int, int, torch.Generator], dict[str, Tensor]]] = {
    "NVFP4": _nvfp4,
    "W4A16_NVFP4": _nvfp4,
    "MXFP8": _mxfp8,
    "FP8_PB_WO": _fp8_block,
}
FORMATS = frozenset(_MAKERS)


def random_stored(format_name: str, rows: int, columns: int, generator: torch.Generator) -> Stored:
    """One matrix in a quantized format, on the generator's device; KeyError for a format not in `FORMATS`."""
    return Stored(format_name, _MAKERS[format_name](rows, columns, generator), (rows, columns))


def random_stack(format_name: str, shape: tuple[int, ...], parts: int, generator: torch.Generator) -> Stored:
    """A fused weight in a quantized format, made at once: [rows, columns], or [experts, rows, columns].

    `parts` matrices lie above each other in it (in every expert), each with its own global scale where the
    format has one.
    """
    *lead, rows, columns = shape
    flat = random_stored(format_name, math.prod(lead) * rows, columns, generator)
    tensors = {}
    for suffix, tensor in flat.tensors.items():
        if tensor.ndim == 0:
            scalars = (*lead, *((parts,) if parts > 1 else ()))
            tensors[suffix] = tensor.expand(scalars).contiguous() if scalars else tensor
        else:
            tensors[suffix] = tensor.view(*lead, tensor.shape[0] // math.prod(lead), *tensor.shape[1:])
    number_format = formats.get(format_name)
    row_parts = number_format.row_parts([rows // parts] * parts) if parts > 1 else 1
    return number_format.stored(tensors, row_parts=row_parts)


def random_plain(name: str, spec: TensorSpec, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """One tensor that is stored as numbers, scaled by what it is for."""
    noise = torch.randn(spec.shape, generator=generator, device=generator.device)
    if spec.role == "norm":
        value = 0.1 * noise if name.endswith(".bias") else 1 + 0.1 * noise
    elif spec.role == "embedding":
        value = noise
    elif name.endswith(("_base", "_scale", "A_log", "dt_bias", "correction_bias", "_ape")):
        value = 0.1 * noise
    elif spec.role == "conv":
        value = 0.5 * noise
    else:
        value = noise * spec.shape[-1] ** -0.5
    return value.to(dtype)


def _bytes(count: int, shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    return torch.randint(count, shape, generator=g, device=g.device, dtype=torch.uint8)


def _e4m3(rows: int, columns: int, g: torch.Generator) -> Tensor:
    values = torch.randn((rows, columns), generator=g, device=g.device) * FP8_STD
    return values.clamp_(-448, 448).to(torch.float8_e4m3fn)
