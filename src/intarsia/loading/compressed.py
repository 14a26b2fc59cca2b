"""Expanding compressed scales where they stay: one matrix at a time, or what a GPU did many at a time."""

from collections.abc import Iterator

import torch

from intarsia.checkpoint.reader import torch_dtype
from intarsia.core.errors import Violation
from intarsia.formats import csf
from intarsia.loading.errors import LoadError
from intarsia.loading.layout import Piece, Region
from intarsia.loading.staging import Staging

Filled = tuple[Piece, torch.Tensor]


def expand(staging: Staging, piece: Piece, target: torch.Tensor, region: Region | None) -> None:
    """One matrix, or a region of it. Raises CsfError naming the component that breaks a rule."""
    components, codec = {}, piece.codec or ""
    for entry in piece.entries:
        part = torch.empty(entry.shape, dtype=torch_dtype(entry), device=staging.device)
        staging.fill(entry, part)
        components[entry.name.rpartition(".")[2]] = part
    if region is not None:
        rows, columns = region.ranges
        components = csf.cut(components, (region.whole[0], region.whole[1]), rows, columns, codec)
    csf.decode_into(components, target, codec)


def explain(staging: Staging, pieces: Iterator[Filled]) -> None:
    """Raises CsfError where launches noted that a rule is broken: the pieces are read again, one by one."""
    where = ""
    for piece, target in pieces:
        where = where or piece.entries[0].name
        expand(staging, piece, target, None)
    found = "compressed scales that broke a rule, and do not now"
    raise LoadError(where, [Violation("csf", where, found, "the same bytes twice", "load again")])
