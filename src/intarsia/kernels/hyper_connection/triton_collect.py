# mypy: ignore-errors
# ruff: noqa: RUF005
"""The second launch of a site: parts of sums added, coefficients formed, the next input collected."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from intarsia.kernels.hyper_connection.triton_site import SQUARES, SUMS

SPREAD_ROWS = tl.constexpr(16)


@triton.jit
def inverse(x):
    """1 / x of a positive x, in fewer instructions than a division."""
    root = tl.rsqrt(x)
    return root * root


@triton.jit
def sigmoid(x):
    return inverse(1 + tl.exp(-x))


@triton.jit
def scaled(parts, row, valid, which: tl.constexpr, inverse_rms, scale, base, group: tl.constexpr, CHUNKS):
    """One of the 24 products of rows [.., 1], over the root mean square, with its scale and base."""
    part = tl.arange(0, CHUNKS)[None, :]
    value = tl.sum(tl.load(parts + (row * SUMS + which) * CHUNKS + part, mask=valid, other=0), 1)
    return value * inverse_rms * tl.load(scale + group) + tl.load(base + which)


@triton.jit
def inverse_rms_of(parts, row, valid, D: tl.constexpr, CHUNKS: tl.constexpr, norm_eps):
    part = tl.arange(0, CHUNKS)[None, :]
    squares = tl.sum(tl.load(parts + (row * SUMS + SQUARES) * CHUNKS + part, mask=valid, other=0), 1)
    return tl.rsqrt(squares / (4 * D) + norm_eps)


@triton.jit
def columns_to_one(m, eps):
    sums = ()
    out = ()
    for j in tl.static_range(4):
        sums = sums + (inverse((m[j] + m[4 + j]) + (m[8 + j] + (m[12 + j] + eps))),)
    for k in tl.static_range(16):
        out = out + (m[k] * sums[k % 4],)
    return out


@triton.jit
def rows_to_one(m, eps):
    sums = ()
    out = ()
    for i in tl.static_range(4):
        sums = sums + (inverse((m[4 * i] + m[4 * i + 1]) + (m[4 * i + 2] + (m[4 * i + 3] + eps))),)
    for k in tl.static_range(16):
        out = out + (m[k] * sums[k // 4],)
    return out


@triton.jit
def coefficients(
    parts, row, valid, base, scale, pre, post, mixing, D, CHUNKS: tl.constexpr, ITERATIONS, norm_eps, eps
):
    """`pre`, `post` [R, 4] and `mixing` [R, 4, 4] of rows [.., 1]."""
    inverse_rms = inverse_rms_of(parts, row, valid, D, CHUNKS, norm_eps)
    n = tl.arange(0, 4)[None, :]
    before = tl.zeros((SPREAD_ROWS, 4), tl.float32)
    after = tl.zeros((SPREAD_ROWS, 4), tl.float32)
    for i in tl.static_range(4):
        value = sigmoid(scaled(parts, row, valid, i, inverse_rms, scale, base, 0, CHUNKS)) + eps
        before = tl.where(n == i, value[:, None], before)
        value = 2 * sigmoid(scaled(parts, row, valid, 4 + i, inverse_rms, scale, base, 1, CHUNKS))
        after = tl.where(n == i, value[:, None], after)
    tl.store(pre + row * 4 + n, before, mask=valid)
    tl.store(post + row * 4 + n, after, mask=valid)
    m = ()
    for k in tl.static_range(16):
        m = m + (scaled(parts, row, valid, 8 + k, inverse_rms, scale, base, 2, CHUNKS),)
    most = ()
    for i in tl.static_range(4):
        pair = tl.maximum(m[4 * i], m[4 * i + 1])
        most = most + (tl.maximum(pair, tl.maximum(m[4 * i + 2], m[4 * i + 3])),)
    powers = ()
    for k in tl.static_range(16):
        powers = powers + (tl.exp(m[k] - most[k // 4]),)
    sums = ()
    for i in tl.static_range(4):
        total = (powers[4 * i] + powers[4 * i + 1]) + (powers[4 * i + 2] + powers[4 * i + 3])
        sums = sums + (inverse(total),)
    m = ()
    for k in tl.static_range(16):
        m = m + (powers[k] * sums[k // 4] + eps,)
    m = columns_to_one(m, eps)
    for _ in range(ITERATIONS - 1):
        m = columns_to_one(rows_to_one(m, eps), eps)
    n = tl.arange(0, 16)[None, :]
    total = tl.zeros((SPREAD_ROWS, 16), tl.float32)
    for k in tl.static_range(16):
        total = tl.where(n == k, m[k][:, None], total)
    tl.store(mixing + row * 16 + n, total, mask=valid)


@triton.jit(do_not_specialize=["rows", "begin"])
def collect_rows(
    streams,
    row_stride,
    stream_stride,
    parts,
    base,
    scale,
    norm,
    x,
    pre,
    post,
    mixing,
    rows,
    begin,
    norm_eps,
    eps,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNKS: tl.constexpr,
    ITERATIONS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """x [R, D] and the coefficients. Programs 0 .. rows - 1 take a row each, those after them 16 rows; a
    launch runs those from `begin` on.
    """
    program = tl.program_id(0) + begin
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    if program < rows:
        row = program.to(tl.int64)
        column = tl.arange(0, WIDTH)
        inside = column < D
        one = row + tl.zeros((1, 1), tl.int64)
        inverse_rms = inverse_rms_of(parts, one, one >= 0, D, CHUNKS, norm_eps)
        total = tl.zeros((WIDTH,), tl.float32)
        for n in tl.static_range(4):
            here = tl.load(streams + row * row_stride + n * stream_stride + column, mask=inside, other=0)
            share = sigmoid(scaled(parts, one, one >= 0, n, inverse_rms, scale, base, 0, CHUNKS)) + eps
            total += share * here.to(tl.float32)
        total = total.to(x.dtype.element_ty).to(tl.float32)
        weight = tl.load(norm + column, mask=inside, other=0).to(tl.float32)
        total = total * tl.rsqrt(tl.sum(total * total, 0) / D + norm_eps) * weight
        tl.store(x + row * D + column, total.to(x.dtype.element_ty), mask=inside)
    else:
        several = ((program - rows) * SPREAD_ROWS + tl.arange(0, SPREAD_ROWS)).to(tl.int64)[:, None]
        valid = several < rows
        coefficients(
            parts, several, valid, base, scale, pre, post, mixing, D, CHUNKS, ITERATIONS, norm_eps, eps
        )
