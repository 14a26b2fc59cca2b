"""Launches of the Triton kernels of a site, and when they can run."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from intarsia.kernels.aside import aside, branches, join
from intarsia.kernels.choice import Case, offer
from intarsia.kernels.device import interpreting, on_device_of
from intarsia.kernels.hyper_connection.reference import HyperMix

if TYPE_CHECKING:
    from intarsia.kernels.exchange import SiteSums
    from intarsia.kernels.hyper_connection.sites import Pending, Rule, Site

STREAMS, SUMS = 4, 32
_TILE, _SPREAD_ROWS = 16, 16
_CHUNKS = 32  # ranges of columns whose sums are added last; part of the order of additions
_NARROWEST = 16
# From so many rows on: tiles of rows of one program of the first kernel. No part of the order of additions.
_TILES_EACH = ((1024, 8), (0, 1))
_UPDATE_WARPS = 8
_COLLECT_WARPS = 4
_LOOKED_AT = 8  # numbers of a thread that it waits for together
_UPDATE_OPTIONS = {"maxnreg": 128}  # two programs a multiprocessor


def refuse(case: Case) -> str:
    """Why the Triton kernels cannot run a case, or the empty string; shape: streams, columns."""
    streams, columns = case.shape
    if streams != STREAMS:
        return f"{streams} streams; {STREAMS} are needed"
    if columns % _NARROWEST or not _columns(columns):
        return f"{columns} columns; a power of two times up to {_CHUNKS} ranges is needed"
    if case.dtype != torch.bfloat16:
        return f"rows of {str(case.dtype).removeprefix('torch.')}; bfloat16 is needed"
    return ""


offer("hyper_site", refuse)


def _columns(columns: int) -> int:
    """The columns of a range, a power of two: as many ranges as `_CHUNKS` or fewer, 0 where none fits."""
    for chunks in (_CHUNKS, _CHUNKS // 2, _CHUNKS // 4):
        one, rest = divmod(columns, chunks)
        if not rest and one >= _NARROWEST and one & (one - 1) == 0 and one <= 256:
            return one
    return 0


def _overlap() -> dict[str, bool]:
    """Whether a kernel may begin while the one before it ends; the interpreter knows no such thing."""
    return {} if interpreting() else {"launch_pdl": True}


def site(
    streams: Tensor, pending: "Pending | None", weights: "Site", rule: "Rule"
) -> tuple[Tensor, Tensor, HyperMix]:
    """As `hyper_connection.site`; sums over columns are added in an order that depends on D alone.

    The streams and what is pending but for its `y` are not from the launch right before this one;
    coefficients that were formed aside are joined before that launch.
    """
    from intarsia.kernels.hyper_connection import triton_site as kernels

    rows, _, width = streams.shape
    columns = _columns(width)
    chunks = width // columns
    each = next(count for least, count in _TILES_EACH if rows >= least)
    numbers = {"dtype": torch.float32, "device": streams.device}
    parts = torch.empty(rows, SUMS, chunks, **numbers)  # type: ignore[call-overload]
    coefficients = HyperMix(
        pre=torch.empty(rows, STREAMS, **numbers),  # type: ignore[call-overload]
        post=torch.empty(rows, STREAMS, **numbers),  # type: ignore[call-overload]
        mixing=torch.empty(rows, STREAMS, STREAMS, **numbers),  # type: ignore[call-overload]
    )
    x = torch.empty(rows, width, dtype=streams.dtype, device=streams.device)
    after = streams if pending is None else torch.empty_like(x).new_empty(rows, STREAMS, width)
    y, old = (x, coefficients) if pending is None else (pending.y, pending.coefficients)
    grid = (chunks, -(-rows // (_TILE * each)))
    sums = None
    if pending is not None and pending.sums is not None:
        sums = pending.sums.at_site(chunks * grid[1], _TILE * columns) if each == 1 else None
        y = y if sums is not None else pending.summed()
    with on_device_of(streams):
        kernels.update_and_measure[grid](
            streams,
            streams.stride(0),
            streams.stride(1),
            y,
            old.post,
            old.mixing,
            weights.fn,
            after,
            parts,
            rows,
            *_peers(sums),
            D=width,
            COLUMNS=columns,
            EACH=each,
            UPDATE=pending is not None,
            WIDE=interpreting(),
            OVERLAP=not interpreting(),
            RANK=0 if sums is None else sums.rank,
            RANKS=1 if sums is None else sums.ranks,
            PACK=min(_LOOKED_AT, max(1, _TILE * columns // (32 * _UPDATE_WARPS))),
            num_warps=_UPDATE_WARPS,
            **(_UPDATE_OPTIONS if weights.fn.dtype == torch.bfloat16 and sums is None else {}),
            **_overlap(),
        )
        tiles = -(-rows // _SPREAD_ROWS)
        collecting = (after, parts, weights, x, coefficients, rule)
        if branches(x):
            # The next site needs the coefficients, the block before it does not.
            with aside(x, parts):
                _collect(*collecting, begin=rows, programs=tiles)
            _collect(*collecting, begin=0, programs=rows)
        else:
            _collect(*collecting, begin=0, programs=rows + tiles)
    return after, x, coefficients


def _peers(sums: "SiteSums | None") -> tuple[object, ...]:
    if sums is None:
        return (None,) * 5
    return sums.buffers, sums.calls, sums.failed, sums.room, sums.limit


def _collect(
    streams: Tensor,
    parts: Tensor,
    weights: "Site",
    x: Tensor,
    coefficients: HyperMix,
    rule: "Rule",
    *,
    begin: int,
    programs: int,
) -> None:
    """The second launch of a site, or some of its programs."""
    from intarsia.kernels.hyper_connection import triton_collect

    rows, width = x.shape
    triton_collect.collect_rows[(programs,)](
        streams,
        streams.stride(0),
        streams.stride(1),
        parts,
        weights.base,
        weights.scale,
        weights.norm,
        x,
        coefficients.pre,
        coefficients.post,
        coefficients.mixing,
        rows,
        begin,
        rule.norm_eps,
        rule.eps,
        D=width,
        WIDTH=_power_of_two(width),
        CHUNKS=parts.shape[2],
        ITERATIONS=rule.iterations,
        OVERLAP=not interpreting(),
        num_warps=_COLLECT_WARPS,
        **_overlap(),
    )


def finish(streams: Tensor, pending: "Pending", norm: Tensor, norm_eps: float) -> tuple[Tensor, Tensor]:
    """As `hyper_connection.finish`, in one launch."""
    from intarsia.kernels.hyper_connection import triton_site as kernels

    join(streams)
    rows, _, width = streams.shape
    after = streams.new_empty(rows, STREAMS, width)
    hidden = streams.new_empty(rows, width)
    with on_device_of(streams):
        kernels.finish_rows[(rows,)](
            streams,
            streams.stride(0),
            streams.stride(1),
            pending.summed(),
            pending.coefficients.post,
            pending.coefficients.mixing,
            norm,
            after,
            hidden,
            norm_eps,
            D=width,
            WIDTH=_power_of_two(width),
            OVERLAP=not interpreting(),
            num_warps=8,
            **_overlap(),
        )
    return after, hidden


def _power_of_two(width: int) -> int:
    return 1 << (width - 1).bit_length()
