# mypy: ignore-errors
"""Permutations that `packed` and `resident` describe, in one pass over the memory each."""

import triton
import triton.language as tl

SIZE = 4096


@triton.jit
def rotated(bits, LEFT: tl.constexpr):
    """uint32 rotated to the left."""
    return (bits << LEFT) | (bits >> (32 - LEFT))


@triton.jit
def move_bits(words, count, BACK: tl.constexpr, SIZE: tl.constexpr):
    """int32 `words` by the moves of `packed`, or back."""
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    real = place < count
    w = tl.load(words + place, mask=real, other=0).to(tl.uint32, bitcast=True)
    if BACK:
        total = rotated(w & rotated_mask(0x00070007, 6), 26)
        total |= rotated(w & rotated_mask(0x00080008, 12), 20)
        total |= rotated(w & rotated_mask(0x00700070, 24), 8)
        total |= rotated(w & rotated_mask(0x00800080, 30), 2)
        total |= rotated(w & rotated_mask(0x07000700, 17), 15)
        total |= rotated(w & rotated_mask(0x08000800, 23), 9)
        total |= rotated(w & rotated_mask(0x10001000, 24), 8)
        total |= rotated(w & rotated_mask(0x60006000, 19), 13)
        total |= rotated(w & rotated_mask(0x80008000, 20), 12)
    else:
        total = rotated(w & 0x00070007, 6)
        total |= rotated(w & 0x00080008, 12)
        total |= rotated(w & 0x00700070, 24)
        total |= rotated(w & 0x00800080, 30)
        total |= rotated(w & 0x07000700, 17)
        total |= rotated(w & 0x08000800, 23)
        total |= rotated(w & 0x10001000, 24)
        total |= rotated(w & 0x60006000, 19)
        total |= rotated(w & 0x80008000, 20)
    tl.store(words + place, total.to(tl.int32, bitcast=True), mask=real)


@triton.constexpr_function
def rotated_mask(mask, left):
    return (mask << left | mask >> (32 - left)) & 0xFFFFFFFF


@triton.jit
def ones(bits):
    """How many bits of an int32 are set."""
    bits = bits.to(tl.uint32, bitcast=True)
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F
    return ((bits * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def expand_scales(nibbles, bases, marks, records, out, STEPS: tl.constexpr, SIZE: tl.constexpr):
    """Scales in tiles, int32 [tiles, STEPS, 32, 4, 2], of the compressed form that `resident` describes."""
    tile = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * SIZE + tl.arange(0, SIZE)  # step, place, lane
    real = i < STEPS * 128
    code = tl.load(nibbles + tile * (STEPS * 128) + i, mask=real, other=0)
    base = tl.load(bases + tile * 32 + i // 4 % 32)
    mark = tl.load(marks + tile * (STEPS * 4) + i // 32, mask=real, other=0)
    mask = mark.to(tl.int32)
    bit = tl.full([SIZE], 1, tl.int32) << (i % 32)
    has = (mask & bit) != 0
    record = records + 2 * ((mark >> 32) + ones(mask & (bit - 1)))
    even = (code & 0x0F0F0F0F) + base
    odd = ((code >> 4) & 0x0F0F0F0F) + base
    low = (even & 0xFF) | ((odd & 0xFF) << 8) | ((even & 0xFF00) << 8) | ((odd & 0xFF00) << 16)
    high = ((even >> 16) & 0xFF) | ((odd >> 8) & 0xFF00) | ((even >> 8) & 0xFF0000) | ((odd >> 24) << 24)
    at = out + 2 * (tile * (STEPS * 128) + i)
    first = tl.load(record, mask=real & has, other=0)
    tl.store(at, tl.where(has, first, low), mask=real)
    second = tl.load(record + 1, mask=real & has, other=0)
    tl.store(at + 1, tl.where(has, second, high), mask=real)
