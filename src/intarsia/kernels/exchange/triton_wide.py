# mypy: ignore-errors
"""Exchange and sum of many numbers: written plainly, then announced, so that no byte is spent on stamps.

A program writes its part of this rank's numbers into every other rank's buffer, and then, with a release that
covers what its threads wrote, the number of the call into a word of its own there. It waits for the same
program of every other rank, and adds in rank order. All programs take part in every call. The two halves of
the buffers take turns: call c + 2 is launched after call c + 1 has heard from all ranks, which spoke after
their call c was over.
"""

import triton
import triton.language as tl

from intarsia.kernels.exchange.triton_exchange import LATE, WAITING, now

_LOOK = tl.constexpr("ld.acquire.sys.global.b32 $0, [$1];")
LOOKS = tl.constexpr(128)
"""Words of a look at one flag: all threads look, so that all of them see what was written before it."""


@triton.jit
def _state(flag, call, until):
    """0 once a flag says this call or a later one, else WAITING, or LATE; the same for all threads."""
    address = tl.zeros([LOOKS], tl.int64) + flag
    seen = tl.inline_asm_elementwise(_LOOK, "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1)
    late = (now() > until).to(tl.int32)
    return tl.max((seen < call).to(tl.int32) * (WAITING + late), 0)


@triton.jit(do_not_specialize=["limit"])
def exchange_wide(
    partial,
    out,
    buffers,
    calls,
    failed,
    count,
    room,
    limit,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    TILE: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """out [count] = the sum over ranks of partial [count], float32, rank 0 first.

    buffers int64 [RANKS]: addresses of float32 [2, RANKS, room] and, behind them, int32 [RANKS, PROGRAMS].
    calls int32 [PROGRAMS]. failed int32 [1]: set when another rank does not come in `limit` ms.
    """
    program = tl.program_id(0)
    call = tl.load(calls + program) + 1
    half = (call % 2).to(tl.int64) * RANKS * room
    each = tl.cdiv(tl.cdiv(count, TILE), PROGRAMS) * TILE
    begin = program * each
    end = tl.minimum(begin + each, count)
    lane = tl.arange(0, TILE)
    for first in range(begin, end, TILE):
        at = first + lane
        own = tl.load(partial + at, mask=at < end, other=0.0)
        for peer in tl.static_range(RANKS):
            if peer != RANK:
                place = tl.load(buffers + peer).to(tl.pointer_type(tl.float32), bitcast=True)
                place = tl.multiple_of(place, 16)
                tl.store(place + half + RANK * room + at, own, mask=at < end)
    tl.debug_barrier()
    flags = (2 * RANKS * room).to(tl.int64) * 4
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            word = tl.load(buffers + peer) + flags + (RANK * PROGRAMS + program) * 4
            tl.atomic_xchg(word.to(tl.pointer_type(tl.int32), bitcast=True), call, sem="release", scope="sys")
    mine = tl.load(buffers + RANK)
    until = now() + limit.to(tl.int64) * 1000000
    late = False
    for source in tl.static_range(RANKS):
        if source != RANK:
            word = mine + flags + (source * PROGRAMS + program) * 4
            state = _state(word, call, until)
            while state == WAITING:
                state = _state(word, call, until)
            late = late | (state == LATE)
    tl.debug_barrier()
    here = tl.multiple_of(mine.to(tl.pointer_type(tl.float32), bitcast=True), 16) + half
    for first in range(begin, end, TILE):
        at = first + lane
        inside = at < end
        total = tl.zeros([TILE], tl.float32)
        for source in tl.static_range(RANKS):
            if source == RANK:
                part = tl.load(partial + at, mask=inside, other=0.0)
            else:
                part = tl.load(here + source * room + at, mask=inside, other=0.0, cache_modifier=".cg")
            total = part if source == 0 else total + part
        tl.store(out + at, total, mask=inside)
    tl.debug_barrier()
    tl.store(calls + program, call)
    if late:
        tl.store(failed, 1)
