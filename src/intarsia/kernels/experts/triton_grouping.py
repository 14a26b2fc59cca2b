# mypy: ignore-errors
"""What surrounds the products of experts in tiles: pairs sorted into blocks, and x in the products' orders.

A *pair* is one of a row's choices, number row * top + choice. `order` holds pairs sorted by expert; a block
is at most NT consecutive places of one expert. Pairs of expert -1 belong to no row and are left out.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from intarsia.kernels.experts.triton_order import arrange_row, ordered_by_words


@triton.jit
def arrange_rows(x, arranged, K: tl.constexpr, PIECE: tl.constexpr, OVERLAP: tl.constexpr):
    """Program r: row r of x as the products of few rows read it."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    arrange_row(x, arranged, tl.program_id(0), K, PIECE)


@triton.jit
def blocks_of(block_expert, block_start, block_count, expert, start, own, first, past, NT: tl.constexpr):
    """An expert's pairs start .. start + own as blocks first .. past, those that it does not need empty."""
    block = first
    done = 0
    while block < past:
        tl.store(block_expert + block, expert)
        tl.store(block_start + block, start + done)
        tl.store(block_count + block, tl.maximum(tl.minimum(own - done, NT), 0))
        block += 1
        done += NT


@triton.jit(do_not_specialize=["pairs", "blocks"])
def group_some(
    experts,
    order,
    block_expert,
    block_start,
    block_count,
    x,
    arranged,
    pairs,
    blocks,
    K: tl.constexpr,
    PIECE: tl.constexpr,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    NT: tl.constexpr,
    CHUNK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program e < EXPERTS: the pairs and blocks of expert e. Program EXPERTS + r: row r of x as the products
    of few rows read it.

    Blocks lie together in the order of experts, and the rest of `blocks` counts nothing. BINS: a power of two
    above the number of experts; the last bin takes pairs of none.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    expert = tl.program_id(0)
    if expert >= EXPERTS:
        arrange_row(x, arranged, expert - EXPERTS, K, PIECE)
    else:
        bins = tl.arange(0, BINS)
        all_of = tl.zeros([BINS], tl.int32)
        at = 0
        while at < pairs:
            place = at + tl.arange(0, CHUNK)
            other = tl.load(experts + place, mask=place < pairs, other=-1)
            all_of += tl.histogram(tl.where(other < 0, BINS - 1, other), BINS)
            at += CHUNK
        # Pairs and blocks before this expert's in one sum, and its own pairs in another.
        both = all_of.to(tl.int64) | ((all_of + NT - 1) // NT).to(tl.int64) << 32
        both = tl.sum(tl.where(bins < expert, both, 0), 0)
        start = both.to(tl.int32)
        first = (both >> 32).to(tl.int32)
        own = tl.sum(tl.where(bins == expert, all_of, 0), 0)
        past = first + (own + NT - 1) // NT
        if expert == EXPERTS - 1:
            past = blocks
        blocks_of(block_expert, block_start, block_count, expert, start, own, first, past, NT)
        at = 0
        if own == 0:
            at = pairs
        while at < pairs:
            place = at + tl.arange(0, CHUNK)
            mine = (tl.load(experts + place, mask=place < pairs, other=-1) == expert).to(tl.int32)
            tl.store(order + start + tl.cumsum(mine, 0) - 1, place, mask=mine > 0)
            start += tl.sum(mine, 0)
            at += CHUNK


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
    places,
    order,
    block_expert,
    block_start,
    block_count,
    pairs,
    blocks,
    chunks,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    NT: tl.constexpr,
    CHUNK: tl.constexpr,
    PIECE: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Program p: the places of chunk p's pairs, and the blocks of expert p, as `group_some` makes them.

    places [pairs]: where each pair stands in `order`, -1 for those of no expert. AT_ONCE: chunks whose counts
    are read together.
    """
    program = tl.program_id(0)
    bins = tl.arange(0, BINS)
    before = tl.zeros([BINS], tl.int32)
    all_of = tl.zeros([BINS], tl.int32)
    at = 0
    while at < chunks:
        chunk = (at + tl.arange(0, AT_ONCE))[:, None]
        tally = tl.load(counts + chunk * BINS + bins[None, :], mask=chunk < chunks, other=0)
        before += tl.sum(tl.where(chunk < program, tally, 0), 0)
        all_of += tl.sum(tally, 0)
        at += AT_ONCE
    all_of = tl.where(bins < EXPERTS, all_of, 0)
    starts = tl.cumsum(all_of, 0) - all_of
    if program < EXPERTS:
        start = tl.sum(tl.where(bins < program, all_of, 0), 0)
        own = tl.sum(tl.where(bins == program, all_of, 0), 0)
        first = tl.sum(tl.where(bins < program, (all_of + NT - 1) // NT, 0), 0)
        past = first + (own + NT - 1) // NT
        if program == EXPERTS - 1:
            past = blocks
        blocks_of(block_expert, block_start, block_count, program, start, own, first, past, NT)
    if program < chunks:
        place = program * CHUNK + tl.arange(0, CHUNK)
        mine = tl.load(experts + place, mask=place < pairs, other=-1)
        rank = tl.zeros([CHUNK], tl.int32)
        for piece in tl.static_range(CHUNK // PIECE):
            other_place = program * CHUNK + piece * PIECE + tl.arange(0, PIECE)
            other = tl.load(experts + other_place, mask=other_place < pairs, other=-1)
            earlier = (other[None, :] == mine[:, None]) & (other_place[None, :] < place[:, None])
            rank += tl.sum(earlier.to(tl.int32), 1)
        target = tl.gather(starts + before, tl.maximum(mine, 0), 0) + rank
        tl.store(order + target, place, mask=mine >= 0)
        tl.store(places + place, tl.where(mine >= 0, target, -1), mask=place < pairs)


@triton.jit
def spread_row(x, places, arranged, TOP: tl.constexpr, K: tl.constexpr, PIECE: tl.constexpr):
    """Program r: row r of x into the rows of arranged [pairs, K] at its pairs' places, as the products of
    many rows read it: read once and written TOP times.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PIECE)
    for piece in tl.static_range(K // PIECE):
        values = tl.load(x + row * K + piece * PIECE + column)
        values = ordered_by_words(values, PIECE // 128)
        for choice in tl.static_range(TOP):
            place = tl.load(places + row * TOP + choice).to(tl.int64)
            target = arranged + place * K + piece * PIECE + column
            tl.store(target, values, mask=(column >= 0) & (place >= 0))
