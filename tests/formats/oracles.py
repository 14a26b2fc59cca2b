"""The peers that encoders are held against, imported without their warnings."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor

__all__ = ["FP8QTensor", "MXFP4QTensor", "MXFP8QTensor", "NVFP4QTensor"]
