# mypy: ignore-errors
"""Products with the key and value rows of each head, read as stored.

kv_b [H * (K + V), L] holds K key rows of a head, then its V value rows.
One chain of additions an element, in steps of BK; how many rows or columns a program takes touches no bits.
MXFP8 weights become bfloat16, or float32 when WIDE, which is exact.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def weights(codes, scales, row, column, L: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Numbers [ROWS, COLUMNS] of the matrix [.., L], COLUMNS a multiple of 32 where there are scales."""
    values = tl.load(codes + row[:, None] * L + (column + tl.arange(0, COLUMNS))[None, :])
    if scales is not None:
        block = column // 32 + tl.arange(0, COLUMNS // 32)
        exponent = tl.load(scales + row[:, None] * (L // 32) + block[None, :]).to(tl.int32)
        bits = tl.where(exponent == 0, 1 << 22, exponent << 23)
        scale = tl.where(exponent == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)
        wide = tl.reshape(values.to(tl.float32), [ROWS, COLUMNS // 32, 32]) * scale[:, :, None]
        values = tl.reshape(wide, [ROWS, COLUMNS]).to(tl.bfloat16)
    return values


@triton.jit
def fetch(codes, row, column, L: tl.constexpr, COLUMNS: tl.constexpr):
    """Ask for COLUMNS columns of rows to be brought into the second-level cache."""
    LINE: tl.constexpr = 1024 // codes.dtype.element_ty.primitive_bitwidth
    LINES: tl.constexpr = COLUMNS // LINE if COLUMNS > LINE else 1
    where = codes + row[:, None] * L + (column + tl.arange(0, LINES) * LINE)[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [where], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def product(a, b, total, WIDE: tl.constexpr):
    if WIDE:
        total = tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    else:
        total = tl.dot(a, b, total)
    return total


@triton.jit(do_not_specialize=["rows"])
def absorb_rows(
    q,
    kv_b,
    scales,
    out,
    rows,
    q_stride,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    L: tl.constexpr,
    NT: tl.constexpr,
    LB: tl.constexpr,
    BK: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
    SETTLED: tl.constexpr,
):
    """out [R, H, L] = q [R, H, K] times key rows, head by head. The grid is [L / LB, H, blocks of rows].

    SETTLED: `q` was written before the launch before, so that the product need not wait for that; what `out`
    overwrites, some of it may still read.
    """
    head = tl.program_id(1)
    first = tl.program_id(0) * LB
    column = first + tl.arange(0, LB)
    r = (tl.program_id(2) * NT + tl.arange(0, NT)).to(tl.int64)
    taken = tl.minimum(r, rows - 1)
    queries = q + taken[:, None] * q_stride + head * K
    keys = head.to(tl.int64) * (K + V)
    if OVERLAP and not SETTLED:
        fetch(kv_b, keys + tl.arange(0, K), first, L, LB)
        gdc_wait()
    total = tl.zeros([NT, LB], tl.float32)
    for begin in tl.range(0, K, BK, num_stages=STAGES):
        k = begin + tl.arange(0, BK)
        w = weights(kv_b, scales, keys + k, first, L, BK, LB)
        total = product(tl.load(queries + k[None, :]), w, total, WIDE)
    at = (r[:, None] * H + head) * L + column[None, :]
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(r < rows)[:, None])


@triton.jit(do_not_specialize=["rows"])
def expand_rows(
    latents,
    kv_b,
    scales,
    out,
    rows,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    L: tl.constexpr,
    NT: tl.constexpr,
    VB: tl.constexpr,
    BK: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """out [R, H, V] = latents [R, H, L] times value rows, head by head. The grid is [V / VB, H, blocks of
    rows].
    """
    head = tl.program_id(1)
    v = tl.program_id(0) * VB + tl.arange(0, VB)
    r = (tl.program_id(2) * NT + tl.arange(0, NT)).to(tl.int64)
    taken = tl.minimum(r, rows - 1)
    own = latents + (taken[:, None] * H + head) * L
    values = head.to(tl.int64) * (K + V) + K + v
    if OVERLAP:
        fetch(kv_b, values, 0, L, L)
        gdc_wait()
    total = tl.zeros([NT, VB], tl.float32)
    for begin in tl.range(0, L, BK, num_stages=STAGES):
        k = begin + tl.arange(0, BK)
        w = weights(kv_b, scales, values, begin, L, VB, BK)
        total = product(tl.load(own + k[None, :]), tl.trans(w), total, WIDE)
    at = (r[:, None] * H + head) * V + v[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(r < rows)[:, None])
