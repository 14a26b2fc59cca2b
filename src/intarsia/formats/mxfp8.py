"""MXFP8: E4M3 elements, 32 columns a block, an exponent rounded up so that nothing saturates."""

import torch
from torch import Tensor

from intarsia.formats.codes import E4M3_MAX, decode_e4m3_into
from intarsia.formats.mx import Mx


class Mxfp8(Mx):
    """MXFP8 as nvidia-modelopt 0.47.0 writes it. A scale named `weight_scale_inv` is accepted, and multiplies
    too.
    """

    name = "MXFP8"
    element = torch.float8_e4m3fn
    per_byte = 1
    largest = E4M3_MAX
    scale_names = ("weight_scale", "weight_scale_inv")

    def _encode_elements(self, values: Tensor, out: Tensor) -> None:
        # No clamp: the exponent is rounded up, but for a few float32 steps above 448, which round to 448.
        out.copy_(values)

    def _decode_elements(self, weight: Tensor, out: Tensor) -> None:
        decode_e4m3_into(weight, out)
