# mypy: ignore-errors
# ruff: noqa: RET505 (a branch on a constant)
"""Experts in tiles as operands of a tensor core, inside Gluon kernels: from the loaded words to the product.

A product's weights are its M side and its rows of x the N side. The order of columns inside a dot product is
free as long as both sides agree, so a lane keeps the 32 columns that it loaded as 16 bytes, in the order in
which decoding gives them, and x is stored in that order. Column [t t w w h i i] (bits, high to low) of each
128 is code h i i of word w w of lane t t; a product counts it as [w w i i t t h].

x is also stored times 2^64: that saves one multiplication for each scale, as 2^-55 and the global scale
follow once at the end. So values of x must be below 2^63.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# Eight E2M1 codes of a word, its bits laid out by `packed`, as four bfloat16 pairs times a pair of scales.
# `s` at bit 15 and `e e m` at bits 8:6 of a bfloat16 are the number times 2^-126, subnormals included: a
# mask, two rotations and a product of three shifts put the pairs there. The multiplication with the scale is
# exact: 2 + 4 significant bits.
CODES_ASM = gl.constexpr("""{
.reg .b32 a, b, c, d;
and.b32 a, $4, 0x81C081C0;
shf.l.wrap.b32 b, $4, $4, 10;
shf.l.wrap.b32 c, $4, $4, 13;
and.b32 d, $4, 0x001B001B;
mul.lo.u32 d, d, 0x1084;
and.b32 b, b, 0x81C081C0;
and.b32 c, c, 0x81C081C0;
and.b32 d, d, 0x81C081C0;
mul.rn.bf16x2 $0, a, $12;
mul.rn.bf16x2 $1, b, $12;
mul.rn.bf16x2 $2, c, $12;
mul.rn.bf16x2 $3, d, $12;
}""")
CODES_CONSTRAINTS = gl.constexpr("=r,=r,=r,=r" + ",r" * 16)

# Four E4M3 scales without a sign, each as a bfloat16 pair of scale * 2^7: a byte at bits 11:4 is the scale
# times 2^-120, subnormals included.
SCALES_ASM = gl.constexpr("""{
.reg .b32 a, b, c, d, zero, lift;
mov.b32 lift, 0x7F007F00;
mov.b32 zero, 0;
and.b32 a, $4, 0xFF;
prmt.b32 b, $4, zero, 0x4441;
prmt.b32 c, $4, zero, 0x4442;
shr.u32 d, $4, 24;
mul.lo.u32 a, a, 0x00100010;
mul.lo.u32 b, b, 0x00100010;
mul.lo.u32 c, c, 0x00100010;
mul.lo.u32 d, d, 0x00100010;
mul.rn.bf16x2 $0, a, lift;
mul.rn.bf16x2 $1, b, lift;
mul.rn.bf16x2 $2, c, lift;
mul.rn.bf16x2 $3, d, lift;
}""")
FOUR_WORDS = gl.constexpr((gl.int32, gl.int32, gl.int32, gl.int32))

# Kept out of L1: nothing there is read twice, and at one row of x the cache is better used for x.
PASSING_ASM = gl.constexpr("ld.global.L1::no_allocate.v4.b32 {$0, $1, $2, $3}, [$4];")

X_SCALE = gl.constexpr(2.0**64)
UNSCALE = gl.constexpr(2.0**55)
"""Undoes 2^64 of x and 2^-119 of a decoded weight."""


@gluon.constexpr_function
def code_layout(QUARTERS, PLACES, WORDS):
    """[quarter, place, lane 4, word, code 8]: quarters, words and codes in registers, the rest in lanes and
    warps.
    """
    registers = [[0, 0, 0, 0, 1], [0, 0, 0, 0, 2], [0, 0, 0, 0, 4]]
    registers += [[0, 0, 0, 1 << bit, 0] for bit in range(WORDS.bit_length() - 1)]
    registers += [[1 << bit, 0, 0, 0, 0] for bit in range(QUARTERS.bit_length() - 1)]
    lanes = [[0, 0, 1, 0, 0], [0, 0, 2, 0, 0], [0, 1, 0, 0, 0], [0, 2, 0, 0, 0], [0, 4, 0, 0, 0]]
    warps = [[0, 8 << bit, 0, 0, 0] for bit in range((PLACES // 8).bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [QUARTERS, PLACES, 4, WORDS, 8])


@gluon.constexpr_function
def scale_layout(QUARTERS, PLACES):
    """[pair of quarters, place, lane 4]: the words of scales that go with a layout of codes."""
    registers = [[1 << bit, 0, 0] for bit in range((QUARTERS // 2).bit_length() - 1)]
    lanes = [[0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    warps = [[0, 8 << bit, 0] for bit in range((PLACES // 8).bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [QUARTERS // 2, PLACES, 4])


@gluon.constexpr_function
def without(layout, *dims):
    """The layout with `dims` of it taken away."""
    for dim in sorted(dims, reverse=True):
        layout = gl.SliceLayout(dim, layout)
    return layout


@gluon.constexpr_function
def only(layout, dim, rank):
    """The layout of dimension `dim` alone."""
    return without(layout, *[other for other in range(rank) if other != dim])


@gluon.jit
def along(size: gl.constexpr, LAYOUT: gl.constexpr, DIM: gl.constexpr, RANK: gl.constexpr):
    """0 .. size - 1 along dimension DIM of a layout."""
    numbers = gl.arange(0, size, layout=only(LAYOUT, DIM, RANK))
    for dim in gl.static_range(RANK):
        if dim != DIM:
            numbers = gl.expand_dims(numbers, dim)
    return numbers


@gluon.jit
def load_words(at, PASSING: gl.constexpr):
    """Sixteen bytes of codes a lane and quarter."""
    if PASSING:
        return gl.inline_asm_elementwise(
            PASSING_ASM, "=r,=r,=r,=r,l,l,l,l", [at.to(gl.int64)], dtype=gl.int32, is_pure=True, pack=4
        )
    else:
        return gl.load(at)


@gluon.jit
def code_offsets(K: gl.constexpr, QUARTERS: gl.constexpr, PLACES: gl.constexpr, WORDS: gl.constexpr):
    """Places of a program's words in its tiles, those of lanes first: the others become immediates.

    A program of more than 32 places has its rows in several blocks of 64 (32 gate and 32 up).
    """
    SLICE: gl.constexpr = without(code_layout(QUARTERS, PLACES, WORDS), 4)
    place = along(PLACES, SLICE, 1, 4)
    block = place // 32 + along(QUARTERS, SLICE, 0, 4) // 2 * (PLACES // 32)
    lanes = block // 2 * (16 * K) + block % 2 * 1024 + place % 32 * 16 + along(4, SLICE, 2, 4) * 4
    return lanes, along(QUARTERS, SLICE, 0, 4) % 2 * 512 + along(WORDS, SLICE, 3, 4)


@gluon.jit
def scale_offsets(K: gl.constexpr, QUARTERS: gl.constexpr, PLACES: gl.constexpr):
    """Places of a program's words of scales in its tiles."""
    LAYOUT: gl.constexpr = scale_layout(QUARTERS, PLACES)
    place = along(PLACES, LAYOUT, 1, 3)
    block = place // 32 + along(QUARTERS // 2, LAYOUT, 0, 3) * (PLACES // 32)
    return block // 2 * (2 * K) + block % 2 + place % 32 * 8 + along(4, LAYOUT, 2, 3) * 2


