"""Philox4x32 with ten rounds, on int64 tensors, one block per element.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC '11).
A counter-based generator: the block for a counter and key is a function of these alone, so noise can
be made anywhere, in any order, on any device, and is the same integers.
"""

from functools import cache

import numpy as np
import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Words = tuple[Tensor, Tensor, Tensor, Tensor]


@cache
def _constants(device: torch.device, dimensions: int) -> tuple[Tensor, Tensor]:
    """Multipliers [2, 1 ...] and what each round adds to the key [rounds, 2, 1 ...]."""
    multipliers = torch.tensor(_MULTIPLIERS, dtype=torch.int64, device=device)
    steps = torch.tensor(
        [[number * step for step in _KEY_STEPS] for number in range(_ROUNDS)],
        dtype=torch.int64,
        device=device,
    )
    ones = (1,) * dimensions
    return multipliers.view(2, *ones), steps.view(_ROUNDS, 2, *ones)


def philox4x32(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Return the four 32-bit words of each block.

    Every tensor is int64 and holds values 0 .. 2**32 - 1. All have the same number of dimensions and
    broadcast against each other; the halves of the key have one shape.
    """
    shape = np.broadcast_shapes(*(tuple(word.shape) for word in (*counter, *key)))
    c0, c1, c2, c3 = (word.expand(shape) for word in counter)
    multipliers, steps = _constants(c0.device, c0.dim())
    keys = (torch.stack(key) + steps) & _MASK
    # the two lanes of a round are computed together: small draws cost as much as there are operations
    even, odd = torch.stack((c0, c2)), torch.stack((c1, c3))
    for round_key in keys:
        product = even * multipliers  # wraps; its 64 bits are still those of the unsigned product
        high = (product >> 32) & _MASK
        even, odd = (high.flip(0) ^ odd).bitwise_xor_(round_key), product.bitwise_and_(_MASK).flip(0)
    return even[0], odd[0], even[1], odd[1]
