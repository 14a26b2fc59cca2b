# mypy: ignore-errors
"""What surrounds the products of experts in tiles: pairs sorted into blocks, and x in the products' orders.

A *pair* is one of a row's choices, number row * top + choice. `order` holds pairs sorted by expert; a block
is at most NT consecutive places of one expert. Pairs of expert -1 belong to no row and are left out.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

NOBODY = tl.constexpr(1 << 20)
"""Sorts behind every expert."""
X_SCALE = tl.constexpr(18446744073709551616.0)


@triton.jit
def ordered(values, BLOCKS: tl.constexpr):
    """Columns of x [128 BLOCKS] as the products of few rows read them, times 2^64; see gluon_tiles."""
    values = (values.to(tl.float32) * X_SCALE).to(tl.bfloat16)
    values = values.reshape(BLOCKS, 4, 4, 2, 4)  # lane, word, h, i
    return values.permute(0, 2, 1, 4, 3).reshape(128 * BLOCKS)


@triton.jit
def arrange_row(x, out, row, K: tl.constexpr, PIECE: tl.constexpr):
    """Row of out from the row of x, PIECE columns at a time."""
    column = row.to(tl.int64) * K + tl.arange(0, PIECE)
    for piece in tl.static_range(K // PIECE):
        values = tl.load(x + piece * PIECE + column)
        tl.store(out + piece * PIECE + column, ordered(values, PIECE // 128))


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
        arrange_row(x, arranged, row, K, PIECE)
    else:
        place = tl.arange(0, PLACES)
        own = tl.load(experts + place, mask=place < pairs, other=-1)
        own = tl.where(own < 0, NOBODY, own) * PLACES
        tl.store(block_count + place, tl.zeros([PLACES], tl.int32), mask=place < pairs)
        rank = tl.zeros([PLACES], tl.int32)
        count = tl.zeros([PLACES], tl.int32)
        start = tl.zeros([PLACES], tl.int32)
        for at in tl.static_range(0, PLACES, CHUNK):  # unrolled, so that all loads come first
            other_place = at + tl.arange(0, CHUNK)
            other = tl.load(experts + other_place, mask=other_place < pairs, other=-1)
            # Sorted by expert, then by place. A thread has a place of its own and goes over the others, so
            # nothing is added across threads.
            other = (tl.where(other < 0, NOBODY, other) * PLACES + other_place)[:, None]
            start += tl.sum((other < own[None, :]).to(tl.int32), 0)
            rank += tl.sum((other < (own + place)[None, :]).to(tl.int32), 0)
            count += tl.sum((other < (own + PLACES)[None, :]).to(tl.int32), 0)
        rank -= start
        count -= start
        own = own // PLACES
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
        arrange_row(x, arranged, expert - EXPERTS, K, PIECE)
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


@triton.jit(do_not_specialize=["pairs"])
def count_pairs(experts, counts, pairs, BINS: tl.constexpr, CHUNK: tl.constexpr):
    """Row c of counts [chunks, BINS]: how many pairs of chunk c go to each expert. BINS: a power of two above
    the number of experts; the last bin takes pairs of none.
    """
    chunk = tl.program_id(0)
    place = chunk * CHUNK + tl.arange(0, CHUNK)
    own = tl.load(experts + place, mask=place < pairs, other=-1)
    tally = tl.histogram(tl.where(own < 0, BINS - 1, own), BINS)
    tl.store(counts + chunk * BINS + tl.arange(0, BINS), tally)


@triton.jit(do_not_specialize=["pairs", "blocks", "chunks"])
def place_pairs(
    experts,
    counts,
    order,
    block_expert,
    block_start,
    block_count,
    total,
    pairs,
    blocks,
    chunks,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    NT: tl.constexpr,
    CHUNK: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Program p: the places of chunk p's pairs, and the blocks of expert p, as `group_many` makes them."""
    program = tl.program_id(0)
    bins = tl.arange(0, BINS)
    before = tl.zeros([BINS], tl.int32)
    all_of = tl.zeros([BINS], tl.int32)
    chunk = 0
    while chunk < chunks:
        tally = tl.load(counts + chunk * BINS + bins)
        before += tl.where(chunk < program, tally, 0)
        all_of += tally
        chunk += 1
    all_of = tl.where(bins < EXPERTS, all_of, 0)
    starts = tl.cumsum(all_of, 0) - all_of
    if program < EXPERTS:
        start = tl.sum(tl.where(bins == program, starts, 0), 0)
        own = tl.sum(tl.where(bins == program, all_of, 0), 0)
        block = program + start // NT
        past = program + 1 + (start + own) // NT
        if program == EXPERTS - 1:
            past = blocks
            tl.store(total, start + own)
        done = 0
        while block < past:
            tl.store(block_expert + block, program)
            tl.store(block_start + block, start + done)
            tl.store(block_count + block, tl.maximum(tl.minimum(own - done, NT), 0))
            block += 1
            done += NT
    if program < chunks:
        place = program * CHUNK + tl.arange(0, CHUNK)
        mine = tl.load(experts + place, mask=place < pairs, other=-1)
        rank = tl.zeros([CHUNK], tl.int32)
        for piece in tl.static_range(CHUNK // PIECE):
            other_place = program * CHUNK + piece * PIECE + tl.arange(0, PIECE)
            other = tl.load(experts + other_place, mask=other_place < pairs, other=-1)
            earlier = (other[None, :] == mine[:, None]) & (other_place[None, :] < place[:, None])
            rank += tl.sum(earlier.to(tl.int32), 1)
        first = tl.gather(starts + before, tl.maximum(mine, 0), 0)
        tl.store(order + first + rank, place, mask=mine >= 0)
