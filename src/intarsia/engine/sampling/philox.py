"""Philox4x32 with ten rounds, on int64 tensors, one block per element.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC '11).
A counter-based generator: the block for a counter and key is a function of these alone, so noise can
be made anywhere, in any order, on any device, and is the same integers.
"""

from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def _halves(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of word * multiplier; the int64 product wraps, its bits are still right."""
    product = word * multiplier
    return (product >> 32) & _MASK, product & _MASK


def philox4x32(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Return the four 32-bit words of each block.

    Every tensor is int64 and holds values 0 .. 2**32 - 1; shapes broadcast against each other.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for round_number in range(_ROUNDS):
        if round_number:
            k0 = (k0 + _KEY_STEPS[0]) & _MASK
            k1 = (k1 + _KEY_STEPS[1]) & _MASK
        high0, low0 = _halves(c0, _MULTIPLIERS[0])
        high1, low1 = _halves(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return c0, c1, c2, c3
