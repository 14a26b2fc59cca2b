"""How latents lie in their cache: as they are, or in FP8 with a scale for each row.

FP8 rows are E4M3 codes times a power of two: the smallest with which the row's largest magnitude is at most
448, E4M3's largest number; 1 for a row of zeros. Dividing by it and multiplying with it are exact, so a row
loses what rounding to E4M3 loses and nothing else, and its bytes follow from the row alone.
"""

import torch
from torch import Tensor

from intarsia.kernels.paging import write_rows
from intarsia.kernels.rows import Rows

E4M3 = torch.float8_e4m3fn
# 448 is 0.875 * 2**9.
_LARGEST_FRACTION, _LARGEST_EXPONENT = 0.875, 9


def encode_latents(latents: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [R, L] as E4M3 codes [R, L] and float32 scales [R]. A row that is not finite stays NaN."""
    values = latents.float()
    fraction, exponent = torch.frexp(values.abs().amax(-1))
    power = exponent - _LARGEST_EXPONENT + (fraction > _LARGEST_FRACTION).int()
    scales = torch.ldexp(torch.ones_like(fraction), power)
    scales = torch.where(fraction == 0, 1.0, torch.where(fraction.isfinite(), scales, torch.nan))
    return (values / scales.unsqueeze(-1)).to(E4M3), scales


def write_latents(cache: Tensor, scales: Tensor | None, latents: Tensor, rows: Rows) -> None:
    """Store a latent a row in `cache` [pages + 1, page, L]; with `scales` [pages + 1, page] in FP8."""
    if scales is None:
        write_rows(cache, latents, rows)
        return
    codes, powers = encode_latents(latents)
    # As bytes: not every backend can index FP8.
    write_rows(cache.view(torch.uint8), codes.view(torch.uint8), rows)
    write_rows(scales.unsqueeze(-1), powers.unsqueeze(-1), rows)
