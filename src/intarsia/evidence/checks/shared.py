"""One forward over several streams' rows, every split of its rows, against each stream alone: the same
bits."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from intarsia.core.progress import SILENT, Progress
from intarsia.core.rows import pad_rows
from intarsia.evidence.checks.bench import PAGE
from intarsia.evidence.checks.coverage import CheckReport, Coverage
from intarsia.kernels.rows import Piece
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.models.glm5_next.state import State, StateSettings

ROWS = 8
"""Rows of a shared step, in every way they can be divided among streams."""
HISTORIES = (0, 5, 63, 64, 70, 129, 17, 200)
"""Tokens that each stream has run before; beside dense attention some reach sparse attention in small
networks."""


def partitions(total: int, most: int | None = None) -> Iterator[tuple[int, ...]]:
    """Every way to write `total` as a sum of falling positive numbers."""
    if total == 0:
        yield ()
    for first in range(min(total, most or total), 0, -1):
        for rest in partitions(total - first, first):
            yield (first, *rest)


@torch.inference_mode()
def check_shared(model: Glm5NextModel, progress: Progress = SILENT, *, seed: int = 0) -> CheckReport:
    """Hidden rows, logits, MTP rows, and everything left in the caches, bit for bit.

    Cells: every split of 8 rows, with all parts recurrent and with every other part a prompt piece, and the
    kinds of state compared.
    """
    coverage = Coverage("shared", progress)
    splits = list(partitions(ROWS))
    forms = ("recurrent", "mixed", "prompt")
    bench = _Shared(model, coverage, seed)
    with coverage.part():
        for form in forms:
            coverage.expect(f"split, {form}", ("+".join(map(str, split)) for split in splits))
        coverage.expect("bits", ("hidden", "logits", "mtp", "latents", "pooled", "memory", "window", "tail"))
        for form in forms:
            for split in splits:
                bench.compare(split, form)
                coverage.took(f"split, {form}", "+".join(map(str, split)))
    return coverage.report()


class _Shared:
    def __init__(self, model: Glm5NextModel, coverage: Coverage, seed: int) -> None:
        self._model = model
        self._coverage = coverage
        generator = torch.Generator().manual_seed(seed)
        shape = len(HISTORIES), max(HISTORIES) + ROWS + 1
        self._tokens = torch.randint(0, model.config.vocab_size, shape, generator=generator).tolist()
        pages = -(-shape[1] // PAGE)
        self._settings = StateSettings(len(HISTORIES), pages * PAGE, len(HISTORIES) * pages, PAGE, ROWS)
        self._begin = self._history()

    def compare(self, split: Sequence[int], form: str) -> None:
        """Run a split in one step and each of its parts in a step of its own."""
        pieces = []
        for stream, count in enumerate(split):
            position = HISTORIES[stream]
            # A prompt piece begins where the prompt's own pieces do.
            recurrent = form == "recurrent" or (form == "mixed" and stream % 2 == 0) or position % 64 != 0
            tokens = self._tokens[stream][position : position + count]
            pieces.append(Piece(stream, position, tokens, recurrent))
        together = self._copy()
        outputs = self._run(pieces, together)
        alone = self._copy()
        for piece, output in zip(pieces, outputs, strict=True):
            (single,) = self._run([piece], alone)
            for kind, left, right in zip(("hidden", "logits", "mtp"), output, single, strict=True):
                self._same(kind, split, form, left, right)
        for kind in ("latents", "pooled", "memory", "window", "tail"):
            self._same(kind, split, form, getattr(together, kind), getattr(alone, kind))

    def _run(self, pieces: Sequence[Piece], state: State) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Each piece's hidden rows, logits and MTP rows."""
        rows = state.rows(pieces)
        hidden = self._model.hidden(rows, state)
        logits = self._model.head(hidden)
        mtp = torch.zeros_like(hidden)
        if self._model.weights.mtp is not None:
            following = [
                Piece(
                    p.stream,
                    p.position,
                    self._tokens[p.stream][p.position + 1 :][: len(p.tokens)],
                    p.recurrent,
                )
                for p in pieces
            ]
            mtp, _ = self._model.mtp_hidden(state.rows(following), hidden, state)
        bounds = rows.starts.tolist()
        ordered = sorted(range(len(pieces)), key=lambda index: not pieces[index].recurrent)
        outputs = {}
        for index, begin, end in zip(ordered, bounds, bounds[1:], strict=False):
            outputs[index] = hidden[begin:end], logits[begin:end], mtp[begin:end]
        return [outputs[index] for index in range(len(pieces))]

    def _history(self) -> State:
        """A state in which every stream has run its history as a prompt."""
        state = self._model.new_state(self._settings)
        pages = self._settings.window_pages
        for stream, length in enumerate(HISTORIES):
            state.map_pages(stream, range(stream * pages, (stream + 1) * pages))
            state.reset(stream)
            if length:
                tokens = self._tokens[stream]
                rows = state.rows([Piece(stream, 0, tokens[:length], False)])
                hidden = self._model.hidden(rows, state)
                state.commit(stream, 1)
                if self._model.weights.mtp is not None:
                    rows = state.rows([Piece(stream, 0, tokens[1 : length + 1], False)])
                    self._model.mtp_hidden(rows, pad_rows(hidden[:length]), state)
        return state

    def _copy(self) -> State:
        state = self._model.new_state(self._settings)
        for name in ("latents", "pooled", "memory", "window", "tail"):
            getattr(state, name).copy_(getattr(self._begin, name))
        state.tables.take(self._begin.tables)
        return state

    def _same(self, kind: str, split: Sequence[int], form: str, left: Tensor, right: Tensor) -> None:
        self._coverage.took("bits", kind)
        if torch.equal(left, right):
            self._coverage.compared += left.shape[0]
            return
        parts = "+".join(map(str, split))
        difference = float((left.double() - right.double()).abs().max())
        self._coverage.require(False, f"{kind} of {parts} {form} rows differ by up to {difference:.3g}")
