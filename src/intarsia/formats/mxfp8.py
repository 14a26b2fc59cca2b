"""MXFP8: E4M3 elements, 32 columns a block, an exponent rounded up so that nothing saturates."""

import torch

from intarsia.formats.codes import E4M3_MAX, decode_e4m3, decode_e8m0, encode_e4m3
from intarsia.formats.mx import Mx


class Mxfp8(Mx):
    """MXFP8 as nvidia-modelopt 0.47.0 writes it; `weight_scale_inv` is accepted as the scale's name and multiplies too."""

    name = "MXFP8"
    element = torch.float8_e4m3fn
    per_byte = 1
    largest = E4M3_MAX
    scale_names = ("weight_scale", "weight_scale_inv")

    def _encode_elements(self, blocks: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
        # 254 - byte is the exponent byte of the reciprocal, so the multiplication is exact.
        return encode_e4m3((blocks * decode_e8m0(254 - exponent).unsqueeze(-1)).flatten(-2))

    def _decode_elements(self, weight: torch.Tensor) -> torch.Tensor:
        return decode_e4m3(weight)
