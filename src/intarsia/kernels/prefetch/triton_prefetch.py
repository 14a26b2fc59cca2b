# mypy: ignore-errors
"""Requests for blocks of memory, which nobody waits for."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["wanted"])
def request_blocks(pieces, blocks, wanted, COUNT: tl.constexpr, BLOCK: tl.constexpr, EACH: tl.constexpr):
    """Asks for `wanted` blocks of BLOCK bytes of each of COUNT pieces of memory, evenly spread.

    `blocks`: how many each piece has. The grid is [COUNT * wanted], a block a program.
    """
    which = tl.program_id(0) % COUNT
    begin = pieces[0].to(tl.int64)
    there = blocks[0]
    for other in tl.static_range(1, COUNT):
        begin = tl.where(which == other, pieces[other].to(tl.int64), begin)
        there = tl.where(which == other, blocks[other], there)
    block = ((tl.program_id(0) // COUNT).to(tl.int64) * there) // wanted
    address = begin + block * BLOCK + tl.arange(0, BLOCK // EACH) * EACH
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0;",
        "=r,l,r",
        [address, tl.full([BLOCK // EACH], EACH, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
