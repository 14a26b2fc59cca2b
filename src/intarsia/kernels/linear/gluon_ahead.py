# mypy: ignore-errors
"""Asking for what the next product reads, by the programs of this one as they end."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

PREFETCH_ASM = gl.constexpr("""{
.reg .pred asks;
setp.lt.s32 asks, $3, 32;
@asks cp.async.bulk.prefetch.L2.global [$1], $2;
mov.b32 $0, 0;
}""")


@gluon.jit
def ask(memory, part, program, EACH: gl.constexpr, NUM_WARPS: gl.constexpr):
    """Have 32 EACH bytes at `memory` + `part` * `program` brought to the cache. Nobody waits for them."""
    thread = gl.arange(0, 32 * NUM_WARPS, layout=gl.BlockedLayout([1], [32], [NUM_WARPS], [0]))
    address = memory.to(gl.int64) + program.to(gl.int64) * part + thread * EACH
    size = gl.full([32 * NUM_WARPS], EACH, gl.int32, thread.type.layout)
    gl.inline_asm_elementwise(
        PREFETCH_ASM, "=r,l,r,r", [address, size, thread], dtype=gl.int32, is_pure=False, pack=1
    )
