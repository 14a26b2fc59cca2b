# mypy: ignore-errors
"""x W^T with W decoded between memory and the tensor core; the order of additions never depends on the rows.

A program takes BN rows of the weight and NT rows of x. K is cut into RANGES ranges of STEPS tiles, always
the same for one matrix: a range is one chain of additions, and ranges are added in order. With few rows
every range is a program of its own and `add_ranges` adds them; with many rows one program does them all,
with the same bits.
"""

import triton
import triton.language as tl

from intarsia.kernels.codes import BLOCK, MXFP8, PLAIN, e4m3_tiles, halves, multiply, mxfp8_tiles


@triton.jit(do_not_specialize=["rows"])
def linear_rows(
    x,
    weight,
    scale,
    out,
    rows,
    x_stride,
    weight_stride,
    scale_stride,
    N,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    TOP: tl.constexpr,
    LEFT: tl.constexpr,
    PART_ROWS: tl.constexpr,
    PART_BANDS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    NT: tl.constexpr,
    RANGES: tl.constexpr,
    STEPS: tl.constexpr,
    APART: tl.constexpr,
    EVEN: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """out [rows, N], or float32 [RANGES, rows, N] when APART.

    TOP and LEFT: the position of element (0, 0) inside its 128 x 128 block; PART_ROWS, PART_BANDS: rows and
    bands of blocks of each row part with blocks of its own. EVEN: K is exactly RANGES * STEPS tiles.
    """
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    r = tl.program_id(1) * NT + tl.arange(0, NT)
    own = tl.minimum(n, N - 1)
    taken = tl.minimum(r, rows - 1)
    weight_rows = weight + own.to(tl.int64)[:, None] * weight_stride
    x_rows = x + taken.to(tl.int64)[:, None] * x_stride
    # Codes of eight bits are read two at a time.
    EACH: tl.constexpr = 1 if FORMAT == PLAIN else 2
    band = (own // PART_ROWS) * PART_BANDS + (own % PART_ROWS + TOP) // 128
    scale_rows = scale + (band if FORMAT == BLOCK else own).to(tl.int64) * scale_stride
    total = tl.zeros([BN, NT], tl.float32)
    for index in tl.range(0, 1 if APART else RANGES):
        first = (tl.program_id(2) if APART else index) * STEPS
        chain = tl.zeros([BN, NT], tl.float32)
        for step in tl.range(0, STEPS, num_stages=STAGES):
            begin = (first + step) * BK - LEFT
            k = begin + tl.arange(0, BK)
            word = begin // EACH + tl.arange(0, BK // EACH)
            if EVEN:
                w = tl.load(weight_rows + word[None, :])
                xt = tl.load(x_rows + k[None, :])
            else:
                inside = (word >= 0) & (word < K // EACH)
                w = tl.load(weight_rows + word[None, :], mask=inside[None, :], other=0)
                xt = tl.load(x_rows + k[None, :], mask=((k >= 0) & (k < K))[None, :], other=0)
            if FORMAT == MXFP8:
                g = begin // 32 + tl.arange(0, BK // 32)
                if EVEN:
                    e = tl.load(scale_rows[:, None] + g[None, :])
                else:
                    e = tl.load(scale_rows[:, None] + g[None, :], mask=(g < K // 32)[None, :], other=0)
                even, odd = mxfp8_tiles(w, e, BN, BK, WIDE)
                x_even, x_odd = halves(xt, NT, BK)
                chain = multiply(even, x_even, chain, WIDE)
                chain = multiply(odd, x_odd, chain, WIDE)
            elif FORMAT == BLOCK:
                block = (begin + LEFT) // 128
                if EVEN:
                    s = tl.load(scale_rows + block).to(tl.float32)
                else:
                    s = tl.load(scale_rows + block, mask=(own >= 0) & (begin < K), other=0).to(tl.float32)
                even, odd = e4m3_tiles(w, WIDE)
                x_even, x_odd = halves(xt, NT, BK)
                product = multiply(even, x_even, tl.zeros([BN, NT], tl.float32), WIDE)
                product = multiply(odd, x_odd, product, WIDE)
                chain = tl.fma(product, tl.broadcast_to(s[:, None], [BN, NT]), chain)
            else:
                chain = multiply(w, xt, chain, WIDE)
        total = total + chain
    if APART:
        out += tl.program_id(2).to(tl.int64) * rows * N
    target = out + r.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(target, tl.trans(total).to(out.dtype.element_ty), mask=(r < rows)[:, None] & (n < N)[None, :])


@triton.jit(do_not_specialize=["count"])
def add_ranges(parts, out, count, RANGES: tl.constexpr, SIZE: tl.constexpr):
    """out [count] = the sum of parts [RANGES, count], in order."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < count
    total = tl.zeros([SIZE], tl.float32)
    for index in tl.static_range(RANGES):
        total = total + tl.load(parts + index * count + at, mask=inside, other=0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)
