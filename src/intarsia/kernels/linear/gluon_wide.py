# mypy: ignore-errors
"""x W^T with wide tiles of x: two warpgroups that multiply by turns.

The sums are those of `gluon_many`, in its order. A program takes 128 rows of one weight, each warpgroup 64
of them (`gluon_wide_tiles`), and NT rows of x. A warp that has issued products from registers stands until
most of them are done, so a warpgroup decodes beside the products of the other, not beside its own.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from intarsia.kernels.linear.fragments import swiglu
from intarsia.kernels.linear.gluon_many import store_layout, turned_layout
from intarsia.kernels.linear.gluon_wide_steps import UNIT
from intarsia.kernels.linear.gluon_wide_tiles import HALF, half_tile


@gluon.jit
def store_half(
    out,
    stride,
    y,
    first,
    n,
    row,
    rows,
    kept,
    EVEN: gl.constexpr,
    SHARED: gl.constexpr,
    WIDTH: gl.constexpr,
):
    """y [rows of the weight, NT] as rows of the output, turned in shared memory: in two parts where half of a
    total is not room enough.
    """
    SIZE: gl.constexpr = y.type.shape[0]
    NT: gl.constexpr = y.type.shape[1]
    if SHARED and SIZE * WIDTH > 128:
        low, high = gl.split(gl.permute(gl.reshape(y, [SIZE, 2, NT // 2]), [0, 2, 1]))
        store_part(out, stride, low, first, n, row, rows, kept, EVEN)
        store_part(out, stride, high, first, n, row + NT // 2, rows, kept, EVEN)
    else:
        store_part(out, stride, y, first, n, row, rows, kept, EVEN)


@gluon.jit
def store_part(out, stride, y, first, n, row, rows, kept, EVEN: gl.constexpr):
    """As `gluon_many.store_tile`, of a warpgroup, with memory that held its total before."""
    SIZE: gl.constexpr = y.type.shape[0]
    NT: gl.constexpr = y.type.shape[1]
    LY: gl.constexpr = store_layout(SIZE, 4)
    turned = kept._reinterpret(out.dtype.element_ty, [NT, SIZE], turned_layout(out.dtype.element_ty, SIZE))
    turned.permute([1, 0]).store(y.to(out.dtype.element_ty))
    y = turned.load(LY)
    column = gl.expand_dims(first + gl.arange(0, SIZE, layout=gl.SliceLayout(0, LY)), 0)
    r = gl.expand_dims(row + gl.arange(0, NT, layout=gl.SliceLayout(1, LY)), 1)
    inside = r < rows
    if not EVEN:
        inside = inside & (column < n)
    gl.store(out + (r.to(gl.int64) * stride + column), y, mask=inside)


@gluon.jit
def multiply(
    xd,
    weight,
    scale,
    program,
    tile,
    n,
    outs,
    strides,
    row,
    rows,
    buffers,
    full,
    empty,
    kept,
    more,
    LIMIT: gl.constexpr,
    NS: gl.constexpr,
    FIRST: gl.constexpr,
    K: gl.constexpr,
    FORMAT: gl.constexpr,
    RANGES: gl.constexpr,
    NT: gl.constexpr,
    STAGES: gl.constexpr,
    LEAD: gl.constexpr,
    GATED: gl.constexpr,
    EVEN: gl.constexpr,
    SHARED: gl.constexpr,
    WIDTH: gl.constexpr,
    WHICH: gl.constexpr,
):
    """What a warpgroup does: tile number 2 `tile` + WHICH, and its part of the outputs."""
    COUNT: gl.constexpr = len(outs)
    half = tile * 2 + WHICH
    y = half_tile(
        xd, weight, scale, half, n, row, rows, buffers, full, empty, kept, more, K, FORMAT, RANGES, NT,
        STAGES, LEAD, GATED, EVEN, SHARED, WHICH == 0,
    )  # fmt: skip
    if GATED:
        y = gl.permute(gl.reshape(y, [HALF // 16, 2, 8, NT]), [0, 2, 3, 1])
        gate, up = gl.split(gl.reshape(y, [HALF // 2, NT, 2]))
        store_half(
            outs[0],
            strides[0],
            swiglu(gate, up, LIMIT),
            half * (HALF // 2),
            n // 2,
            row,
            rows,
            kept,
            EVEN,
            SHARED,
            WIDTH,
        )
    elif COUNT == 1:
        store_half(outs[0], strides[0], y, half * HALF, n, row, rows, kept, EVEN, SHARED, WIDTH)
    else:
        for i in gl.static_range(COUNT):
            if (program >= FIRST[i]) & (program < FIRST[i + 1]):
                store_half(outs[i], strides[i], y, half * HALF, NS[i], row, rows, kept, EVEN, SHARED, WIDTH)


@gluon.jit(do_not_specialize=["rows"])
def wide_rows(
    xd,
    weights,
    scales,
    outs,
    strides,
    rows,
    LIMIT: gl.constexpr,
    NS: gl.constexpr,
    FIRST: gl.constexpr,
    K: gl.constexpr,
    FORMAT: gl.constexpr,
    RANGES: gl.constexpr,
    NT: gl.constexpr,
    STAGES: gl.constexpr,
    LEAD: gl.constexpr,
    GROUP: gl.constexpr,
    GATED: gl.constexpr,
    EVEN: gl.constexpr,
    SHARED: gl.constexpr,
    WIDTH: gl.constexpr,
    REGISTERS: gl.constexpr,
):
    """As `many_rows`, of whole ranges: x [rows, K] as `arrange_rows` leaves it, described by `xd`.

    LEAD halves of steps of weights are on their way, and the widest output
    has WIDTH bytes a number. Rows that `arrange_rows` made zeros give zeros.
    """
    COUNT: gl.constexpr = len(weights)
    TILES: gl.constexpr = FIRST[COUNT]
    # GROUP tiles of rows go through all weights before the next ones: what runs at once shares what it reads.
    every = gl.cdiv(rows, NT)
    group = gl.program_id(0) // (GROUP * TILES)
    wide = gl.minimum(every - group * GROUP, GROUP)
    within = gl.program_id(0) - group * (GROUP * TILES)
    program = within // wide
    row = (group * GROUP + within - program * wide) * NT
    weight, scale, tile, n = weights[0], scales[0], program, NS[0]
    for i in gl.static_range(1, COUNT):
        later = program >= FIRST[i]
        weight = gl.where(later, weights[i], weight)
        scale = gl.where(later, scales[i], scale)
        tile = gl.where(later, program - FIRST[i], tile)
        n = gl.where(later, NS[i], n)
    buffers = gl.allocate_shared_memory(gl.bfloat16, [STAGES, NT, UNIT], xd.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for j in gl.static_range(STAGES):
        mbarrier.init(full.index(j), count=1)
        mbarrier.init(empty.index(j), count=2)
    # The total of ranges of each warpgroup, or its part of the output, which take turns.
    PART: gl.constexpr = NT // 16 if SHARED else NT // 8 * WIDTH // 4
    LINEAR: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    first = gl.allocate_shared_memory(gl.float32, [PART, 128, 4], LINEAR)
    second = gl.allocate_shared_memory(gl.float32, [PART, 128, 4], LINEAR)
    more, others = first, second
    if SHARED:
        more = gl.allocate_shared_memory(gl.float32, [NT // 32, 128, 4], LINEAR)
        others = gl.allocate_shared_memory(gl.float32, [NT // 32, 128, 4], LINEAR)
    gl.warp_specialize(
        [
            (
                multiply,
                (
                    xd, weight, scale, program, tile, n, outs, strides, row, rows, buffers, full, empty,
                    first, more, LIMIT, NS, FIRST, K, FORMAT, RANGES, NT, STAGES, LEAD,
                    GATED, EVEN, SHARED, WIDTH, 0,
                ),
            ),
            (
                multiply,
                (
                    xd, weight, scale, program, tile, n, outs, strides, row, rows, buffers, full, empty,
                    second, others, LIMIT, NS, FIRST, K, FORMAT, RANGES, NT, STAGES, LEAD,
                    GATED, EVEN, SHARED, WIDTH, 1,
                ),
            ),
        ],
        [4],
        [REGISTERS],
    )  # fmt: skip
    for j in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(j))
        mbarrier.invalidate(empty.index(j))
