# mypy: ignore-errors
"""What the inverse of a chunk is multiplied with: its keys, its queries by way of these, and its values.

Everything comes out transposed, key or value by row, in tiles of 16 rows: the parts of one product are the
registers that the next one takes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from intarsia.kernels.kda.gluon_inverse import (
    DEEP,
    as_left,
    block_of,
    inverse_block,
    loaded,
    products,
    rows_of,
    transposed,
)
from intarsia.kernels.kda.gluon_rows import BLOCK, BLOCKS, CHUNK, HALF, D


@gluon.jit
def joined(a, b, c, d):
    """Four tiles [128, 16 rows] side by side, [128, 64]."""
    pairs = gl.permute(gl.join(gl.join(a, c), gl.join(b, d)), [0, 2, 3, 1])
    return gl.convert_layout(gl.reshape(pairs, [D, CHUNK]), DEEP, assert_trivial=True)


@gluon.jit
def plain(part):
    """A left operand as a product's registers."""
    return gl.convert_layout(part, DEEP, assert_trivial=True)


@gluon.jit
def share_parts(staged, tiles):
    """Four tiles to [256, 64]: high parts, then low ones."""
    high = joined(plain(tiles[0][0]), plain(tiles[1][0]), plain(tiles[2][0]), plain(tiles[3][0]))
    low = joined(plain(tiles[0][1]), plain(tiles[1][1]), plain(tiles[2][1]), plain(tiles[3][1]))
    staged.slice(0, D, 0).store(high)
    staged.slice(D, D, 0).store(low)


@gluon.jit
def turned_rows(shared, kind: gl.constexpr, i: gl.constexpr):
    """Rows of block i of k or q as a left operand, [128, 16]."""
    begin: gl.constexpr = (i // 2) * CHUNK + kind * HALF + (i % 2) * BLOCK
    view = (shared[0].slice(begin, BLOCK, 0), shared[1].slice(begin, BLOCK, 0))
    return loaded(transposed(view), gl.DotOperandLayout(0, DEEP, 2))


@gluon.jit
def whole(parts, LAYOUT: gl.constexpr):
    """The numbers of which a left operand has the parts, as a product's registers."""
    high = gl.convert_layout(parts[0], LAYOUT, assert_trivial=True).to(gl.float32)
    return high + gl.convert_layout(parts[1], LAYOUT, assert_trivial=True).to(gl.float32)


@gluon.jit
def key_terms(rows, square, inverse, grown):
    """-w and q' = q exp(G) - (products of q and k) w, transposed: four tiles each of two parts."""
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, DEEP, 2)
    first = grown[0].load(gl.SliceLayout(1, DEEP))[:, None]
    second = grown[1].load(gl.SliceLayout(1, DEEP))[:, None]
    left = (
        turned_rows(rows, 0, 0),
        turned_rows(rows, 0, 1),
        turned_rows(rows, 0, 2),
        turned_rows(rows, 0, 3),
    )
    solved = ()
    for i in gl.static_range(BLOCKS):
        total = gl.zeros([D, BLOCK], gl.float32, DEEP)
        for k in gl.static_range(min(i + 1, 2)):
            total = products(left[k], loaded(transposed(inverse_block(inverse, i, k)), RIGHT), total)
        total *= -first
        if i >= 2:
            later = gl.zeros([D, BLOCK], gl.float32, DEEP)
            for k in gl.static_range(2, i + 1):
                later = products(left[k], loaded(transposed(inverse_block(inverse, i, k)), RIGHT), later)
            total -= second * later
        solved += (as_left(total, DEEP),)
    found = ()
    for i in gl.static_range(BLOCKS):
        total = whole(turned_rows(rows, 1, i), DEEP) * (first if i < 2 else second)
        for k in gl.static_range(i + 1):
            total = products(solved[k], loaded(transposed(block_of(square, 1, i, k)), RIGHT), total)
        found += (as_left(total, DEEP),)
    return solved, found


@gluon.jit
def value_terms(values, square, inverse):
    """u and what rows read of their own chunk if its state before is zero, transposed, float32."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, DEEP, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, DEEP, 2)
    v = (
        loaded(transposed(rows_of(values, 0)), LEFT),
        loaded(transposed(rows_of(values, 1)), LEFT),
        loaded(transposed(rows_of(values, 2)), LEFT),
        loaded(transposed(rows_of(values, 3)), LEFT),
    )
    solved = ()
    for i in gl.static_range(BLOCKS):
        total = gl.zeros([D, BLOCK], gl.float32, DEEP)
        for k in gl.static_range(i + 1):
            total = products(v[k], loaded(transposed(inverse_block(inverse, i, k)), RIGHT), total)
        solved += (as_left(total, DEEP),)
    own = ()
    for i in gl.static_range(BLOCKS):
        total = gl.zeros([D, BLOCK], gl.float32, DEEP)
        for k in gl.static_range(i + 1):
            total = products(solved[k], loaded(transposed(block_of(square, 1, i, k)), RIGHT), total)
        own += (total,)
    u = joined(whole(solved[0], DEEP), whole(solved[1], DEEP), whole(solved[2], DEEP), whole(solved[3], DEEP))
    return u, joined(own[0], own[1], own[2], own[3])
