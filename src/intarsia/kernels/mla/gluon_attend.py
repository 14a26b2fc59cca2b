# mypy: ignore-errors
"""Softmax attention over gathered latents for Hopper: 64 heads of a row against tiles of 64 latents.

Two warp groups share a tile: of its scores each computes those of half of the tokens, of the sums each those
of half of the columns, and what one needs of the other goes through shared memory. The next tile's latents
are copied while a tile is multiplied. Tiles, ranges and what is left out are those of `triton_attend`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

TB = gl.constexpr(64)
HB = gl.constexpr(64)
WARPS = gl.constexpr(8)
LOWEST = gl.constexpr(-1e38)
PLACES = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def places_of(table, position, PAGE: gl.constexpr):
    """Where latents of positions lie in the cache; -1 where there is no position."""
    page = gl.load(table + position // PAGE, mask=position >= 0, other=0)
    return gl.where(position >= 0, page * PAGE + position % PAGE, -1)


@gluon.jit
def keep_places(
    places,
    chosen,
    table,
    first,
    end,
    slots,
    MAIN: gl.constexpr,
    SIZE: gl.constexpr,
    PAGE: gl.constexpr,
    NUM_WARPS: gl.constexpr,
):
    """Put places of latents into shared memory [2 SIZE, TB]: those of SIZE tiles from tile `first` on, as far
    as slot `end`, and of the tile from slot MAIN on after them. How many tiles reach to the last position,
    and whether the last tile has one.

    Once for all tiles: their reads are on their way together, and a tile's copy waits for none of them.
    """
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [NUM_WARPS], [0])
    inside = gl.arange(0, SIZE * TB, layout=LINE)
    position = gl.load(chosen + first * TB + inside, mask=first * TB + inside < end, other=-1)
    slot = MAIN + gl.arange(0, TB, layout=LINE)
    last = gl.load(chosen + slot, mask=slot < slots, other=-1)
    used = gl.where(position >= 0, inside // TB + 1, 0)
    flat = places._reinterpret(gl.int32, [2 * SIZE * TB], PLACES)
    flat.slice(0, SIZE * TB).store(places_of(table, position, PAGE))
    flat.slice(SIZE * TB, TB).store(places_of(table, last, PAGE))
    return gl.max(used, 0), gl.max((last >= 0).to(gl.int32), 0)


@gluon.jit
def copy_tile(cache, place, buffer, L: gl.constexpr, GATHER: gl.constexpr):
    """Begin to copy a tile's latents; zeros where there is none."""
    c = gl.arange(0, L, layout=gl.SliceLayout(0, GATHER))
    at = gl.maximum(place, 0).to(gl.int64) * L
    source = cache + (gl.expand_dims(at, 1) + gl.expand_dims(c, 0))
    async_copy.async_copy_global_to_shared(buffer, source, mask=gl.expand_dims(place >= 0, 1))
    async_copy.commit_group()


