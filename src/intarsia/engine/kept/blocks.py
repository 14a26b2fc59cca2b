"""Prefixes of token sequences as digests, one for every full block of the grid."""

import hashlib
from array import array
from collections.abc import Sequence

from intarsia.engine.settings import GRID

DIGEST_BYTES = 16


def block_digests(tokens: Sequence[int], salt: str | None) -> list[bytes]:
    """Digest i stands for the first (i + 1) * 64 tokens and the salt.

    Two equal digests are taken for equal prefixes only after the tokens were compared.
    """
    ids = array("q", tokens)
    chain = hashlib.blake2b((salt or "").encode(), digest_size=DIGEST_BYTES, person=b"kept-prefix").digest()
    digests = []
    for begin in range(0, len(ids) - GRID + 1, GRID):
        block = ids[begin : begin + GRID].tobytes()
        chain = hashlib.blake2b(chain + block, digest_size=DIGEST_BYTES).digest()
        digests.append(chain)
    return digests


def common_length(left: "array[int]", right: "array[int]") -> int:
    """How many tokens two sequences share at their beginning."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
