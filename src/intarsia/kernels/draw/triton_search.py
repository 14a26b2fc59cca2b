# mypy: ignore-errors
"""The likeliest token of a row, and where its allowed tokens end: top k and nucleus without sorting.

Tokens lie in one order, the likelier first, of equal ones the lower id: that of an integer made of the
logit's bits and the id. The last allowed one is found digit by digit from the top. A launch adds up, for each
value of a digit, what lies in the part of the row that is still in question and at least as high; the next
launch reads off the digit. Integers add up the same in any order.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from intarsia.kernels.draw.triton_draw import distance, gumbel

DIGIT = tl.constexpr(5)
VALUES = tl.constexpr(32)
LOWEST = tl.constexpr(-(2**31))
MINIMUM = tl.constexpr(-(2**63))
NO_ID = tl.constexpr(2**62)


@triton.jit
def order_of(logit):
    """int64 from 0 up in the order of float32 numbers; of zeros, equal ones."""
    bits = (logit + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) - LOWEST


@triton.jit
def key_of(logit, columns, IDS: tl.constexpr):
    """The place of a token in its row's order; IDS: bits of a column."""
    return (order_of(logit) << IDS) | ((1 << IDS) - 1 - columns)


@triton.jit
def mass_of(distances, coarse, fine):
    units = distances >> 12
    fraction = tl.load(coarse + ((units >> 10) & 1023)) * tl.load(fine + (units & 1023))
    return (fraction >> 22) >> tl.minimum(units >> 20, 42)


@triton.jit(do_not_specialize=["count"])
def likeliest_of_tiles(
    logits, row_stride, keys, count, TILE: tl.constexpr, IDS: tl.constexpr, OVERLAP: tl.constexpr
):
    """The highest key of a tile of a row, a NaN taken as infinity; grid [tiles, rows]."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    tile, row, tiles = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    columns = tile * TILE + tl.arange(0, TILE)
    inside = columns < count
    logit = tl.load(logits + row * row_stride + columns, inside, -float("inf"))
    logit = tl.where(logit == logit, logit, float("inf"))
    key = tl.where(inside, key_of(logit, columns.to(tl.int64), IDS), -1)
    tl.store(keys + row * tiles + tile, tl.max(key, 0))


@triton.jit(do_not_specialize=["tiles"])
def likeliest_of_rows(
    keys,
    peaks,
    tokens,
    lowest,
    sums,
    tiles,
    TILES: tl.constexpr,
    IDS: tl.constexpr,
    SUMS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The peak of each row and its token, -1 where that is not finite; grid [rows].

    `lowest` [rows], where there is one, and `sums` [rows, SUMS] begin at zero.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, TILES)
    best = tl.max(tl.load(keys + row * tiles + at, at < tiles, -1), 0)
    ordered = ((best >> IDS) + LOWEST).to(tl.int32)
    peak = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    token = (1 << IDS) - 1 - (best & ((1 << IDS) - 1))
    finite = (peak > -float("inf")) & (peak < float("inf"))
    tl.store(peaks + row, peak)
    tl.store(tokens + row, tl.where(finite, token, -1))
    if lowest is not None:
        tl.store(lowest + row, 0)
        tl.store(sums + row * SUMS + tl.arange(0, SUMS), tl.zeros([SUMS], tl.int64))


@triton.jit
def limit_of(limits, sums, row, SUMS: tl.constexpr, MASS: tl.constexpr):
    """How much the allowed tokens hold at most, without the last: a count, or a share of the whole mass."""
    if MASS:
        share = tl.load(limits + row)
        whole = tl.load(sums + row * SUMS)
        needed = tl.ceil(whole.to(tl.float64) * share).to(tl.int64)
        limit = tl.where(share >= 1, NO_ID, needed)
    else:
        top = tl.load(limits + row)
        limit = tl.where(top == 0, NO_ID, top)
    return limit


@triton.jit
def narrowed(state, sums, limit, row, step, shift, SUMS: tl.constexpr):
    """Where the part in question begins before digit `step`, and how much lies above it.

    `state` [rows, 2, 2] holds both for the digit before, in turns.
    """
    begin = tl.zeros([], tl.int64)
    above = tl.zeros([], tl.int64)
    if step > 0:
        before = state + row * 4 + ((step - 1) % 2) * 2
        begin += tl.load(before)
        above += tl.load(before + 1)
        digit = tl.arange(0, VALUES)
        held = tl.load(sums + row * SUMS + (step - 1) * VALUES + digit)
        enough = (digit > 0) & (above + held >= limit)
        chosen = tl.max(tl.where(enough, digit, 0), 0)
        above += tl.sum(tl.where(digit == chosen + 1, held, 0), 0)
        begin += chosen.to(tl.int64) << (shift + DIGIT)
    return begin, above


@triton.jit(do_not_specialize=["count", "step", "shift"])
def search_tiles(
    logits,
    row_stride,
    peaks,
    scales,
    limits,
    lowest,
    coarse,
    fine,
    state,
    sums,
    count,
    step,
    shift,
    TILE: tl.constexpr,
    IDS: tl.constexpr,
    SUMS: tl.constexpr,
    MASS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Sums of one digit, `shift` bits from the right; grid [tiles, rows].

    MASS: of masses, of tokens from `lowest` [rows] on, else of tokens. The first of a digit's sums is that of
    all in question; `limits` [rows]: shares or counts.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    tile, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    limit = limit_of(limits, sums, row, SUMS, MASS)  # of masses the first step's is not meant yet
    if limit == NO_ID:
        return
    begin, above = narrowed(state, sums, limit, row, step, shift, SUMS)
    if tile == 0:
        now = state + row * 4 + (step % 2) * 2
        tl.store(now, begin)
        tl.store(now + 1, above)
    columns = (tile * TILE + tl.arange(0, TILE)).to(tl.int64)
    logit = tl.load(logits + row * row_stride + columns, columns < count, -float("inf"))
    key = key_of(logit, columns, IDS)
    end = begin + (tl.full([], VALUES, tl.int64) << shift)
    active = (key >= begin) & (key < end) & (logit > -float("inf")) & (columns < count)
    if MASS:
        active = active & (key >= tl.load(lowest + row))
    if tl.max(active.to(tl.int32), 0) == 0:
        return
    if MASS:
        value = mass_of(distance(logit, tl.load(peaks + row), tl.load(scales + row)), coarse, fine)
        value = tl.where(active, value, 0)
    else:
        value = active.to(tl.int64)
    digit = (key - begin) >> shift
    for least in tl.static_range(VALUES):
        held = tl.sum(tl.where(digit >= least, value, 0), 0)
        tl.atomic_add(sums + row * SUMS + step * VALUES + least, held, sem="relaxed")


@triton.jit(do_not_specialize=["steps"])
def end_search(
    limits, state, sums, lowest, steps, SUMS: tl.constexpr, MASS: tl.constexpr, OVERLAP: tl.constexpr
):
    """The key of each row's last allowed token into `lowest`, if that is higher; grid [rows]."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    limit = limit_of(limits, sums, row, SUMS, MASS)
    found = tl.zeros([], tl.int64)
    if limit != NO_ID:
        begin, _ = narrowed(state, sums, limit, row, steps, -DIGIT, SUMS)
        found += begin
    if MASS:
        found = tl.maximum(found, tl.load(lowest + row))
    tl.store(lowest + row, found)
    tl.debug_barrier()
    tl.store(sums + row * SUMS + tl.arange(0, SUMS), tl.zeros([SUMS], tl.int64))  # for the next search


