# mypy: ignore-errors
"""What both kernels of the recurrent form do with a row, for heads of 128 columns, in eight warps.

The warps hold the state [key, value] of one head of one stream in registers, each an eighth of the value
columns with all keys. So a sum over keys stays inside a warp: additions in a thread, then three exchanges
between lanes. What is a vector over keys or values is worked out a channel a thread and handed round through
shared memory, keys and queries as they are before they have unit length: the factors that give it to them
are applied to sums. Only the output norm's sum crosses warps.

With a = exp(g) a row needs S^T (a k) and S^T (a q), both from one pass over the state as it was; then
d = beta (v - S^T (a k)), the new state is diag(a) S + k d^T, and what the row reads is S^T (a q) + (k . q) d.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

D = gl.constexpr(128)
TAPS = gl.constexpr(4)
STATE = gl.constexpr(gl.BlockedLayout([4, 4], [8, 4], [1, 8], [1, 0]))
KEYS = gl.constexpr(gl.SliceLayout(1, STATE))
VALUES = gl.constexpr(gl.SliceLayout(0, STATE))
CHANNELS = gl.constexpr(gl.BlockedLayout([1], [32], [8], [0]))
TABLE = gl.constexpr(gl.BlockedLayout([1, 4], [32, 1], [8, 1], [1, 0]))
EVERYWHERE = gl.constexpr(gl.BlockedLayout([8], [32], [8], [0]))  # [8]: every thread has all
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def settled(OVERLAP: gl.constexpr):
    """What the launches before have written is there. What comes after this kernel may get ready."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()


@gluon.jit
def sigmoid(x):
    return 1 / (1 + gl.exp(-x))


@gluon.jit
def add_pairs(a, b, c, d):
    return a + c, b + d


@gluon.jit
def add_triples(a, b, c, d, e, f):
    return a + d, b + e, c + f


@gluon.jit
def channels_of(head, H: gl.constexpr):
    """Columns of a head in rows of q, k and v: those of q and k, [256], and those of v."""
    both = gl.arange(0, 2 * D, layout=CHANNELS)
    own = gl.arange(0, D, layout=CHANNELS)
    return both // D * (H * D) + head * D + both % D, 2 * H * D + head * D + own


@gluon.jit
def places():
    """Offsets of a state's numbers."""
    return gl.arange(0, D, layout=KEYS)[:, None] * D + gl.arange(0, D, layout=VALUES)[None, :]


@gluon.jit
def taps_of(taps, channel):
    """The four taps of channels, oldest first; a channel's lie side by side."""
    begin = gl.convert_layout(channel, gl.SliceLayout(1, TABLE), assert_trivial=True)[:, None] * TAPS
    table = gl.load(taps + begin + gl.arange(0, TAPS, layout=gl.SliceLayout(0, TABLE))[None, :])
    table = table.to(gl.float32)
    even, odd = gl.split(gl.reshape(table, [channel.shape[0], 2, 2]))
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    return (
        gl.convert_layout(first, CHANNELS, assert_trivial=True),
        gl.convert_layout(second, CHANNELS, assert_trivial=True),
        gl.convert_layout(third, CHANNELS, assert_trivial=True),
        gl.convert_layout(fourth, CHANNELS, assert_trivial=True),
    )


@gluon.jit
def column_at(ring, channel, position, C: gl.constexpr, RING: gl.constexpr):
    """Raw columns at a position from the stream's ring, zero before the sequence."""
    return gl.load(ring + (position % RING) * C + channel, mask=(channel >= 0) & (position >= 0), other=0)


@gluon.jit
def columns_before(ring, channel, position, C: gl.constexpr, RING: gl.constexpr):
    """The three raw columns before `position`, oldest first."""
    return (
        column_at(ring, channel, position - 3, C, RING),
        column_at(ring, channel, position - 2, C, RING),
        column_at(ring, channel, position - 1, C, RING),
    )


@gluon.jit
def convolved(before, new, taps):
    """SiLU of the causal convolution of a row's channels."""
    total = before[0].to(gl.float32) * taps[0]
    total = gl.fma(before[1].to(gl.float32), taps[1], total)
    total = gl.fma(before[2].to(gl.float32), taps[2], total)
    total = gl.fma(new.to(gl.float32), taps[3], total)
    return total / (1 + gl.exp(-total))


@gluon.jit
def vectors_shared():
    """Shared memory for a row's q and k, v, decays, and sums of the warps."""
    return (
        gl.allocate_shared_memory(gl.float32, [2 * D], PLAIN),
        gl.allocate_shared_memory(gl.float32, [D], PLAIN),
        gl.allocate_shared_memory(gl.float32, [D], PLAIN),
        gl.allocate_shared_memory(gl.float32, [8], PLAIN),
    )


@gluon.jit
def advanced(state, shared, write, query_scale, unit_eps):
    """The state after a row whose vectors are `shared`, and what the row reads of it."""
    kept = shared[2].load(KEYS)
    q = shared[0].slice(0, D).load(KEYS)
    k = shared[0].slice(D, D).load(KEYS)
    v = shared[1].load(VALUES)
    known, read = gl.reduce((state * (kept * k)[:, None], state * (kept * q)[:, None]), 0, add_pairs)
    qq, kk, kq = gl.reduce((q * q, k * k, k * q), 0, add_triples)
    unit_q = gl.rsqrt(qq + unit_eps) * query_scale
    unit_k = gl.rsqrt(kk + unit_eps)
    change = write * (v - known * unit_k)
    state = gl.fma(k[:, None], (change * unit_k)[None, :], state * kept[:, None])
    return state, gl.fma(change, kq * unit_q * unit_k, read * unit_q)


@gluon.jit
def normed(o, shared, weight, z, eps):
    """The output norm times the output gate. A warp's sum of squares comes first, then that of all warps."""
    shared[3].store(gl.sum(gl.reshape(o * o, [8, D // 8]), 1))
    return o * gl.rsqrt(gl.sum(shared[3].load(EVERYWHERE), 0) / D + eps) * weight * sigmoid(z)


@gluon.jit
def clear_rows(out, first, end, head, H: gl.constexpr):
    """Zeros for the rows that belong to no stream."""
    c = gl.arange(0, D, layout=CHANNELS)
    nothing = gl.zeros([D], out.dtype.element_ty, CHANNELS)
    for row in range(first, end):
        gl.store(out + row.to(gl.int64) * H * D + head * D + c, nothing)
