"""Runs of `bench decode` and `bench prefill`: the network, the device's own rates, and the results."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from intarsia.core.errors import UsageError
from intarsia.core.progress import SILENT, Progress
from intarsia.evidence.forms import Form, open_form
from intarsia.evidence.machine import clocks, cuda_device, machine
from intarsia.evidence.settings import kept
from intarsia.evidence.speed.steps import floors
from intarsia.evidence.speed.steps.decode import DecodeResult, record_decode, time_decode
from intarsia.evidence.speed.steps.prompts import PromptResult, time_prompt
from intarsia.evidence.speed.steps.settings import DecodeSettings, PrefillSettings, StepsSettings
from intarsia.evidence.synthetic import geometry, network
from intarsia.kernels.tuning.use import use
from intarsia.models.glm5_next.model import Glm5NextModel

RANDOM_CONTEXT = "contexts are random cache rows, not text"
RANDOM_WEIGHTS = "weights are random: how many guesses would be accepted is not measured"
ALL_DRAFTED = (
    "drafted steps are timed as such; which guesses are accepted depends on the text and is not measured"
)
NO_HEAD = "the head and the draw after a prompt are not timed"


@dataclass(frozen=True)
class Rates:
    """Of the device, measured before the first step: bytes a second that it streams, operations a second of
    large BF16 products, seconds from one empty kernel of a captured graph to the next."""

    bytes_a_second: float
    operations_a_second: float
    empty_kernel: float

    @classmethod
    def of(cls, device: torch.device) -> "Rates":
        """Measure them."""
        return cls(floors.bandwidth(device), floors.matrix_rate(device), floors.empty_kernel_seconds(device))


@dataclass(frozen=True)
class StepsRun:
    """All results of one command. `form` is None for a network with random weights."""

    kind: str
    label: str
    form: Form | None
    settings: StepsSettings
    machine: Mapping[str, Any]
    rates: Rates
    clocks_before: Mapping[str, Any]
    clocks_after: Mapping[str, Any]
    decode: tuple[DecodeResult, ...] = ()
    prompts: tuple[PromptResult, ...] = ()
    not_run: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "label": self.label,
            "settings": kept(self.settings, DecodeSettings if self.kind == "decode" else PrefillSettings),
            "machine": dict(self.machine),
            "rates": asdict(self.rates),
            "clocks_before": dict(self.clocks_before),
            "clocks_after": dict(self.clocks_after),
            "decode": [result.as_dict() for result in self.decode],
            "prompts": [result.as_dict() for result in self.prompts],
            "not_run": list(self.not_run),
        }


def measure_decode(
    settings: DecodeSettings, path: str | None = None, *, progress: Progress = SILENT
) -> StepsRun:
    """Time steps of streams that write, then record one of each.

    Raises UsageError without a GPU, or without exactly one network.
    """
    device, (label, form, model) = _subject(settings, path, progress)
    rates, before = Rates.of(device), clocks(device)
    timed, results = [], []
    with progress.phase("timing", len(settings.streams), "cells") as phase:
        for streams in settings.streams:
            timed.append(
                time_decode(
                    model,
                    streams=streams,
                    context=settings.context,
                    drafts=settings.drafts if model.weights.mtp is not None else 0,
                    steps=settings.steps,
                    bytes_a_second=rates.bytes_a_second,
                    eager=settings.eager,
                )
            )
            torch.cuda.empty_cache()
            phase.advance(1)
    with progress.phase("recording", len(timed), "cells") as phase:
        for steps in timed:
            results.append(
                record_decode(
                    model,
                    steps,
                    bytes_a_second=rates.bytes_a_second,
                    empty_kernel=rates.empty_kernel,
                    eager=settings.eager,
                    broken_down=not settings.no_operations,
                )
            )
            torch.cuda.empty_cache()
            phase.advance(1)
    notes = [RANDOM_CONTEXT, RANDOM_WEIGHTS if form is None else ALL_DRAFTED]
    return StepsRun(
        "decode",
        label,
        form,
        settings,
        machine(device),
        rates,
        before,
        clocks(device),
        decode=tuple(results),
        not_run=tuple(notes),
    )


def measure_prefill(
    settings: PrefillSettings, path: str | None = None, *, progress: Progress = SILENT
) -> StepsRun:
    """Time prompts. Raises UsageError without a GPU, or without exactly one network."""
    device, (label, form, model) = _subject(settings, path, progress)
    rates, before = Rates.of(device), clocks(device)
    results = []
    with progress.phase("timing", len(settings.prompts), "cells") as phase:
        for tokens in settings.prompts:
            results.append(
                time_prompt(
                    model,
                    tokens,
                    matrix_rate=rates.operations_a_second,
                    piece=settings.piece,
                    repeats=min(3, settings.steps),
                    broken_down=not settings.no_operations,
                )
            )
            torch.cuda.empty_cache()
            phase.advance(1)
    return StepsRun(
        "prefill",
        label,
        form,
        settings,
        machine(device),
        rates,
        before,
        clocks(device),
        prompts=tuple(results),
        not_run=(NO_HEAD,),
    )


def _subject(
    settings: StepsSettings, path: str | None, progress: Progress
) -> tuple[torch.device, tuple[str, Form | None, Glm5NextModel]]:
    if (path is None) == (settings.synthetic is None):
        found = "neither" if path is None else "both"
        raise UsageError("network", found=found, expected="a checkpoint's path or --synthetic LAYERS")
    device = cuda_device(settings.device, action="on a CPU use bench speed")
    if path is not None:
        form = open_form(path)
        model = form.load(str(device), settings.dtype, progress=progress)
        use(settings.tuning, device)
        return device, (form.label, form, model)
    use(settings.tuning, device)
    config = geometry(settings.geometry, layers=settings.synthetic)
    dtype = getattr(torch, settings.dtype)
    model = network(config, recipe=settings.recipe, dtype=dtype, device=device)
    label = f"{settings.geometry}, {settings.synthetic} layers, {settings.recipe}, random weights"
    return device, (label, None, model)
