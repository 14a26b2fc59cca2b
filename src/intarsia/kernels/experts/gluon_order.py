# mypy: ignore-errors
"""Rows of x in expert order, as the products of many rows read them: a permutation inside a lane's registers.

A lane takes word w (eight columns) of each of the four lanes of a step, which are the 32 columns that lie
together in the product's order [w w i i t t h] (see gluon_tiles): four loads and four stores of sixteen
bytes, and nothing passes through shared memory.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from intarsia.kernels.experts.gluon_tiles import along

# Columns i and i + 1 of h = 0 and h = 1 -> pairs of both h, each times 2^64.
PAIRS_ASM = gl.constexpr("""{
.reg .b32 even, odd, lift;
mov.b32 lift, 0x5F805F80;
prmt.b32 even, $2, $3, 0x5410;
prmt.b32 odd, $2, $3, 0x7632;
mul.rn.bf16x2 $0, even, lift;
mul.rn.bf16x2 $1, odd, lift;
}""")


@gluon.constexpr_function
def lane_layout(STEPS, WARPS, FIRST):
    """[step, a, b, four words 4] with one of a and b across lanes: dimension FIRST; steps across lanes and
    warps.
    """
    registers = [
        [0, 0, 0, 1],
        [0, 0, 0, 2],
        [0, 2 - FIRST, FIRST - 1, 0],
        [0, 4 - 2 * FIRST, 2 * FIRST - 2, 0],
    ]
    lanes = [[0, FIRST - 1, 2 - FIRST, 0], [0, 2 * FIRST - 2, 4 - 2 * FIRST, 0], [1, 0, 0, 0], [2, 0, 0, 0]]
    lanes += [[4, 0, 0, 0]]
    warps = [[8 << bit, 0, 0, 0] for bit in range(WARPS.bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [STEPS, 4, 4, 4])


@gluon.jit
def gather_rows(x, order, total, arranged, TOP: gl.constexpr, K: gl.constexpr, WARPS: gl.constexpr):
    """Row p of arranged [pairs, K]: x of the pair at place p. Both as int32."""
    STEPS: gl.constexpr = 8 * WARPS
    place = gl.program_id(0)
    if place < gl.load(total):
        # [step, lane of the step, w, two columns of h = 0 and of h = 1], and [step, w, i, lane of the step]
        SOURCE: gl.constexpr = lane_layout(STEPS, WARPS, 1)
        TARGET: gl.constexpr = lane_layout(STEPS, WARPS, 2)
        row = (gl.load(order + place) // TOP).to(gl.int64)
        step = along(STEPS, SOURCE, 0, 4)
        source = x + row * (K // 2) + (step * 64 + along(4, SOURCE, 2, 4) * 4)
        source = source + (along(4, SOURCE, 1, 4) * 16 + along(4, SOURCE, 3, 4))
        step_out = along(STEPS, TARGET, 0, 4)
        target = arranged + place.to(gl.int64) * (K // 2) + (step_out * 64 + along(4, TARGET, 1, 4) * 16)
        target = target + (along(4, TARGET, 2, 4) * 4 + along(4, TARGET, 3, 4))
        for first in gl.static_range(0, K // 128, STEPS):
            words = gl.load(source + first * 64, mask=first + step < K // 128, other=0)
            words = gl.reshape(words, [STEPS, 4, 4, 2, 2])
            low, high = gl.split(gl.permute(words, [0, 1, 2, 4, 3]))
            even, odd = gl.inline_asm_elementwise(
                PAIRS_ASM, "=r,=r,r,r", [low, high], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
            )
            pairs = gl.permute(gl.join(even, odd), [0, 2, 3, 4, 1])  # [step, w, i / 2, i % 2, lane]
            pairs = gl.convert_layout(gl.reshape(pairs, [STEPS, 4, 4, 4]), TARGET, assert_trivial=True)
            gl.store(target + first * 64, pairs, mask=first + step_out < K // 128)
