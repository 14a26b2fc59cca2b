"""The pieces of weights as arrays, so that thousands of small tensors are placed by one step of arithmetic.

Only where every piece is one range of bytes in its file and in its place: whole tensors and shares of rows.
What is cut by columns goes piece by piece. Weights that follow each other are brought together, an expert's
gate, up and down above all: in a file they are neighbours, and are read with one call.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

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

EXPERTS = 32
"""Experts of a layer that are brought together; of GLM's, 25 MB of compressed scales are held meanwhile."""
GROUP_BYTES = 1 << 30
"""Weights are gathered until they are so large."""

Tensors = Sequence[Mapping[str, torch.Tensor]]


Entries = Sequence[TensorEntry]


class Own(NamedTuple):
    """Pieces of one suffix of one of a group's weights, each with its entries in the codec's order."""

    weight: int
    suffix: str
    codec: str | None
    pieces: list[Piece]
    entries: list[Entries]


@dataclass
class _Scales:
    """Compressed scales of one weight: whose they are, and how many exceptions each has."""

    codec: str
    suffix: str
    which: list[int]
    exceptions: list[int]


class Bulk:
    """Some pieces of some weights, brought by one ask; of compressed pieces every component is a span."""

    def __init__(self, weights: Sequence[Arranged], owns: Iterable[Own]) -> None:
        self._of_all = [len(arranged.module.sources) for arranged in weights]
        self._scales: dict[int, _Scales] = {}
        self._places: dict[tuple[int, str], tuple[Integers, Integers]] = {}
        entries: list[TensorEntry] = []
        begins: list[int] = []
        lengths: list[int] = []
        # Thousands of tensors, so lists that are made at once instead of a step for each.
        for weight, suffix, codec, pieces, held in owns:
            parts = weights[weight].module.parts
            sources = [piece.expert * parts + piece.part for piece in pieces]
            first = len(entries)
            names = [suffix] if codec is None else csf.components(codec)
            for at in range(len(names)):
                entries += [some[at] for some in held]
            regions = weights[weight].regions
            if codec is None and regions is not None:
                spans = [span_of(entry, regions[suffix]) for entry in entries[first:]]
                begins += [span.begin for span in spans]
                lengths += [span.end - span.begin for span in spans]
            else:
                begins += [0] * (len(entries) - first)
                lengths += [entry.end - entry.begin for entry in entries[first:]]
            if codec is not None:
                exceptions = [some[-1].shape[0] for some in held]
                self._scales[weight] = _Scales(codec, suffix, sources, exceptions)
            which = np.array(sources)
            for at, name in enumerate(names):
                rows = np.arange(first + at * len(held), first + (at + 1) * len(held))
                self._places[weight, name] = rows, which
        self.ask = Ask(entries, begins, lengths, together=True)
        self.nbytes = sum([entry.end - entry.begin for entry in entries])

    def batches(self, tensors: Tensors) -> dict[int, Batch]:
        """Where components of compressed scales go until they are expanded, by weight."""
        found = {}
        for weight, scales in self._scales.items():
            whole = tensors[weight][scales.suffix]
            stack = whole.view(torch.uint8).view(self._of_all[weight], -1, whole.shape[-1])
            found[weight] = Batch(scales.codec, stack, scales.which, scales.exceptions)
        return found

    def targets(self, tensors: Tensors, batches: Mapping[int, Batch]) -> Integers:
        """The address of every span's place.

        Raises LoadError with every tensor that is not as long as its place, or goes where another does.
        """
        count = len(self.ask.entries)
        address, room = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        outside = np.zeros(count, dtype=bool)
        held = {weight: batch.places() for weight, batch in batches.items()}
        for (weight, suffix), (rows, sources) in self._places.items():
            outside[rows] = (sources < 0) | (sources >= self._of_all[weight])
            place = held[weight].get(suffix) if weight in held else None
            if place is not None:
                address[rows], room[rows] = place
                continue
            tensor = tensors[weight][suffix]
            each = tensor.nbytes // self._of_all[weight]
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


