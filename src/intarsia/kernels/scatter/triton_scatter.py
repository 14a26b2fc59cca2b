# mypy: ignore-errors
"""Bytes of one buffer to many places."""

import triton
import triton.language as tl


@triton.jit
def scatter_bytes(buffer, table, CHUNK: tl.constexpr):
    """Program (part, chunk) copies up to CHUNK bytes; table [parts, 3]: place, address, bytes."""
    part, chunk = tl.program_id(0), tl.program_id(1)
    place = tl.load(table + 3 * part)
    address = tl.load(table + 3 * part + 1)
    count = tl.load(table + 3 * part + 2)
    first = chunk.to(tl.int64) * CHUNK
    if first < count:
        source = buffer + place + first
        target = (address + first).to(tl.pointer_type(tl.uint8))
        left = count - first
        # Words where all three are whole words, which nearly all weights are.
        if ((source.to(tl.int64) | address | count) & 15) == 0:
            word = tl.arange(0, CHUNK // 4)
            inside = word < left // 4
            words = tl.load(source.to(tl.pointer_type(tl.int32)) + word, mask=inside)
            tl.store(target.to(tl.pointer_type(tl.int32)) + word, words, mask=inside)
        else:
            byte = tl.arange(0, CHUNK)
            tl.store(target + byte, tl.load(source + byte, mask=byte < left), mask=byte < left)
