"""MXFP4: E2M1 elements, 32 columns a block, ties toward zero, zero coded as 8."""

import torch
from torch import Tensor

from intarsia.formats.codes import E2M1_MAX, decode_e2m1_into, pack_e2m1_into
from intarsia.formats.mx import Mx


class Mxfp4(Mx):
    """MXFP4 as nvidia-modelopt 0.47.0 writes it."""

    name = "MXFP4"
    element = torch.uint8
    per_byte = 2
    largest = E2M1_MAX

    def _encode_elements(self, values: Tensor, out: Tensor) -> None:
        pack_e2m1_into(values, out, ties_down=True)

    def _decode_elements(self, weight: Tensor, out: Tensor) -> None:
        decode_e2m1_into(weight, out)
