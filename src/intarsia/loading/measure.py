"""Measuring what a load really takes: seconds a phase, and the highest point of memory on its device."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from intarsia.core.receipt import Memory, PhaseTime

_STATUS = Path("/proc/self/status")


class Stopwatch:
    """Times the phases of a run."""

    def __init__(self) -> None:
        self.phases: list[PhaseTime] = []

    @contextmanager
    def phase(self, name: str, nbytes: int = 0) -> Iterator[None]:
        """Times what happens inside; work queued on a GPU is waited for."""
        begin = time.perf_counter()
        yield
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        self.phases.append(PhaseTime(name, round(time.perf_counter() - begin, 6), nbytes))


class Meter:
    """The highest point of memory from its making on, beside what was there before.

    On a GPU the allocator's own count. On a CPU the resident size, which only the operating system counts:
    its high-water mark is set back where that is allowed; where not, an earlier peak may hide this one, and
    `trusted` is false.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.trusted = True
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self.trusted = False
        self._before = _resident("VmRSS")

    def read(self, weights: int) -> Memory:
        """The peak until now; `weights` are the final bytes among it."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            peak = torch.cuda.max_memory_allocated(self._device) - self._before
            return Memory("allocator", weights, peak - weights, peak)
        peak = _resident("VmHWM") - self._before
        return Memory("resident size", weights, max(0, peak - weights), peak)


def _resident(field: str) -> int:
    match = re.search(rf"{field}:\s+(\d+) kB", _STATUS.read_text()) if _STATUS.exists() else None
    return int(match[1]) * 1024 if match else 0
