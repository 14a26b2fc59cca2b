# mypy: ignore-errors
# ruff: noqa: RUF005
"""A site of the hyper-connections in two launches, for four streams.

The first owns columns: it brings the streams up to date and multiplies what it holds with its columns of
`fn`; its sums over columns are parts of the whole ones. The second adds the parts, always in the same order:
one program a row collects and norms the next input, and beside it one program for 16 rows works out how the
site's output will be spread, which takes as long.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

TILE = tl.constexpr(16)  # rows of a tensor core's product: always so many, whatever the rows of the step
SUMS = tl.constexpr(32)  # parts kept for each row: the products with `fn`, then the squares
SQUARES = tl.constexpr(24)
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
def settled(x, WIDE: tl.constexpr):
    """`x`, which the compiler may not work out again in every layout that it is needed in."""
    if WIDE:
        return x
    bits = x.to(tl.int16, bitcast=True)
    bits = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [bits], dtype=tl.int16, is_pure=False, pack=2)
    return bits.to(tl.bfloat16, bitcast=True)


@triton.jit
def spread(x, y, shares, j: tl.constexpr):
    """Stream j of rows after a block's output `y`; `x` holds the four streams, `shares` post and mixing."""
    out = shares[j] * y
    for i in tl.static_range(4):
        out += shares[4 + 4 * i + j] * x[i]
    return out


@triton.jit
def product(x, weight, total, WIDE: tl.constexpr):
    """`total` + x weight^T. A float32 weight goes in as three bfloat16 numbers, which hold all its bits."""
    if WIDE:
        return tl.dot(x.to(tl.float32), tl.trans(weight.to(tl.float32)), total, input_precision="ieee")
    if weight.dtype == tl.bfloat16:
        return tl.dot(x, tl.trans(weight), total)
    high = weight.to(tl.bfloat16)
    rest = weight - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    total = tl.dot(x, tl.trans(low), total)
    total = tl.dot(x, tl.trans(middle), total)
    return tl.dot(x, tl.trans(high), total)


@triton.jit(do_not_specialize=["rows"])
def update_and_measure(
    streams,
    row_stride,
    stream_stride,
    y,
    post,
    mixing,
    fn,
    out,
    parts,
    rows,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
    UPDATE: tl.constexpr,
    WIDE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """streams, out [R, 4, D]; y [R, D]; post [R, 4]; mixing [R, 4, 4]; fn [24, 4 D]; parts [R, SUMS, ranges].

    The grid is [D / COLUMNS, tiles of rows]. Before `gdc_wait` this reads what the site before left: a block
    runs between two sites, so the launch before this one wrote none of it.
    """
    chunk = tl.program_id(0)
    row = (tl.program_id(1) * TILE + tl.arange(0, TILE)).to(tl.int64)[:, None]
    valid = row < rows
    column = chunk * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    m = tl.arange(0, SUMS)[:, None]
    EARLY: tl.constexpr = fn.dtype.element_ty == tl.bfloat16  # float32 ones would take too many registers
    x = ()
    weights = ()
    for j in tl.static_range(4):
        here = tl.load(streams + row * row_stride + j * stream_stride + column, mask=valid, other=0)
        x = x + (here,)
        if EARLY:
            weights = weights + (tl.load(fn + m * 4 * D + j * D + column, mask=m < SQUARES, other=0),)
    if UPDATE:
        shares = ()
        for k in tl.static_range(4):
            shares = shares + (tl.load(post + row * 4 + k, mask=valid, other=0),)
        for k in tl.static_range(16):
            shares = shares + (tl.load(mixing + row * 16 + k, mask=valid, other=0),)
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    if UPDATE:
        block = tl.load(y + row * D + column, mask=valid, other=0)
        before = ()
        for i in tl.static_range(4):
            before = before + (x[i].to(tl.float32),)
        x = ()
        for j in tl.static_range(4):
            here = spread(before, block, shares, j).to(out.dtype.element_ty)
            here = settled(here, WIDE)
            tl.store(out + (row * 4 + j) * D + column, here, mask=valid)
            x = x + (here,)
    total = tl.zeros((TILE, SUMS), tl.float32)
    squares = tl.zeros((TILE, COLUMNS), tl.float32)
    for j in tl.static_range(4):
        wide = x[j].to(tl.float32)
        squares += wide * wide
        if EARLY:
            total = product(x[j], weights[j], total, WIDE)
        else:
            weight = tl.load(fn + m * 4 * D + j * D + column, mask=m < SQUARES, other=0)
            total = product(x[j], weight, total, WIDE)
    CHUNKS: tl.constexpr = D // COLUMNS
    n = tl.arange(0, SUMS)[None, :]
    total = tl.where(n == SQUARES, tl.sum(squares, 1)[:, None], total)
    tl.store(parts + (row * SUMS + n) * CHUNKS + chunk, total, mask=valid & (n <= SQUARES))


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


@triton.jit(do_not_specialize=["rows"])
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
    norm_eps,
    eps,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNKS: tl.constexpr,
    ITERATIONS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """x [R, D] and the coefficients. Programs 0 .. rows - 1 take a row each, those after them 16 rows."""
    program = tl.program_id(0)
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


@triton.jit
def finish_rows(
    streams,
    row_stride,
    stream_stride,
    y,
    post,
    mixing,
    norm,
    out,
    hidden,
    norm_eps,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The last update, and the norm of the streams' mean; one program a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < D
    x = ()
    shares = ()
    for n in tl.static_range(4):
        here = tl.load(streams + row * row_stride + n * stream_stride + column, mask=inside, other=0)
        x = x + (here.to(tl.float32),)
        shares = shares + (tl.load(post + row * 4 + n),)
    for k in tl.static_range(16):
        shares = shares + (tl.load(mixing + row * 16 + k),)
    weight = tl.load(norm + column, mask=inside, other=0).to(tl.float32)
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    block = tl.load(y + row * D + column, mask=inside, other=0)
    total = tl.zeros((WIDTH,), tl.float32)
    for j in tl.static_range(4):
        here = spread(x, block, shares, j).to(out.dtype.element_ty)
        tl.store(out + (row * 4 + j) * D + column, here, mask=inside)
        total += here.to(tl.float32)
    total = (total / 4).to(out.dtype.element_ty).to(tl.float32)
    total = total * tl.rsqrt(tl.sum(total * total, 0) / D + norm_eps) * weight
    tl.store(hidden + row * D + column, total.to(hidden.dtype.element_ty), mask=inside)
