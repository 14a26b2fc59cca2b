# mypy: ignore-errors
# ruff: noqa: RET505 (a branch on a constant)
"""x of the product of few rows: where the pairs of a block stand, and the operand that their rows become.

A lane loads the pairs of columns that it multiplies itself, in the order in which the lane's weights come
out of their codes (see gluon_tiles), so x needs no shared memory either.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from intarsia.kernels.experts.gluon_blocks import nth_pair
from intarsia.kernels.experts.gluon_tiles import along, without


@gluon.constexpr_function
def x_layout():
    """[row 8, w 4, lane 4, i 4, h 2]: one row and a lane's columns of it; each warp holds a copy."""
    registers = [[0, 0, 0, 0, 1], [0, 0, 0, 1, 0], [0, 0, 0, 2, 0], [0, 1, 0, 0, 0], [0, 2, 0, 0, 0]]
    lanes = [[0, 0, 1, 0, 0], [0, 0, 2, 0, 0], [1, 0, 0, 0, 0], [2, 0, 0, 0, 0], [4, 0, 0, 0, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[0] * 5] * 2, [], [8, 4, 4, 4, 2])


@gluon.jit
def x_operand(words, OPERAND: gl.constexpr):
    """The operand [128, 8] of a step's pairs of x, [8, 4, 4, 4] int32."""
    spread = gl.full([8, 4, 4, 4, 2], 0, gl.int32, x_layout())
    values = gl.inline_asm_elementwise(
        "mov.b32 $0, $1;",
        "=r,r,r",
        [gl.expand_dims(words, 4) | spread],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=2,
    )
    values = gl.reshape(gl.permute(values, [1, 3, 2, 4, 0]), [128, 8])
    return gl.convert_layout(values, OPERAND, assert_trivial=True)


@gluon.jit
def place_of(blocks, row, count, SORTED: gl.constexpr):
    """Where the pairs at `row` of a block stand, those beyond it where its last does: a place in `order`, or
    without lists the pair itself.
    """
    row = gl.minimum(row, count - 1)
    if SORTED:
        return blocks[1] + row
    else:
        return nth_pair(blocks[0], blocks[1], blocks[2] + row)


@gluon.jit
def rows_at(
    x, blocks, count, K: gl.constexpr, TOP: gl.constexpr, GATED: gl.constexpr, SORTED: gl.constexpr,
    FIRST: gl.constexpr,
):  # fmt: skip
    """Where a lane's pairs of x lie, of the eight rows from row FIRST of the block on.

    Rows beyond the block's read its last one again, and nothing of them is stored.
    """
    LX: gl.constexpr = without(x_layout(), 4)
    place = place_of(blocks, FIRST + along(8, LX, 0, 4), count, SORTED)
    if GATED and SORTED:
        place = gl.load(blocks[0] + place)
    if GATED:
        place = place // TOP
    lanes = place * (K // 2) + along(4, LX, 2, 4) * 4
    return x + lanes + (along(4, LX, 1, 4) * 16 + along(4, LX, 3, 4))


@gluon.jit
def places_at(blocks, count, LAYOUT: gl.constexpr, SORTED: gl.constexpr, FIRST: gl.constexpr):
    """Where the eight pairs from row FIRST of a block on stand, and which of them there are."""
    row = FIRST + gl.arange(0, 8, layout=LAYOUT)
    if SORTED:
        # Places, not rows, are compared: those the compiler would keep in registers from block to block.
        place = blocks[1] + row
        return place, place < blocks[1] + count
    else:
        return place_of(blocks, row, count, False), row < count
