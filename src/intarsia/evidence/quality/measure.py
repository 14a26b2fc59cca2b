"""The comparison of two forms of a model on one text: repeat first, then every figure."""

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from intarsia.checkpoint.paths import DEMO
from intarsia.core.errors import UsageError
from intarsia.core.progress import SILENT, Progress
from intarsia.engine.devices import usable_device
from intarsia.engine.text.tokenizer import Tokenizer
from intarsia.engine.threads import use_threads
from intarsia.evidence.errors import TextError
from intarsia.evidence.forms import Form, require_equal_sources, tokenizer_of
from intarsia.evidence.quality.capture import Capture, capture
from intarsia.evidence.quality.documents import Corpus, read_corpus
from intarsia.evidence.quality.figures import figures, worst_positions
from intarsia.evidence.quality.kld import help_to_score, score_windows
from intarsia.evidence.quality.layer_error import LayerErrors, layer_errors
from intarsia.evidence.quality.ranks import Ranks
from intarsia.evidence.quality.repeat import Repeat, check_repeat
from intarsia.evidence.quality.settings import QualitySettings
from intarsia.evidence.quality.windows import RULE, Window, WindowPlan, cut_windows, windows_hash
from intarsia.groups.group import SINGLE, Group
from intarsia.loading.arrange import arrange

HELD_OUT = DEMO / "heldout.txt"


@dataclass(frozen=True)
class Quality:
    """The outcome: `figures` are JSON values (figures.py), `layers` the errors of the weights themselves."""

    base: Form
    candidate: Form
    settings: QualitySettings
    corpus: Corpus
    windows: tuple[Window, ...]
    repeat: Repeat
    figures: dict[str, Any]
    worst: list[dict[str, Any]]
    layers: LayerErrors | None = field(repr=False)
    ranks: list[dict[str, Any]]
    candidate_repeat: Repeat | None = None

    @property
    def text(self) -> dict[str, Any]:
        """What was read."""
        return {
            "file": self.corpus.name,
            "sha256": self.corpus.sha256,
            "documents": len(self.corpus.documents),
            "document_rule": self.corpus.rule,
            "windows": len(self.windows),
            "window_tokens": len(self.windows[0].tokens),
            "window_rule": RULE,
            "tokens_sha256": windows_hash(self.windows),
        }


@dataclass(frozen=True)
class Task:
    """A comparison that can be made: forms that fit each other, and text that fills the windows."""

    base: Form
    candidate: Form
    settings: QualitySettings
    tokenizer: Tokenizer
    corpus: Corpus
    windows: tuple[Window, ...]


def prepare(
    base: Form,
    candidate: Form,
    text: str | os.PathLike[str] | None = None,
    settings: QualitySettings | None = None,
) -> Task:
    """Everything that can be refused before a weight is read, or another rank is met.

    The demo's held-out text is read when the base is the demo and no text is given. Raises
    UnequalSourcesError, TextError, and UsageError for windows longer than the models' own.
    """
    settings = settings or QualitySettings()
    usable_device(settings.device)
    require_equal_sources(base, candidate)
    tokenizer = tokenizer_of(base)
    corpus = read_corpus(text if text is not None else default_text(base), tokenizer)
    windows = cut_windows(corpus, WindowPlan.parse(settings.tokens))
    limit = min(arrange(form.checkpoint).config.max_position_embeddings for form in (base, candidate))
    if len(windows[0].tokens) > limit:
        raise UsageError(
            "tokens",
            found=f"windows of {len(windows[0].tokens):,} tokens",
            expected=f"at most {limit:,}, the model's own limit",
        )
    return Task(base, candidate, settings, tokenizer, corpus, windows)


def measure_quality(
    base: Form,
    candidate: Form,
    text: str | os.PathLike[str] | None = None,
    settings: QualitySettings | None = None,
    *,
    layers: bool = True,
    progress: Progress = SILENT,
) -> Quality:
    """KLD, likelihood and agreement of `candidate` against `base`, teacher-forced over `text`, on one rank.

    One model is in memory at a time, and the hidden rows of all windows. Raises what `prepare` raises,
    RepeatError before anything is compared, and NumbersError.
    """
    task = prepare(base, candidate, text, settings)
    tp = task.settings.tp
    alone = Ranks(SINGLE, task.settings)
    found = measure_on(alone, task, layers=layers, progress=progress) if tp == 1 else None
    if found is None:
        raise UsageError("tp", found=f"{tp}", expected="1", action="call measure_on on every rank")
    return found


def measure_on(
    ranks: Ranks, task: Task, *, layers: bool = True, progress: Progress = SILENT
) -> Quality | None:
    """`measure_quality` on ranks that have met; None on every rank but the first, which has the outcome.

    What runs on several ranks is read twice too. Raises RanksDifferError for ranks started otherwise.
    """
    settings, windows = task.settings, task.windows
    use_threads(settings.threads, arrange(task.base.checkpoint).config.hidden_size)
    progress = ranks.watched(progress)
    ranks.agree(windows)
    errors = layer_errors(task.base, task.candidate, progress=progress) if layers and ranks.leads else None
    first = _read(task.base, "base", ranks, ranks.base_group, windows, progress) if ranks.runs_base else None
    ranks.reached("the base has been read")
    second = _read(task.candidate, "candidate", ranks, ranks.group, windows, progress)
    described = ranks.described()
    if first is None or first.repeat is None or not ranks.leads:
        help_to_score([read.capture for read in (first, second) if read is not None], windows)
        return None
    scores = list(score_windows(first.capture, second.capture, windows))
    return Quality(
        _labelled(task.base, settings.base_tp),
        _labelled(task.candidate, settings.tp),
        settings,
        task.corpus,
        windows,
        first.repeat,
        figures(windows, scores, settings.seed),
        [_with_text(row, task.tokenizer) for row in worst_positions(windows, scores)],
        errors,
        described,
        second.repeat,
    )


@dataclass(frozen=True)
class _Read:
    """The hidden rows of a form, and what reading the first windows again gave, if they were."""

    capture: Capture
    repeat: Repeat | None


def _read(
    form: Form, name: str, ranks: Ranks, group: Group, windows: Sequence[Window], progress: Progress
) -> _Read:
    """All windows through a form; the first of them twice if it is the base, or on several ranks."""
    settings = ranks.settings
    model = form.load(ranks.device, settings.dtype, group=group, progress=progress)
    watched = windows[: settings.repeat_windows] if name == "base" or group.ranks > 1 else ()
    first = capture(model, windows, watched=len(watched), name=name, progress=progress)
    repeat = None
    if watched:
        again = capture(model, watched, watched=len(watched), name=f"{name} again", progress=progress)
        repeat = check_repeat(first, again, watched, model.config, name)
    del model
    gc.collect()
    return _Read(first, repeat)


def _labelled(form: Form, ranks: int) -> Form:
    return replace(form, label=f"{form.label} on {ranks} ranks") if ranks > 1 else form


def default_text(base: Form) -> str:
    """The demo's held-out text; raises TextError for any other checkpoint."""
    if base.checkpoint.path == DEMO:
        return str(HELD_OUT)
    raise TextError("text", found="none", expected="a text file", action="name one with --text")


def _with_text(row: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """A position with its three tokens written out."""
    written = {
        f"{name}_text": tokenizer.token_bytes(row[name]).decode(errors="replace")
        for name in ("token", "base", "candidate")
    }
    return row | written
