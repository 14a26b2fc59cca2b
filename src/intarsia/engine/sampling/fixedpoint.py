"""Probabilities and noise as integers that every device and every rank computes alike.

A logit becomes its distance below the largest one, in bits, as an integer count of 2**-32 bits. From the
logit on, only single IEEE operations (a subtraction, a multiplication, a division ...) and integers are
used, never a library's exp or log: those differ between devices, and between the vector loop and its tail
on one CPU, which would let two ranks, or a row and the same row in another batch, draw different tokens.
"""

import math
from decimal import Decimal, localcontext
from functools import cache

import torch
from torch import Tensor

FRACTION_BITS = 32
MASS_BITS = 40
_UNIT = float(1 << FRACTION_BITS)
# Nothing this far below the best is ever drawn: the noise spans less than 64 bits.
_FARTHEST = 1 << 20
_TABLE_BITS = 10
_TABLE_SIZE = 1 << _TABLE_BITS
_TABLE_PRECISION = 50
_FINE_BITS = 22  # with the 40 bits of the coarse table a product stays below 2**63


def scale(temperature: float) -> float:
    """Units of distance per unit of logit: log2(e) / temperature, in 2**-32 bits."""
    return math.log2(math.e) / temperature * _UNIT


def distances(logits: Tensor, peak: Tensor, scales: Tensor) -> Tensor:
    """Distance of every logit below its row's peak, in 2**-32 bits (int64, 0 at the peak).

    logits [R, K] float32; peak [R] float32, the largest logit of the whole row; scales [R] float64.
    """
    below = (peak.double()[:, None] - logits.double()) * scales[:, None]
    return below.clamp(0.0, _FARTHEST * _UNIT).long()


@cache
def tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """2**-(i / 2**10) and 2**-(j / 2**20) for i, j < 2**10, as integers with units of 2**-40 and 2**-22.

    Decimal arithmetic is correctly rounded on every platform, which a libm's pow is not.
    """
    with localcontext() as context:
        context.prec = _TABLE_PRECISION
        tables = []
        for bits, fraction in ((MASS_BITS, _TABLE_BITS), (_FINE_BITS, 2 * _TABLE_BITS)):
            step = Decimal(2) ** (Decimal(-1) / (1 << fraction))
            values, value = [], Decimal(1 << bits)
            for _ in range(_TABLE_SIZE):
                values.append(int(value.to_integral_value()))
                value *= step
            tables.append(torch.tensor(values, dtype=torch.int64, device=device))
    return tables[0], tables[1]


def masses(distance: Tensor) -> Tensor:
    """Unnormalised probability 2**-distance as an integer with 2**40 at the peak; 0 from 40 bits below.

    The distance is read to 2**-20 bits, which is finer than float32 logits of a language model are. Sums of
    up to 2**22 of these are exact in int64, so that a total has one value in any order of summation.
    """
    coarse, fine = tables(distance.device)
    units = distance >> (FRACTION_BITS - 2 * _TABLE_BITS)
    fraction = coarse[(units >> _TABLE_BITS) & (_TABLE_SIZE - 1)] * fine[units & (_TABLE_SIZE - 1)]
    whole = (units >> (2 * _TABLE_BITS)).clamp(max=42)
    return fraction >> _FINE_BITS >> whole


def share(total: Tensor, fraction: Tensor) -> Tensor:
    """The least integer mass that is at least `fraction` (float64) of `total` (int64), elementwise."""
    return (total.double() * fraction).ceil().long()


def _log2(value: Tensor) -> Tensor:
    """log2 of positive float64 by atanh's series on [sqrt(1/2), sqrt(2)); relative error below 1e-12.

    log2(m) = 2 / ln 2 * (s + s**3 / 3 + s**5 / 5 ...), s = (m - 1) / (m + 1), |s| < 0.172.
    """
    mantissa, exponent = torch.frexp(value)
    low = mantissa < math.sqrt(0.5)
    mantissa = torch.where(low, mantissa * 2.0, mantissa)
    whole = exponent.double() - low.double()
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = torch.full_like(s, 1.0 / 17)
    for odd in range(15, 0, -2):
        series = series * square
        series = series + 1.0 / odd
    series = series * s
    series = series * (2.0 / math.log(2.0))
    return whole + series


def gumbel(high: Tensor, low: Tensor) -> Tensor:
    """Gumbel noise in 2**-32 bits from two 32-bit words per element (int64), up to one constant for all.

    The words give u = (m + 1/2) / 2**52 with 52 random bits m; the noise is -log2(-log2 u), between
    -5.8 and 53.6 bits. Adding it to -distance and taking the largest draws with softmax probabilities.
    """
    bits = (high << 20) | (low >> 12)
    uniform = (bits.double() + 0.5) * 2.0**-52
    noise = _log2(-_log2(uniform))
    return (-noise * _UNIT).floor().long()
