# mypy: ignore-errors
"""A step of `gluon_wide_tiles`: decoding beside the products of the other warpgroup, and buffers of x.

Nothing binds the two warpgroups but the buffers of x, which the first of them fills: a buffer has a barrier
for its bytes and one for those past it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from intarsia.kernels.codes import BLOCK, PLAIN
from intarsia.kernels.linear.gluon_steps import half_operand, load_half

UNIT = gl.constexpr(64)  # columns of a buffer of x


@gluon.jit
def fetch(xd, row, buffers, full, at, stage, UNITS: gl.constexpr, NT: gl.constexpr):
    """Unit `at` of x into buffer `stage`, where there is such a unit."""
    more = at < UNITS
    mbarrier.expect(full.index(stage), NT * UNIT * 2, pred=more)
    tma.async_copy_global_to_shared(xd, [row, at * UNIT], full.index(stage), buffers.index(stage), pred=more)


@gluon.jit
def one_step(
    total,
    acc,
    factor,
    ring,
    xd,
    row,
    buffers,
    full,
    empty,
    wp,
    sp,
    nothing,
    step,
    stage,
    phase,
    LAST: gl.constexpr,
    NT: gl.constexpr,
    STAGES: gl.constexpr,
    FORMAT: gl.constexpr,
    LEAD: gl.constexpr,
    LW: gl.constexpr,
    A: gl.constexpr,
    FETCHES: gl.constexpr,
):
    """128 columns more, of which the last products are on their way.

    Of blocks `acc` is the product of one block, of which the scale `factor` is added to `total` when the next
    begins.
    """
    for unit in gl.static_range(2):
        words = ring[0] | nothing if FORMAT == PLAIN else ring[0]
        operand = half_operand(words, ring[1], FORMAT, 2, 4, LW, A)
        at = step * 2 + unit
        before = gl.where(stage == 0, STAGES - 1, stage - 1)
        b = buffers.index(stage).permute([1, 0])
        if FORMAT == BLOCK and unit == 0:
            acc = warpgroup_mma_wait(0, [acc])
            mbarrier.arrive(empty.index(before), count=1, pred=at > 0)
            total = gl.fma(acc, factor, total)
            factor = ring[1]
            mbarrier.wait(full.index(stage), phase)
            acc = warpgroup_mma(operand, b, acc, use_acc=False, is_async=True)
        else:
            mbarrier.wait(full.index(stage), phase)
            acc = warpgroup_mma(operand, b, acc, is_async=True)
            acc = warpgroup_mma_wait(1, [acc])
            mbarrier.arrive(empty.index(before), count=1, pred=at > 0)
        later = gl.minimum(step + (unit + LEAD) // 2, LAST)
        ring = ring[2:] + load_half(wp, sp, later, (unit + LEAD) % 2, FORMAT)
        if FETCHES:
            mbarrier.wait(empty.index(before), gl.where(stage == 0, phase ^ 1, phase), pred=at > 0)
            fetch(xd, row, buffers, full, at + STAGES - 1, before, 2 * LAST + 2, NT)
        stage += 1
        phase = gl.where(stage == STAGES, phase ^ 1, phase)
        stage = gl.where(stage == STAGES, 0, stage)
    return total, acc, factor, ring, stage, phase
