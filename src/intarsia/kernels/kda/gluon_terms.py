# mypy: ignore-errors
"""What every chunk of a prompt contributes whatever the state before it, for heads of 128 columns.

The mathematics is that of `chunk.py`, in one kernel. A chunk's 64 rows are two halves of 32. With L the log
decay summed from the begin of a row's half to the row, at least -160 for a decay bound of -5, exp(L) and
exp(-L) times constants lie within float32 and bfloat16, and (k_t exp(L_t)) . (k_s exp(-L_s)) is a product of
the same half. For rows of the second half and columns of the first exp(-L_s) is carried on to the half's end.
Nothing of a row depends on rows after it.

What the state is multiplied with (`gluon_solved.py`) leaves from where the rows lay that it came of.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from intarsia.kernels.kda.gluon_inverse import (
    NARROW,
    THIN,
    diagonal_inverses,
    join_blocks,
    join_halves,
    products,
)
from intarsia.kernels.kda.gluon_rows import (
    BLOCK,
    BLOCKS,
    CHUNK,
    HALF,
    LIFT,
    LOG2E,
    PLAIN,
    TILE,
    TOP,
    D,
    convolved,
    decays,
    halves,
    inverse_of,
    length_of,
    part_of_one,
    parts_of,
    power,
    share,
    tile_of,
)
from intarsia.kernels.kda.gluon_solved import key_terms, share_parts, value_terms

VECTOR = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], [1, 8], [1, 0]))  # [1, 128]
WIDE = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [4, 2], [16, 8]))  # products of k and q with k
OPERAND = gl.constexpr(gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))
LINE = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def half_rows(shared, kind: gl.constexpr):
    """Of an operand [half, k or q, 32 rows] the rows of one kind."""
    return (
        shared[0].reshape([2, CHUNK, D]).slice(kind * HALF, HALF, 1),
        shared[1].reshape([2, CHUNK, D]).slice(kind * HALF, HALF, 1),
    )


@gluon.jit
def row_products(rows, columns, count: gl.constexpr):
    """The rows of k and of q of one half times `count` columns, [64, count]."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, WIDE, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, WIDE, 2)
    total = gl.zeros([CHUNK, count], gl.float32, WIDE)
    for depth in gl.static_range(0, D, 32):
        left = (rows[0].slice(depth, 32, 1).load(LEFT), rows[1].slice(depth, 32, 1).load(LEFT))
        right = (
            columns[0].slice(depth, 32, 1).permute([1, 0]).load(RIGHT),
            columns[1].slice(depth, 32, 1).permute([1, 0]).load(RIGHT),
        )
        total = products(left, right, total)
    return total


@gluon.jit
def share_square(square, total, scale: gl.constexpr, i: gl.constexpr, j: gl.constexpr):
    """One half's rows of k and of q by one half's columns, with zeros above the diagonal (for q) or on it."""
    r = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, WIDE))[:, None]
    s = gl.arange(0, HALF, layout=gl.SliceLayout(0, WIDE))[None, :]
    total *= scale
    if i == j:
        total = gl.where((s < r) & (r < HALF) | (s + HALF <= r), total, 0.0)
    parts = halves(total)
    square[0].slice(i * CHUNK, CHUNK, 0).slice(j * HALF, HALF, 1).store(parts[0])
    square[1].slice(i * CHUNK, CHUNK, 0).slice(j * HALF, HALF, 1).store(parts[1])


