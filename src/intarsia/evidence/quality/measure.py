"""The comparison of two forms of a model on one text: repeat first, then every figure."""

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from intarsia.checkpoint.paths import DEMO
from intarsia.core.errors import UsageError
from intarsia.core.progress import SILENT, Progress
from intarsia.engine.text.tokenizer import Tokenizer
from intarsia.evidence.errors import TextError
from intarsia.evidence.forms import Form, require_equal_sources, tokenizer_of
from intarsia.evidence.quality.capture import Capture, capture
from intarsia.evidence.quality.documents import Corpus, read_corpus
from intarsia.evidence.quality.figures import figures, worst_positions
from intarsia.evidence.quality.kld import score_windows
from intarsia.evidence.quality.layer_error import LayerErrors, layer_errors
from intarsia.evidence.quality.repeat import Repeat, check_repeat
from intarsia.evidence.quality.settings import QualitySettings
from intarsia.evidence.quality.windows import RULE, Window, WindowPlan, cut_windows, windows_hash

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


def measure_quality(
    base: Form,
    candidate: Form,
    text: str | os.PathLike[str] | None = None,
    settings: QualitySettings | None = None,
    *,
    layers: bool = True,
    progress: Progress = SILENT,
) -> Quality:
    """KLD, likelihood and agreement of `candidate` against `base`, teacher-forced over `text`.

    The demo's held-out text is read when the base is the demo and no text is given. One model is in memory at
    a time, and the hidden rows of all windows. Raises UnequalSourcesError, TextError, RepeatError before
    anything is compared, and NumbersError.
    """
    settings = settings or QualitySettings()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    require_equal_sources(base, candidate)
    tokenizer = tokenizer_of(base)
    corpus = read_corpus(text if text is not None else default_text(base), tokenizer)
    windows = cut_windows(corpus, WindowPlan.parse(settings.tokens))
    errors = layer_errors(base, candidate, progress=progress) if layers else None
    first, repeat = _base(base, windows, settings, progress)
    second = _candidate(candidate, windows, settings, progress)
    scores = list(score_windows(first, second, windows))
    worst = [_with_text(row, tokenizer) for row in worst_positions(windows, scores)]
    found = figures(windows, scores, settings.seed)
    return Quality(base, candidate, settings, corpus, windows, repeat, found, worst, errors)


def _base(
    form: Form, windows: Sequence[Window], settings: QualitySettings, progress: Progress
) -> tuple[Capture, Repeat]:
    model = form.load(settings.device, settings.dtype, progress=progress)
    if len(windows[0].tokens) > model.config.max_position_embeddings:
        raise UsageError(
            "tokens",
            found=f"windows of {len(windows[0].tokens):,} tokens",
            expected=f"at most {model.config.max_position_embeddings:,}, the model's own limit",
        )
    watched = windows[: settings.repeat_windows]
    first = capture(model, windows, watched=len(watched), name="base", progress=progress)
    again = capture(model, watched, watched=len(watched), name="base again", progress=progress)
    repeat = check_repeat(first, again, watched, model.config)
    del model
    gc.collect()
    return first, repeat


def _candidate(
    form: Form, windows: Sequence[Window], settings: QualitySettings, progress: Progress
) -> Capture:
    model = form.load(settings.device, settings.dtype, progress=progress)
    return capture(model, windows, name="candidate", progress=progress)


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
