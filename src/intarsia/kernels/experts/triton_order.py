# mypy: ignore-errors
"""Columns of x in the orders in which the products of experts in tiles read them; see gluon_tiles."""

import triton
import triton.language as tl

X_SCALE = tl.constexpr(18446744073709551616.0)


@triton.jit
def ordered(values, BLOCKS: tl.constexpr):
    """Columns of x [128 BLOCKS] as the products of few rows read them, times 2^64."""
    values = (values.to(tl.float32) * X_SCALE).to(tl.bfloat16)
    values = values.reshape(BLOCKS, 4, 4, 2, 4)  # lane, word, h, i
    return values.permute(0, 2, 1, 4, 3).reshape(128 * BLOCKS)


@triton.jit
def ordered_by_words(values, BLOCKS: tl.constexpr):
    """Columns of x [128 BLOCKS] as the products of many rows read them, times 2^64."""
    values = (values.to(tl.float32) * X_SCALE).to(tl.bfloat16)
    values = values.reshape(BLOCKS, 4, 4, 2, 4)  # lane, word, h, i
    return values.permute(0, 2, 4, 1, 3).reshape(128 * BLOCKS)


@triton.jit
def arrange_row(x, out, row, K: tl.constexpr, PIECE: tl.constexpr):
    """Row of out from the row of x, PIECE columns at a time."""
    column = row.to(tl.int64) * K + tl.arange(0, PIECE)
    for piece in tl.static_range(K // PIECE):
        values = tl.load(x + piece * PIECE + column)
        tl.store(out + piece * PIECE + column, ordered(values, PIECE // 128))
