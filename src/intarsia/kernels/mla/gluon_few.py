# mypy: ignore-errors
"""Softmax attention of few rows for Hopper, spread over more programs than `gluon_attend` has for them.

Two kernels: scores, of all tiles side by side, and then sums, by range and by columns. Bits are those of
`gluon_attend`: a score is one product, and a range still one chain of sums in which a tile's weights are of
the maximum up to it. Both read latents, but those of the sums are there before the scores are.
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

from intarsia.kernels.mla.gluon_attend import HB, LOWEST, PLACES, TB, keep_places, places_of

WARPS = gl.constexpr(4)
LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def copy_columns(source, place, buffer, L: gl.constexpr, C: gl.constexpr, GATHER: gl.constexpr):
    """Begin to copy C columns of rows of L; zeros where there is none."""
    c = gl.arange(0, C, layout=gl.SliceLayout(0, GATHER))
    at = gl.maximum(place, 0).to(gl.int64) * L
    where = source + (gl.expand_dims(at, 1) + gl.expand_dims(c, 0))
    async_copy.async_copy_global_to_shared(buffer, where, mask=gl.expand_dims(place >= 0, 1))
    async_copy.commit_group()


@gluon.jit
def lines_of(scores, TILES: gl.constexpr, LAYOUT: gl.constexpr):
    """Pointers to the first score of each of the program's heads."""
    block = gl.program_id(2) * gl.num_programs(1) + gl.program_id(1)
    head = (block * HB).to(gl.int64) + gl.arange(0, HB, layout=LAYOUT)
    return scores + head * (TILES * TB)


@gluon.jit(do_not_specialize=["table_width", "end_at"])
def score_latents(
    q,
    cache,
    selected,
    page_table,
    streams,
    starts,
    scores,
    factor,
    table_width,
    end_at,
    slots,
    H: gl.constexpr,
    L: gl.constexpr,
    PAGE: gl.constexpr,
    TILES: gl.constexpr,
    PB: gl.constexpr,
    EARLY: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """scores float32 [R, blocks of heads, HB, TILES * TB], minus infinity where there is no position, of the
    rows before starts[end_at]. The grid is [TILES * TB / PB, blocks of heads, R]. EARLY: as `attend_tiles`.
    """
    GATHER: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    LINES: gl.constexpr = gl.SliceLayout(1, GATHER)
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, PB, 16])
    row = gl.program_id(2)
    stream = gl.load(streams + row)
    end = gl.load(starts + end_at)
    if OVERLAP and not EARLY:
        gdc_wait()
        gdc_launch_dependents()
    slot = gl.program_id(0) * PB + gl.arange(0, PB, layout=LINE)
    position = gl.load(selected + row.to(gl.int64) * slots + slot, mask=slot < slots, other=-1)
    if row >= end:
        if OVERLAP and EARLY:
            gdc_wait()
            gdc_launch_dependents()
        return
    latents = gl.allocate_shared_memory(
        gl.bfloat16, [PB, L], gl.NVMMASharedLayout.get_default_for([PB, L], gl.bfloat16)
    )
    queries = gl.allocate_shared_memory(
        gl.bfloat16, [HB, L], gl.NVMMASharedLayout.get_default_for([HB, L], gl.bfloat16)
    )
    places = gl.allocate_shared_memory(gl.int32, [PB], PLACES)
    h = gl.program_id(1) * HB + gl.arange(0, HB, layout=LINES)
    query = gl.where(h < H, row * H + h, -1)
    if not EARLY:
        copy_columns(q, query, queries, L, L, GATHER)
    places.store(places_of(page_table + stream.to(gl.int64) * table_width, position, PAGE))
    gl.thread_barrier()
    copy_columns(cache, places.load(LINES), latents, L, L, GATHER)
    if EARLY:
        if OVERLAP:
            gdc_wait()
            gdc_launch_dependents()
        copy_columns(q, query, queries, L, L, GATHER)
    seen = places.load(gl.SliceLayout(0, SCORES)) >= 0
    async_copy.wait_group(0)
    fence_async_shared()
    gl.thread_barrier()
    nothing = gl.full([HB, PB], 0.0, gl.float32, SCORES)
    score = warpgroup_mma(queries, latents.permute((1, 0)), nothing, use_acc=False, is_async=True)
    score = warpgroup_mma_wait(0, [score]) * factor
    score = gl.where(gl.expand_dims(seen, 0), score, -float("inf"))
    head = gl.program_id(1) * HB + gl.arange(0, HB, layout=gl.SliceLayout(1, SCORES))
    t = gl.program_id(0) * PB + gl.arange(0, PB, layout=gl.SliceLayout(0, SCORES))
    line = gl.expand_dims(lines_of(scores, TILES, gl.SliceLayout(1, SCORES)), 1)
    gl.store(line + gl.expand_dims(t, 0), score, mask=gl.expand_dims(head < H, 1))


