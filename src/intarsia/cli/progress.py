"""Shows how far a long task is: a bar on a terminal, else a line every two seconds, on standard error."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from intarsia.cli.output import gigabytes
from intarsia.core.progress import Phase, Progress

EVERY_SECONDS = 2.0


def terminal_progress(stream: TextIO | None = None) -> Progress:
    """The form that suits where standard error goes."""
    stream = stream or sys.stderr
    return BarProgress(stream) if stream.isatty() else LineProgress(stream)


class LineProgress:
    """Plain lines, for logs. A phase that ends before the first is due says nothing."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock

    @contextmanager
    def phase(self, name: str, total: int, unit: str = "bytes") -> Iterator[Phase]:
        """A phase of `total` bytes, or of another unit."""
        yield _Lines(name, total, unit, self._stream, self._clock)


def amount(unit: str) -> Callable[[float], str]:
    """How numbers of a unit are written."""
    return gigabytes if unit == "bytes" else lambda count: f"{count:,.0f} {unit}"


class _Lines:
    def __init__(self, name: str, total: int, unit: str, stream: TextIO, clock: Callable[[], float]) -> None:
        self._name, self._total, self._stream, self._clock = name, total, stream, clock
        self._shown = amount(unit)
        self._begin = self._said = clock()
        self._done = 0

    def advance(self, count: int) -> None:
        self._done += count
        now = self._clock()
        if now - self._said < EVERY_SECONDS:
            return
        self._said = now
        rate = self._done / (now - self._begin)
        left = f", {max(0, self._total - self._done) / rate:.0f} s left" if rate > 0 else ""
        done, total, speed = map(self._shown, (self._done, self._total, rate))
        print(f"{self._name}: {done} of {total}, {speed}/s{left}", file=self._stream, flush=True)


class BarProgress:
    """A bar that disappears when its phase is over."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @contextmanager
    def phase(self, name: str, total: int, unit: str = "bytes") -> Iterator[Phase]:
        """A phase of `total` bytes, or of another unit."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            *([DownloadColumn(), TransferSpeedColumn()] if unit == "bytes" else [MofNCompleteColumn()]),
            TimeRemainingColumn(),
        )
        with Bars(*columns, console=Console(file=self._stream), transient=True) as bars:
            task = bars.add_task(name, total=total)
            yield _Bar(lambda count: bars.advance(task, count))


class _Bar:
    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance

    def advance(self, count: int) -> None:
        self._advance(count)