@gluon.jit(do_not_specialize=["table_width", "base", "begin_at", "end_at", "run"])
def attend_tiles(
    q,
    cache,
    selected,
    page_table,
    streams,
    starts,
    out,
    parts,
    stats,
    factor,
    table_width,
    base,
    begin_at,
    end_at,
    slots,
    run,
    H: gl.constexpr,
    L: gl.constexpr,
    PAGE: gl.constexpr,
    EACH: gl.constexpr,
    EACH_SIZE: gl.constexpr,
    TILES: gl.constexpr,
    SPLITS: gl.constexpr,
    PROMPT: gl.constexpr,
    EARLY: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """Ranges of a row and 64 heads, of rows from `base` on: sums into `parts` and `stats` as `attend_ranges`
    has them; or, if there is but one range, results and zeros for padding rows into `out` as `attend_rows`.

    Rows from starts[begin_at] to starts[end_at] are dealt with. The grid is [SPLITS / run, blocks
    of heads, R]: a program takes `run` ranges one after another. EARLY: everything but `q` was written before
    the launch before this one.
    """
    GATHER: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, TB // 2, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, L // 2, 16])
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TB, L], gl.bfloat16)
    NARROW: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HB, TB], gl.bfloat16)
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    LINES: gl.constexpr = gl.SliceLayout(1, GATHER)
    MAIN: gl.constexpr = (TILES - 1) * TB
    row = base + gl.program_id(2)
    stream = gl.load(streams + row)
    end = gl.load(starts + end_at)
    others = (row < gl.load(starts + begin_at)) | (row >= end)
    if OVERLAP and not EARLY:
        gdc_wait()
        gdc_launch_dependents()
    if others:
        if OVERLAP and EARLY:
            gdc_wait()
            gdc_launch_dependents()
        if PROMPT:
            h = gl.program_id(1) * HB + gl.arange(0, HB, layout=LINES)
            c = gl.arange(0, L, layout=gl.SliceLayout(0, GATHER))
            own = (row.to(gl.int64) * H + h) * L
            zeros = gl.full([HB, L], 0.0, out.dtype.element_ty, GATHER)
            place = out + (gl.expand_dims(own, 1) + gl.expand_dims(c, 0))
            gl.store(place, zeros, mask=gl.expand_dims((h < H) & (row >= end), 1))
        return
    chosen = selected + row.to(gl.int64) * slots
    table = page_table + stream.to(gl.int64) * table_width
    latents = gl.allocate_shared_memory(gl.bfloat16, [2, TB, L], WIDE)
    queries = gl.allocate_shared_memory(gl.bfloat16, [HB, L], WIDE)
    powers = gl.allocate_shared_memory(gl.bfloat16, [HB, TB], NARROW)
    places = gl.allocate_shared_memory(gl.int32, [2 * EACH_SIZE, TB], PLACES)
    nothing = gl.full([HB, TB], 0.0, gl.float32, SCORES)
    begin = gl.program_id(0) * run
    for split in range(begin, gl.minimum(begin + run, SPLITS)):
        first = split * EACH
        limit = gl.minimum(gl.minimum(slots, MAIN), (first + EACH) * TB)
        main, tail = keep_places(places, chosen, table, first, limit, slots, MAIN, EACH_SIZE, PAGE, WARPS)
        count = main + tail * (split == SPLITS - 1).to(gl.int32)
        gl.thread_barrier()
        tile = gl.where(main > 0, 0, EACH_SIZE)
        copy_tile(cache, places.index(tile).load(LINES), latents.index(0), L, GATHER)
        if split == begin:
            if OVERLAP and EARLY:
                gdc_wait()
                gdc_launch_dependents()
            h = gl.program_id(1) * HB + gl.arange(0, HB, layout=LINES)
            copy_tile(q, gl.where(h < H, row * H + h, -1), queries, L, GATHER)
        most = gl.full([HB], LOWEST, gl.float32, gl.SliceLayout(1, SCORES))
        weight = gl.full([HB, TB], 0.0, gl.float32, SCORES)
        total = gl.full([HB, L], 0.0, gl.float32, SUMS)
        for index in range(count):
            async_copy.wait_group(0)
            fence_async_shared()
            gl.thread_barrier()
            here = latents.index(index % 2)
            score = warpgroup_mma(queries, here.permute((1, 0)), nothing, use_acc=False, is_async=True)
            ahead = gl.where(index + 1 < main, index + 1, EACH_SIZE)
            # The other buffer is free: products with it were waited for.
            if index + 1 < count:
                copy_tile(cache, places.index(ahead).load(LINES), latents.index((index + 1) % 2), L, GATHER)
            seen = places.index(tile).load(gl.SliceLayout(0, SCORES)) >= 0
            tile = ahead
            score = warpgroup_mma_wait(0, [score]) * factor
            score = gl.where(gl.expand_dims(seen, 0), score, -float("inf"))
            higher = gl.maximum(most, gl.max(score, 1))
            shrink = gl.exp2(most - higher)
            power = gl.exp2(score - gl.expand_dims(higher, 1))
            weight = weight * gl.expand_dims(shrink, 1) + power
            powers.store(power.to(gl.bfloat16))
            fence_async_shared()
            total = total * gl.expand_dims(gl.convert_layout(shrink, gl.SliceLayout(1, SUMS)), 1)
            gl.thread_barrier()
            total = warpgroup_mma(powers, here, total, is_async=True)
            total = warpgroup_mma_wait(0, [total])
            most = higher
        async_copy.wait_group(0)
        share = gl.sum(weight, 1)
        h = gl.program_id(1) * HB + gl.arange(0, HB, layout=gl.SliceLayout(1, SUMS))
        c = gl.arange(0, L, layout=gl.SliceLayout(0, SUMS))
        own = row.to(gl.int64) * H + h
        if PROMPT:
            share = gl.convert_layout(gl.where(share == 0, 1.0, share), gl.SliceLayout(1, SUMS))
            target = out + (gl.expand_dims(own * L, 1) + gl.expand_dims(c, 0))
            y = (total / gl.expand_dims(share, 1)).to(out.dtype.element_ty)
            gl.store(target, y, mask=gl.expand_dims(h < H, 1))
        else:
            each = gl.program_id(1) * HB + gl.arange(0, HB, layout=LINE)
            at = (((row - base).to(gl.int64) * H + each) * SPLITS + split) * 2
            gl.store(stats + at, gl.convert_layout(most, LINE), mask=each < H)
            gl.store(stats + at + 1, gl.convert_layout(share, LINE), mask=each < H)
            if count > 0:
                part = ((own - base * H) * SPLITS + split) * L
                target = parts + (gl.expand_dims(part, 1) + gl.expand_dims(c, 0))
                gl.store(target, total, mask=gl.expand_dims(h < H, 1))
        # The next range's latents and places go where others may still read these.
        gl.thread_barrier()
