"""MXFP4: E2M1 elements, 32 columns a block, ties toward zero, zero coded as 8."""

import torch

from intarsia.formats.codes import E2M1_MAX, decode_e2m1, decode_e8m0, encode_e2m1_half_down, pack
from intarsia.formats.mx import Mx


class Mxfp4(Mx):
    """MXFP4 as nvidia-modelopt 0.47.0 writes it."""

    name = "MXFP4"
    element = torch.uint8
    per_byte = 2
    largest = E2M1_MAX

    def _encode_elements(self, blocks: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
        return pack(encode_e2m1_half_down(blocks / decode_e8m0(exponent).unsqueeze(-1)).flatten(-2))

    def _decode_elements(self, weight: torch.Tensor) -> torch.Tensor:
        return decode_e2m1(weight)
