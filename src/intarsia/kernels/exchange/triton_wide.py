# mypy: ignore-errors
"""Exchange and sum, or gather, of many numbers: written plainly, then announced, with no byte for stamps.

A program takes every so manyth chunk. It writes one into every other rank's buffer and then, with a release
that covers what its threads wrote, how many it has written so far into a word of its own there. While that
travels it waits for the same program of every other rank to have written the chunk before, and adds that in
rank order. Chunk c + 1 is written when every other rank has announced chunk c - 1, which it did after adding
chunk c - 3: so four slots a program are enough, in one call or over several.
"""

import triton
import triton.language as tl

from intarsia.kernels.exchange.triton_words import deadline, now

SLOTS = tl.constexpr(4)
WAITING = tl.constexpr(1)
LATE = tl.constexpr(2)
_LOOK = tl.constexpr("ld.acquire.sys.global.b32 $0, [$1];")
LOOKS = tl.constexpr(128)
"""Words of a look at one flag: all threads look, so that all of them see what was written before it."""


@triton.jit
def _state(flag, chunk, until):
    """0 once a flag says this chunk or a later one, else WAITING, or LATE; the same for all threads."""
    address = tl.zeros([LOOKS], tl.int64) + flag
    seen = tl.inline_asm_elementwise(_LOOK, "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1)
    late = (now() > until).to(tl.int32)
    return tl.max((seen - chunk < 0).to(tl.int32) * (WAITING + late), 0)  # a difference may wrap


@triton.jit
def _send(
    numbers, at, stride, count, total, buffers, chunk, RANK: tl.constexpr, RANKS: tl.constexpr,
    CHUNK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Write numbers to every other rank as this program's chunk of that number, the first one being 1, and
    announce it: to each those that are its own, `stride` apart.
    """
    program = tl.program_id(0)
    slot = ((((chunk & (SLOTS - 1)) * RANKS + RANK) * PROGRAMS) + program).to(tl.int64) * CHUNK
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            theirs = peer * stride + at
            number = tl.load(numbers + theirs, mask=(at < count) & (theirs < total), other=0.0)
            place = tl.load(buffers + peer).to(tl.pointer_type(tl.float32), bitcast=True)
            tl.store(tl.multiple_of(place, 16) + slot + tl.arange(0, CHUNK), number)
    tl.debug_barrier()
    flags: tl.constexpr = SLOTS * RANKS * PROGRAMS * CHUNK * 4
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            word = tl.load(buffers + peer) + flags + (RANK * PROGRAMS + program) * 4
            word = word.to(tl.pointer_type(tl.int32), bitcast=True)
            tl.atomic_xchg(word, chunk, sem="release", scope="sys")


@triton.jit
def _take(
    numbers, out, at, stride, count, total, buffers, chunk, until, RANK: tl.constexpr, RANKS: tl.constexpr,
    CHUNK: tl.constexpr, PROGRAMS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Add the ranks' numbers of a chunk in rank order, or put them beside each other, `stride` apart; whether
    one was not waited for any longer.
    """
    program = tl.program_id(0)
    mine = tl.load(buffers + RANK)
    flags: tl.constexpr = SLOTS * RANKS * PROGRAMS * CHUNK * 4
    late = False
    for source in tl.static_range(RANKS):
        if source != RANK:
            word = mine + flags + (source * PROGRAMS + program) * 4
            state = _state(word, chunk, until)
            while state == WAITING:
                state = _state(word, chunk, until)
            late = late | (state == LATE)
    tl.debug_barrier()
    here = tl.multiple_of(mine.to(tl.pointer_type(tl.float32), bitcast=True), 16)
    first = RANK * stride if ADD else 0
    inside = (at < count) & (RANK * stride + at < total)
    own = tl.load(numbers + first + at, mask=inside, other=0.0)
    sum_of = own
    for source in tl.static_range(RANKS):
        if source == RANK:
            part = own
        else:
            slot = ((((chunk & (SLOTS - 1)) * RANKS + source) * PROGRAMS) + program).to(tl.int64) * CHUNK
            part = tl.load(here + slot + tl.arange(0, CHUNK), cache_modifier=".cg")
            part = tl.where(late, float("nan"), part)
        if ADD:
            sum_of = part if source == 0 else sum_of + part
        else:
            theirs = source * stride + at
            tl.store(out + theirs, part, mask=(at < count) & (theirs < total))
    if ADD:
        tl.store(out + at, sum_of, mask=inside)
    return late


@triton.jit(do_not_specialize=["limit"])
def exchange_wide(
    numbers, out, buffers, calls, failed, stride, count, total, limit, RANK: tl.constexpr,
    RANKS: tl.constexpr, CHUNK: tl.constexpr, PROGRAMS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Sums over ranks, rank 0 first, float32; without ADD a gather of words.

    ADD: out [count] = the sums of numbers [rank * stride ..], as far as there are `total` of them; stride 0
    for sums of all numbers. Else out [total] = the ranks' numbers [count], `stride` apart.

    buffers int64 [RANKS]: addresses of float32 [SLOTS, RANKS, PROGRAMS, CHUNK] and, behind them, int32
    [RANKS, PROGRAMS]. calls int32 [PROGRAMS]: chunks that each program has exchanged. failed int32 [1]: set
    when another rank does not come in `limit` ms; its numbers are NaN then.
    """
    program = tl.program_id(0)
    done = tl.load(calls + program)
    turns = tl.cdiv(tl.maximum(count - program * CHUNK, 0), CHUNK * PROGRAMS)  # of this program, on any rank
    until = deadline(failed, limit)
    lane = tl.arange(0, CHUNK)
    late = False
    apart = stride if ADD else 0
    end = total if ADD else total - RANK * stride
    for turn in range(turns + 1):
        if turn < turns:
            at = (turn * PROGRAMS + program) * CHUNK + lane
            _send(numbers, at, apart, count, end, buffers, done + turn + 1, RANK, RANKS, CHUNK, PROGRAMS)
        if turn > 0:
            at = ((turn - 1) * PROGRAMS + program) * CHUNK + lane
            slow = _take(
                numbers, out, at, stride, count, total, buffers, done + turn, until, RANK, RANKS, CHUNK,
                PROGRAMS, ADD,
            )  # fmt: skip
            late = late | slow
    tl.debug_barrier()
    tl.store(calls + program, done + turns)
    if late:
        tl.store(failed, 1)
