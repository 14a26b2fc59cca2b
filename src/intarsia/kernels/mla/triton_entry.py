# mypy: ignore-errors
"""What the rows of a step leave for later ones, in one launch.

Latents go into their pages, pooled keys into theirs, raw keys into their streams' rings; normed query latents
are returned.

Programs have roles, so that nothing waits. A group of tokens whose rows all lie in the step is pooled by the
program of its last row. Only the first group of a segment can need older keys; the segment's own program
reads those from the ring before it overwrites any entry.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from intarsia.kernels.norm.triton_norm import centered, rms


@triton.jit
def power_of(amax):
    """The smallest power of two with which `amax` divided by it is at most 448; 1 for zero."""
    bits = amax.to(tl.int32, bitcast=True)
    small = bits < 0x1C800000  # 2^-70, so that numbers below the normal ones have an exponent too
    lifted = tl.where(small, amax * 1.8446744073709552e19, amax).to(tl.int32, bitcast=True)
    exponent = (lifted >> 23) - 126 - tl.where(small, 64, 0)
    power = exponent - 9 + ((lifted & 0x7FFFFF) > 0x600000).to(tl.int32)
    normal = (tl.maximum(power, -126) + 127) << 23
    tiny = 1 << tl.minimum(tl.maximum(power + 149, 0), 22)
    scale = tl.where(power < -126, tiny, normal).to(tl.float32, bitcast=True)
    scale = tl.where(amax == 0, 1.0, scale)
    return tl.where(amax < float("inf"), scale, float("nan"))


@triton.jit
def enter_query(q, norm, out, row, stream, q_stride, eps, Q: tl.constexpr, SIZE: tl.constexpr):
    c = tl.arange(0, SIZE)
    inside = c < Q
    value = tl.load(q + row * q_stride + c, mask=inside & (stream >= 0), other=0.0).to(tl.float32)
    y = rms(value, tl.load(norm + c, mask=inside, other=0.0).to(tl.float32), eps, Q)
    tl.store(out + row * Q + c, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def enter_latent(kv, norm, latents, scales, place, row, kv_stride, eps, L: tl.constexpr):
    c = tl.arange(0, L)
    value = tl.load(kv + row * kv_stride + c).to(tl.float32)
    y = rms(value, tl.load(norm + c).to(tl.float32), eps, L).to(kv.dtype.element_ty)
    if scales is not None:
        y = y.to(tl.float32)
        scale = power_of(tl.max(tl.abs(y), 0))
        tl.store(scales + place, scale)
        y = y / scale
    tl.store(latents + place * L + c, y.to(latents.dtype.element_ty))


@triton.jit
def normed_key(keys, row, stride, norm, bias, eps, c, D: tl.constexpr):
    """Rounded as it is stored."""
    key = tl.load(keys + row * stride + c).to(tl.float32)
    key = centered(key, tl.load(norm + c).to(tl.float32), tl.load(bias + c).to(tl.float32), c < D, eps, D)
    return key.to(keys.dtype.element_ty)


@triton.jit
def gate_of(gates, ring, ape, j, begin, before, position, stride, c, RING: tl.constexpr, D: tl.constexpr):
    """The gate of a group's token `j`, plus its place's own; from the ring for the `before` tokens older than
    the segment.
    """
    older = (j < before) & (c < D)
    there = tl.load(ring + ((position + j) % RING) * 2 * D + D + c, mask=older, other=0.0).to(tl.float32)
    here = tl.load(gates + (begin + j) * stride + c, mask=(j >= before) & (c < D), other=0.0).to(tl.float32)
    return tl.where(older, there, here) + tl.load(ape + j * D + c).to(tl.float32)


@triton.jit
def pool_group(
    keys,
    gates,
    norm,
    bias,
    ape,
    ring,
    begin,
    before,
    position,
    key_stride,
    gate_stride,
    eps,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    RING: tl.constexpr,
):
    """The pooled key [D] of the group that begins at `position`: at row `begin` if that is in the step."""
    c = tl.arange(0, D)
    most = tl.full([D], -float("inf"), tl.float32)
    for j in tl.static_range(GROUP):
        most = tl.maximum(
            most, gate_of(gates, ring, ape, j, begin, before, position, gate_stride, c, RING, D)
        )
    weight = tl.zeros([D], tl.float32)
    total = tl.zeros([D], tl.float32)
    for j in tl.static_range(GROUP):
        older = (j < before) & (c < D)
        there = tl.load(ring + ((position + j) % RING) * 2 * D + c, mask=older, other=0.0).to(tl.float32)
        row = begin + tl.maximum(before, j)
        here = normed_key(keys, row, key_stride, norm, bias, eps, c, D).to(tl.float32)
        gate = gate_of(gates, ring, ape, j, begin, before, position, gate_stride, c, RING, D)
        power = tl.exp(gate - most)
        weight += power
        total += power * tl.where(older, there, here)
    return total / weight


@triton.jit
def enter_rows(
    q,
    kv,
    keys,
    gates,
    q_norm,
    kv_norm,
    k_norm,
    k_bias,
    ape,
    q_out,
    latents,
    latent_scales,
    tail,
    pooled,
    page_table,
    positions,
    streams,
    starts,
    rows,
    segments,
    q_stride,
    kv_stride,
    key_stride,
    gate_stride,
    table_width,
    eps,
    key_eps,
    Q: tl.constexpr,
    Q_SIZE: tl.constexpr,
    L: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    GROUP: tl.constexpr,
    RING: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """q, q_out [R, Q]; kv [R, L]; keys, gates [R, D]; latents [pages + 1, PAGE, L]; tail [streams, RING,
    2 * D]; pooled [pages + 1, PAGE / GROUP, D]. The grid is [max(R, segments), roles]: query latents,
    latents, and where there are keys groups and segments.
    """
    index = tl.program_id(0)
    role = tl.program_id(1)
    first = index.to(tl.int64)
    count = (index < rows).to(tl.int32)
    if role == 3:
        count = 0
        if index < segments:
            first = tl.load(starts + index).to(tl.int64)
            count = tl.load(starts + index + 1) - first.to(tl.int32)
    # No launch of a step writes which rows there are, or where their pages lie.
    stream = tl.load(streams + first, mask=count > 0, other=-1).to(tl.int64)
    position = tl.load(positions + first, mask=count > 0, other=0)
    table = page_table + stream * table_width
    page = tl.load(table + position // PAGE, mask=stream >= 0, other=0).to(tl.int64)
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    if count == 0:
        return
    if role == 0:
        enter_query(q, q_norm, q_out, first, stream, q_stride, eps, Q, Q_SIZE)
    if (role == 0) | (stream < 0):
        return
    if role == 1:
        place = page * PAGE + position % PAGE
        enter_latent(kv, kv_norm, latents, latent_scales, place, first, kv_stride, eps, L)
    if keys is not None and role > 1:
        c = tl.arange(0, D)
        ring = tail + stream * RING * 2 * D
        # The group of a segment's first row, begun before it, or of a row that is the last of its group.
        before = tl.where(role == 3, position % GROUP, 0)
        back = tl.where(role == 3, before, GROUP - 1)
        begin = first - back
        whole = (position >= back) & ((position - back) % GROUP == 0) & (begin >= 0)
        whole = whole & (tl.load(streams + tl.maximum(begin, 0)) == stream)
        if tl.where(role == 3, (before > 0) & (before + count >= GROUP), whole):
            key = pool_group(
                keys,
                gates,
                k_norm,
                k_bias,
                ape,
                ring,
                begin,
                before,
                position - back,
                key_stride,
                gate_stride,
                key_eps,
                D,
                GROUP,
                RING,
            )
            number = (position - back) // GROUP
            page = tl.load(table + number // (PAGE // GROUP)).to(tl.int64)
            place = page * (PAGE // GROUP) + number % (PAGE // GROUP)
            tl.store(pooled + place * D + c, key.to(pooled.dtype.element_ty))
        if role == 3:
            # The ring is read above, by other threads of this program.
            tl.debug_barrier()
            for age in range(tl.minimum(count, RING)):
                j = count - 1 - age
                key = normed_key(keys, first + j, key_stride, k_norm, k_bias, key_eps, c, D)
                place = ring + ((position + j) % RING) * 2 * D + c
                tl.store(place, key.to(tail.dtype.element_ty))
                gate = tl.load(gates + (first + j) * gate_stride + c)
                tl.store(place + D, gate.to(tail.dtype.element_ty))
