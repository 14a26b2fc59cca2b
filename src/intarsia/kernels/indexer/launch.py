"""Launches of the indexer's Triton kernels: scores, then the best pools' tokens."""

from collections.abc import Iterator

import torch
from torch import Tensor

from intarsia.kernels.choice import Case, offer
from intarsia.kernels.device import on_device_of, overlapped, power_of_two, wide
from intarsia.kernels.errors import KernelError
from intarsia.kernels.indexer.selection import selected_width
from intarsia.kernels.rows import Rows

# Pools of a tile: part of the order of additions.
_POOLS, _WIDE_POOLS = 128, 32
# Rows a program scores a tile for, few in a step of few rows; programs that keep a card busy.
_FEW_ROWS, _FEW_BLOCK, _ROW_BLOCK, _ENOUGH_PROGRAMS = 64, 4, 16, 1056
# Scores in memory at once: 128 MiB. A step of more rows over a long window is done in parts.
_SCORES = 1 << 25
# Pools that one program chooses from, in registers; and a smaller count where a row sees no more.
_CHUNK, _MIDDLE_CHUNK, _WARPS = 8192, 2048, 8
_MOST_LISTED = (1 << 15) - 1  # of what chunks keep: the last kernel has two counts of them in 32 bits


def refuse(case: Case) -> str:
    """Why the Triton indexer cannot run a case, or the empty string; shape: heads, their width, pools kept,
    group.
    """
    if case.dtype not in (torch.bfloat16, torch.float32):
        return f"queries of {str(case.dtype).removeprefix('torch.')}; bfloat16 or float32 is needed"
    heads, width, kept, _ = case.shape
    if any(count < 16 or count & (count - 1) for count in (heads, width)):
        return f"{heads} heads of {width} columns; powers of two from 16 on are needed"
    if kept & (kept - 1) or kept > _CHUNK // 2:
        return f"{kept} pools kept; a power of two up to {_CHUNK // 2} is needed"
    return ""


offer("choose_tokens", refuse)


def parts_of(rows: int, pools: int) -> Iterator[tuple[int, int]]:
    """First row and count of the parts of a step whose scores fit into memory together."""
    each = max(16, _SCORES // pools)
    for first in range(0, rows, each):
        yield first, min(each, rows - first)


def chunks_of(pools: int, kept: int, group: int) -> tuple[int, int]:
    """How many pools of a window one program chooses `kept` from, and how many programs that makes.

    KernelError where the last choice, among what all of them keep, cannot count so many: beyond two million
    tokens for 512 kept pools of four.
    """
    chunk = max(power_of_two(2 * kept), min(_CHUNK, power_of_two(pools)))
    chunks = -(-pools // chunk)
    if chunks > 1 and chunks * kept > _MOST_LISTED:
        raise KernelError(
            "choose_tokens",
            found=f"a window of {pools * group:,} tokens, {pools:,} pools",
            expected=f"at most {_MOST_LISTED // kept * chunk:,} pools where {kept} are kept",
            action="use a shorter window",
        )
    return chunk, chunks


def launch(q: Tensor, weights: Tensor, cache: Tensor, rows: Rows, top_tokens: int, group: int) -> Tensor:
    """As `choose_tokens`; two launches a part, three if the window has more pools than a program holds."""
    count = q.shape[0]
    pools = rows.page_table.shape[1] * cache.shape[1]
    selected = torch.empty(count, selected_width(top_tokens, group), dtype=torch.int32, device=q.device)
    for first, size in parts_of(count, pools):
        scores = torch.empty(size, pools, dtype=torch.float32, device=q.device)
        launch_scores(q, weights, cache, rows, group, scores, first, least=top_tokens // group)
        launch_selection(scores, rows.positions, rows.streams, top_tokens, group, selected, first)
    return selected


def launch_scores(
    q: Tensor,
    weights: Tensor,
    cache: Tensor,
    rows: Rows,
    group: int,
    scores: Tensor,
    first: int = 0,
    least: int = 0,
) -> None:
    """Scores float32 [n, pools of the window] of the rows from `first` on. Only pools that a row sees are
    written, and none that it would keep anyway since it sees at most `least`.
    """
    from intarsia.kernels.indexer import triton_score as kernels

    heads, width = q.shape[1:]
    full = wide(q.dtype)
    tile = _WIDE_POOLS if full else _POOLS
    segments, size = rows.starts.shape[0] - 1, scores.shape[0]
    block = _FEW_BLOCK if size <= _FEW_ROWS else _ROW_BLOCK
    blocks = -(-size // block)
    lanes = min(-(-scores.shape[1] // tile), -(-_ENOUGH_PROGRAMS // min(blocks + segments, size)))
    with on_device_of(q):
        kernels.score_tiles[(lanes, segments, blocks)](
            q.contiguous(),
            weights.contiguous(),
            cache,
            rows.page_table,
            rows.positions,
            rows.streams,
            rows.starts,
            scores,
            first,
            size,
            scores.shape[1],
            rows.page_table.shape[1],
            heads**-0.5,
            width**-0.5,
            H=heads,
            D=width,
            GROUP=group,
            PER_PAGE=cache.shape[1],
            LEAST=least,
            PB=tile,
            RB=block,
            WIDE=full,
            STAGES=2,
            num_warps=4,
            **overlapped(size),
        )


def launch_selection(
    scores: Tensor,
    positions: Tensor,
    streams: Tensor,
    top_tokens: int,
    group: int,
    selected: Tensor,
    first: int = 0,
) -> None:
    """Write the token positions of the rows from `first` on, whose scores are given, into `selected`.

    KernelError for windows that `chunks_of` refuses.
    """
    from intarsia.kernels.indexer import triton_select as kernels

    size, pools = scores.shape
    kept = top_tokens // group
    chunk, chunks = chunks_of(pools, kept, group)
    lists = torch.empty(2, size, chunks, kept, dtype=torch.int32, device=scores.device)
    constants = {
        "TOP": top_tokens,
        "TOP_SIZE": power_of_two(top_tokens),
        "GROUP": group,
        "CHUNK": chunk,
        "CHUNKS": chunks,
        "num_warps": _WARPS,
        **overlapped(size),
    }
    small = power_of_two(2 * kept)
    sizes = {"SMALL": small, "MIDDLE": max(small, min(chunk, _MIDDLE_CHUNK))}
    with on_device_of(scores):
        kernels.select_chunks[(chunks, size)](
            scores, positions, streams, selected, *lists, first, pools, **sizes, **constants
        )
        if chunks > 1:
            kernels.select_kept[(size,)](
                positions, streams, selected, *lists, first, SIZE=power_of_two(chunks * kept), **constants
            )
