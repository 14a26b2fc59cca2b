# mypy: ignore-errors
"""Exchange and sum of many numbers: written plainly, then announced, so that no byte is spent on stamps.

A program takes every so manyth chunk. It writes one into every other rank's buffer and then, with a release
that covers what its threads wrote, how many it has written so far into a word of its own there. While that
travels it waits for the same program of every other rank to have written the chunk before, and adds that in
rank order. Chunk c + 1 is written when every other rank has announced chunk c - 1, which it did after adding
chunk c - 3: so four slots a program are enough, in one call or over several.
"""

import triton
import triton.language as tl

from intarsia.kernels.exchange.triton_exchange import LATE, WAITING, now

SLOTS = tl.constexpr(4)
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
    own, buffers, chunk, RANK: tl.constexpr, RANKS: tl.constexpr, CHUNK: tl.constexpr, PROGRAMS: tl.constexpr
):
    """Write numbers as this program's chunk of that number, the first one being 1, and announce it."""
    program = tl.program_id(0)
    slot = ((((chunk & (SLOTS - 1)) * RANKS + RANK) * PROGRAMS) + program).to(tl.int64) * CHUNK
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            place = tl.load(buffers + peer).to(tl.pointer_type(tl.float32), bitcast=True)
            tl.store(tl.multiple_of(place, 16) + slot + tl.arange(0, CHUNK), own)
    tl.debug_barrier()
    flags: tl.constexpr = SLOTS * RANKS * PROGRAMS * CHUNK * 4
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            word = tl.load(buffers + peer) + flags + (RANK * PROGRAMS + program) * 4
            tl.atomic_xchg(
                word.to(tl.pointer_type(tl.int32), bitcast=True), chunk, sem="release", scope="sys"
            )


@triton.jit
def _add(
    own,
    buffers,
    chunk,
    until,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    CHUNK: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """The ranks' numbers of a chunk added in rank order, and whether one was not waited for any longer."""
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
    total = own
    for source in tl.static_range(RANKS):
        if source == RANK:
            part = own
        else:
            slot = ((((chunk & (SLOTS - 1)) * RANKS + source) * PROGRAMS) + program).to(tl.int64) * CHUNK
            part = tl.load(here + slot + tl.arange(0, CHUNK), cache_modifier=".cg")
        total = part if source == 0 else total + part
    return total, late


@triton.jit(do_not_specialize=["limit"])
def exchange_wide(
    partial,
    out,
    buffers,
    calls,
    failed,
    count,
    limit,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    CHUNK: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """out [count] = the sum over ranks of partial [count], float32, rank 0 first.

    buffers int64 [RANKS]: addresses of float32 [SLOTS, RANKS, PROGRAMS, CHUNK] and, behind them, int32
    [RANKS, PROGRAMS]. calls int32 [PROGRAMS]: chunks that each program has exchanged. failed int32 [1]: set
    when another rank does not come in `limit` ms.
    """
    program = tl.program_id(0)
    first = tl.load(calls + program) + 1
    turns = tl.cdiv(count, CHUNK * PROGRAMS)
    until = now() + limit.to(tl.int64) * 1000000
    lane = tl.arange(0, CHUNK)
    at = program * CHUNK + lane
    own = tl.load(partial + at, mask=at < count, other=0.0)
    _send(own, buffers, first, RANK, RANKS, CHUNK, PROGRAMS)
    late = False
    for turn in range(1, turns):
        at = (turn * PROGRAMS + program) * CHUNK + lane
        before = own
        own = tl.load(partial + at, mask=at < count, other=0.0)
        _send(own, buffers, first + turn, RANK, RANKS, CHUNK, PROGRAMS)
        total, slow = _add(before, buffers, first + turn - 1, until, RANK, RANKS, CHUNK, PROGRAMS)
        tl.store(out + at - CHUNK * PROGRAMS, total)  # all but the last chunk are whole
        late = late | slow
    total, slow = _add(own, buffers, first + turns - 1, until, RANK, RANKS, CHUNK, PROGRAMS)
    at = ((turns - 1) * PROGRAMS + program) * CHUNK + lane
    tl.store(out + at, total, mask=at < count)
    tl.debug_barrier()
    tl.store(calls + program, first + turns - 1)
    if late | slow:
        tl.store(failed, 1)