class Group:
    """Weights that are loaded together: in bulk if `straight`, else one, whose pieces go one by one."""

    def __init__(self, weights: Sequence[Arranged], chunks: Sequence[Sequence[Own]] = ()) -> None:
        self.weights = weights
        self.straight = bool(chunks)
        self._chunks = chunks
        self._made: list[Bulk] = []

    def bulks(self) -> Iterator[Bulk]:
        """What brings the pieces, in order; each made when it is first wanted, in between others' work."""
        for index, chunk in enumerate(self._chunks):
            if index == len(self._made):
                self._made.append(Bulk(self.weights, chunk))
            yield self._made[index]


def groups(weights: Iterable[Arranged], device: torch.device, *, apart: bool = False) -> Iterator[Group]:
    """Weights in their order. What is encoded, and what goes one by one, is a group by itself; `apart`: every
    weight is.
    """
    some: list[tuple[Arranged, list[Entries]]] = []
    size = 0
    for arranged in weights:
        straight = _straight(arranged, device)
        alone = straight is None or bool(arranged.conversions)
        if some and (alone or apart or not _goes_with(some[-1][0], size, arranged)):
            yield _group(some)
            some, size = [], 0
        if straight is None:
            yield Group([arranged])
        elif alone:
            yield _group([(arranged, straight)])
        else:
            some.append((arranged, straight))
            size += arranged.nbytes
    if some:
        yield _group(some)


def _goes_with(last: Arranged, size: int, arranged: Arranged) -> bool:
    if last.module.stack == "experts" == arranged.module.stack:
        return last.module.name.rpartition(".")[0] == arranged.module.name.rpartition(".")[0]
    return size < GROUP_BYTES


def _group(some: Sequence[tuple[Arranged, list[Entries]]]) -> Group:
    chunks: dict[int, dict[tuple[int, str], Own]] = {}
    for weight, (arranged, straight) in enumerate(some):
        stacked = arranged.module.stack == "experts"
        for piece, entries in zip(arranged.pieces, straight, strict=True):
            owns = chunks.setdefault(piece.expert // EXPERTS if stacked else 0, {})
            own = owns.get((weight, piece.suffix))
            if own is None:
                own = owns[weight, piece.suffix] = Own(weight, piece.suffix, piece.codec, [], [])
            own.pieces.append(piece)
            own.entries.append(entries)
    return Group(
        [arranged for arranged, _ in some], [list(chunks[chunk].values()) for chunk in sorted(chunks)]
    )


def span_of(entry: TensorEntry, region: Region | None) -> Span:
    """The bytes of an entry in which a region lies: of cut rows all."""
    if region is None or not region.counts:
        return Span(entry, 0, entry.nbytes)
    row = entry.nbytes // entry.shape[0]
    return Span(entry, region.starts[0] * row, (region.starts[0] + region.counts[0]) * row)


def _straight(arranged: Arranged, device: torch.device) -> list[Entries] | None:
    """The entries of all pieces if each of those is one range of bytes where it lies and where it goes.

    Compressed scales are if a batch takes them; components of another shape are refused elsewhere.
    """
    found: list[Entries] = []
    asked: dict[str, bool] = {}
    for piece in arranged.pieces:
        entries: Entries = piece.entries
        codec, suffix = piece.codec, piece.suffix
        if codec is None:
            region = arranged.regions[suffix] if arranged.regions is not None else None
            fine = region is None or region.counts[1:] == region.whole[1:]
        else:
            shape = arranged.slots[suffix].shape
            rows, columns = shape[-2] // arranged.module.parts, shape[-1]
            if codec not in asked:
                asked[codec] = expands_together(codec, rows, columns, device)
            entries = _in_order(piece.entries, codec)
            fine = (
                asked[codec]
                and arranged.regions is None
                and fits(codec, rows, columns, [(entry.dtype, entry.shape) for entry in entries])
            )
        if not fine:
            return None
        found.append(entries)
    return found or None


def _in_order(entries: Entries, codec: str) -> list[TensorEntry]:
    """The components of compressed scales in the codec's order; none where they are others."""
    order = _order(tuple([entry.name.rpartition(".")[2] for entry in entries]), codec)
    return [entries[at] for at in order]


@cache
def _order(names: tuple[str, ...], codec: str) -> tuple[int, ...]:
    wanted = csf.components(codec)
    return tuple(map(names.index, wanted)) if sorted(names) == sorted(wanted) else ()
