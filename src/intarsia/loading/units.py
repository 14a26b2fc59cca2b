"""Matrices that share a global scale, or stand alone: how each is read, in which order, and what is kept."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from intarsia.checkpoint import Module
from intarsia.loading.asks import Span
from intarsia.loading.maxima import Batch, Parts, batches
from intarsia.loading.window import Window, whole
from intarsia.planning.items import needs_largest, unit_key
from intarsia.planning.order import element_bytes
from intarsia.planning.working import Step, Working
from intarsia.selection.resolve import Selection, Target

T = TypeVar("T")


class Units:
    """The matrices of a selection by what shares a scale. Decides from headers, the same on all ranks."""

    def __init__(
        self,
        selection: Selection,
        modules: Mapping[str, Module],
        working: Working,
        ranks: int,
        comparing: bool,
    ) -> None:
        """`comparing`: the ranks find largest magnitudes together where each has its own part."""
        self._modules = modules
        self._working = working
        self._ranks, self._comparing = ranks, comparing
        self._members: dict[str, list[Target]] = {}
        self._steps: dict[str, Step] = {}
        for target in selection.targets.values():
            self._members.setdefault(key_of(target), []).append(target)

    def members(self, key: str) -> Sequence[Target]:
        """All matrices that share the scale."""
        return self._members[key]

    def nbytes(self, key: str) -> int:
        """Bytes of all of them as the encoder gets them."""
        modules = [self._modules[member.module] for member in self._members[key]]
        return sum(_numel(module) * element_bytes(module.format) for module in modules)

    def part_bytes(self, target: Target, window: Window | None) -> int:
        """The same of a window of one."""
        module = self._modules[target.module]
        window = window or whole((module.shape or (0, 0))[-2:])
        return len(window.rows) * len(window.columns) * element_bytes(module.format)

    def step(self, target: Target) -> Step:
        """How one is converted; raises BudgetError."""
        known = self._steps.get(target.module)
        if known is None:
            module = self._modules[target.module]
            known = self._steps[target.module] = self._working.step(
                target.module,
                target.format,
                module.shape or (0, 0),
                element=element_bytes(module.format),
                unit=self.nbytes(key_of(target)),
                stored=module.format,
            )
        return known

    def holds(self, key: str, targets: Sequence[Target]) -> bool:
        """Whether they are all that share the scale, and are kept as read."""
        complete = len(targets) == len(self._members[key])
        return complete and all(self.step(target).hold for target in targets)

    def batches(self, units: Mapping[str, Parts]) -> Iterator[Batch]:
        """What is encoded after one exchange, or alone, in the order of the units."""

        def shared(key: str) -> bool:
            cut = all(window is not None for _, window in units[key])
            complete = len(units[key]) == len(self._members[key])
            return self._comparing and needs_largest(units[key][0][0].format) and cut and complete

        return batches(units, shared, self.nbytes, self._ranks, self._working.budget is not None)

    def spans(self, parts: Iterable[tuple[Target, Window | None]], known: set[str]) -> Iterator[Span]:
        """What is read to encode windows of targets, in order; plain matrices only.

        `known` remembers from call to call which largest magnitudes have been found.
        """
        units = together(parts)
        for batch in self.batches(units):
            if batch.shared:
                read = [part for key in batch.keys for part in units[key]]
                yield from self._rows(read if batch.held else read + read)
                continue
            (key,) = batch.keys
            unit = units[key]
            targets = [target for target, _ in unit]
            if self.holds(key, targets):
                unit = [(target, None) for target in targets]
            elif needs_largest(targets[0].format) and key not in known:
                known.add(key)
                unit = [(target, None) for target in self._members[key]] + unit
            yield from self._rows(unit)

    def _rows(self, parts: Parts) -> Iterator[Span]:
        for target, window in parts:
            module = self._modules[target.module]
            if module.format is None:
                entry = module.tensors["weight"]
                rows = window.rows if window is not None else range(entry.shape[0])
                row = entry.nbytes // entry.shape[0]
                yield Span(entry, rows.start * row, rows.stop * row)


def key_of(target: Target) -> str:
    """The same for matrices that share a global scale."""
    return unit_key(target.module, target.format, target.group)


def together(jobs: Iterable[tuple[Target, T]]) -> dict[str, list[tuple[Target, T]]]:
    """Jobs by what shares a global scale."""
    found: dict[str, list[tuple[Target, T]]] = {}
    for target, item in jobs:
        found.setdefault(key_of(target), []).append((target, item))
    return found


def _numel(module: Module) -> int:
    rows, columns = (module.shape or (0, 0))[-2:]
    return rows * columns
