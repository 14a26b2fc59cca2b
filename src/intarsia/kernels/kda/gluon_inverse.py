# mypy: ignore-errors
"""The inverse of the identity plus A of a prompt's chunk, A [64, 64] below its diagonal, in eight warps.

By doubling, as in `triton_chunk.py`. Up to blocks of 16 a block is a warp's own: a product's registers are
those of the next one's left operand, and those of its transpose the right operand's, so that X and its
transpose go on together and nothing else changes hands. What joins blocks of 16, and then the halves, every
warp works out for itself. Numbers are in two bfloat16 parts, products in three.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from intarsia.kernels.kda.gluon_rows import BLOCK, BLOCKS, CHUNK, HALF, halves, share

DEEP = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [8, 1], [16, 8]))  # keys or values by rows
SMALL = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [8, 1, 1], [1, 16, 8]))  # a block of 16 a warp
THIN = gl.constexpr(gl.SwizzledSharedLayout(8, 4, 2, [1, 0]))
NARROW = gl.constexpr(gl.SwizzledSharedLayout(8, 2, 4, [1, 0]))


@gluon.jit
def products(left, right, total):
    """`total` + left right of pairs of registers."""
    total = mma_v2(left[1], right[0], total)
    total = mma_v2(left[0], right[1], total)
    return mma_v2(left[0], right[0], total)


@gluon.jit
def as_left(x, LAYOUT: gl.constexpr):
    """The parts of a product as the left operand of the next: the same registers."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 2)
    parts = halves(x)
    return gl.convert_layout(parts[0], LEFT, assert_trivial=True), gl.convert_layout(
        parts[1], LEFT, assert_trivial=True
    )


@gluon.jit
def as_right(parts, LAYOUT: gl.constexpr):
    """The transpose of a product's parts as the right operand of the next: the same registers."""
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, LAYOUT, 2)
    return (
        gl.convert_layout(gl.permute(parts[0], [0, 2, 1]), RIGHT, assert_trivial=True),
        gl.convert_layout(gl.permute(parts[1], [0, 2, 1]), RIGHT, assert_trivial=True),
    )


@gluon.jit
def loaded(view, LAYOUT: gl.constexpr):
    return view[0].load(LAYOUT), view[1].load(LAYOUT)


@gluon.jit
def transposed(view):
    return view[0].permute([1, 0]), view[1].permute([1, 0])


@gluon.jit
def block_of(square, kind: gl.constexpr, i: gl.constexpr, k: gl.constexpr):
    """Block row i, block column k of what `share_square` left, of k (kind 0) or q (kind 1)."""
    begin: gl.constexpr = (i // 2) * CHUNK + kind * HALF + (i % 2) * BLOCK
    return (
        square[0].slice(begin, BLOCK, 0).slice(k * BLOCK, BLOCK, 1),
        square[1].slice(begin, BLOCK, 0).slice(k * BLOCK, BLOCK, 1),
    )


@gluon.jit
def rows_of(shared, i: gl.constexpr):
    return shared[0].slice(i * BLOCK, BLOCK, 0), shared[1].slice(i * BLOCK, BLOCK, 0)


@gluon.jit
def diagonal_part(square, which: gl.constexpr):
    """One part of the four diagonal blocks of A, a block a warp."""
    ROWS: gl.constexpr = gl.SliceLayout(0, SMALL)
    b = gl.arange(0, BLOCKS, layout=gl.SliceLayout(1, gl.SliceLayout(2, SMALL)))[:, None, None]
    n = block_of(square, 0, 0, 0)[which].load(ROWS)[None, :, :]
    n = gl.where(b == 1, block_of(square, 0, 1, 1)[which].load(ROWS)[None, :, :], n)
    n = gl.where(b == 2, block_of(square, 0, 2, 2)[which].load(ROWS)[None, :, :], n)
    return gl.where(b == 3, block_of(square, 0, 3, 3)[which].load(ROWS)[None, :, :], n)


@gluon.jit
def joins(row, column, SIZE: gl.constexpr):
    """Where a matrix joins two diagonal blocks of SIZE into one of twice the size."""
    return (row // SIZE == column // SIZE + 1) & (row // (2 * SIZE) == column // (2 * SIZE))


@gluon.jit
def doubled(x, x_turned, n, where):
    """From the inverse of diagonal blocks of one size that of blocks of twice the size, and its transpose."""
    nothing = gl.zeros([BLOCKS, BLOCK, BLOCK], gl.float32, SMALL)
    none = nothing.to(gl.bfloat16)
    n = as_right((gl.where(where, n[0], none), gl.where(where, n[1], none)), SMALL)
    through = products(as_left(x_turned, SMALL), n, nothing)  # (n x) transposed
    x_right = as_right(halves(x), SMALL)
    x_next = x - products(as_left(x, SMALL), as_right(halves(through), SMALL), nothing)
    return x_next, x_turned - products(as_left(through, SMALL), x_right, nothing)


@gluon.jit
def diagonal_inverses(square):
    """The inverses of the identity plus the diagonal blocks of A, [4, 16, 16]."""
    b = gl.arange(0, BLOCKS, layout=gl.SliceLayout(1, gl.SliceLayout(2, SMALL)))[:, None, None]
    t = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, gl.SliceLayout(2, SMALL)))[None, :, None]
    s = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, gl.SliceLayout(1, SMALL)))[None, None, :]
    n = (diagonal_part(square, 0), diagonal_part(square, 1))
    one = gl.where((t == s) & (b >= 0), 1.0, 0.0)
    # Of single rows the inverse is one, so that of pairs has what joins them.
    pairs = joins(t, s, 1) & (b >= 0)
    x = one - gl.where(pairs, n[0].to(gl.float32) + n[1].to(gl.float32), 0.0)
    nothing = gl.zeros([BLOCKS, BLOCK, BLOCK], gl.float32, SMALL)
    none = nothing.to(gl.bfloat16)
    n_right = as_right((gl.where(pairs, n[0], none), gl.where(pairs, n[1], none)), SMALL)
    x_turned = one - products(as_left(one, SMALL), n_right, nothing)
    x, x_turned = doubled(x, x_turned, n, joins(t, s, 2) & (b >= 0))
    x, x_turned = doubled(x, x_turned, n, joins(t, s, 4) & (b >= 0))
    x, _ = doubled(x, x_turned, n, joins(t, s, 8) & (b >= 0))
    return x


