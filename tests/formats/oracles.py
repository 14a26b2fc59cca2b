"""The peers that encoders are held against, imported without their warnings, and not before they are used:
it takes seconds, and every worker of the suite reads this file.
"""

import importlib
import warnings
from typing import Any

NAMES = {
    "FP8QTensor": "modelopt.torch.quantization.qtensor",
    "MXFP4QTensor": "modelopt.torch.quantization.qtensor",
    "MXFP8QTensor": "modelopt.torch.quantization.qtensor",
    "NVFP4QTensor": "modelopt.torch.quantization.qtensor",
    "decompress_mx_scale": "compressed_tensors.compressors.mx_utils",
    "pack_fp4_to_uint8": "compressed_tensors.compressors.nvfp4.helpers",
    "unpack_fp4_from_uint8": "compressed_tensors.compressors.nvfp4.helpers",
}


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(importlib.import_module(NAMES[name]), name)
