# mypy: ignore-errors
"""Blocks of up to 64 pairs without lists: each program finds the pairs of its own expert for itself."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def lanes():
    """[32]: a number a lane, each warp with a copy."""
    bits = [[1], [2], [4], [8], [16]]
    return gl.DistributedLinearLayout([], bits, [[0], [0]], [], [32])


@gluon.jit
def pairs_of(experts, pair, NT: gl.constexpr):
    """The expert of `pair`, the pairs that have it too as bits of two words, how many of them come before it,
    and how many are in the block that it begins: none where it begins none.
    """
    pairs = gl.num_programs(1)
    lane = gl.arange(0, 32, layout=lanes())
    expert = gl.load(experts + pair)
    first = (gl.load(experts + lane, mask=lane < pairs, other=-1) == expert).to(gl.int32)
    second = (gl.load(experts + 32 + lane, mask=lane + 32 < pairs, other=-1) == expert).to(gl.int32)
    low = gl.sum(first << lane, 0)
    high = gl.sum(second << lane, 0)
    earlier = gl.sum(first * (lane < pair).to(gl.int32) + second * (lane + 32 < pair).to(gl.int32), 0)
    count = gl.minimum(gl.sum(first + second, 0) - earlier, NT)
    begins = (expert >= 0) & (earlier % NT == 0)
    return expert, low, high, earlier, gl.where(begins, count, 0)


@gluon.jit
def ones(bits):
    """How many bits of each int32 are set."""
    return gl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [bits], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def nth_pair(low, high, n):
    """The pair whose bit is number `n` (a tensor, from 0) of those set in two words."""
    in_low = ones(low + 0 * n)
    past = n >= in_low
    bits = gl.where(past, high, low)
    n = gl.where(past, n - in_low, n)
    pair = gl.where(past, 32, 0)
    for step in gl.static_range(5):
        below = ones(bits & ((1 << (16 >> step)) - 1))
        past = n >= below
        bits = gl.where(past, bits >> (16 >> step), bits)
        n = gl.where(past, n - below, n)
        pair = gl.where(past, pair + (16 >> step), pair)
    return pair