@gluon.jit(do_not_specialize=["table_width", "end_at"])
def sum_ranges(
    scores,
    cache,
    selected,
    page_table,
    streams,
    starts,
    parts,
    stats,
    table_width,
    end_at,
    slots,
    H: gl.constexpr,
    L: gl.constexpr,
    PAGE: gl.constexpr,
    EACH: gl.constexpr,
    EACH_SIZE: gl.constexpr,
    TILES: gl.constexpr,
    SPLITS: gl.constexpr,
    C: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """`parts` and `stats` as `attend_ranges` has them. The grid is [SPLITS * L / C, blocks of heads, R].
    Everything but `scores` was written before the launch before this one.
    """
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [256 // C, C // 8], [WARPS, 1], [1, 0])
    GATHER: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [WARPS, 1], [1, 0])
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, TB, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, C, 16])
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TB, C], gl.bfloat16)
    MAIN: gl.constexpr = (TILES - 1) * TB
    row = gl.program_id(2)
    stream = gl.load(streams + row)
    end = gl.load(starts + end_at)
    if row >= end:
        if OVERLAP:
            gdc_wait()
            gdc_launch_dependents()
        return
    split = gl.program_id(0) // (L // C)
    column = gl.program_id(0) % (L // C) * C
    first = split * EACH
    latents = gl.allocate_shared_memory(gl.bfloat16, [EACH + 1, TB, C], WIDE)
    known = gl.allocate_shared_memory(
        gl.float32, [EACH + 1, HB, TB], gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    )
    places = gl.allocate_shared_memory(gl.int32, [2 * EACH_SIZE, TB], PLACES)
    main, tail = keep_places(
        places,
        selected + row.to(gl.int64) * slots,
        page_table + stream.to(gl.int64) * table_width,
        first,
        gl.minimum(gl.minimum(slots, MAIN), (first + EACH) * TB),
        slots,
        MAIN,
        EACH_SIZE,
        PAGE,
        WARPS,
    )
    count = main + tail * (split == SPLITS - 1).to(gl.int32)
    gl.thread_barrier()
    for index in range(count):
        at = gl.where(index < main, index, EACH)
        line = gl.where(index < main, index, EACH_SIZE)
        copy_columns(
            cache + column, places.index(line).load(gl.SliceLayout(1, COPY)), latents.index(at), L, C, COPY
        )
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    head = gl.program_id(1) * HB + gl.arange(0, HB, layout=gl.SliceLayout(1, GATHER))
    t = gl.arange(0, TB, layout=gl.SliceLayout(0, GATHER))
    line = gl.expand_dims(lines_of(scores, TILES, gl.SliceLayout(1, GATHER)), 1) + gl.expand_dims(t, 0)
    for index in range(count):
        at = gl.where(index < main, index, EACH)
        tile = gl.where(index < main, first + index, TILES - 1)
        async_copy.async_copy_global_to_shared(
            known.index(at), line + tile * TB, mask=gl.expand_dims(head < H, 1)
        )
    async_copy.commit_group()
    most = gl.full([HB], LOWEST, gl.float32, gl.SliceLayout(1, SCORES))
    weight = gl.full([HB, TB], 0.0, gl.float32, SCORES)
    total = gl.full([HB, C], 0.0, gl.float32, SUMS)
    async_copy.wait_group(0)
    fence_async_shared()
    gl.thread_barrier()
    for index in range(count):
        at = gl.where(index < main, index, EACH)
        score = known.index(at).load(SCORES)
        higher = gl.maximum(most, gl.max(score, 1))
        shrink = gl.exp2(most - higher)
        power = gl.exp2(score - gl.expand_dims(higher, 1))
        weight = weight * gl.expand_dims(shrink, 1) + power
        total = total * gl.expand_dims(gl.convert_layout(shrink, gl.SliceLayout(1, SUMS)), 1)
        powers = gl.convert_layout(power.to(gl.bfloat16), gl.DotOperandLayout(0, SUMS, 2))
        total = warpgroup_mma(powers, latents.index(at), total, is_async=True)
        total = warpgroup_mma_wait(0, [total])
        most = higher
    if column == 0:
        # Halves of a tile first, as two warp groups add them.
        share = gl.sum(gl.sum(gl.reshape(weight, [HB, 2, TB // 2]), 2), 1)
        each = gl.program_id(1) * HB + gl.arange(0, HB, layout=LINE)
        at = ((row.to(gl.int64) * H + each) * SPLITS + split) * 2
        gl.store(stats + at, gl.convert_layout(most, LINE), mask=each < H)
        gl.store(stats + at + 1, gl.convert_layout(share, LINE), mask=each < H)
    if count > 0:
        h = gl.program_id(1) * HB + gl.arange(0, HB, layout=gl.SliceLayout(1, SUMS))
        c = column + gl.arange(0, C, layout=gl.SliceLayout(0, SUMS))
        part = ((row.to(gl.int64) * H + h) * SPLITS + split) * L
        target = parts + (gl.expand_dims(part, 1) + gl.expand_dims(c, 0))
        gl.store(target, total, mask=gl.expand_dims(h < H, 1))