@gluon.jit
def scale_pairs(words):
    """bfloat16 pairs of a step's scales, times 2^7: first group of even and odd quarters, then the second."""
    even, even_next, odd, odd_next = gl.inline_asm_elementwise(
        SCALES_ASM, "=r,=r,=r,=r,r", [words], dtype=FOUR_WORDS, is_pure=True, pack=1
    )
    return even, odd, even_next, odd_next


@gluon.jit
def decoded(
    words,
    scales,
    QUARTERS: gl.constexpr,
    PLACES: gl.constexpr,
    WORDS: gl.constexpr,
    OPERAND: gl.constexpr,
):
    """The operand [QUARTERS * PLACES, 32 * WORDS] of weights times 2^-119, from words [quarter, place, 4,
    WORDS] and the pair of scales for each of them.
    """
    LAYOUT: gl.constexpr = code_layout(QUARTERS, PLACES, WORDS)
    spread = gl.full([QUARTERS, PLACES, 4, WORDS, 8], 0, gl.int32, LAYOUT)
    values = gl.inline_asm_elementwise(
        CODES_ASM,
        CODES_CONSTRAINTS,
        [gl.expand_dims(words, 4) | spread, gl.expand_dims(scales, 4) | spread],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=8,
    )
    # Rows [half, 8, warp, place] -> as a product counts them; columns [t, w, i, h] -> [w, i, t, h].
    values = gl.reshape(values, [QUARTERS // 2, 2, PLACES // 8, 8, 4, WORDS, 4, 2])
    values = gl.permute(values, [0, 2, 1, 3, 5, 6, 4, 7])
    values = gl.reshape(values, [QUARTERS * PLACES, 32 * WORDS])
    return gl.convert_layout(values, OPERAND, assert_trivial=True)


@gluon.jit
def swiglu_of(
    sums, gate_scale, up_scale, limit, QUARTERS: gl.constexpr, PLACES: gl.constexpr, NT: gl.constexpr
):
    """SwiGLU times 2^64 of a program's sums [QUARTERS * PLACES, NT]: [half as many places, NT]."""
    parts = gl.reshape(sums, [QUARTERS // 2, PLACES // 8, 2, 8, NT])
    parts = gl.reshape(gl.permute(parts, [0, 1, 3, 4, 2]), [QUARTERS * PLACES // 2, NT, 2])
    gate, up = gl.split(parts)
    gate = gl.minimum(gate * gate_scale, limit)
    up = gl.minimum(gl.maximum(up * up_scale, -limit), limit)
    return gate / (1.0 + gl.exp(-gate)) * up * X_SCALE


@gluon.jit
def rows_of(sums, QUARTERS: gl.constexpr, PLACES: gl.constexpr, NT: gl.constexpr):
    """A program's sums in the order of rows."""
    parts = gl.reshape(sums, [QUARTERS // 2, PLACES // 32, 4, 2, 8, NT])
    return gl.reshape(gl.permute(parts, [0, 1, 3, 2, 4, 5]), [QUARTERS * PLACES, NT])


@gluon.jit
def store_inner(
    out,
    values,
    first,
    place,
    real,
    N: gl.constexpr,
    COUNT: gl.constexpr,
    SWAP: gl.constexpr,
):
    """SwiGLU values [COUNT, NT] of places `first` .. into rows `place` [NT] of out [pairs, N / 2], those that
    are `real`.

    Places of columns are in the order of a product of many rows, [w w i i t t h]; SWAP: stored as the kernel
    of few rows reads them, [w w t t i i h].
    """
    n = first + gl.arange(0, COUNT, layout=gl.SliceLayout(1, values.type.layout))
    if SWAP:
        n = (n & ~0x1E) | ((n & 0x18) >> 2) | ((n & 6) << 2)
    at = out + gl.expand_dims(place, 0) * (N // 2) + gl.expand_dims(n, 1)
    gl.store(at, values.to(out.dtype.element_ty), mask=gl.expand_dims(real, 0))


@gluon.jit
def store_parts(
    out,
    sums,
    pair,
    real,
    scales,
    first_scale,
    first,
    N: gl.constexpr,
    PARTS: gl.constexpr,
    COUNT: gl.constexpr,
):
    """Sums [COUNT, NT] of rows `first` .. times their global scale into rows `pair` [NT] of out [pairs, N],
    those that are `real`. first_scale: the first of `scales`, which most often is the only one.
    """
    n = first + gl.arange(0, COUNT, layout=gl.SliceLayout(1, sums.type.layout))
    if PARTS == 1:
        sums = sums * (first_scale * UNSCALE)
    else:
        sums = sums * gl.expand_dims(gl.load(scales + n // (N // PARTS)) * UNSCALE, 1)
    at = out + gl.expand_dims(pair, 0) * N + gl.expand_dims(n, 1)
    gl.store(at, sums, mask=gl.expand_dims(real, 0))
