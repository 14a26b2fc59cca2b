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
def constants_of(scale, base, COUNT: tl.constexpr):
    """Scale and base of each of the first products: of `pre`, `post` and `mixing`, in this order."""
    found = ()
    for which in tl.static_range(COUNT):
        found = found + ((tl.load(scale + min(which // 4, 2)), tl.load(base + which)),)
    return found


@triton.jit
def parts_of(parts, row, valid, FIRST: tl.constexpr, COUNT: tl.constexpr, CHUNKS: tl.constexpr):
    """The parts of some sums of rows [.., 1]."""
    part = tl.arange(0, CHUNKS)[None, :]
    found = ()
    for which in tl.static_range(FIRST, FIRST + COUNT):
        found = found + (tl.load(parts + (row * SUMS + which) * CHUNKS + part, mask=valid, other=0),)
    return found


@triton.jit
def scaled(given, inverse_rms, constants):
    """A product of the rows, over the root mean square, with its scale and base."""
    return tl.sum(given, 1) * inverse_rms * constants[0] + constants[1]


@triton.jit
def inverse_rms_of(squares, D: tl.constexpr, norm_eps):
    return tl.rsqrt(tl.sum(squares, 1) / (4 * D) + norm_eps)


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
    parts, constants, row, valid, pre, post, mixing, D, CHUNKS: tl.constexpr, ITERATIONS, norm_eps, eps
):
    """`pre`, `post` [R, 4] and `mixing` [R, 4, 4] of rows [.., 1]."""
    squares = parts_of(parts, row, valid, SQUARES, 1, CHUNKS)
    given = parts_of(parts, row, valid, 0, 24, CHUNKS)
    inverse_rms = inverse_rms_of(squares[0], D, norm_eps)
    n = tl.arange(0, 4)[None, :]
    before = tl.zeros((SPREAD_ROWS, 4), tl.float32)
    after = tl.zeros((SPREAD_ROWS, 4), tl.float32)
    for i in tl.static_range(4):
        value = sigmoid(scaled(given[i], inverse_rms, constants[i])) + eps
        before = tl.where(n == i, value[:, None], before)
        value = 2 * sigmoid(scaled(given[4 + i], inverse_rms, constants[4 + i]))
        after = tl.where(n == i, value[:, None], after)
    tl.store(pre + row * 4 + n, before, mask=valid)
    tl.store(post + row * 4 + n, after, mask=valid)
    m = ()
    for k in tl.static_range(16):
        m = m + (scaled(given[8 + k], inverse_rms, constants[8 + k]),)
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
    # Weights come from far: they are asked for while the launch before still runs.
    if program < rows:
        row = program.to(tl.int64)
        column = tl.arange(0, WIDTH)
        inside = column < D
        weight = tl.load(norm + column, mask=inside, other=0)
        constants = constants_of(scale, base, 4)
        if OVERLAP:
            gdc_wait()
            gdc_launch_dependents()
        one = row + tl.zeros((1, 1), tl.int64)
        squares = parts_of(parts, one, one >= 0, SQUARES, 1, CHUNKS)
        given = parts_of(parts, one, one >= 0, 0, 4, CHUNKS)
        states = ()
        for n in tl.static_range(4):
            here = tl.load(streams + row * row_stride + n * stream_stride + column, mask=inside, other=0)
            states = states + (here,)
        tl.debug_barrier()  # else the compiler asks for some of them only when others are there
        inverse_rms = inverse_rms_of(squares[0], D, norm_eps)
        total = tl.zeros((WIDTH,), tl.float32)
        for n in tl.static_range(4):
            share = sigmoid(scaled(given[n], inverse_rms, constants[n])) + eps
            total += share * states[n].to(tl.float32)
        total = total.to(x.dtype.element_ty).to(tl.float32)
        total = total * tl.rsqrt(tl.sum(total * total, 0) / D + norm_eps) * weight.to(tl.float32)
        tl.store(x + row * D + column, total.to(x.dtype.element_ty), mask=inside)
    else:
        all_constants = constants_of(scale, base, 24)
        if OVERLAP:
            gdc_wait()
            gdc_launch_dependents()
        several = ((program - rows) * SPREAD_ROWS + tl.arange(0, SPREAD_ROWS)).to(tl.int64)[:, None]
        valid = several < rows
        coefficients(
            parts, all_constants, several, valid, pre, post, mixing, D, CHUNKS, ITERATIONS, norm_eps, eps
        )
