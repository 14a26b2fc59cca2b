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


@gluon.jit
def larger(a, b, c, d):
    return gl.maximum(a, c), gl.maximum(b, d)


@gluon.jit
def tiles_used(chosen, first, end, slots, MAIN: gl.constexpr, SIZE: gl.constexpr):
    """How many tiles from tile `first` on reach to the last position before slot `end`, SIZE slots on; and
    whether there is a position from slot MAIN on.
    """
    inside = gl.arange(0, SIZE, layout=gl.BlockedLayout([1], [32], [WARPS], [0]))
    slot = first * TB + inside
    known = gl.load(chosen + slot, mask=slot < end, other=-1) >= 0
    tail = gl.load(chosen + MAIN + inside, mask=(MAIN + inside < slots) & (inside < TB), other=-1) >= 0
    used = gl.where(known, inside // TB + 1, 0)
    return gl.reduce((used, tail.to(gl.int32)), 0, larger)


@gluon.jit
def places_of(chosen, table, tile, slots, PAGE: gl.constexpr, LAYOUT: gl.constexpr):
    """Where a tile's latents lie in the cache, int32 [TB]; -1 where there is no position."""
    slot = tile * TB + gl.arange(0, TB, layout=LAYOUT)
    position = gl.load(chosen + slot, mask=slot < slots, other=-1)
    page = gl.load(table + position // PAGE, mask=position >= 0, other=0)
    return gl.where(position >= 0, page * PAGE + position % PAGE, -1)


@gluon.jit
def copy_tile(cache, place, buffer, L: gl.constexpr, GATHER: gl.constexpr):
    """Begin to copy a tile's latents; zeros where there is none."""
    c = gl.arange(0, L, layout=gl.SliceLayout(0, GATHER))
    at = gl.maximum(place, 0).to(gl.int64) * L
    source = cache + (gl.expand_dims(at, 1) + gl.expand_dims(c, 0))
    async_copy.async_copy_global_to_shared(buffer, source, mask=gl.expand_dims(place >= 0, 1))
    async_copy.commit_group()


@gluon.jit(do_not_specialize=["run", "base"])
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
    OVERLAP: gl.constexpr,
):
    """Ranges of a row and 64 heads, of rows from `base` on: sums into `parts` and `stats` as `attend_ranges`
    has them; or, if there is but one range, results and zeros for padding rows into `out` as `attend_rows`.

    Rows from starts[begin_at] to starts[end_at] are dealt with. The grid is [SPLITS / run, blocks
    of heads, R]: a program takes `run` ranges one after another. Everything but `q` was written before the
    launch before this one.
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
    split = gl.program_id(0)
    end = gl.load(starts + end_at)
    if (row < gl.load(starts + begin_at)) | (row >= end):
        if OVERLAP:
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
    table = page_table + gl.load(streams + row).to(gl.int64) * table_width
    chosen = selected + row.to(gl.int64) * slots
    latents = gl.allocate_shared_memory(gl.bfloat16, [2, TB, L], WIDE)
    queries = gl.allocate_shared_memory(gl.bfloat16, [HB, L], WIDE)
    powers = gl.allocate_shared_memory(gl.bfloat16, [HB, TB], NARROW)
    nothing = gl.full([HB, TB], 0.0, gl.float32, SCORES)
    begin = gl.program_id(0) * run
    for split in range(begin, gl.minimum(begin + run, SPLITS)):
        first = split * EACH
        limit = gl.minimum(gl.minimum(slots, MAIN), (first + EACH) * TB)
        main, tail = tiles_used(chosen, first, limit, slots, MAIN, EACH_SIZE * TB)
        count = main + tail * (split == SPLITS - 1).to(gl.int32)
        tile = gl.where(main > 0, first, TILES - 1)
        copy_tile(cache, places_of(chosen, table, tile, slots, PAGE, LINES), latents.index(0), L, GATHER)
        ahead = gl.where(main > 1, first + 1, TILES - 1)
        place = places_of(chosen, table, ahead, slots, PAGE, LINES)
        if split == begin:
            if OVERLAP:
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
            # The other buffer is free: products with it were waited for.
            if index + 1 < count:
                copy_tile(cache, place, latents.index((index + 1) % 2), L, GATHER)
            slot = tile * TB + gl.arange(0, TB, layout=gl.SliceLayout(0, SCORES))
            here = latents.index(index % 2)
            score = warpgroup_mma(queries, here.permute((1, 0)), nothing, use_acc=False, is_async=True)
            position = gl.load(chosen + slot, mask=slot < slots, other=-1)
            tile = ahead
            ahead = gl.where(index + 2 < main, first + index + 2, TILES - 1)
            place = places_of(chosen, table, ahead, slots, PAGE, LINES)
            score = warpgroup_mma_wait(0, [score]) * factor
            score = gl.where(gl.expand_dims(position >= 0, 0), score, -float("inf"))
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
        # The next range's latents go where others may still read these.
        gl.thread_barrier()
