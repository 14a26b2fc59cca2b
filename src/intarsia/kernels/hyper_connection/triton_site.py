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

from intarsia.kernels.exchange.triton_words import addresses, patience, sum_over_ranks

TILE = tl.constexpr(16)  # rows of a tensor core's product: always so many, whatever the rows of the step
SUMS = tl.constexpr(32)  # parts kept for each row: the products with `fn`, then the squares
SQUARES = tl.constexpr(24)


@triton.jit
def settled(x, WIDE: tl.constexpr):
    """`x`, which the compiler may not work out again in every layout that it is needed in."""
    if WIDE:
        return x
    bits = x.to(tl.int16, bitcast=True)
    bits = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [bits], dtype=tl.int16, is_pure=False, pack=2)
    return bits.to(tl.bfloat16, bitcast=True)


@triton.jit
def held(weights, WIDE: tl.constexpr):
    """Weights that are not worked on before here: they may still be on their way."""
    found = ()
    for j in tl.static_range(len(weights)):
        found = found + (settled(weights[j], WIDE),)
    return found


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


@triton.jit
def summed(
    y, rows, chunk, tile, peers, RANK: tl.constexpr, RANKS: tl.constexpr, D: tl.constexpr,
    COLUMNS: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    """A tile of the sums over ranks of their `y`: every rank's same program has the same tile.

    A thread has SIDE columns in turn, as it has of the streams. Their words lie apart, those of neighbouring
    threads side by side: they go out together.
    """
    places, call, room, failed, wait = peers
    SIDE: tl.constexpr = 8
    turn = tl.arange(0, TILE)[:, None]
    lane = tl.arange(0, COLUMNS)[None, :]
    row = (tile * TILE + turn).to(tl.int64)
    valid = (row < rows) & (lane >= 0)
    own = tl.load(y + row * D + chunk * COLUMNS + lane, mask=valid, other=0)
    half = (call & 1).to(tl.int64) * RANKS * room  # not %: the count may wrap
    place = (tile * (D // COLUMNS) + chunk) * (TILE * COLUMNS) + turn * COLUMNS
    place += (lane % SIDE) * (COLUMNS // SIDE) + lane // SIDE
    return sum_over_ranks(own, valid, place, places, half, room, call, failed, wait, RANK, RANKS, PACK)


@triton.jit
def measure_tile(
    streams,
    row_stride,
    stream_stride,
    y,
    post,
    mixing,
    fn,
    weights,
    out,
    parts,
    rows,
    chunk,
    tile,
    peers,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
    UPDATE: tl.constexpr,
    WIDE: tl.constexpr,
    WAIT: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    PACK: tl.constexpr,
):
    """A tile of rows times one range of columns; WAIT: `y` may not be written yet."""
    row = (tile * TILE + tl.arange(0, TILE)).to(tl.int64)[:, None]
    valid = row < rows
    column = chunk * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    m = tl.arange(0, SUMS)[:, None]
    EARLY: tl.constexpr = fn.dtype.element_ty == tl.bfloat16
    x = ()
    for j in tl.static_range(4):
        here = tl.load(streams + row * row_stride + j * stream_stride + column, mask=valid, other=0)
        x = x + (here,)
    if UPDATE:
        shares = ()
        for k in tl.static_range(4):
            shares = shares + (tl.load(post + row * 4 + k, mask=valid, other=0),)
        for k in tl.static_range(16):
            shares = shares + (tl.load(mixing + row * 16 + k, mask=valid, other=0),)
    if WAIT:
        tl.debug_barrier()  # else the compiler asks for some of all that only when the rest is there
        gdc_wait()
        gdc_launch_dependents()
    if UPDATE:
        if RANKS > 1:
            block = summed(y, rows, chunk, tile, peers, RANK, RANKS, D, COLUMNS, PACK)
        else:
            block = tl.load(y + row * D + column, mask=valid, other=0)
        if WAIT:
            weights = held(weights, WIDE)
        before = ()
        for i in tl.static_range(4):
            before = before + (x[i].to(tl.float32),)
        x = ()
        for j in tl.static_range(4):
            here = spread(before, block, shares, j).to(out.dtype.element_ty)
            here = settled(here, WIDE)
            tl.store(out + (row * 4 + j) * D + column, here, mask=valid)
            x = x + (here,)
    squares = tl.zeros((TILE, COLUMNS), tl.float32)
    totals = ()
    for j in tl.static_range(4):  # four sums: products of one wait for each other, not for the others'
        wide = x[j].to(tl.float32)
        squares += wide * wide
        weight = weights[j] if EARLY else None
        if not EARLY:
            weight = tl.load(fn + m * 4 * D + j * D + column, mask=m < SQUARES, other=0)
        totals = totals + (product(x[j], weight, tl.zeros((TILE, SUMS), tl.float32), WIDE),)
    CHUNKS: tl.constexpr = D // COLUMNS
    n = tl.arange(0, SUMS)[None, :]
    total = (totals[0] + totals[1]) + (totals[2] + totals[3])
    tl.store(parts + (row * SUMS + n) * CHUNKS + chunk, total, mask=valid & (n < SQUARES))
    tl.store(parts + (row * SUMS + SQUARES) * CHUNKS + chunk, tl.sum(squares, 1)[:, None], mask=valid)


@triton.jit(do_not_specialize=["rows", "room", "limit"])
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
    buffers,
    calls,
    failed,
    room,
    limit,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
    EACH: tl.constexpr,
    UPDATE: tl.constexpr,
    WIDE: tl.constexpr,
    OVERLAP: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    PACK: tl.constexpr,
):
    """streams, out [R, 4, D]; y [R, D]; post [R, 4]; mixing [R, 4, 4]; fn [24, 4 D]; parts [R, SUMS, ranges].

    The grid is [D / COLUMNS, groups of EACH tiles of rows]. Before `gdc_wait` this reads what the site before
    left: a block runs between two sites, so the launch before this one wrote none of it.

    With RANKS `y` is this rank's part of a sum, which each program finishes for its own tile (EACH is 1):
    buffers int64 [RANKS], addresses of words [2, RANKS, room]; calls int32 [programs], how often each did.
    """
    chunk = tl.program_id(0)
    first = tl.program_id(1) * EACH
    column = chunk * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    m = tl.arange(0, SUMS)[:, None]
    weights = ()
    if fn.dtype.element_ty == tl.bfloat16:  # float32 ones would take too many registers
        for j in tl.static_range(4):
            weights = weights + (tl.load(fn + m * 4 * D + j * D + column, mask=m < SQUARES, other=0),)
    if RANKS > 1:
        program = calls + first * (D // COLUMNS) + chunk
        call = tl.load(program) + 1
        places = addresses(buffers, RANKS)
        wait = patience(failed, limit)
        measure_tile(
            streams, row_stride, stream_stride, y, post, mixing, fn, weights, out, parts, rows, chunk, first,
            (places, call, room, failed, wait), D, COLUMNS, UPDATE, WIDE, OVERLAP, RANK, RANKS, PACK,
        )  # fmt: skip
        tl.debug_barrier()
        tl.store(program, call)
    elif EACH == 1:
        measure_tile(
            streams, row_stride, stream_stride, y, post, mixing, fn, weights, out, parts, rows, chunk, first,
            None, D, COLUMNS, UPDATE, WIDE, OVERLAP, 0, 1, 1,
        )  # fmt: skip
    else:
        if OVERLAP:
            gdc_wait()
            gdc_launch_dependents()
        for index in range(EACH):
            measure_tile(
                streams, row_stride, stream_stride, y, post, mixing, fn, weights, out, parts, rows, chunk,
                first + index, None, D, COLUMNS, UPDATE, WIDE, False, 0, 1, 1,
            )  # fmt: skip


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