@gluon.jit
def chunk_terms(
    raw,
    raw_stride,
    decay,
    decay_stride,
    beta,
    beta_stride,
    taps,
    a_log,
    dt_bias,
    window,
    streams,
    table,
    keys,
    values,
    rest,
    keep,
    lower_bound,
    unit_eps,
    H: gl.constexpr,
    RING: gl.constexpr,
):
    """keys [4, 128, 64], the parts of -w and q'; values [2, 128, 64], u and own, float32; rest [2, 64, 128];
    keep [128] float32. keys and values are descriptors of tiles [256, 64] and [128, 64].

    The grid is [heads, chunks].
    """
    head = gl.program_id(0)
    chunk = gl.num_programs(1) - 1 - gl.program_id(1)  # what is read first is written last, and cached
    entry = table + chunk * 8
    row = gl.load(entry)
    length = gl.load(entry + 1)
    position = gl.load(entry + 2)
    before = gl.load(entry + 3)
    if length <= 0:
        return
    here = (chunk * H + head).to(gl.int64)
    C: gl.constexpr = 3 * H * D
    ring = window + gl.load(streams + row).to(gl.int64) * RING * C
    row_factors = gl.allocate_shared_memory(gl.float32, [CHUNK, D], PLAIN)
    ends = gl.allocate_shared_memory(gl.float32, [BLOCKS, D], PLAIN)
    decays(decay, decay_stride, dt_bias, a_log, lower_bound, row, length, head, row_factors, ends)
    first_half = 2 * (ends.slice(0, 1, 0).load(VECTOR) + ends.slice(1, 1, 0).load(VECTOR))
    second_half = 2 * (ends.slice(2, 1, 0).load(VECTOR) + ends.slice(3, 1, 0).load(VECTOR))
    grown = (
        gl.allocate_shared_memory(gl.float32, [D], LINE),
        gl.allocate_shared_memory(gl.float32, [D], LINE),
    )
    to_end = gl.allocate_shared_memory(gl.float32, [2, D], PLAIN)
    to_next = gl.allocate_shared_memory(gl.float32, [1, D], PLAIN)
    # Subnormal results count here: they meet factors of up to 2^TOP.
    grown[0].store(gl.reshape(gl.exp2(0 * first_half - TOP), [D]))
    grown[1].store(gl.reshape(gl.exp2(first_half - TOP), [D]))
    to_end.slice(0, 1, 0).store(gl.exp2(first_half + second_half + (TOP - LIFT)))
    to_end.slice(1, 1, 0).store(gl.exp2(second_half + (TOP - LIFT)))
    to_next.store(gl.exp2(first_half + (TOP - LIFT)))
    cv = gl.arange(0, D, layout=gl.SliceLayout(0, VECTOR))[None, :]
    gl.store(keep + here * D + cv, power(first_half + second_half))

    h = gl.arange(0, 2, layout=gl.SliceLayout(1, gl.SliceLayout(2, TILE)))[:, None, None]
    t = gl.arange(0, HALF, layout=gl.SliceLayout(0, gl.SliceLayout(2, TILE)))[None, :, None]
    c = gl.arange(0, D, layout=gl.SliceLayout(0, gl.SliceLayout(1, TILE)))[None, None, :]
    j = h * HALF + t
    strong = gl.load(beta + (row + j).to(gl.int64) * beta_stride + head, mask=j < length, other=0)
    strong = gl.where(j < length, part_of_one(strong.to(gl.float32) * LOG2E), 0.0)
    # What leaves takes the place of the rows that it came of.
    place = (
        gl.allocate_shared_memory(gl.bfloat16, [2 * D, CHUNK], keys.layout),
        gl.allocate_shared_memory(gl.bfloat16, [2 * D, CHUNK], keys.layout),
    )
    rows = (
        place[0]._reinterpret(gl.bfloat16, [2 * CHUNK, D], OPERAND),
        place[1]._reinterpret(gl.bfloat16, [2 * CHUNK, D], OPERAND),
    )
    inner = gl.zeros([2, HALF, D], gl.float32, TILE)
    # A loop, since code that a program runs through once waits for its instructions; the compiler, which
    # would undo it, does not know that `before` is never negative.
    for part in range(gl.where(before >= 0, 2, 1)):  # q, then k
        begin = (part * H + head) * D
        x = convolved(raw, raw_stride, ring, taps, row, length, position, before, begin, C, RING)
        x = x * (2.0**LIFT * length_of(x, unit_eps))
        factors = tile_of(row_factors)
        scaled = halves(x * (gl.where(part == 0, 1.0, strong) * 2.0**-LIFT) * factors)
        if part == 0:
            half_rows(rows, 1)[0].store(scaled[0])
            half_rows(rows, 1)[1].store(scaled[1])
        else:
            half_rows(rows, 0)[0].store(scaled[0])
            half_rows(rows, 0)[1].store(scaled[1])
            inner = x * inverse_of(factors)
    parts = halves(inner * to_end.load(gl.SliceLayout(1, TILE))[:, None, :])
    at = here * 2 * CHUNK * D + j * D + c
    gl.store(rest + at, parts[0])
    gl.store(rest + CHUNK * D + at, parts[1])
    columns = parts_of([CHUNK, D], OPERAND)
    inner = gl.reshape(inner, [CHUNK, D])
    share(columns, inner)
    first = (rows[0].slice(0, CHUNK, 0), rows[1].slice(0, CHUNK, 0))
    second = (rows[0].slice(CHUNK, CHUNK, 0), rows[1].slice(CHUNK, CHUNK, 0))
    own_columns = (columns[0].slice(0, HALF, 0), columns[1].slice(0, HALF, 0))
    later = (columns[0].slice(HALF, HALF, 0), columns[1].slice(HALF, HALF, 0))
    upper = row_products(first, own_columns, HALF)
    lower = row_products(second, later, HALF)
    moved = gl.convert_layout(gl.reshape(inner, [2, HALF, D]), TILE, assert_trivial=True)
    moved *= to_next.load(gl.SliceLayout(1, TILE))[:, None, :]
    share(columns, gl.reshape(moved, [CHUNK, D]))
    across = row_products(second, own_columns, HALF)
    square = parts_of([2 * CHUNK, CHUNK], OPERAND)
    share_square(square, upper, 2.0**-LIFT, 0, 0)
    share_square(square, lower, 2.0**-LIFT, 1, 1)
    share_square(square, across, 2.0**-TOP, 1, 0)
    inverse = (parts_of([CHUNK, BLOCK], THIN), parts_of([HALF, BLOCK], THIN), parts_of([HALF, HALF], NARROW))
    x = halves(diagonal_inverses(square))
    inverse[0][0].reshape([BLOCKS, BLOCK, BLOCK]).store(x[0])
    inverse[0][1].reshape([BLOCKS, BLOCK, BLOCK]).store(x[1])
    join_blocks(square, inverse, 0)
    join_blocks(square, inverse, 1)
    join_halves(square, inverse)
    w, query = key_terms(rows, square, inverse, grown)
    at_keys = (here * 4 * D).to(gl.int32)
    share_parts(place[0], w)
    share_parts(place[1], query)
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(keys, [at_keys, 0], place[0])
    tma.async_copy_shared_to_global(keys, [at_keys + 2 * D, 0], place[1])
    v = convolved(raw, raw_stride, ring, taps, row, length, position, before, (2 * H + head) * D, C, RING)
    tma.store_wait(0)
    v_rows = (rows[0].slice(0, CHUNK, 0), rows[1].slice(0, CHUNK, 0))
    share(v_rows, gl.reshape(v * strong, [CHUNK, D]))
    u, own = value_terms(v_rows, square, inverse)
    at_values = (here * 2 * D).to(gl.int32)
    staged = (
        place[0]._reinterpret(gl.float32, [D, CHUNK], values.layout),
        place[1]._reinterpret(gl.float32, [D, CHUNK], values.layout),
    )
    staged[0].store(u)
    staged[1].store(own)
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(values, [at_values, 0], staged[0])
    tma.async_copy_shared_to_global(values, [at_values + D, 0], staged[1])
    tma.store_wait(0)
