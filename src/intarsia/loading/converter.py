"""Encoding matrices as they are read: some rows at a time, straight to where they stay.

Encoding is a pure function of a matrix (and, under a shared global scale, of the others that share it), so
cutting the work into rows changes no byte. Of a rank's share only the window around it is encoded, and read
too where no number has to be known of the whole matrix, or the ranks find that number together.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from intarsia.checkpoint import Module
from intarsia.core.errors import IntarsiaError
from intarsia.core.progress import Phase
from intarsia.formats.sources import Deferred
from intarsia.kernels.encode import encode
from intarsia.loading.asks import Span
from intarsia.loading.errors import ConvertError
from intarsia.loading.layout import source_bytes
from intarsia.loading.ledger import Ledger
from intarsia.loading.maxima import Largest, magnitude
from intarsia.loading.sinks import Sink
from intarsia.loading.sources import SIDE, MatrixSource
from intarsia.loading.stacks import Stacks
from intarsia.loading.staging import Staging
from intarsia.loading.units import Units, key_of, together
from intarsia.loading.window import Window, whole
from intarsia.planning.items import needs_largest
from intarsia.planning.working import Step, Working
from intarsia.selection.resolve import Selection, Target

Job = tuple[Target, Sink]
Noting = Callable[[str], AbstractContextManager[None]]


class Converter:
    """Converts matrices of one selection. Largest magnitudes of groups read twice are remembered."""

    def __init__(
        self,
        selection: Selection,
        modules: Mapping[str, Module],
        staging: Staging,
        phase: Phase,
        budget: int | None = None,
        *,
        ranks: int = 1,
        largest: Largest | None = None,
    ) -> None:
        """`largest` compares numbers among `ranks` ranks; without it each reads whole matrices where a number
        has to be known of them.
        """
        self._compare = largest
        self._modules = modules
        self._staging = staging
        self._phase = phase
        working = Working(staging.device.type, budget)
        self._units = Units(selection, modules, working, ranks, largest is not None)
        self.ledger = Ledger(budget)
        self.stacks = Stacks(modules, self._units, staging, self.ledger)
        self._largest: dict[str, torch.Tensor] = {}
        # On a GPU every look at a value would wait until it has done all it was told.
        self.deferring = staging.device.type != "cpu"

    def spans(self, parts: Iterable[tuple[Target, Window | None]], known: set[str]) -> Iterator[Span]:
        """What `convert` reads for jobs of targets into windows of them, in order; plain matrices only.

        `known` remembers from call to call which largest magnitudes have been found.
        """
        yield from self._units.spans(parts, known)

    def convert(self, jobs: Iterable[Job]) -> None:
        """Encodes matrices into their sinks, those that share a global scale together.

        Raises ConvertError naming the module and element that cannot be encoded, and BudgetError. On a GPU
        that is known when all jobs are done, and the element is looked for in the source.
        """
        units = together(jobs)
        faults = torch.zeros(len(units), dtype=torch.bool, device=self._staging.device)
        noted = dict(zip(units, faults.unbind(), strict=True))

        def noting(key: str) -> AbstractContextManager[None]:
            return Deferred(noted[key]) if self.deferring else nullcontext()

        windows = {key: [(target, sink.window) for target, sink in unit] for key, unit in units.items()}
        for batch in self._units.batches(windows):
            if batch.shared:
                self._encode_shared({key: units[key] for key in batch.keys}, batch.held, noting)
                continue
            (key,) = batch.keys
            with noting(key):
                self._unit(key, units[key])
        if self.deferring:
            for key, fault in zip(units, faults.tolist(), strict=True):
                if fault:
                    self.explain(self._units.members(key))

    def explain(self, members: Sequence[Target]) -> None:
        """Raises ConvertError for matrices of which one could not be encoded."""
        for target in members:
            self._largest_of(target)
        member = members[0]
        raise ConvertError(
            member.module,
            found="values that were not finite, and are now",
            expected=f"finite values for {member.format}",
            action="convert it again",
        )

    def _unit(self, key: str, jobs: Sequence[Job]) -> None:
        steps = [self._units.step(target) for target, _ in jobs]
        hold = self._units.holds(key, [target for target, _ in jobs])
        with self.ledger.hold(max(step.nbytes for step in steps), jobs[0][0].module):
            if hold:
                self._encode_held(jobs, steps)
                return
            largest = None
            if needs_largest(jobs[0][0].format):
                if key not in self._largest:
                    self._largest[key] = _most(
                        self._largest_of(member) for member in self._units.members(key)
                    )
                largest = self._largest[key]
            for (target, sink), step in zip(jobs, steps, strict=True):
                source = self._source(target)
                self._encode(target, source, sink, step.rows, largest)
                self._phase.advance(source_bytes(self._modules[target.module]))

    def _encode_shared(self, units: Mapping[str, Sequence[Job]], hold: bool, noting: Noting) -> None:
        """Encodes a rank's parts of matrices, whose largest magnitudes all ranks compare in between."""
        jobs = [job for unit in units.values() for job in unit]
        steps = {target.module: self._units.step(target) for target, _ in jobs}
        kept = sum(self._units.part_bytes(target, sink.window) for target, sink in jobs) if hold else 0
        encoding = max(
            step.nbytes - (self._units.nbytes(key_of(target)) if step.hold else 0)
            for (target, _), step in zip(jobs, steps.values(), strict=True)
        )
        with self.ledger.hold(kept + encoding, jobs[0][0].module):
            parts = {target.module: self._part(target, sink, hold) for target, sink in jobs}
            own = [
                _most(
                    magnitude(some)
                    for target, sink in unit
                    for some in _in_rows(parts[target.module], sink.window, steps[target.module].rows)
                )
                for unit in units.values()
            ]
            compare = self._compare or (lambda numbers: numbers)
            for (key, unit), largest in zip(units.items(), compare(torch.stack(own)).unbind(), strict=True):
                with noting(key):
                    self._require_finite(unit, parts, steps, largest)
                    for target, sink in unit:
                        self._encode(
                            target, parts.pop(target.module), sink, steps[target.module].rows, largest
                        )
                        self._phase.advance(source_bytes(self._modules[target.module]))

    def _part(self, target: Target, sink: Sink, hold: bool) -> "MatrixSource | _Held":
        source = self._source(target)
        window = sink.window
        if not hold or window is None:
            return source
        part = source.read(window.rows)
        if len(window.columns) < source.columns:
            part = part[:, window.columns.start : window.columns.stop].contiguous()
        return _Held(source, part, window.rows.start)

    def _require_finite(
        self,
        unit: Sequence[Job],
        parts: Mapping[str, "MatrixSource | _Held"],
        steps: Mapping[str, Step],
        largest: torch.Tensor,
    ) -> None:
        """Raises ConvertError on every rank when a part of one is not finite; its own rank says where."""
        fine = torch.isfinite(largest)
        if Deferred.took(~fine) or bool(fine):
            return
        for target, sink in unit:
            window = sink.window or whole((self._modules[target.module].shape or (0, 0))[-2:])
            first = window.rows.start
            for some in _in_rows(parts[target.module], sink.window, steps[target.module].rows):
                self._check(target, some, first, window.columns.start)
                first += len(some)
        raise ConvertError(
            unit[0][0].module,
            found="values that are not finite, in another rank's share",
            expected=f"finite values for {unit[0][0].format}",
            action="repair the source; that rank says where",
        )

    def _encode_held(self, jobs: Sequence[Job], steps: Sequence[Step]) -> None:
        held = []
        for target, _ in jobs:
            source = self._source(target)
            held.append(_Held(source, source.read(source.whole)))
            self._phase.advance(source_bytes(self._modules[target.module]))
        # Where checks are deferred the encoder notes what is not finite too.
        largest = _most(
            magnitude(matrix.weight) if self.deferring else self._check(target, matrix.weight, 0)
            for (target, _), matrix in zip(jobs, held, strict=True)
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
            if len(columns) < part.shape[1]:
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
        source, step = self._source(target), self._units.step(target)
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


class _Held:
    """A matrix in memory, or its rows from `first` on, read like one that is not."""

    def __init__(self, source: MatrixSource, weight: torch.Tensor, first: int = 0) -> None:
        self.rows, self.columns = source.rows, source.columns
        self.weight = weight
        self._first = first

    def read(self, rows: range) -> torch.Tensor:
        return self.weight[rows.start - self._first : rows.stop - self._first]


def _in_rows(part: "MatrixSource | _Held", window: Window | None, rows: int) -> Iterator[torch.Tensor]:
    """What a window shows of a matrix, some rows at a time."""
    window = window or whole((part.rows, part.columns))
    for first in range(window.rows.start, window.rows.stop, rows):
        some = part.read(range(first, min(first + rows, window.rows.stop)))
        if some.shape[1] > len(window.columns):
            some = some[:, window.columns.start : window.columns.stop]
        yield some


def _most(values: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(values)).amax()


def _refused(target: Target, problem: IntarsiaError) -> ConvertError:
    return ConvertError(
        target.module,
        found=problem.found,
        expected=f"{problem.expected} for {target.format}",
        action=problem.action,
    )
