# mypy: ignore-errors
"""Encoders whose bytes are those of `formats`: divisions correctly rounded, roundings written on the bits."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_ONE_BEYOND = tl.constexpr(0x7F800000)  # the bits of infinity: these or more are not finite
_SMALLEST_NORMAL = tl.constexpr(0.015625)  # of E4M3, 2^-6
_TO_STEPS = tl.constexpr(16384.0)  # 2^14: a float32 added to it is rounded to multiples of 2^-9


@triton.jit
def _bits(values):
    return values.to(tl.int32, bitcast=True)


@triton.jit
def _magnitude_bits(values):
    """Float32 bits without the sign, which order as magnitudes do."""
    return _bits(values) & 0x7FFFFFFF


@triton.jit
def _e4m3_magnitude(values):
    """The E4M3 byte of float32 magnitudes up to 448 and a little more, ties to even, as int32."""
    bits = _bits(values)
    # Seven bits stay of the exponent and mantissa; 120 is the difference of the two biases.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    small = _bits(values + _TO_STEPS) - 0x46800000
    return tl.minimum(tl.where(values < _SMALLEST_NORMAL, small, normal), 0x7E)


@triton.jit
def _e4m3(values, signs, NATIVE: tl.constexpr):
    """The E4M3 bytes of float32 values up to 448 and a little more, ties to even.

    `signs` has their signs, which a value that has become zero keeps. The conversion of the hardware is the
    same function; Triton's interpreter has it not.
    """
    if NATIVE:
        return values.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return (_e4m3_magnitude(tl.abs(values)) | ((_bits(signs) >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def _quotient(values, divisor, reciprocal):
    """values / divisor, correctly rounded: a step of Newton's from the rounded reciprocal, where neither a
    remainder nor a quotient that matters leaves the normal numbers (2^-100 <= divisor <= 2^100)."""
    near = values * reciprocal
    return tl.fma(tl.fma(-near, divisor, values), reciprocal, near)


@triton.jit
def _e2m1(values):
    """The E2M1 codes (int32) of float32 values, nearest, ties to even; the sign is set only below zero."""
    magnitude = tl.minimum(tl.abs(values), 6.0)
    # A number so large that the sum is rounded to steps of 1/2, 1 or 2; its own last bits make that the code.
    lift = tl.where(magnitude < 2.0, 4194304.0, tl.where(magnitude < 4.0, 8388610.0, 16777224.0))
    return (_bits(magnitude + lift) & 7) | tl.where(values < 0.0, 8, 0)


@triton.jit
def _e4m3_value(code):
    """The float32 value of an E4M3 magnitude byte (int32, below 0x7F)."""
    normal = ((code + (120 << 3)) << 20).to(tl.float32, bitcast=True)
    return tl.where(code < 8, code.to(tl.float32) * 0.001953125, normal)


@triton.jit
def encode_mxfp8(x, carry, elements, exponents, fault, groups, GROUPS: tl.constexpr, NATIVE: tl.constexpr):
    """32 columns a group: elements and exponent byte; `fault` is set where a group is not finite."""
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    place = group.to(tl.int64)[:, None] * 32 + tl.arange(0, 32)[None, :]
    inside = (group < groups)[:, None]
    values = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    largest = tl.max(_magnitude_bits(values), axis=1)
    if tl.max(largest, axis=0) >= _ONE_BEYOND:
        tl.store(fault, 1)
    quotient = _bits(tl.div_rn(largest.to(tl.float32, bitcast=True), 448.0))
    byte = (quotient + tl.load(carry + (quotient >> 23))) >> 23
    unscale = ((254 - byte) << 23).to(tl.float32, bitcast=True)
    code = _e4m3(values * unscale[:, None], values, NATIVE)
    tl.store(elements + place, code, mask=inside)
    tl.store(exponents + group, byte.to(tl.uint8), mask=group < groups)


@triton.jit
def largest_magnitude(x, largest, size, SIZE: tl.constexpr, OVERLAP: tl.constexpr):
    """The bits of the largest magnitude of each run of `size` values, in `largest`, which begins as zeros.
    OVERLAP: what comes after it may begin, and waits for it.
    """
    if OVERLAP:
        gdc_launch_dependents()
    run = tl.program_id(1)
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    values = tl.load(x + run.to(tl.int64) * size + place, mask=place < size, other=0.0).to(tl.float32)
    tl.atomic_max(largest + run, tl.max(_magnitude_bits(values), axis=0))


@triton.jit
def encode_nvfp4(
    x,
    largest,
    packed,
    scales,
    scale_2,
    fault,
    groups,
    GROUPS: tl.constexpr,
    SHARE: tl.constexpr,
    OVERLAP: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """16 columns a group, their codes two int32 of `packed`, under the global scale of its run of `groups`
    groups, amax / 2688. SHARE runs that follow each other have one amax.

    `fault` is set where a group is not finite or beyond its run's amax. OVERLAP: begun before `largest` is
    there.
    """
    run = tl.program_id(1)
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    real = group < groups
    group = run.to(tl.int64) * groups + group
    # Two halves of a group, so that one thread has both and nothing of a group is computed twice.
    place = group[:, None] * 16 + tl.arange(0, 8)[None, :]
    first = tl.load(x + place, mask=real[:, None], other=0.0).to(tl.float32)
    second = tl.load(x + 8 + place, mask=real[:, None], other=0.0).to(tl.float32)
    block_max = tl.reduce(_larger(tl.abs(first), tl.abs(second)), 1, _larger)
    if OVERLAP:
        gdc_wait()
    amax = tl.load(largest + run // SHARE)
    shared = tl.div_rn(amax.to(tl.float32, bitcast=True), 2688.0)
    shared = tl.where(shared == 0.0, 1.0, shared)
    tl.store(scale_2 + run, shared, mask=tl.program_id(0) == 0)
    ordinary = (shared >= 2.0**-91) & (shared <= 2.0**91)
    fine = (block_max <= amax.to(tl.float32, bitcast=True)) & (amax < _ONE_BEYOND) & (amax >= 0)
    tl.store(fault + 0 * group, 1, mask=real & (fine == 0))
    # Scales are 2^-9 to 448, so what is divided by stays within 2^-100 and 2^100.
    if ordinary:
        scale = _quotient(block_max, 6.0 * shared, tl.div_rn(1.0, 6.0 * shared))
    else:
        scale = tl.div_rn(block_max, 6.0 * shared + 0.0 * block_max)
    scale = tl.where(scale == 0.0, 1.0, scale)
    scale = tl.minimum(tl.maximum(scale, 0.001953125), 448.0)
    byte = _e4m3(scale, scale, NATIVE)
    tl.store(scales + group, byte, mask=real)
    byte = byte.to(tl.int32)
    step = _e4m3_value(byte) * shared
    # A product that underflows to zero decodes to zero whatever the codes are.
    step = tl.where(step == 0.0, float("inf"), step)
    if ordinary:
        reciprocal = tl.div_rn(tl.full([GROUPS], 1.0, tl.float32), step)[:, None]
        first = _quotient(first, step[:, None], reciprocal)
        second = _quotient(second, step[:, None], reciprocal)
    else:
        wide = tl.broadcast_to(step[:, None], (GROUPS, 8))
        first = tl.div_rn(first, wide)
        second = tl.div_rn(second, wide)
    words = tl.join(_word(_e2m1(first)), _word(_e2m1(second)))
    place = group[:, None] * 2 + tl.arange(0, 2)[None, :]
    tl.store(packed + place, words, mask=real[:, None])


@triton.jit
def _larger(a, b):
    """The larger number, or NaN where one is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _word(codes):
    """Eight codes of four bits each as one int32, the first lowest."""
    return tl.sum(codes << (4 * tl.arange(0, 8))[None, :], axis=1)


