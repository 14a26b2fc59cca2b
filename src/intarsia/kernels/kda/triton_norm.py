# mypy: ignore-errors
"""The norm and gate on what the rows of a prompt's chunks read."""

import triton
import triton.language as tl

from intarsia.kernels.kda.triton_parts import CHUNK, ENTRY, sigmoid


@triton.jit(do_not_specialize=["last", "rows"])
def norm_chunks(
    read,
    gate,
    gate_stride,
    norm,
    out,
    starts,
    last,
    table,
    rows,
    query_scale,
    eps,
    H: tl.constexpr,
    D: tl.constexpr,
    PARTS: tl.constexpr,
):
    """`read` [64, D] of every chunk and head, by queries of unit length: scaled, normed and gated, into out
    [R, H D]. starts[last] is the number of real rows. The grid is [heads, PARTS * chunks]; programs behind
    the last chunk clear the padding rows.
    """
    ROWS: tl.constexpr = CHUNK // PARTS
    head = tl.program_id(0)
    last_first = tl.num_programs(1) - 1 - tl.program_id(1)  # of which some is still cached
    chunk = last_first // PARTS
    place = table + chunk * ENTRY
    row, length, to_come = tl.load(place), tl.load(place + 1), tl.load(place + 4)
    j = last_first % PARTS * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, D)[None, :]
    if to_come <= 0:
        padding = tl.load(starts + last) - to_come * CHUNK + j
        nothing = tl.zeros((ROWS, D), tl.float32).to(out.dtype.element_ty)
        tl.store(out + padding.to(tl.int64) * H * D + head * D + c, nothing, mask=padding < rows)
        return
    here = (chunk * H + head).to(tl.int64)
    o = query_scale * tl.load(read + here * CHUNK * D + j * D + c)
    at = (row + j).to(tl.int64)
    z = tl.load(gate + at * gate_stride + head * D + c, mask=j < length, other=0).to(tl.float32)
    weight = tl.load(norm + c).to(tl.float32)
    o = o * tl.rsqrt(tl.sum(o * o, 1) / D + eps)[:, None] * weight * sigmoid(z)
    tl.store(out + at * H * D + head * D + c, o.to(out.dtype.element_ty), mask=j < length)
