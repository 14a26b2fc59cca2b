"""Number formats: how each is laid out, encoded, decoded and cut. Pure tensors; no files, no CUDA.

`get(name)` gives the format of a ModelOpt algorithm name or one of its aliases, in any case.
"""

import difflib

import torch

from intarsia.formats.base import Format, TensorSpec
from intarsia.formats.errors import (
    CsfError,
    CutError,
    FormatError,
    LayoutError,
    UnencodableError,
    UnknownFormatError,
)
from intarsia.formats.fp8 import Fp8
from intarsia.formats.fp8_block import Fp8Block
from intarsia.formats.fp8_channel import Fp8Channel
from intarsia.formats.mxfp4 import Mxfp4
from intarsia.formats.mxfp8 import Mxfp8
from intarsia.formats.nvfp4 import Nvfp4
from intarsia.formats.plain import Plain
from intarsia.formats.stored import Stored

__all__ = [
    "ALIASES",
    "CsfError",
    "CutError",
    "Format",
    "FormatError",
    "LayoutError",
    "Stored",
    "TensorSpec",
    "UnencodableError",
    "UnknownFormatError",
    "canonical",
    "get",
    "names",
]

_FORMATS: dict[str, Format] = {
    item.name: item
    for item in (
        Nvfp4("NVFP4", activations=True),
        Nvfp4("W4A16_NVFP4", activations=False),
        Mxfp8(),
        Mxfp4(),
        Fp8(),
        Fp8Channel(),
        Fp8Block(),
        Plain("BF16", torch.bfloat16),
        Plain("F16", torch.float16),
        Plain("F32", torch.float32),
    )
}

ALIASES = {
    "FP8_BLOCK_SCALES": "FP8_PB_WO",
    "FP8_PB": "FP8_PB_WO",
    "FP8_PB_REAL": "FP8_PB_WO",
    "FP8_PC_PT": "FP8_PER_CHANNEL_PER_TOKEN",
    "NVFP4_STATIC": "NVFP4",
    "BFLOAT16": "BF16",
    "FLOAT16": "F16",
    "FP16": "F16",
    "FLOAT32": "F32",
    "FP32": "F32",
}
"""Other spellings met in checkpoints, after upper-casing."""


def names() -> tuple[str, ...]:
    """The canonical names of all formats."""
    return tuple(_FORMATS)


def canonical(name: str) -> str:
    """The canonical spelling of a format's name. Raises UnknownFormatError with the nearest names."""
    upper = name.upper()
    found = ALIASES.get(upper, upper)
    if found not in _FORMATS:
        near = difflib.get_close_matches(upper, [*_FORMATS, *ALIASES], n=3)
        raise UnknownFormatError(
            "number format",
            found=repr(name),
            expected="one of " + ", ".join(near or _FORMATS),
            action="name a format that intarsia.formats.names() lists",
        )
    return found


def get(name: str) -> Format:
    """The format of a name or alias, in any case. Raises UnknownFormatError with the nearest names."""
    return _FORMATS[canonical(name)]
