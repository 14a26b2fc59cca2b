"""The pieces of a weight as arrays, so that thousands of small tensors are placed by one step of arithmetic.

Only where every piece is one range of bytes in its file and in its place: whole tensors and shares of rows.
What is cut by columns goes piece by piece.
"""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from intarsia.checkpoint import TensorEntry
from intarsia.core.errors import Violation
from intarsia.formats import csf
from intarsia.kernels.csf import Batch, expands_together, fits
from intarsia.loading.asks import Ask, Span
from intarsia.loading.blocks import Integers
from intarsia.loading.errors import LoadError
from intarsia.loading.layout import Arranged, Piece, Region

TOGETHER = 64
"""Matrices whose scales are expanded in one launch; of GLM's experts, 17 MB of components are held for it."""


class Bulk:
    """Some pieces of one weight, brought by one ask; of compressed pieces every component is a span."""

    def __init__(self, arranged: Arranged, pieces: Sequence[Piece]) -> None:
        self._of_all = len(arranged.module.sources)
        self.codec: str | None = None
        self.which: list[int] = []
        self.exceptions: list[int] = []
        self._scales = ""
        entries: list[TensorEntry] = []
        begins: list[int] = []
        lengths: list[int] = []
        places: dict[str, tuple[list[int], list[int]]] = {}
        parts, regions = arranged.module.parts, arranged.regions
        for piece in pieces:
            source = piece.expert * parts + piece.part
            if piece.codec is None:
                region = regions[piece.suffix] if regions is not None else None
                entry, begin, end = span_of(piece.entries[0], region)
                _put(places, piece.suffix, len(entries), source)
                entries.append(entry)
                begins.append(begin)
                lengths.append(end - begin)
                continue
            self.codec, self._scales = piece.codec, piece.suffix
            names, held = in_order(piece)
            self.which.append(source)
            self.exceptions.append(held[-1].shape[0])
            for name, entry in zip(names, held, strict=True):
                _put(places, name, len(entries), source)
                entries.append(entry)
                begins.append(0)
                lengths.append(entry.end - entry.begin)
        self.ask = Ask(entries, begins, lengths, together=True)
        self.nbytes = sum(entry.end - entry.begin for entry in entries)
        self._places = {
            suffix: (np.array(rows), np.array(sources)) for suffix, (rows, sources) in places.items()
        }

    def batch(self, tensors: Mapping[str, torch.Tensor]) -> Batch | None:
        """Where components of compressed scales go until they are expanded, if there are any."""
        if self.codec is None:
            return None
        scales = tensors[self._scales]
        stack = scales.view(torch.uint8).view(self._of_all, -1, scales.shape[-1])
        return Batch(self.codec, stack, self.which, self.exceptions)

    def targets(self, tensors: Mapping[str, torch.Tensor], batch: Batch | None) -> Integers:
        """The address of every span's place.

        Raises LoadError with every tensor that is not as long as its place, or goes where another does.
        """
        count = len(self.ask.entries)
        address, room = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        outside = np.zeros(count, dtype=bool)
        held = batch.places() if batch is not None else {}
        for suffix, (rows, sources) in self._places.items():
            outside[rows] = (sources < 0) | (sources >= self._of_all)
            if suffix in held:
                address[rows], room[rows] = held[suffix]
                continue
            tensor = tensors[suffix]
            each = tensor.nbytes // self._of_all
            address[rows], room[rows] = tensor.data_ptr() + each * sources, each
        self._check(address, room, outside)
        return address

    def _check(self, address: Integers, room: Integers, outside: NDArray[np.bool_]) -> None:
        entries, length = self.ask.entries, self.ask.lengths
        order = np.argsort(address, kind="stable")
        order = order[length[order] > 0]
        crossed = order[1:][address[order][1:] < (address + length)[order][:-1]]
        wrong = np.flatnonzero(length != room)
        if not len(wrong) and not len(crossed) and not outside.any():
            return
        found = (
            [
                Violation("piece-size", entries[at].name, f"{length[at]:,} bytes", f"{room[at]:,} bytes")
                for at in wrong.tolist()
            ]
            + [
                Violation("piece-place", entries[at].name, "another tensor's place", "a place of its own")
                for at in crossed.tolist()
            ]
            + [
                Violation("piece-place", entries[at].name, "a place outside its weight", "one inside")
                for at in np.flatnonzero(outside).tolist()
            ]
        )
        raise LoadError(entries[0].shard, found)


def bulks(arranged: Arranged, device: torch.device) -> list[Bulk] | None:
    """All pieces of a weight, or None where they must go one by one."""
    if not arranged.pieces or not all(_straight(arranged, piece, device) for piece in arranged.pieces):
        return None
    found, begin, matrices = [], 0, 0
    for index, piece in enumerate(arranged.pieces, 1):
        matrices += piece.codec is not None
        if index == len(arranged.pieces) or (piece.codec is not None and not matrices % TOGETHER):
            found.append(Bulk(arranged, arranged.pieces[begin:index]))
            begin = index
    return found


def span_of(entry: TensorEntry, region: Region | None) -> Span:
    """The bytes of an entry in which a region lies: of cut rows all."""
    if region is None or not region.counts:
        return Span(entry, 0, entry.nbytes)
    row = entry.nbytes // entry.shape[0]
    return Span(entry, region.starts[0] * row, (region.starts[0] + region.counts[0]) * row)


def _region(arranged: Arranged, piece: Piece) -> Region | None:
    if arranged.regions is None or piece.codec is not None:
        return None
    return arranged.regions[piece.suffix]


def _straight(arranged: Arranged, piece: Piece, device: torch.device) -> bool:
    """Whether a piece is one range of bytes where it lies and where it goes."""
    if piece.codec is None:
        region = _region(arranged, piece)
        return region is None or region.counts[1:] == region.whole[1:]
    if arranged.regions is not None:
        return False
    return _together(piece, arranged, device)


def _together(piece: Piece, arranged: Arranged, device: torch.device) -> bool:
    """Whether a batch takes compressed scales. Components of another shape are refused elsewhere."""
    codec, slot = piece.codec or "", arranged.slots[piece.suffix]
    rows, columns = slot.shape[-2] // arranged.module.parts, slot.shape[-1]
    _, held = in_order(piece)
    if not held or not expands_together(codec, rows, columns, device):
        return False
    return fits(codec, rows, columns, [(entry.dtype, entry.shape) for entry in held])


def in_order(piece: Piece) -> tuple[tuple[str, ...], list[TensorEntry]]:
    """The components of compressed scales in the codec's order, and their entries; none of those where the
    entries are others.
    """
    codec, entries = piece.codec or "", piece.entries
    order = _order(tuple([entry.name.rpartition(".")[2] for entry in entries]), codec)
    return csf.components(codec), [entries[at] for at in order]


@cache
def _order(names: tuple[str, ...], codec: str) -> tuple[int, ...]:
    wanted = csf.components(codec)
    return tuple(map(names.index, wanted)) if sorted(names) == sorted(wanted) else ()


def _put(places: dict[str, tuple[list[int], list[int]]], name: str, row: int, source: int) -> None:
    rows, sources = places.setdefault(name, ([], []))
    rows.append(row)
    sources.append(source)
