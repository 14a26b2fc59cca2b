# mypy: ignore-errors
"""Bytes of one buffer to many places."""

import triton
import triton.language as tl


@triton.jit
def scatter_bytes(buffer, table, CHUNK: tl.constexpr):
    """Program i copies what row i of the table [rows, 3] says: place, address, and bytes, at most CHUNK.

    Whole words of the target are written as words, put together from two of the source where those lie
    otherwise (behind a list of odd length every tensor of a file does); at either end up to three bytes.
    """
    row = table + 3 * tl.program_id(0).to(tl.int64)
    place = tl.load(row)
    address = tl.load(row + 1)
    count = tl.load(row + 2)
    head = tl.minimum((4 - (address & 3)) & 3, count)
    words = (count - head) // 4
    source = buffer + place + head
    odd = (source.to(tl.int64) & 3).to(tl.int32)
    lane = tl.arange(0, CHUNK // 4)
    mine = lane < words
    aligned = (source - odd).to(tl.pointer_type(tl.uint32)) + lane
    value = tl.load(aligned, mask=mine, other=0)
    if odd != 0:
        above = tl.load(aligned + 1, mask=mine, other=0)
        shift = (8 * odd).to(tl.uint32)
        value = (value >> shift) | (above << (32 - shift))
    tl.store((address + head).to(tl.pointer_type(tl.uint32)) + lane, value, mask=mine)
    # Lanes 0 to 3 are before the words, 4 to 7 behind them.
    edge = tl.arange(0, 8)
    byte = tl.where(edge < 4, edge, head + 4 * words + edge - 4)
    outside = tl.where(edge < 4, edge < head, byte < count)
    tl.store(
        address.to(tl.pointer_type(tl.uint8)) + byte,
        tl.load(buffer + place + byte, mask=outside, other=0),
        mask=outside,
    )
