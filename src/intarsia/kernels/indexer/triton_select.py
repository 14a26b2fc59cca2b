# mypy: ignore-errors
"""The best pools of a row, exactly: of equal scores those with the lowest number; then their tokens.

Scores become integers in the same order. The largest number that at least KEEP of them reach is found by
narrowing the range between the lowest and the highest, each time to about a third by counting all; it ends
early when exactly KEEP reach it. Those above it are kept, and of those equal to it the first, in the order of
their numbers.

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
def bounds(low, high, count, other_low, other_high, other_count):
    return tl.minimum(low, other_low), tl.maximum(high, other_high), count + other_count


@triton.jit
def cut(low, high, turn, PART: tl.constexpr):
    """The number from low + 1 to high at PART thirds of the way: between their scores, or at times between
    the numbers themselves, which ends a search among scores of any size.
    """
    first = tl.where(low < 0, low ^ 0x7FFFFFFF, low).to(tl.float32, bitcast=True)
    last = tl.where(high < 0, high ^ 0x7FFFFFFF, high).to(tl.float32, bitcast=True)
    even = ordered(first + (last - first) * (PART / 3.0))
    way = (high - low).to(tl.uint32, bitcast=True) // 3 * PART
    number = low + way.to(tl.int32, bitcast=True)
    return tl.minimum(tl.maximum(tl.where(turn % 4 == 3, number, even), low + 1), high)


@triton.jit
def narrowed(low, high, reached, passed, middle, count, KEEP: tl.constexpr):
    """The bounds, and how many reach `low` and are above `high`, where `count` reach `middle`."""
    enough = count >= KEEP
    below = (count < KEEP) & (middle <= high)
    low, reached = tl.where(enough, middle, low), tl.where(enough, count, reached)
    return low, tl.where(below, middle - 1, high), reached, tl.where(below, count, passed)


@triton.jit
def best(key, KEEP: tl.constexpr):
    """Which of `key` are among the KEEP largest that are not NONE, how many of those come before each, and
    how many they are.
    """
    there = key != NONE
    lowest = tl.where(there, key, 2**31 - 1)
    low, high, reached = tl.reduce((lowest, key, there.to(tl.int32)), 0, bounds)
    found = tl.minimum(reached, KEEP)
    passed = reached * 0
    if reached <= KEEP:
        high = low
    turn = passed
    while low < high:
        a, b = cut(low, high, turn, 1), cut(low, high, turn, 2)
        # Two counts in a word.
        counts = tl.sum((key >= a).to(tl.int32) | ((key >= b).to(tl.int32) << 16), 0)
        low, high, reached, passed = narrowed(low, high, reached, passed, a, counts & 0xFFFF, KEEP)
        low, high, reached, passed = narrowed(low, high, reached, passed, b, counts >> 16, KEEP)
        if reached == KEEP:
            high = low
        turn += 1
    above = (key > low) & there
    equal = (key == low) & there
    # Where just KEEP reach `low` it does not matter how many of them are above it.
    missing = KEEP - passed
    counts = tl.cumsum(above.to(tl.int32) | (equal.to(tl.int32) << 16), 0)
    up_to = counts >> 16
    chosen = above | (equal & (up_to <= missing))
    return chosen, (counts & 0xFFFF) + tl.minimum(up_to, missing) - 1, found


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
    SMALL: tl.constexpr,
    MIDDLE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """scores float32 [rows, width] of the rows from `base` on; selected int32 [R, TOP + GROUP - 1]; kept
    int32 [rows, CHUNKS, TOP / GROUP]. Rows that see one chunk are done. The grid is [CHUNKS, rows]; up to
    SMALL and MIDDLE pools are dealt with by code for no more.
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
    if seen <= SMALL:
        choose_pools(scores, line, width, seen, 0, position, target, TOP, TOP_SIZE, GROUP, SMALL)
        return
    if MIDDLE > SMALL and seen <= MIDDLE:
        choose_pools(scores, line, width, seen, 0, position, target, TOP, TOP_SIZE, GROUP, MIDDLE)
        return
    if CHUNKS == 1 or seen <= CHUNK:
        choose_pools(scores, line, width, seen, 0, position, target, TOP, TOP_SIZE, GROUP, CHUNK)
    else:
        pool = chunk * CHUNK + tl.arange(0, CHUNK)
        score = tl.load(scores + line * width + pool, mask=pool < seen, other=-float("inf"))
        key = ordered(score)
        chosen, at, found = best(key, KEEP)
        kept = (line * CHUNKS + chunk) * KEEP
        tl.store(kept_pools + kept + at, pool, mask=chosen)
        tl.store(kept_keys + kept + at, key, mask=chosen)
        slot = tl.arange(0, TOP_SIZE)
        tl.store(
            kept_keys + kept + slot, tl.full([TOP_SIZE], NONE, tl.int32), mask=(slot >= found) & (slot < KEEP)
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
    chosen, at, found = best(ordered(score), TOP // GROUP)
    write_tokens(target, pool, at, chosen, GROUP)
    write_rest(target, found * GROUP, position, TOP, TOP_SIZE, GROUP)


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
    chosen, at, found = best(key, KEEP)
    pool = tl.load(kept_pools + line * CHUNKS * KEEP + slot, mask=chosen, other=0)
    target = selected + row * (TOP + GROUP - 1)
    write_tokens(target, pool, at, chosen, GROUP)
    write_rest(target, found * GROUP, position, TOP, TOP_SIZE, GROUP)