@triton.jit(do_not_specialize=["count"])
def noisy_allowed(
    logits,
    row_stride,
    peaks,
    scales,
    farthest,
    lowest,
    positions,
    seed_low,
    seed_high,
    values,
    ids,
    count,
    TILE: tl.constexpr,
    IDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The largest noisy value of the allowed tokens in a tile of a row and its lowest id, in the order of
    `noisy_tiles`; grid [tiles, rows].
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    tile, row, tiles = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    columns = tile * TILE + tl.arange(0, TILE)
    logit = tl.load(logits + row * row_stride + columns, columns < count, -float("inf"))
    below = distance(logit, tl.load(peaks + row), tl.load(scales + row))
    kept = (logit > -float("inf")) & (below <= tl.load(farthest + row))
    kept = kept & (key_of(logit, columns.to(tl.int64), IDS) >= tl.load(lowest + row))
    best = tl.full([], MINIMUM, tl.int64)
    chosen = tl.full([], NO_ID, tl.int64)
    if tl.max(kept.to(tl.int32), 0) > 0:
        position = tl.load(positions + row)
        token = columns.to(tl.uint32)
        zero = token * 0
        noise = gumbel(
            token,
            zero + (position & 0xFFFFFFFF).to(tl.uint32),
            zero + (position >> 32).to(tl.uint32),
            zero,
            zero + tl.load(seed_low + row).to(tl.uint32),
            zero + tl.load(seed_high + row).to(tl.uint32),
        )
        value = tl.where(kept, noise - below, MINIMUM)
        best = tl.max(value, 0)
        chosen = tl.min(tl.where(kept & (value == best), columns.to(tl.int64), NO_ID), 0)
    tl.store(values + row * tiles + tile, best)
    tl.store(ids + row * tiles + tile, chosen)


@triton.jit(do_not_specialize=["tiles"])
def drawn_of_rows(values, ids, tokens, out, tiles, TILES: tl.constexpr, OVERLAP: tl.constexpr):
    """The winner of each row's tiles, -1 where `tokens` is or nothing is allowed; grid [rows]."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, TILES)
    value = tl.load(values + row * tiles + at, at < tiles, MINIMUM)
    chosen = tl.load(ids + row * tiles + at, at < tiles, NO_ID)
    best = tl.max(value, 0)
    winner = tl.min(tl.where(value == best, chosen, NO_ID), 0)
    none = (tl.load(tokens + row) < 0) | (winner == NO_ID)
    tl.store(out + row, tl.where(none, -1, winner))
