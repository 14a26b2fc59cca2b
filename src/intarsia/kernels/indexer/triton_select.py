# mypy: ignore-errors
"""The best pools of a row, exactly: of equal scores those with the lowest number; then their tokens.

Scores become integers in the same order. The largest number that at least KEEP of them reach is found by
narrowing the range between the lowest and the highest, each time by counting all; it ends early when exactly
KEEP reach it. Those above it are kept, and of those equal to it the first, in the order of their numbers.

A row sees few pools, or one chunk of them, or several: several chunks leave their best to a second kernel,
which chooses among those. That changes nothing, since a pool among the best of all is among the best of its
chunk.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

NONE = tl.constexpr(-(2**31))


@triton.jit
def ordered(score):
    """Integers in the order of the scores; the same for both zeros, NONE for minus infinity."""
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(score == -float("inf"), NONE, key)


@triton.jit
def between(low, high, reached, passed, KEEP: tl.constexpr):
    """A guess from low + 1 to high at the number that KEEP reach, if `reached` reach `low` and `passed` are
    above `high`, and their logarithm falls evenly.
    """
    first = tl.where(low < 0, low ^ 0x7FFFFFFF, low).to(tl.float32, bitcast=True)
    last = tl.where(high < 0, high ^ 0x7FFFFFFF, high).to(tl.float32, bitcast=True)
    most = tl.log2(reached.to(tl.float32))
    least = tl.log2(tl.maximum(passed.to(tl.float32), 0.5))
    share = (most - tl.log2(KEEP + 0.0)) / (most - least)
    guess = ordered(first + (last - first) * share)
    return tl.minimum(tl.maximum(guess, low + 1), high)


@triton.jit
def best(key, KEEP: tl.constexpr):
    """Which of `key` are among the KEEP largest that are not NONE, and how many of those come before each."""
    there = key != NONE
    low = tl.min(tl.where(there, key, 2**31 - 1), 0)
    high = tl.max(key, 0)
    reached = tl.sum(there.to(tl.int32), 0)
    passed = reached * 0
    if reached <= KEEP:
        high = low
    turn = passed
    while low < high:
        # By halving, a search ends; by guessing, it mostly ends soon.
        middle = (low | high) - ((low ^ high) >> 1)
        if turn % 2 == 0:
            middle = between(low, high, reached, passed, KEEP)
        count = tl.sum((key >= middle).to(tl.int32), 0)
        if count >= KEEP:
            low = middle
            reached = count
            high = tl.where(count == KEEP, middle, high)
        else:
            high = middle - 1
            passed = count
        turn += 1
    above = (key > low) & there
    equal = (key == low) & there
    missing = KEEP - tl.sum(above.to(tl.int32), 0)
    counts = tl.cumsum(above.to(tl.int32) | (equal.to(tl.int32) << 16), 0)
    up_to = counts >> 16
    chosen = above | (equal & (up_to <= missing))
    return chosen, (counts & 0xFFFF) + tl.minimum(up_to, missing) - 1


@triton.jit
def write_tokens(target, pool, at, chosen, GROUP: tl.constexpr):
    for j in tl.static_range(GROUP):
        tl.store(target + at * GROUP + j, pool * GROUP + j, mask=chosen)


@triton.jit
def write_rest(target, count, position, TOP: tl.constexpr, TOP_SIZE: tl.constexpr, GROUP: tl.constexpr):
    """-1 after `count` tokens, and the tokens of the unfinished pool in the last places."""
    slot = tl.arange(0, TOP_SIZE)
    tl.store(target + slot, tl.full([TOP_SIZE], -1, tl.int32), mask=(slot >= count) & (slot < TOP))
    begin = (position + 1) // GROUP * GROUP
    for j in tl.static_range(GROUP - 1):
        tl.store(target + TOP + j, tl.where(begin + j <= position, begin + j, -1))


@triton.jit(do_not_specialize=["base"])
def select_chunks(
    scores,
    positions,
    streams,
    selected,
    kept_pools,
    kept_keys,
    base,
    width,
    TOP: tl.constexpr,
    TOP_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    LEAST: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """scores float32 [rows, width] of the rows from `base` on; selected int32 [R, TOP + GROUP - 1]; kept
    int32 [rows, CHUNKS, TOP / GROUP]. Rows that see one chunk are done. The grid is [CHUNKS, rows]; LEAST: up
    to so many pools are dealt with by code for no more.
    """
    KEEP: tl.constexpr = TOP // GROUP
    chunk = tl.program_id(0)
    line = tl.program_id(1).to(tl.int64)
    row = line + base
    # No launch of a step writes which rows there are.
    position = tl.load(positions + row)
    real = tl.load(streams + row) >= 0
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    seen = tl.minimum((position + 1) // GROUP, width)
    target = selected + row * (TOP + GROUP - 1)
    if not real:
        if chunk == 0:
            write_rest(target, 0, -1, TOP, TOP_SIZE, GROUP)
        return
    if seen <= KEEP:
        if chunk == 0:
            slot = tl.arange(0, TOP_SIZE)
            tl.store(target + slot, slot, mask=slot < seen * GROUP)
            write_rest(target, seen * GROUP, position, TOP, TOP_SIZE, GROUP)
        return
    if chunk * CHUNK >= seen:
        return
    if seen <= LEAST:
        choose_pools(scores, line, width, seen, 0, position, target, TOP, TOP_SIZE, GROUP, LEAST)
    elif CHUNKS == 1 or seen <= CHUNK:
        choose_pools(scores, line, width, seen, 0, position, target, TOP, TOP_SIZE, GROUP, CHUNK)
    else:
        pool = chunk * CHUNK + tl.arange(0, CHUNK)
        score = tl.load(scores + line * width + pool, mask=pool < seen, other=-float("inf"))
        key = ordered(score)
        chosen, at = best(key, KEEP)
        kept = (line * CHUNKS + chunk) * KEEP
        tl.store(kept_pools + kept + at, pool, mask=chosen)
        tl.store(kept_keys + kept + at, key, mask=chosen)
        count = tl.sum(chosen.to(tl.int32), 0)
        slot = tl.arange(0, TOP_SIZE)
        tl.store(
            kept_keys + kept + slot, tl.full([TOP_SIZE], NONE, tl.int32), mask=(slot >= count) & (slot < KEEP)
        )


@triton.jit
def choose_pools(
    scores,
    line,
    width,
    seen,
    first,
    position,
    target,
    TOP: tl.constexpr,
    TOP_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
):
    pool = first + tl.arange(0, SIZE)
    score = tl.load(scores + line * width + pool, mask=pool < seen, other=-float("inf"))
    chosen, at = best(ordered(score), TOP // GROUP)
    write_tokens(target, pool, at, chosen, GROUP)
    write_rest(target, tl.sum(chosen.to(tl.int32), 0) * GROUP, position, TOP, TOP_SIZE, GROUP)


@triton.jit(do_not_specialize=["base"])
def select_kept(
    positions,
    streams,
    selected,
    kept_pools,
    kept_keys,
    base,
    TOP: tl.constexpr,
    TOP_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SIZE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Chooses among what the chunks kept, for rows that see several. SIZE: a power of two, at least all of a
    row's kept pools. The grid is [rows].
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    KEEP: tl.constexpr = TOP // GROUP
    line = tl.program_id(0).to(tl.int64)
    row = line + base
    position = tl.load(positions + row)
    seen = (position + 1) // GROUP
    if (tl.load(streams + row) < 0) | (seen <= CHUNK):
        return
    slot = tl.arange(0, SIZE)
    there = (slot // KEEP * CHUNK < seen) & (slot < CHUNKS * KEEP)
    key = tl.load(kept_keys + line * CHUNKS * KEEP + slot, mask=there, other=NONE)
    chosen, at = best(key, KEEP)
    pool = tl.load(kept_pools + line * CHUNKS * KEEP + slot, mask=chosen, other=0)
    target = selected + row * (TOP + GROUP - 1)
    write_tokens(target, pool, at, chosen, GROUP)
    write_rest(target, tl.sum(chosen.to(tl.int32), 0) * GROUP, position, TOP, TOP_SIZE, GROUP)
