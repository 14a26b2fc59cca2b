# mypy: ignore-errors
"""Stored codes as numbers, inside Triton kernels. Import only where triton is installed.

Weights are read as 16-bit words, so that what a lane of the tensor core loads is four bytes wide: a word
holds two E4M3 or four E2M1 codes, and each of them goes into a tile of its own (columns 0, 2, 4 .. and 1,
3, 5 .., or every fourth column). The order of columns inside a dot product is free as long as x follows it.

The *narrow* forms give bfloat16 by integer arithmetic, as the tensor cores want them; the *wide* forms give
float32 from ordinary operations, for float32 activations and for the interpreter. Both are exact: E2M1,
E4M3 and their products with a power of two or with an E4M3 scale have at most eight significant bits.
The narrow form is not exact below 2^-126.

Bit layout: `s eeee mmm` of E4M3 put at bits 15 and 10:4 of a bfloat16 is the number times 2^-120, and
`s e e m` of E2M1 put at bits 15 and 8:6 the number times 2^-126, subnormals included; a multiplication undoes
the power. Inline assembly takes what shares a register at once, and output j depends on input j alone, so
it is right in whatever order a layout hands the values over.
"""

import triton
import triton.language as tl

PLAIN = tl.constexpr(0)
MXFP8 = tl.constexpr(1)
BLOCK = tl.constexpr(2)
NVFP4 = tl.constexpr(3)

_E4M3_BODY = """{
.reg .b32 lift, even, odd, sign;
mov.b32 lift, 0x7B807B80;
shl.b32 sign, $2, 8;
and.b32 sign, sign, 0x80008000;
shl.b32 even, $2, 4;
and.b32 even, even, 0x07F007F0;
or.b32 even, even, sign;
and.b32 sign, $2, 0x80008000;
shr.u32 odd, $2, 4;
and.b32 odd, odd, 0x07F007F0;
or.b32 odd, odd, sign;
"""
E4M3_ASM = tl.constexpr(
    _E4M3_BODY
    + """mul.rn.bf16x2 $0, even, lift;
mul.rn.bf16x2 $1, odd, lift;
}"""
)
# Lifted to its true size first: a factor times 2^120 would not fit for every exponent.
E4M3_TIMES_ASM = tl.constexpr(
    _E4M3_BODY
    + """mul.rn.bf16x2 even, even, lift;
mul.rn.bf16x2 odd, odd, lift;
mul.rn.bf16x2 $0, even, $3;
mul.rn.bf16x2 $1, odd, $3;
}"""
)
# Four bytes, each a number of its own, times 2^117.
E4M3_SCALE_ASM = tl.constexpr("""{
.reg .b32 zero, lift, more, low, high, sign;
mov.b32 zero, 0;
mov.b32 lift, 0x7B807B80;
mov.b32 more, 0x7A007A00;
prmt.b32 low, $2, zero, 0x1404;
prmt.b32 high, $2, zero, 0x3424;
and.b32 sign, low, 0x80008000;
shr.u32 low, low, 4;
and.b32 low, low, 0x07F007F0;
or.b32 low, low, sign;
and.b32 sign, high, 0x80008000;
shr.u32 high, high, 4;
and.b32 high, high, 0x07F007F0;
or.b32 high, high, sign;
mul.rn.bf16x2 low, low, lift;
mul.rn.bf16x2 high, high, lift;
mul.rn.bf16x2 $0, low, more;
mul.rn.bf16x2 $1, high, more;
}""")
# A nibble times 2^12 + 2^6 holds its sign at bit 15 and its magnitude at bits 8:6.
E2M1_TIMES_ASM = tl.constexpr("""{
.reg .b32 upper, a, b, c, d;
shr.u32 upper, $4, 8;
and.b32 a, $4, 0x000F000F;
and.b32 b, $4, 0x00F000F0;
and.b32 c, upper, 0x000F000F;
and.b32 d, upper, 0x00F000F0;
mul.lo.u32 a, a, 0x1040;
mul.lo.u32 b, b, 0x0104;
mul.lo.u32 c, c, 0x1040;
mul.lo.u32 d, d, 0x0104;
and.b32 a, a, 0x81C081C0;
and.b32 b, b, 0x81C081C0;
and.b32 c, c, 0x81C081C0;
and.b32 d, d, 0x81C081C0;
mul.rn.bf16x2 $0, a, $5;
mul.rn.bf16x2 $1, b, $5;
mul.rn.bf16x2 $2, c, $5;
mul.rn.bf16x2 $3, d, $5;
}""")


