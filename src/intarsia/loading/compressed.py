"""Filling the compressed scales of a stacked weight: a GPU expands those of many matrices in one launch."""

import torch

from intarsia.checkpoint import TensorEntry
from intarsia.checkpoint.reader import torch_dtype
from intarsia.core.errors import Violation
from intarsia.formats import csf
from intarsia.kernels.csf import Batch, expands_together, fits
from intarsia.loading.errors import LoadError
from intarsia.loading.layout import Piece, Region
from intarsia.loading.staging import Staging

TOGETHER = 64
"""Matrices expanded in one launch; of GLM's experts, 17 MB of components are held for it."""

Filled = tuple[Piece, torch.Tensor]


class CompressedScales:
    """Takes the compressed pieces of one weight in order, each with its place, and fills those."""

    def __init__(self, staging: Staging, pieces: list[Filled]) -> None:
        self._staging = staging
        self._pieces = pieces
        self._together = bool(pieces) and all(self._fits(*item) for item in pieces)
        self._at = 0
        self._batch: Batch | None = None
        self._faults: list[torch.Tensor] = []

    def fill(self, piece: Piece, target: torch.Tensor, region: Region | None) -> None:
        """One matrix. In a batch, its scales are there after `finish`."""
        if region is not None or not self._together:
            self._expand(piece, target, region)
            return
        index = self._at % TOGETHER
        if index == 0:
            some = self._pieces[self._at : self._at + TOGETHER]
            # The last component of either codec is as long as there are exceptions.
            exceptions = [_components(item)[-1].shape[0] for item, _ in some]
            self._batch = Batch(piece.codec or "", [out for _, out in some], exceptions)
        if self._batch is None:
            raise LoadError(piece.entries[0].name, [_surprise(piece)])
        parts = self._batch.components(index)
        for entry in piece.entries:
            self._staging.fill(entry, parts[entry.name.rpartition(".")[2]], later=True)
        self._at += 1
        if self._at % TOGETHER == 0 or self._at == len(self._pieces):
            self._staging.flush()
            self._faults.append(self._batch.expand())
            self._batch = None

    def finish(self) -> None:
        """Raises CsfError for components that broke a rule: they are read again, one by one."""
        if not self._faults or not bool(torch.stack(self._faults).any()):
            return
        for piece, target in self._pieces:
            self._expand(piece, target, None)
        raise LoadError(self._pieces[0][0].entries[0].name, [_surprise(self._pieces[0][0])])

    def _expand(self, piece: Piece, target: torch.Tensor, region: Region | None) -> None:
        components, codec = {}, piece.codec or ""
        for entry in piece.entries:
            part = torch.empty(entry.shape, dtype=torch_dtype(entry), device=self._staging.device)
            self._staging.fill(entry, part)
            components[entry.name.rpartition(".")[2]] = part
        if region is not None:
            rows, columns = region.ranges
            components = csf.cut(components, (region.whole[0], region.whole[1]), rows, columns, codec)
        csf.decode_into(components, target, codec)

    @staticmethod
    def _fits(piece: Piece, target: torch.Tensor) -> bool:
        """Whether a batch takes the matrix. One with components of another shape is refused elsewhere."""
        rows, columns = target.shape
        if not expands_together(piece.codec or "", rows, columns, target.device):
            return False
        names = csf.components(piece.codec or "")
        return sorted(names) == sorted(entry.name.rpartition(".")[2] for entry in piece.entries) and fits(
            piece.codec or "", rows, columns, [(entry.dtype, entry.shape) for entry in _components(piece)]
        )


def _components(piece: Piece) -> list[TensorEntry]:
    """The entries in the codec's order."""
    held = {entry.name.rpartition(".")[2]: entry for entry in piece.entries}
    return [held[name] for name in csf.components(piece.codec or "")]


def _surprise(piece: Piece) -> Violation:
    found = "compressed scales that broke a rule, and do not now"
    return Violation("csf", piece.entries[0].name, found, "the same bytes twice", "load again")
