# mypy: ignore-errors
"""Stored weights as the tensor core's A operand, in registers. Import only where triton's gluon is installed.

Weights are the M side of a product of 16 columns (k16) at a time, and go from memory into A registers with
nothing between. Lane t of the four that share a row reads 16 consecutive bytes, lanes 0 to 3 together a
*chunk*: 64 columns of E4M3 or 32 of BF16. Which columns form a k16 is free as long as x follows: here a k16
holds, of every lane, two pairs of columns (i = 0, 1, each h = 0, 1). E4M3 words give the pairs of bytes
(0, 2) and (1, 3), BF16 words the two numbers that they hold. So the places of a k16 are [i, t, h]: column
[t, word, h, i] of an E4M3 chunk is at place [i, t, h] of k16 number `word`, column [t, q, i, h] of a BF16 one
at that of k16 number `q`. Every kernel keeps this order for one matrix, so that sums agree bit for bit.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from intarsia.kernels.codes import PLAIN

# Four E4M3 codes times a pair of equal factors: `eeeemmm` at bits 10:4 and the sign at bit 15 of a bfloat16
# are the number times 2^-120. Bytes 0 and 2 go to the first register, 1 and 3 to the second.
CODES_ASM = gl.constexpr("""{
.reg .b32 first, second, signs;
shl.b32 first, $2, 4;
shl.b32 signs, $2, 8;
and.b32 first, first, 0x07F007F0;
and.b32 signs, signs, 0x80008000;
or.b32 first, first, signs;
shr.u32 second, $2, 4;
and.b32 signs, $2, 0x80008000;
and.b32 second, second, 0x07F007F0;
or.b32 second, second, signs;
mul.rn.bf16x2 $0, first, $6;
mul.rn.bf16x2 $1, second, $6;
}""")
CODES_OPERANDS = gl.constexpr("=r,=r,r,r,r,r,r,r,r,r")
# Numbers 0, 1 and 2, 3 of x as 0, 2 and 1, 3, the order of the bytes above.
PAIRS_ASM = gl.constexpr("""{
prmt.b32 $0, $2, $4, 0x5410;
prmt.b32 $1, $2, $4, 0x7632;
}""")
PAIRS_OPERANDS = gl.constexpr("=r,=r,r,r,r,r")
SAME_ASM = gl.constexpr("mov.b32 $0, $1;")
SAME_OPERANDS = gl.constexpr("=r,r,r")
# Weights are read once: not kept in L1, and L2 fetches what the next steps read.
STREAM_ASM = gl.constexpr("ld.global.L1::no_allocate.L2::256B.v4.b32 {$0, $1, $2, $3}, [$4];")
STREAM_OPERANDS = gl.constexpr("=r,=r,=r,=r,l,l,l,l")
LIFT = gl.constexpr(0x7B807B80)  # the pair (2^120, 2^120)


@gluon.constexpr_function
def steps_along(rank, dim, size, step=1):
    """Bases of a linear layout: 1, 2, 4 .. below `size` along one dimension, times `step`."""
    found = []
    i = 1
    while i < size:
        found.append([step * i if d == dim else 0 for d in range(rank)])
        i *= 2
    return found


@gluon.constexpr_function
def weight_layout(RANGES, GROUPS, WARPS, CHUNKS, EACH):
    """[RANGES, GROUPS, 8 WARPS, CHUNKS, 4 lanes, 4 words, EACH]: a warp has eight rows of each group."""
    rank = 7
    registers = steps_along(rank, 6, EACH) + steps_along(rank, 5, 4)
    registers += steps_along(rank, 3, CHUNKS) + steps_along(rank, 1, GROUPS)
    lanes = steps_along(rank, 4, 4) + steps_along(rank, 2, 8)
    warps = steps_along(rank, 2, WARPS, 8) + steps_along(rank, 0, RANGES)
    return gl.DistributedLinearLayout(
        registers, lanes, warps, [], [RANGES, GROUPS, 8 * WARPS, CHUNKS, 4, 4, EACH]
    )


@gluon.constexpr_function
def word_layout(GROUPS, WARPS):
    """[GROUPS, 8 WARPS, 4 lanes, 4 bytes]: one word of each lane and group of rows."""
    rank = 4
    registers = steps_along(rank, 3, 4) + steps_along(rank, 0, GROUPS)
    lanes = steps_along(rank, 2, 4) + steps_along(rank, 1, 8)
    warps = steps_along(rank, 1, WARPS, 8)
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [GROUPS, 8 * WARPS, 4, 4])


@gluon.constexpr_function
def x_layout(RANGES, TILES, WARPS, CHUNKS, WORDS):
    """[RANGES, TILES, 8 rows, CHUNKS, 4 lanes, WORDS, 2]: the warps of a range hold copies."""
    rank = 7
    registers = steps_along(rank, 6, 2) + steps_along(rank, 5, WORDS)
    registers += steps_along(rank, 3, CHUNKS) + steps_along(rank, 1, TILES)
    lanes = steps_along(rank, 4, 4) + steps_along(rank, 2, 8)
    warps = steps_along(rank, 2, WARPS, 0) + steps_along(rank, 0, RANGES)
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [RANGES, TILES, 8, CHUNKS, 4, WORDS, 2])


@gluon.constexpr_function
def without(layout, *dims):
    """The layout of a tensor that lacks `dims` of the one laid out so."""
    for dim in sorted(dims, reverse=True):
        layout = gl.SliceLayout(dim, layout)
    return layout


@gluon.constexpr_function
def one_dimension(layout, dim, rank):
    return without(layout, *[d for d in range(rank) if d != dim])


@gluon.jit
def index(SIZE: gl.constexpr, LAYOUT: gl.constexpr, DIM: gl.constexpr, RANK: gl.constexpr):
    """0 .. SIZE - 1 along one dimension of a layout, 1 along the others."""
    value = gl.arange(0, SIZE, layout=one_dimension(LAYOUT, DIM, RANK))
    for d in gl.static_range(RANK):
        if d != DIM:
            value = gl.expand_dims(value, d)
    return value


@gluon.jit
def stream(pointers):
    """int32 words, four consecutive ones a thread."""
    return gl.inline_asm_elementwise(
        STREAM_ASM, STREAM_OPERANDS, [pointers.to(gl.int64)], dtype=gl.int32, is_pure=True, pack=4
    )


@gluon.jit
def exponent_pairs(exponents):
    """int32 pairs of bfloat16 2^(byte - 127) * 2^120, for bytes up to 134."""
    return exponents * 0x00800080 + 0x3C003C00


@gluon.jit
def numbers(words, factors, FORMAT: gl.constexpr, LAYOUT: gl.constexpr):
    """bfloat16 in `LAYOUT` of words [.., 4] and, for E4M3 codes, pairs of factors times 2^120 [..]."""
    none = gl.full(LAYOUT.shape, 0, gl.int32, LAYOUT)
    spread = gl.expand_dims(words, 6) | none
    if FORMAT == PLAIN:
        value = gl.inline_asm_elementwise(
            SAME_ASM, SAME_OPERANDS, [spread], dtype=gl.bfloat16, is_pure=True, pack=2
        )
    else:
        pairs = gl.expand_dims(gl.expand_dims(factors, 5), 6) | none
        value = gl.inline_asm_elementwise(
            CODES_ASM, CODES_OPERANDS, [spread, pairs], dtype=gl.bfloat16, is_pure=True, pack=4
        )
    return value


@gluon.jit
def split_words(words):
    """Words [1, GROUPS, rows, 1, lanes, 4] as four tensors [GROUPS, rows, lanes]."""
    GROUPS: gl.constexpr = words.type.shape[1]
    ROWS: gl.constexpr = words.type.shape[2]
    even, odd = gl.split(gl.reshape(words, [GROUPS, ROWS, 4, 2, 2]))
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    return first, second, third, fourth


@gluon.jit
def word_operand(word, factors, GROUPS: gl.constexpr, WARPS: gl.constexpr, OPERAND: gl.constexpr):
    """The A operand [8 GROUPS WARPS, 16] of one word of codes a lane, rows ordered as in `weight_operand`."""
    L: gl.constexpr = word_layout(GROUPS, WARPS)
    none = gl.full(L.shape, 0, gl.int32, L)
    word = gl.convert_layout(word, without(L, 3), assert_trivial=True)
    factors = gl.reshape(factors, [GROUPS, 8 * WARPS, 4])
    factors = gl.convert_layout(factors, without(L, 3), assert_trivial=True)
    value = gl.inline_asm_elementwise(
        CODES_ASM,
        CODES_OPERANDS,
        [gl.expand_dims(word, 3) | none, gl.expand_dims(factors, 3) | none],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=4,
    )
    value = gl.permute(gl.reshape(value, [GROUPS // 2, 2, WARPS, 8, 4, 2, 2]), [0, 2, 1, 3, 5, 4, 6])
    return gl.convert_layout(gl.reshape(value, [8 * GROUPS * WARPS, 16]), OPERAND, assert_trivial=True)


@gluon.jit
def weight_operand(
    words,
    factors,
    FORMAT: gl.constexpr,
    RANGES: gl.constexpr,
    GROUPS: gl.constexpr,
    WARPS: gl.constexpr,
    CHUNKS: gl.constexpr,
    LAYOUT: gl.constexpr,
    OPERAND: gl.constexpr,
):
    """The A operand [RANGES, 8 GROUPS WARPS, columns] of words [RANGES, GROUPS, 8 WARPS, CHUNKS, 4, 4].

    Its rows are ordered [group / 2, warp, group % 2, row], as the instruction takes them.
    """
    K16S: gl.constexpr = 2 if FORMAT == PLAIN else 4
    value = numbers(words, factors, FORMAT, LAYOUT)
    value = gl.reshape(value, [RANGES, GROUPS // 2, 2, WARPS, 8, CHUNKS, 4, K16S, 2, 2])
    value = gl.permute(value, [0, 1, 3, 2, 4, 5, 7, 8, 6, 9])
    value = gl.reshape(value, [RANGES, 8 * GROUPS * WARPS, CHUNKS * K16S * 16])
    return gl.convert_layout(value, OPERAND, assert_trivial=True)


@gluon.jit
def x_operand(
    words,
    FORMAT: gl.constexpr,
    RANGES: gl.constexpr,
    TILES: gl.constexpr,
    CHUNKS: gl.constexpr,
    LAYOUT: gl.constexpr,
    OPERAND: gl.constexpr,
):
    """The B operand [RANGES, columns, 8 TILES] of words [RANGES, TILES, 8, CHUNKS, 4, 4 or 8]."""
    K16S: gl.constexpr = 2 if FORMAT == PLAIN else 4
    spread = gl.expand_dims(words, 6) | gl.full(LAYOUT.shape, 0, gl.int32, LAYOUT)
    if FORMAT == PLAIN:
        value = gl.inline_asm_elementwise(
            SAME_ASM, SAME_OPERANDS, [spread], dtype=gl.bfloat16, is_pure=True, pack=2
        )
    else:
        value = gl.inline_asm_elementwise(
            PAIRS_ASM, PAIRS_OPERANDS, [spread], dtype=gl.bfloat16, is_pure=True, pack=4
        )
    value = gl.reshape(value, [RANGES, TILES, 8, CHUNKS, 4, K16S, 2, 2])
    value = gl.permute(value, [0, 3, 5, 6, 4, 7, 1, 2])
    value = gl.reshape(value, [RANGES, CHUNKS * K16S * 16, 8 * TILES])
    return gl.convert_layout(value, OPERAND, assert_trivial=True)


@gluon.jit
def swiglu(gate, up, LIMIT: gl.constexpr):
    """silu(min(gate, LIMIT)) * clamp(up, -LIMIT, LIMIT)."""
    gate = gl.minimum(gate, LIMIT)
    return gate / (1.0 + gl.exp(-gate)) * gl.minimum(gl.maximum(up, -LIMIT), LIMIT)