@gluon.jit
def inverse_block(inverse, i: gl.constexpr, k: gl.constexpr):
    """Block row i, block column k <= i of the inverse of the identity plus A."""
    if i == k:
        return rows_of(inverse[0], i)
    elif i // 2 == k // 2:  # noqa: RET505 (the compiler decides)
        return rows_of(inverse[1], i // 2)
    else:
        quarter = rows_of(inverse[2], i - 2)
        return quarter[0].slice(k * BLOCK, BLOCK, 1), quarter[1].slice(k * BLOCK, BLOCK, 1)


@gluon.jit
def join_blocks(square, inverse, p: gl.constexpr):
    """The block below the diagonal of a pair of diagonal blocks."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, DEEP, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, DEEP, 2)
    nothing = gl.zeros([BLOCK, BLOCK], gl.float32, DEEP)
    first = loaded(transposed(rows_of(inverse[0], 2 * p)), LEFT)
    n = loaded(transposed(block_of(square, 0, 2 * p + 1, 2 * p)), RIGHT)
    through = as_left(products(first, n, nothing), DEEP)
    second = loaded(transposed(rows_of(inverse[0], 2 * p + 1)), RIGHT)
    share(transposed(rows_of(inverse[1], p)), -products(through, second, nothing))


@gluon.jit
def join_halves(square, inverse):
    """What joins the two halves: the second inverse, A and the first inverse, by 16 columns of it."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, DEEP, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, DEEP, 2)
    nothing = gl.zeros([BLOCK, BLOCK], gl.float32, DEEP)
    for column in gl.static_range(2):
        # Rows of the transpose: columns 16 * column .. of the first inverse, whose blocks above are zero.
        first, second = nothing, nothing
        for k in gl.static_range(column, 2):
            x = loaded(transposed(inverse_block(inverse, k, column)), LEFT)
            first = products(x, loaded(transposed(block_of(square, 0, 2, k)), RIGHT), first)
            second = products(x, loaded(transposed(block_of(square, 0, 3, k)), RIGHT), second)
        first_left, second_left = as_left(first, DEEP), as_left(second, DEEP)
        upper = products(first_left, loaded(transposed(inverse_block(inverse, 2, 2)), RIGHT), nothing)
        under = products(first_left, loaded(transposed(inverse_block(inverse, 3, 2)), RIGHT), nothing)
        under = products(second_left, loaded(transposed(inverse_block(inverse, 3, 3)), RIGHT), under)
        share(transposed(inverse_block(inverse, 2, column)), -upper)
        share(transposed(inverse_block(inverse, 3, column)), -under)
