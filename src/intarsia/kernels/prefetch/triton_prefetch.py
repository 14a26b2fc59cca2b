# mypy: ignore-errors
"""Requests for blocks of memory, which nobody waits for."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["blocks", "wanted"])
def request_blocks(memory, blocks, wanted, BLOCK: tl.constexpr, EACH: tl.constexpr):
    """Asks for `wanted` of `blocks` blocks of BLOCK bytes, evenly spread, one a program."""
    block = (tl.program_id(0).to(tl.int64) * blocks) // wanted
    place = block * BLOCK + tl.arange(0, BLOCK // EACH) * EACH
    address = memory.to(tl.int64) + place
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0;",
        "=r,l,r",
        [address, tl.full([BLOCK // EACH], EACH, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
