"""Speed runs of one form, or of two in turn: A B A B ... A, so that the drift of the machine shows."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from intarsia.core.errors import UsageError
from intarsia.core.progress import SILENT, Progress
from intarsia.engine.devices import usable_device
from intarsia.engine.threads import use_threads
from intarsia.evidence.forms import Form, require_equal_sources, tokenizer_of
from intarsia.evidence.machine import clocks, machine
from intarsia.evidence.quality.documents import read_corpus
from intarsia.evidence.quality.measure import default_text
from intarsia.evidence.settings import kept
from intarsia.evidence.speed.cells import PROMPT_OF_DECODE, Cell, Sample, cells_of, time_cell
from intarsia.evidence.speed.floor import Floor, floors
from intarsia.evidence.speed.settings import SpeedSettings
from intarsia.loading.arrange import arrange
from intarsia.models.glm5_next.model import Glm5NextModel


@dataclass(frozen=True)
class SpeedRun:
    """The samples of one form, and all that a comparison must find equal in another run."""

    form: Form
    settings: SpeedSettings
    machine: Mapping[str, Any]
    text_sha256: str
    session: str
    design: str
    samples: tuple[Sample, ...]
    floors: tuple[Floor, ...]
    not_run: tuple[str, ...]
    clocks_before: Mapping[str, Any]
    clocks_after: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """JSON values, what `bench compare` reads."""
        return {
            "label": self.form.label,
            "settings": kept(self.settings, SpeedSettings),
            "machine": dict(self.machine),
            "text_sha256": self.text_sha256,
            "session": self.session,
            "design": self.design,
            "samples": [sample.as_dict() for sample in self.samples],
            "floors": [asdict(floor) for floor in self.floors],
            "not_run": list(self.not_run),
        }


def measure_speed(
    forms: Sequence[Form],
    settings: SpeedSettings | None = None,
    text: str | os.PathLike[str] | None = None,
    *,
    progress: Progress = SILENT,
) -> tuple[SpeedRun, ...]:
    """A run for each form, all in one session: their samples of a round follow each other directly.

    After the last round the first form is measured once more. All models are in memory together.
    """
    settings = settings or SpeedSettings()
    usable_device(settings.device)
    use_threads(settings.threads, arrange(forms[0].checkpoint).config.hidden_size)
    for other in forms[1:]:
        require_equal_sources(forms[0], other)
    corpus = read_corpus(text if text is not None else default_text(forms[0]), tokenizer_of(forms[0]))
    tokens = [token for document in corpus.documents for token in document]
    models = [form.load(settings.device, settings.dtype, progress=progress) for form in forms]
    window = min(model.config.max_position_embeddings for model in models)
    can_draft = all(model.weights.mtp is not None for model in models)
    cells, not_run = cells_of(settings, window, can_draft)
    before = clocks(settings.device)
    if not cells:
        raise UsageError("prompts", found="no cell that can run", expected="; ".join(not_run))
    needed = max([cell.size if cell.kind == "prompt" else PROMPT_OF_DECODE for cell in cells])
    tokens = (tokens * -(-needed // len(tokens)))[: max(needed, len(tokens))]
    samples = _samples(models, cells, tokens, settings, progress)
    after = clocks(settings.device)
    letters = "ABCDEFGH"[: len(forms)]
    design = f"{' '.join(letters)} in every round, then A again" if len(forms) > 1 else "A alone"
    return tuple(
        SpeedRun(
            form,
            settings,
            machine(settings.device),
            corpus.sha256,
            _session(samples),
            design,
            tuple(sample for sample in samples if sample.subject == letters[index]),
            floors(model, cells),
            tuple(not_run),
            before,
            after,
        )
        for index, (form, model) in enumerate(zip(forms, models, strict=True))
    )


def _samples(
    models: Sequence[Glm5NextModel],
    cells: Sequence[Cell],
    tokens: Sequence[int],
    settings: SpeedSettings,
    progress: Progress,
) -> list[Sample]:
    turns = [(-1 - again, index) for again in range(settings.warm_ups) for index in range(len(models))]
    turns += [(number, index) for number in range(settings.rounds) for index in range(len(models))]
    turns += [(settings.rounds, 0)] if len(models) > 1 else []
    samples: list[Sample] = []
    with progress.phase("timing", len(turns) * len(cells), "samples") as phase:
        for cell in cells:
            for number, index in turns:
                timing = time_cell(models[index], cell, tokens, settings)
                samples.append(
                    Sample(
                        cell=cell.name,
                        subject="ABCDEFGH"[index],
                        round=number,
                        order=len(samples),
                        warm_up=number < 0,
                        file_cache="weights in memory",
                        **asdict(timing),
                    )
                )
                phase.advance(1)
    return samples


def _session(samples: Sequence[Sample]) -> str:
    """What names a session: the timings themselves, which no other session repeats."""
    return hashlib.sha256(repr([sample.seconds for sample in samples]).encode()).hexdigest()[:16]
