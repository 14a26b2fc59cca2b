# mypy: ignore-errors
"""Tokens from two places, in one program."""

import triton
import triton.language as tl


@triton.jit
def feed_rows(tokens, places, source, out, rows, SIZE: tl.constexpr):
    """out int64 [rows], the number at `places` of `source` where that is not negative, else of `tokens`."""
    row = tl.arange(0, SIZE)
    inside = row < rows
    place = tl.load(places + row, mask=inside, other=-1)
    own = tl.load(tokens + row, mask=inside, other=0)
    fed = tl.load(source + tl.maximum(place, 0), mask=inside & (place >= 0), other=0)
    tl.store(out + row, tl.where(place >= 0, tl.maximum(fed, 0), own), mask=inside)
