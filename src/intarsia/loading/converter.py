"""Encoding matrices as they are read: some rows at a time, straight to where they stay.

Encoding is a pure function of a matrix (and, under a shared global scale, of the others that share it), so
cutting the work into rows changes no byte. Of a rank's share only the window around it is encoded, and read
too where no number has to be known of the whole matrix.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch

from intarsia.checkpoint import Module
from intarsia.core.errors import IntarsiaError
from intarsia.core.progress import Phase
from intarsia.formats.sources import Deferred
from intarsia.kernels.encode import encode
from intarsia.loading.ahead import Span
from intarsia.loading.errors import ConvertError
from intarsia.loading.layout import source_bytes
from intarsia.loading.ledger import Ledger
from intarsia.loading.sinks import Sink
from intarsia.loading.sources import SIDE, MatrixSource
from intarsia.loading.staging import Staging
from intarsia.loading.window import Window, whole
from intarsia.planning.items import needs_largest, unit_key
from intarsia.planning.order import element_bytes
from intarsia.planning.working import Step, Working
from intarsia.selection.resolve import Selection, Target

Job = tuple[Target, Sink]
T = TypeVar("T")


class Converter:
    """Converts matrices of one selection. Largest magnitudes of groups read twice are remembered."""

    def __init__(
        self,
        selection: Selection,
        modules: Mapping[str, Module],
        staging: Staging,
        phase: Phase,
        budget: int | None = None,
    ) -> None:
        self._modules = modules
        self._staging = staging
        self._phase = phase
        self._working = Working(staging.device.type, budget)
        self.ledger = Ledger(budget)
        self._units: dict[str, list[Target]] = {}
        for target in selection.targets.values():
            self._units.setdefault(_key(target), []).append(target)
        self._largest: dict[str, torch.Tensor] = {}
        # On a GPU every look at a value would wait until it has done all it was told.
        self.deferring = staging.device.type != "cpu"

    def spans(self, parts: Iterable[tuple[Target, Window | None]], known: set[str]) -> Iterator[Span]:
        """What `convert` reads for jobs of targets into windows of them, in order; plain matrices only.

        `known` remembers from call to call which largest magnitudes have been found.
        """
        for key, unit in _together(parts).items():
            members = [target for target, _ in unit]
            if self._holds(key, members):
                unit = [(target, None) for target in members]
            elif needs_largest(members[0].format) and key not in known:
                known.add(key)
                unit = [(target, None) for target in self._units[key]] + unit
            for target, window in unit:
                module = self._modules[target.module]
                if module.format is None:
                    entry = module.tensors["weight"]
                    rows = window.rows if window is not None else range(entry.shape[0])
                    row = entry.nbytes // entry.shape[0]
                    yield Span(entry, rows.start * row, rows.stop * row)

    def convert(self, jobs: Iterable[Job]) -> None:
        """Encodes matrices into their sinks, those that share a global scale together.

        Raises ConvertError naming the module and element that cannot be encoded, and BudgetError. On a GPU
        that is known when all jobs are done, and the element is looked for in the source.
        """
        together = _together(jobs)
        if not self.deferring:
            for key, unit in together.items():
                self._unit(key, unit)
            return
        faults = torch.zeros(len(together), dtype=torch.bool, device=self._staging.device)
        for index, (key, unit) in enumerate(together.items()):
            with Deferred(faults[index]):
                self._unit(key, unit)
        for key, fault in zip(together, faults.tolist(), strict=True):
            if fault:
                self._explain(key)

    def _explain(self, key: str) -> None:
        """Raises ConvertError for a unit that could not be encoded."""
        for target in self._units[key]:
            self._largest_of(target)
        member = self._units[key][0]
        raise ConvertError(
            member.module,
            found="values that were not finite, and are now",
            expected=f"finite values for {member.format}",
            action="convert it again",
        )

    def _unit(self, key: str, jobs: Sequence[Job]) -> None:
        steps = [self._step(target) for target, _ in jobs]
        hold = self._holds(key, [target for target, _ in jobs])
        with self.ledger.hold(max(step.nbytes for step in steps), jobs[0][0].module):
            if hold:
                self._encode_held(jobs, steps)
                return
            largest = None
            if needs_largest(jobs[0][0].format):
                if key not in self._largest:
                    self._largest[key] = _most(self._largest_of(member) for member in self._units[key])
                largest = self._largest[key]
            for (target, sink), step in zip(jobs, steps, strict=True):
                source = self._source(target)
                self._encode(target, source, sink, step.rows, largest)
                self._phase.advance(source_bytes(self._modules[target.module]))

    def _holds(self, key: str, targets: Sequence[Target]) -> bool:
        complete = len(targets) == len(self._units[key])
        return complete and all(self._step(target).hold for target in targets)

    def _encode_held(self, jobs: Sequence[Job], steps: Sequence[Step]) -> None:
        held = []
        for target, _ in jobs:
            source = self._source(target)
            held.append(_Held(source, source.read(source.whole)))
            self._phase.advance(source_bytes(self._modules[target.module]))
        largest = _most(
            self._check(target, matrix.weight, 0) for (target, _), matrix in zip(jobs, held, strict=True)
        )
        for (target, sink), step in zip(jobs, steps, strict=True):
            self._encode(target, held.pop(0), sink, step.rows, largest)

    def _encode(
        self,
        target: Target,
        source: "MatrixSource | _Held",
        sink: Sink,
        rows: int,
        largest: torch.Tensor | None,
    ) -> None:
        window = sink.window or whole((source.rows, source.columns))
        begin, end, columns = window.rows.start, window.rows.stop, window.columns
        for first in range(begin, end, rows):
            part = source.read(range(first, min(first + rows, end)))
            if len(columns) < source.columns:
                part = part[:, columns.start : columns.stop].contiguous()
            problem: IntarsiaError | None = None
            try:
                stored = encode(target.format, part, amax=largest)
            except IntarsiaError as error:
                problem = error
            if problem is not None:
                self._check(target, part, first, columns.start)
                raise _refused(target, problem)
            for suffix, tensor in stored.tensors.items():
                if tensor.ndim == 0:
                    if first == begin:
                        sink.put(suffix, 0, tensor)
                    continue
                blocks = target.format == "FP8_PB_WO" and suffix != "weight"
                sink.put(suffix, (first - begin) // SIDE if blocks else first - begin, tensor)

    def _largest_of(self, target: Target) -> torch.Tensor:
        """The largest magnitude of a matrix that is not kept: reads all of it."""
        source, step = self._source(target), self._step(target)
        return _most(
            self._check(target, source.read(range(first, min(first + step.rows, source.rows))), first)
            for first in range(0, source.rows, step.rows)
        )

    def _check(self, target: Target, part: torch.Tensor, first: int, left: int = 0) -> torch.Tensor:
        """The largest magnitude of rows from `first` on, and of columns from `left` on; raises ConvertError
        for one that is not finite.
        """
        low, high = part.aminmax()
        largest = torch.maximum(low.abs(), high.abs()).float()
        fine = torch.isfinite(largest)
        if not Deferred.took(~fine) and not bool(fine):
            row, column = torch.nonzero(~torch.isfinite(part))[0].tolist()
            raise ConvertError(
                target.module,
                found=f"{float(part[row, column])} at row {first + row}, column {left + column}",
                expected=f"finite values for {target.format}",
                action="repair the source",
            )
        return largest

    def _source(self, target: Target) -> MatrixSource:
        return MatrixSource(self._modules[target.module], self._staging)

    def _step(self, target: Target) -> Step:
        module = self._modules[target.module]
        element = element_bytes(module.format)
        unit = sum(_numel(self._modules[member.module]) for member in self._units[_key(target)]) * element
        return self._working.step(
            target.module,
            target.format,
            module.shape or (0, 0),
            element=element,
            unit=unit,
            stored=module.format,
        )


class _Held:
    """A matrix in memory, read like one that is not."""

    def __init__(self, source: MatrixSource, weight: torch.Tensor) -> None:
        self.rows, self.columns = source.rows, source.columns
        self.weight = weight

    def read(self, rows: range) -> torch.Tensor:
        return self.weight[rows.start : rows.stop]


def _key(target: Target) -> str:
    return unit_key(target.module, target.format, target.group)


def _together(jobs: Iterable[tuple[Target, T]]) -> dict[str, list[tuple[Target, T]]]:
    """Jobs by what shares a global scale."""
    together: dict[str, list[tuple[Target, T]]] = {}
    for target, item in jobs:
        together.setdefault(_key(target), []).append((target, item))
    return together


def _most(values: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(values)).amax()


def _numel(module: Module) -> int:
    rows, columns = (module.shape or (0, 0))[-2:]
    return rows * columns


def _refused(target: Target, problem: IntarsiaError) -> ConvertError:
    return ConvertError(
        target.module,
        found=problem.found,
        expected=f"{problem.expected} for {target.format}",
        action=problem.action,
    )