@triton.jit
def e4m3_wide(codes):
    """float32 of E4M3 codes, one in the low eight bits of each value."""
    bits = codes.to(tl.uint32)
    return (((bits & 0x80) << 24) | ((bits & 0x7F) << 20)).to(tl.float32, bitcast=True) * 1.329227995784916e36


@triton.jit
def e8m0_wide(exponents):
    """float32 2^(byte - 127), the subnormal 2^-127 for byte 0."""
    bits = exponents.to(tl.uint32)
    return tl.where(bits == 0, 0x00400000, bits << 23).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def e8m0_narrow(exponents):
    """bfloat16 2^(byte - 127), the subnormal 2^-127 for byte 0."""
    bits = exponents.to(tl.int16)
    return tl.maximum(bits << 7, 0x0040).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def e2m1_wide(codes):
    """float32 of E2M1 codes, one in the low four bits of each value."""
    bits = codes.to(tl.uint32)
    return (((bits & 8) << 28) | ((bits & 7) << 22)).to(tl.float32, bitcast=True) * 8.507059173023462e37


@triton.jit
def spread(groups, BN: tl.constexpr, COUNT: tl.constexpr, EACH: tl.constexpr):
    """[BN, COUNT] with every column repeated EACH times."""
    return tl.broadcast_to(groups[:, :, None], [BN, COUNT, EACH]).reshape(BN, COUNT * EACH)


@triton.jit
def halves(x, NT: tl.constexpr, BK: tl.constexpr):
    """The even and the odd columns of x [NT, BK]."""
    return tl.split(x.reshape(NT, BK // 2, 2))


@triton.jit
def e4m3_tiles(words, WIDE: tl.constexpr):
    """The even and the odd columns of a tile of E4M3 codes, two in a word."""
    if WIDE:
        even = e4m3_wide(words & 0xFF)
        odd = e4m3_wide((words >> 8) & 0xFF)
    else:
        even, odd = tl.inline_asm_elementwise(
            E4M3_ASM, "=r,=r,r", [words], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=2
        )
    return even, odd


@triton.jit
def mxfp8_tiles(words, exponents, BN: tl.constexpr, BK: tl.constexpr, WIDE: tl.constexpr):
    """The even and the odd columns, [BN, BK / 2] each, of an MXFP8 tile with exponents [BN, BK / 32]."""
    if WIDE:
        factors = spread(e8m0_wide(exponents), BN, BK // 32, 16)
        even = e4m3_wide(words & 0xFF) * factors
        odd = e4m3_wide((words >> 8) & 0xFF) * factors
    else:
        factors = spread(e8m0_narrow(exponents), BN, BK // 32, 16)
        even, odd = tl.inline_asm_elementwise(
            E4M3_TIMES_ASM,
            "=r,=r,r,r",
            [words, factors],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    return even, odd


@triton.jit
def nvfp4_tiles(words, scales, BN: tl.constexpr, BK: tl.constexpr, WIDE: tl.constexpr):
    """Every fourth column from 0, 1, 2 and 3, [BN, BK / 4] each, of an NVFP4 tile without its global scale.

    The narrow form is times 2^-9, so that no factor leaves the range of bfloat16.
    """
    if WIDE:
        factors = spread(e4m3_wide(scales), BN, BK // 16, 4)
        a = e2m1_wide(words & 15) * factors
        b = e2m1_wide((words >> 4) & 15) * factors
        c = e2m1_wide((words >> 8) & 15) * factors
        d = e2m1_wide((words >> 12) & 15) * factors
    else:
        lifted = tl.inline_asm_elementwise(
            E4M3_SCALE_ASM, "=r,=r,r", [scales], dtype=tl.bfloat16, is_pure=True, pack=4
        )
        a, b, c, d = tl.inline_asm_elementwise(
            E2M1_TIMES_ASM,
            "=r,=r,=r,=r,r,r",
            [words, spread(lifted, BN, BK // 16, 4)],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    return a, b, c, d


@triton.jit
def multiply(weight, x, total, WIDE: tl.constexpr):
    """`total` + weight [BN, K] @ x [NT, K]^T, summed in float32; in full precision throughout when WIDE."""
    if WIDE:
        total = tl.dot(weight.to(tl.float32), tl.trans(x).to(tl.float32), total, input_precision="ieee")
    else:
        total = tl.dot(weight, tl.trans(x), total)
    return total