@triton.jit
def encode_fp8_blocks(
    x,
    elements,
    scales,
    fault,
    rows,
    columns,
    SMALLEST: tl.constexpr,
    SIDE: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """One block of 128 x 128 of one matrix a program: its scale, amax / 448, and its elements.

    `SMALLEST` is the least amax, of a block that is not all zeros.
    """
    block, band, matrix = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, column = band * SIDE + tl.arange(0, SIDE), block * SIDE + tl.arange(0, SIDE)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    place = (matrix * rows + row).to(tl.int64)[:, None] * columns + column[None, :]
    values = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    largest = tl.max(tl.max(_magnitude_bits(values), axis=1), axis=0)
    if largest >= _ONE_BEYOND:
        tl.store(fault, 1)
    amax = largest.to(tl.float32, bitcast=True)
    scale = tl.div_rn(tl.where(amax == 0.0, 448.0, tl.maximum(amax, SMALLEST)), 448.0)
    tl.store(scales + (matrix * tl.num_programs(1) + band) * tl.num_programs(0) + block, scale)
    scaled = tl.div_rn(values, scale + tl.zeros_like(values))
    code = _e4m3(tl.minimum(tl.maximum(scaled, -448.0), 448.0), values, NATIVE)
    tl.store(elements + place, code, mask=inside)
