# mypy: ignore-errors
# ruff: noqa: RET505, RUF005 (Gluon knows no other way to write these)
"""Weights of the product of few rows: the loads of a step, and the operand that it becomes.

What is in flight lies in a ring of registers, a tuple: words of codes and of scales, or with compressed
scales words of codes, nibbles, a bit that tells whether the lane has a record, and the record.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from intarsia.kernels.experts.gluon_tiles import (
    code_layout,
    decoded,
    load_words,
    scale_layout,
    scale_pairs,
    without,
)

# A mask of lanes -> this lane's bit of it, and how many bits are below.
LANE_ASM = gl.constexpr("""{
.reg .b32 own, lower;
mov.u32 own, %lanemask_eq;
mov.u32 lower, %lanemask_lt;
and.b32 $0, $2, own;
and.b32 lower, lower, $2;
popc.b32 $1, lower;
}""")

PLACES = gl.constexpr(32)
WARPS = gl.constexpr(4)


@gluon.jit
def weights(words, scale_words, QUARTERS: gl.constexpr, OPERAND: gl.constexpr):
    """The operand [QUARTERS * 32, 128] of a step."""
    even, odd, even_next, odd_next = scale_pairs(scale_words)
    scales = gl.join(
        gl.join(even, even_next), gl.join(odd, odd_next)
    )  # [half, place, lane, group, quarter % 2]
    scales = gl.reshape(gl.permute(scales, [0, 4, 1, 2, 3]), [QUARTERS, PLACES, 4, 2])
    scales = gl.reshape(gl.join(scales, scales), [QUARTERS, PLACES, 4, 4])
    SLICE: gl.constexpr = without(code_layout(QUARTERS, PLACES, 4), 4)
    scales = gl.convert_layout(scales, SLICE, assert_trivial=True)
    return decoded(words, scales, QUARTERS, PLACES, 4, OPERAND)


@gluon.jit
def marked(marks, records, part_of_record, QUARTERS: gl.constexpr):
    """Whether a lane has a record, of the words of a step's marks, and its scales there."""
    mask = marks.to(gl.int32)
    bit, below = gl.inline_asm_elementwise(
        LANE_ASM, "=r,=r,r", [mask], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
    )
    at = records + ((marks >> 32).to(gl.int32) + below) * 2 + part_of_record
    first = gl.load(at, mask=bit != 0, other=0)
    if QUARTERS == 4:
        return bit, first, gl.load(at + 1, mask=bit != 0, other=0)
    else:
        return bit, first, first


@gluon.jit
def expanded(nibbles, bit, first, second, base, shift, QUARTERS: gl.constexpr):
    """Words of scales of a lane from its nibbles, or from its record where it has one.

    base: a byte for each quarter. shift: 16 where the program takes the second pair of quarters.
    """
    if QUARTERS == 2:
        nibbles = nibbles >> shift
    even = (nibbles & 0x0F0F0F0F) + base
    odd = ((nibbles >> 4) & 0x0F0F0F0F) + base
    low = gl.inline_asm_elementwise(
        "prmt.b32 $0, $1, $2, 0x5140;", "=r,r,r", [even, odd], dtype=gl.int32, is_pure=True, pack=1
    )
    low = gl.where(bit != 0, first, low)
    if QUARTERS == 4:
        high = gl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, 0x7362;", "=r,r,r", [even, odd], dtype=gl.int32, is_pure=True, pack=1
        )
        high = gl.where(bit != 0, second, high)
        low = gl.reshape(gl.permute(gl.join(low, high), [3, 0, 1, 2]), [2, PLACES, 4])
    return gl.convert_layout(low, scale_layout(QUARTERS, PLACES), assert_trivial=True)


@gluon.jit
def request(
    words_at, scales_at, marks, compressed, step,
    QUARTERS: gl.constexpr, PASSING: gl.constexpr, RESIDENT: gl.constexpr,
):  # fmt: skip
    """The loads of a step: words of codes, and of scales or what makes them."""
    words = load_words(words_at + step * 2048, PASSING)
    if RESIDENT:
        bit, first, second = marked(marks[0], compressed[0], compressed[2], QUARTERS)
        return words, gl.load(scales_at + step * 128), bit, first, second
    else:
        return words, gl.load(scales_at + step * 256)


@gluon.jit
def first_requests(
    words_at, scales_at, marks_at, compressed,
    QUARTERS: gl.constexpr, PASSING: gl.constexpr, DEPTH: gl.constexpr, RESIDENT: gl.constexpr,
):  # fmt: skip
    """The loads of the first DEPTH steps, and the marks of the next two: what waits for other loads comes
    last.
    """
    ring = ()
    marks = (compressed[2], compressed[2])
    if RESIDENT:
        marks = ()
        words = ()
        for step in gl.static_range(DEPTH + 2):
            marks = marks + (gl.load(marks_at + step * 4),)
        for step in gl.static_range(DEPTH):
            words = words + (load_words(words_at + step * 2048, PASSING), gl.load(scales_at + step * 128))
        for step in gl.static_range(DEPTH):
            bit, first, second = marked(marks[step], compressed[0], compressed[2], QUARTERS)
            ring = ring + (words[2 * step], words[2 * step + 1], bit, first, second)
        marks = marks[DEPTH:]
    else:
        for step in gl.static_range(DEPTH):
            ring = ring + request(words_at, scales_at, marks, compressed, step, QUARTERS, PASSING, RESIDENT)
    return ring, marks


@gluon.jit
def operand(ring, compressed, INDEX: gl.constexpr, QUARTERS: gl.constexpr, RESIDENT: gl.constexpr):
    """The weights of a step in the ring."""
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    if RESIDENT:
        scale_words = expanded(
            ring[5 * INDEX + 1], ring[5 * INDEX + 2], ring[5 * INDEX + 3], ring[5 * INDEX + 4],
            compressed[1], compressed[3], QUARTERS,
        )  # fmt: skip
        return weights(ring[5 * INDEX], scale_words, QUARTERS, LEFT)
    else:
        return weights(ring[2 * INDEX], ring[2 * INDEX + 1], QUARTERS, LEFT)
