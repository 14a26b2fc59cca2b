# mypy: ignore-errors
"""What surrounds the products of experts in tiles: pairs sorted into blocks, and x in the products' orders.

A *pair* is one of a row's choices, number row * top + choice. `order` holds pairs sorted by expert; a block
is at most NT consecutive places of one expert. Pairs of expert -1 belong to no row and are left out.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

NOBODY = tl.constexpr(1 << 30)
"""Sorts behind every expert."""
X_SCALE = tl.constexpr(18446744073709551616.0)


@triton.jit
def ordered(values, BLOCKS: tl.constexpr, MANY: tl.constexpr):
    """Columns of x [128 BLOCKS] as the products read them, times 2^64; see gluon_tiles and gluon_prefill."""
    values = (values.to(tl.float32) * X_SCALE).to(tl.bfloat16)
    values = values.reshape(BLOCKS, 4, 4, 2, 4)  # lane, word, h, i
    if MANY:
        values = values.permute(0, 2, 4, 1, 3)
    else:
        values = values.permute(0, 2, 1, 4, 3)
    return values.reshape(128 * BLOCKS)


@triton.jit
def arrange_row(x, out, source, target, K: tl.constexpr, PIECE: tl.constexpr, MANY: tl.constexpr):
    """Row `target` of out from row `source` of x, PIECE columns at a time."""
    column = tl.arange(0, PIECE)
    for piece in tl.static_range(K // PIECE):
        values = tl.load(x + source.to(tl.int64) * K + piece * PIECE + column)
        at = out + target.to(tl.int64) * K + piece * PIECE + column
        tl.store(at, ordered(values, PIECE // 128, MANY))


@triton.jit(do_not_specialize=["pairs"])
def group_few(
    experts,
    order,
    block_expert,
    block_start,
    block_count,
    x,
    arranged,
    pairs,
    K: tl.constexpr,
    PIECE: tl.constexpr,
    NT: tl.constexpr,
    PLACES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program 0: order and blocks of up to PLACES pairs, `pairs` blocks of which the last may be empty.
    Program 1 + r: row r of x as the products of few rows read it.
    """
    CHUNK: tl.constexpr = 32 if PLACES > 32 else PLACES
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0) - 1
    if row >= 0:
        arrange_row(x, arranged, row, row, K, PIECE, False)
    else:
        place = tl.arange(0, PLACES)
        own = tl.load(experts + place, mask=place < pairs, other=-1)
        own = tl.where(own < 0, NOBODY, own)
        tl.store(block_count + place, tl.zeros([PLACES], tl.int32), mask=place < pairs)
        rank = tl.zeros([PLACES], tl.int32)
        count = tl.zeros([PLACES], tl.int32)
        start = tl.zeros([PLACES], tl.int32)
        for at in range(0, PLACES, CHUNK):
            other_place = at + tl.arange(0, CHUNK)
            other = tl.load(experts + other_place, mask=other_place < pairs, other=-1)
            other = tl.where(other < 0, NOBODY, other)
            same = other[None, :] == own[:, None]
            rank += tl.sum((same & (other_place[None, :] < place[:, None])).to(tl.int32), 1)
            count += tl.sum(same.to(tl.int32), 1)
            start += tl.sum((other[None, :] < own[:, None]).to(tl.int32), 1)
        real = own < NOBODY
        tl.store(order + start + rank, place, mask=real)
        first = real & (rank % NT == 0)
        block = tl.cumsum(first.to(tl.int32), 0) - 1
        tl.debug_barrier()  # the counts of zero come before these
        tl.store(block_expert + block, own, mask=first)
        tl.store(block_start + block, start + rank, mask=first)
        tl.store(block_count + block, tl.minimum(count - rank, NT), mask=first)


@triton.jit(do_not_specialize=["pairs", "blocks"])
def group_many(
    experts,
    order,
    block_expert,
    block_start,
    block_count,
    total,
    x,
    arranged,
    pairs,
    blocks,
    K: tl.constexpr,
    PIECE: tl.constexpr,
    EXPERTS: tl.constexpr,
    NT: tl.constexpr,
    CHUNK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program e < EXPERTS: the pairs and blocks of expert e. Program EXPERTS + r: row r of x as the products
    of few rows read it.

    An expert with pairs start .. start + own has the blocks from e + start // NT up to the next expert's
    first: enough for it and nobody else's, so no program needs to know the blocks of others. Spare ones count
    nothing; `blocks` is EXPERTS + pairs // NT. `total`: how many pairs there are.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    expert = tl.program_id(0)
    if expert >= EXPERTS:
        arrange_row(x, arranged, expert - EXPERTS, expert - EXPERTS, K, PIECE, False)
    else:
        below = tl.zeros([CHUNK], tl.int32)
        equal = tl.zeros([CHUNK], tl.int32)
        at = 0
        while at < pairs:
            place = at + tl.arange(0, CHUNK)
            other = tl.load(experts + place, mask=place < pairs, other=-1)
            below += ((other >= 0) & (other < expert)).to(tl.int32)
            equal += (other == expert).to(tl.int32)
            at += CHUNK
        start = tl.sum(below, 0)
        own = tl.sum(equal, 0)
        target = start
        at = 0
        if own == 0:
            at = pairs
        while at < pairs:
            place = at + tl.arange(0, CHUNK)
            mine = (tl.load(experts + place, mask=place < pairs, other=-1) == expert).to(tl.int32)
            tl.store(order + target + tl.cumsum(mine, 0) - 1, place, mask=mine > 0)
            target += tl.sum(mine, 0)
            at += CHUNK
        block = expert + start // NT
        past = expert + 1 + (start + own) // NT
        if expert == EXPERTS - 1:
            past = blocks
            tl.store(total, start + own)
        done = 0
        while block < past:
            tl.store(block_expert + block, expert)
            tl.store(block_start + block, start + done)
            tl.store(block_count + block, tl.maximum(tl.minimum(own - done, NT), 0))
            block += 1
            done += NT


@triton.jit
def gather_rows(x, order, total, arranged, TOP: tl.constexpr, K: tl.constexpr, PIECE: tl.constexpr):
    """Row p of arranged [pairs, K]: x of the pair at place p, as the products of many rows read it."""
    place = tl.program_id(0)
    if place < tl.load(total):
        arrange_row(x, arranged, tl.load(order + place) // TOP, place, K, PIECE, True)
