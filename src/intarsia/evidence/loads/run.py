"""Loads of one checkpoint, as stored and by a manifest in turn: seconds, where they go, and memory."""

import gc
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from intarsia.checkpoint import Checkpoint
from intarsia.core.progress import SILENT, Progress
from intarsia.evidence.forms import Form
from intarsia.evidence.loads.floor import Floors, measure_floors
from intarsia.evidence.loads.settings import PEAKS_ON_A_CPU, LoadsSettings
from intarsia.evidence.machine import clocks, machine, synchronize
from intarsia.evidence.settings import kept
from intarsia.kernels.encode import encode
from intarsia.loading.measure import Meter
from intarsia.loading.staging import Staging
from intarsia.loading.weights import Loader, prepared
from intarsia.planning.plan import plan


@dataclass(frozen=True, slots=True)
class Sample:
    """One load. Seconds by phase, bytes read, and memory beside what was there before.

    `headers` decides where everything goes; `load` reads, converts and places; `device_after` waits for what
    the device was still told to do. Of `headers` and `load` the caller waited for bytes for `waiting`, spent
    `planning` on checking tensors and deciding which bytes are read together and where they go, and `sending`
    on telling the device to copy and scatter them; `reading` and `no_buffer` are the seconds of all reading
    threads. None: nothing was read ahead.
    """

    form: str
    headers: float
    load: float
    device_after: float
    waiting: float | None
    planning: float | None
    sending: float | None
    reading: float | None
    no_buffer: float | None
    read_bytes: int
    weights: int
    planned_peak: int
    measured_peak: int

    @property
    def seconds(self) -> float:
        """From the headers to the last weight in its place."""
        return self.headers + self.load + self.device_after

    @property
    def rate(self) -> float:
        """Bytes read a second."""
        return self.read_bytes / self.seconds


@dataclass(frozen=True)
class LoadsRun:
    """All samples in the order they were taken, and the floors."""

    forms: tuple[Form, ...]
    settings: LoadsSettings
    samples: tuple[Sample, ...]
    floors: Floors
    machine: dict[str, Any]
    clocks: dict[str, Any]

    def of(self, form: Form) -> list[Sample]:
        """Samples of one form."""
        return [sample for sample in self.samples if sample.form == form.label]

    def median(self, form: Form) -> float:
        """The median seconds of one form's loads."""
        return statistics.median(sample.seconds for sample in self.of(form))

    @property
    def peak_to_plan(self) -> dict[str, float]:
        """The highest peak of each form's loads against the plan's, where that says something: on a GPU."""
        if torch.device(self.settings.device).type == "cpu":
            return {}
        return {
            form.label: max(sample.measured_peak / sample.planned_peak for sample in self.of(form))
            for form in self.forms
        }

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "settings": kept(self.settings, LoadsSettings),
            "forms": [form.label for form in self.forms],
            "samples": [asdict(sample) | {"seconds": sample.seconds} for sample in self.samples],
            "median_seconds": {form.label: self.median(form) for form in self.forms},
            "floors": asdict(self.floors),
            "machine": self.machine,
            "clocks": self.clocks,
            "not_run": [
                "the loaded weights were not run",
                "no other loader was run beside it",
                *([] if self.settings.cold else ["a cold page cache"]),
                *([] if self.peak_to_plan else [PEAKS_ON_A_CPU]),
            ],
        }


def measure_loads(forms: Sequence[Form], settings: LoadsSettings, *, progress: Progress = SILENT) -> LoadsRun:
    """Load each form `repeat` times in turn. Libraries, the device's context and kernels are there before."""
    device = torch.device(settings.device)
    _warm_up(device)
    floors = measure_floors(forms[0].checkpoint, device)
    samples = []
    with progress.phase("loading", settings.repeat * len(forms), "loads") as phase:
        for _ in range(settings.repeat):
            for form in forms:
                if settings.cold:
                    forget(form.checkpoint)
                samples.append(_load(form, device, settings.budget))
                gc.collect()
                phase.advance(1)
    return LoadsRun(
        tuple(forms), settings, tuple(samples), floors, machine(settings.device), clocks(settings.device)
    )


def _load(form: Form, device: torch.device, budget: int | None) -> Sample:
    limit = budget if form.manifest is not None else None
    planned = plan(form.checkpoint, form.manifest, device=device.type, budget=limit).ranks[0]
    meter = Meter(device)
    begin = time.perf_counter()
    arranged = prepared(form.checkpoint, form.manifest)
    with (
        form.checkpoint.reader() as reader,
        SILENT.phase("", 0) as phase,
        Staging(reader, device) as staging,
    ):
        loader = Loader(arranged, staging, phase, limit, later=True)
        loader.read_ahead()
        started = time.perf_counter()
        weights = [loader.load(item) for item in arranged.weights]
        loader.settle()
        told = time.perf_counter()
        synchronize(device)
        done = time.perf_counter()
        times = staging.ahead.times if staging.ahead is not None else None
    memory = meter.read(sum(weight.nbytes for weight in weights))
    return Sample(
        form=form.label,
        headers=started - begin,
        load=told - started,
        device_after=done - told,
        waiting=times.no_bytes if times else None,
        planning=times.planning if times else None,
        sending=times.sending if times else None,
        reading=times.reading if times else None,
        no_buffer=times.no_buffer if times else None,
        read_bytes=arranged.stored_bytes,
        weights=memory.weights,
        planned_peak=planned.peak,
        measured_peak=memory.peak,
    )


def forget(checkpoint: Checkpoint) -> None:
    """Ask the system to drop the shards from the page cache."""
    for shard in checkpoint.shards:
        descriptor = os.open(shard.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _warm_up(device: torch.device) -> None:
    weight = torch.randn(1024, 1024, device=device).bfloat16()
    for name in ("W4A16_NVFP4", "MXFP8"):
        encode(name, weight)
    synchronize(device)
