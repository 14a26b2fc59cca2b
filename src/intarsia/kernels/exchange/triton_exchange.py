# mypy: ignore-errors
"""Exchange and sum, or gather, in one kernel.

A rank writes its numbers into a place of its own in every other rank's buffer, each with the number of the
call. It then reads its own buffer until all places hold this call, and adds in rank order. The two halves of
the buffers take turns: a program that writes call c + 2 has all of call c + 1, which the other rank sent
after it had read call c. That holds for a program by itself, so whatever is exchanged in other tiles has
buffers and calls of its own.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from intarsia.kernels.exchange.triton_words import addresses, after, patience, put, sum_over_ranks, take


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
    PACK: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """out [count] = the sum over ranks of partial [count], float32, rank 0 first; without ADD out
    [RANKS, count] = all ranks' int32 numbers. NaN where another rank's did not come.

    buffers int64 [RANKS]: addresses of int32 pairs [2, RANKS, room]. calls int32 [room / TILE]: how often
    each tile was exchanged. failed int32 [1]: set when another rank's numbers do not come in `limit` ms.
    PACK: numbers of a thread.
    """
    tile = tl.program_id(0)
    at = tile * TILE + tl.arange(0, TILE)
    inside = at < count
    places = addresses(buffers, RANKS)
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()  # while other ranks are waited for, the next kernel may get ready
    own = tl.load(partial + at, mask=inside, other=0)
    call = tl.load(calls + tile) + 1
    half = (call & 1).to(tl.int64) * RANKS * room  # not %: the count may wrap
    if ADD:
        wait = patience(failed, limit)
        total = sum_over_ranks(own, inside, at, places, half, room, call, failed, wait, RANK, RANKS, PACK)
        tl.store(out + at, total, mask=inside)
    else:
        wanted = inside.to(tl.int32)
        for peer in tl.static_range(RANKS):
            if peer != RANK:
                wanted = put(places[peer] + (half + RANK * room + at) * 8, own, call, wanted)
        until = after(patience(failed, limit))
        for source in tl.static_range(RANKS):
            number = own
            if source != RANK:
                there = places[RANK] + (half + source * room + at) * 8
                number = take(there, call, wanted, until, failed, PACK)
            tl.store(out + source * count + at, number, mask=inside)
    tl.debug_barrier()
    tl.store(calls + tile, call)
