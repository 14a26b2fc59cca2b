# mypy: ignore-errors
"""The keyed draw over a whole vocabulary in one pass: Philox noise, and masses of probabilities, as integers.

Every operation is one that the torch form uses: a single IEEE operation in float64, or integers. They must
not be fused, so the kernels are launched without floating-point fusion. A number that a comparison with
float64 takes is made float64 first: by itself it would be rounded to float32.
"""

import triton
import triton.language as tl

MINIMUM = tl.constexpr(-(2**63))
NO_ID = tl.constexpr(2**62)


@triton.jit
def log2(value):
    """log2 of positive normal float64, by the series of `fixedpoint`."""
    bits = value.to(tl.int64, bitcast=True)
    exponent = ((bits >> 52) & 0x7FF) - 1022
    mantissa = ((bits & 0xFFFFFFFFFFFFF) | (1022 << 52)).to(tl.float64, bitcast=True)
    low = mantissa < tl.full(mantissa.shape, 0.7071067811865476, tl.float64)
    mantissa = tl.where(low, mantissa * 2.0, mantissa)
    whole = exponent.to(tl.float64) - low.to(tl.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = tl.full(s.shape, 1.0 / 17, tl.float64)
    for half in tl.static_range(8):
        series = series * square
        series = series + 1.0 / (15 - 2 * half)
    series = series * s
    series = series * 2.8853900817779268
    return whole + series


@triton.jit
def distance(logit, peak, scale):
    """How far below the peak, in 2**-32 bits."""
    below = (peak.to(tl.float64) - logit.to(tl.float64)) * scale
    return tl.minimum(tl.maximum(below, 0.0), 4503599627370496.0).to(tl.int64)  # 2**52


@triton.jit
def gumbel(c0, c1, c2, c3, k0, k1):
    """Noise in 2**-32 bits from the first two words of a Philox4x32-10 block (uint32 words)."""
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        high1, low1 = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    bits = (c0.to(tl.int64) << 20) | (c1.to(tl.int64) >> 12)
    uniform = (bits.to(tl.float64) + 0.5) * 2.220446049250313e-16
    noise = log2(-log2(uniform))
    return tl.floor(-noise * 4294967296.0).to(tl.int64)


@triton.jit
def noisy_tiles(
    logits,
    row_stride,
    peaks,
    scales,
    positions,
    seed_low,
    seed_high,
    values,
    ids,
    count,
    first_id,
    TILE: tl.constexpr,
):
    """The largest noisy value of a tile of a row and the lowest id that has it; grid [tiles, rows]."""
    tile, row, tiles = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    columns = tile * TILE + tl.arange(0, TILE)
    logit = tl.load(logits + row * row_stride + columns, columns < count, -float("inf"))
    position = tl.load(positions + row)
    token = (first_id + columns).to(tl.uint32)
    zero = token * 0
    noise = gumbel(
        token,
        zero + (position & 0xFFFFFFFF).to(tl.uint32),
        zero + (position >> 32).to(tl.uint32),
        zero,
        zero + tl.load(seed_low + row).to(tl.uint32),
        zero + tl.load(seed_high + row).to(tl.uint32),
    )
    value = noise - distance(logit, tl.load(peaks + row), tl.load(scales + row))
    value = tl.where(logit == -float("inf"), MINIMUM, value)
    best = tl.max(value, 0)
    chosen = tl.min(tl.where(value == best, columns.to(tl.int64), NO_ID), 0)
    tl.store(values + row * tiles + tile, best)
    tl.store(ids + row * tiles + tile, chosen)


@triton.jit
def best_of_tiles(values, ids, out, tiles, TILES: tl.constexpr):
    """The winner of each row's tiles, the lowest column of equal ones; grid [rows]."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, TILES)
    value = tl.load(values + row * tiles + at, at < tiles, MINIMUM)
    chosen = tl.load(ids + row * tiles + at, at < tiles, NO_ID)
    best = tl.max(value, 0)
    tl.store(out + row, tl.min(tl.where(value == best, chosen, NO_ID), 0))


@triton.jit
def mass_of_tiles(logits, row_stride, peaks, scales, coarse, fine, out, count, TILE: tl.constexpr):
    """Adds the masses of a tile of a row to `out` int64 [R], which begins at zero; grid [tiles, rows].

    Integers add up the same in any order.
    """
    row = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = columns < count
    logit = tl.load(logits + row * row_stride + columns, inside, -float("inf"))
    units = distance(logit, tl.load(peaks + row), tl.load(scales + row)) >> 12
    fraction = tl.load(coarse + ((units >> 10) & 1023)) * tl.load(fine + (units & 1023))
    mass = (fraction >> 22) >> tl.minimum(units >> 20, 42)
    tl.atomic_add(out + row, tl.sum(tl.where(inside, mass, 0), 0), sem="relaxed")
