"""Encoding many matrices in one go: read side by side, and written straight to where they stay.

A step for each matrix keeps the interpreter busy for longer than its bytes need to a GPU. So of a weight
whose sources are equal matrices some are brought to the device by one ask, and a launch or two encode them
all. What is decided here is how many: as many as a step on one of them was planned to take, so the peak of
memory stays the planned one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from intarsia import formats
from intarsia.checkpoint import Module, TensorEntry
from intarsia.checkpoint.reader import torch_dtype
from intarsia.core.progress import Phase
from intarsia.kernels.encode import encode_into, encodes_into
from intarsia.loading.asks import Ask
from intarsia.loading.layout import PLAIN, Arranged
from intarsia.loading.ledger import Ledger
from intarsia.loading.staging import Staging
from intarsia.loading.units import Units, key_of
from intarsia.planning.items import needs_largest
from intarsia.selection.resolve import Target

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Stack:
    """Some rows of a weight's sources, counted as if those lay above each other: `first` and following.

    `shape` is what the encoder sees, [matrices, rows, columns], of which `share` that follow each other share
    a global scale; `ask` brings the bytes.
    """

    targets: Sequence[Target]
    ask: Ask
    first: int
    shape: tuple[int, int, int]
    share: int


class Stacks:
    """Encodes weights stack by stack where a kernel does and every source is a plain matrix of its own.

    What is cut for ranks, compressed, or larger than a step may take, goes matrix by matrix elsewhere.
    """

    def __init__(self, modules: Mapping[str, Module], units: Units, staging: Staging, ledger: Ledger) -> None:
        self._modules, self._units = modules, units
        self._staging, self._ledger = staging, ledger
        self._known: dict[str, tuple[Arranged, Sequence[Stack]]] = {}

    def of(self, arranged: Arranged) -> Sequence[Stack]:
        """The stacks of a weight in order; none if it is not encoded so."""
        known = self._known.get(arranged.module.name)
        if known is None or known[0] is not arranged:
            known = self._known[arranged.module.name] = arranged, self._made(arranged)
        return known[1]

    def encode(self, arranged: Arranged, tensors: Tensors, phase: Phase) -> torch.Tensor:
        """Fills a weight's tensors; bools on the device, one a stack: whether a value is not finite."""
        stacks = self.of(arranged)
        faults = torch.zeros(len(stacks), dtype=torch.bool, device=self._staging.device)
        for stack, fault in zip(stacks, faults.unbind(), strict=True):
            entry = stack.ask.entries[0]
            with self._ledger.hold(prod(stack.shape) * torch_dtype(entry).itemsize, entry.name):
                self._encode(stack, arranged, tensors, fault)
            phase.advance(int(stack.ask.lengths.sum()))
        return faults

    def _encode(self, stack: Stack, arranged: Arranged, tensors: Tensors, fault: torch.Tensor) -> None:
        buffer = torch.empty(
            stack.shape, dtype=torch_dtype(stack.ask.entries[0]), device=self._staging.device
        )
        self._staging.bring(stack.ask, buffer)
        self._staging.flush()
        name, rows = stack.targets[0].format, stack.ask.entries[0].shape[0]
        places = {}
        for suffix, spec in formats.get(name).layout(stack.shape).items():
            flat = tensors[suffix].view(-1)
            each = flat.numel() // len(arranged.conversions)
            begin = stack.first * each // rows
            places[suffix] = flat[begin : begin + prod(spec.shape)].view(spec.shape)
        encode_into(name, buffer, places, fault, share=stack.share)

    def _made(self, arranged: Arranged) -> Sequence[Stack]:
        targets = [conversion.target for conversion in arranged.conversions]
        share = self._share(arranged, targets)
        if not share:
            return ()
        entries = [self._modules[target.module].tensors["weight"] for target in targets]
        rows, whole = entries[0].shape[0], needs_largest(targets[0].format)
        # What is not cut: the matrices that share a scale, or a block's rows.
        each = rows * share if whole else formats.get(targets[0].format).block[0]
        step = self._units.step(targets[0])
        if rows % (rows if whole else each) or (whole and not step.hold):
            return ()
        some = step.nbytes * rows // entries[0].nbytes // each * each
        if not some:
            return ()
        total = rows * len(targets)
        return [
            _stack(targets, entries, range(first, min(first + some, total)), share, whole)
            for first in range(0, total, some)
        ]

    def _share(self, arranged: Arranged, targets: Sequence[Target]) -> int:
        """How many matrices share a scale, all of a weight alike; none where they cannot be a stack."""
        module = arranged.module
        places = [item.expert * module.parts + item.part for item in arranged.conversions]
        if arranged.regions is not None or places != list(range(len(module.sources))):
            return 0
        held = [self._modules[target.module] for target in targets]
        kinds = {
            (target.format, one.format, one.shape, one.tensors["weight"].dtype)
            for target, one in zip(targets, held, strict=True)
        }
        if len(kinds) > 1 or held[0].format is not None or held[0].tensors["weight"].dtype not in PLAIN:
            return 0
        name, entry = targets[0].format, held[0].tensors["weight"]
        if len(entry.shape) != 2 or name == "FP8":
            return 0
        # What is not as long as its shape says is refused where it is read by itself.
        if any(one.tensors["weight"].nbytes != entry.nbytes for one in held):
            return 0
        if entry.nbytes != prod(entry.shape) * torch_dtype(entry).itemsize:
            return 0
        if not encodes_into(name, torch_dtype(entry), self._staging.device, (entry.shape[0], entry.shape[1])):
            return 0
        if not needs_largest(name):
            return 1
        share = len(self._units.members(key_of(targets[0])))
        for at in range(0, len(targets), share):
            some = {target.module for target in targets[at : at + share]}
            if some != {member.module for member in self._units.members(key_of(targets[at]))}:
                return 0
        return share


def _stack(
    targets: Sequence[Target], entries: Sequence[TensorEntry], some: range, share: int, whole: bool
) -> Stack:
    """The stack of some rows; `whole`: of whole matrices, else one matrix of as many rows."""
    rows, columns = entries[0].shape
    row = entries[0].nbytes // rows
    own = range(some.start // rows, -(-some.stop // rows))
    begins = [max(some.start - at * rows, 0) * row for at in own]
    ends = [min(some.stop - at * rows, rows) * row for at in own]
    lengths = [end - begin for begin, end in zip(begins, ends, strict=True)]
    return Stack(
        targets[own.start : own.stop],
        Ask(entries[own.start : own.stop], begins, lengths, together=True),
        some.start,
        (len(own), rows, columns) if whole else (1, len(some), columns),
        share,
    )
