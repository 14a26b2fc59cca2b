# mypy: ignore-errors
"""Exchange and sum, or gather, in one kernel: each number travels with the number of its call, so nothing
is fenced.

A rank writes its numbers into a place of its own in every other rank's buffer, eight bytes each: the number
and the call. It then reads its own buffer until all places hold this call, and adds in rank order. The two
halves of the buffers take turns: a program that writes call c + 2 has all of call c + 1, which the other
rank sent after it had read call c.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_PUT = tl.constexpr("""{
    .reg .b64 word;
    mov.b64 word, {$2, $3};
    st.relaxed.sys.global.b64 [$1], word;
    mov.b32 $0, 0;
}""")
_GET = tl.constexpr("""{
    .reg .b64 word;
    ld.relaxed.sys.global.b64 word, [$2];
    mov.b64 {$0, $1}, word;
}""")


WAITING = tl.constexpr(1)
LATE = tl.constexpr(2)
NO_NUMBER = tl.constexpr(0x7FFFFFFF)
"""What stands for numbers that did not come: a NaN, which no token is drawn from."""


@triton.jit
def _put(address, number, call):
    tl.inline_asm_elementwise(
        _PUT, "=r,l,r,r", [address, number, call], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _get(address):
    return tl.inline_asm_elementwise(
        _GET, "=r,=r,l", [address], dtype=(tl.int32, tl.int32), is_pure=False, pack=1
    )


@triton.jit
def now():
    """Nanoseconds of the device's clock."""
    return tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def deadline(failed, limit):
    """When waiting ends: at once where a rank failed to come before, so that a step waits only once."""
    gone = tl.load(failed)
    return now() + tl.where(gone == 0, limit.to(tl.int64), 0) * 1000000


@triton.jit
def _waits(seen, stamp, until):
    """0 once all words of a tile hold this call, else WAITING, or LATE; the same for all threads."""
    late = (now() > until).to(tl.int32)
    return tl.max((seen != stamp).to(tl.int32) * (WAITING + late), 0)


@triton.jit(do_not_specialize=["count", "limit"])
def exchange(
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
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """out [count] = the sum over ranks of partial [count], float32, rank 0 first; without ADD out
    [RANKS, count] = all ranks' int32 numbers. NaN where another rank's did not come.

    buffers int64 [RANKS]: addresses of int32 pairs [2, RANKS, room]. calls int32 [room / TILE]: how often
    each tile was exchanged. failed int32 [1]: set when another rank's numbers do not come in `limit` ms.
    """
    tile = tl.program_id(0)
    at = tile * TILE + tl.arange(0, TILE)
    inside = at < count
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()  # while other ranks are waited for, the next kernel may get ready
    own = tl.load(partial + at, mask=inside, other=0)
    call = tl.load(calls + tile) + 1
    half = (call & 1).to(tl.int64) * RANKS * room  # not %: the count may wrap
    words = own.to(tl.int32, bitcast=True) if ADD else own
    stamp = tl.zeros([TILE], tl.int32) + call
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            place = tl.load(buffers + peer) + (half + RANK * room + at) * 8
            _put(place, words, stamp)
    mine = tl.load(buffers + RANK)
    until = deadline(failed, limit)
    late = False
    total = own
    for source in tl.static_range(RANKS):
        if source == RANK:
            number = words
        else:
            place = mine + (half + source * room + at) * 8
            number, seen = _get(place)
            state = _waits(seen, stamp, until)
            while state == WAITING:
                number, seen = _get(place)
                state = _waits(seen, stamp, until)
            late = late | (state == LATE)
            number = tl.where(state == LATE, NO_NUMBER, number)
        if ADD:
            part = number.to(tl.float32, bitcast=True)
            total = part if source == 0 else total + part
        else:
            tl.store(out + source * count + at, number, mask=inside)
    if ADD:
        tl.store(out + at, total, mask=inside)
    tl.debug_barrier()
    tl.store(calls + tile, call)
    if late:
        tl.store(failed, 1)
