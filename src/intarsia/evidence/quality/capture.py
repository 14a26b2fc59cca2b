"""Running a model over windows and keeping what its logits can be made from again."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import xxhash
from torch import Tensor

from intarsia.core.progress import SILENT, Progress
from intarsia.core.rows import pad_rows
from intarsia.evidence.quality.windows import Window
from intarsia.groups.group import SINGLE, Group
from intarsia.kernels.linear import linear
from intarsia.kernels.rows import Piece
from intarsia.kernels.weights import Weight
from intarsia.models.glm5_next.model import PROMPT_ROWS, Glm5NextModel
from intarsia.models.glm5_next.state import DEFAULT_PAGE, StateSettings


@dataclass(frozen=True)
class Capture:
    """Final-normed hidden rows [T, D] of every window, and the head that makes logits of them.

    On several ranks the head is this rank's part of the vocabulary, `parts` are all ranks' counts of tokens,
    and logits are made by all ranks together.

    Hidden rows are a fraction of the logits, so that one model after another can be in memory and the whole
    vocabulary is still compared. `digests` holds a hash of the residual streams a layer left, layer by layer,
    of the windows that were watched.
    """

    head: Weight
    vocab_size: int
    hidden: tuple[Tensor, ...]
    digests: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    group: Group = SINGLE
    parts: tuple[int, ...] = ()

    @torch.inference_mode()
    def logits(self, window: int, rows: slice) -> Tensor:
        """Logits float32 [n, V] of some rows of a window, the same bits as running the window whole."""
        part = self.hidden[window][rows]
        logits = linear(pad_rows(part), self.head, out_dtype=torch.float32)
        return self.group.gather_columns(logits, self.parts)[: part.shape[0]]


@torch.inference_mode()
def capture(
    model: Glm5NextModel,
    windows: Sequence[Window],
    *,
    watched: int = 0,
    name: str = "reading windows",
    progress: Progress = SILENT,
) -> Capture:
    """Run every window as a prompt of its own, teacher-forced; the first `watched` ones layer by layer.

    Memory: the model, the caches of one window, and a hidden row a token.
    """
    hidden: list[Tensor] = []
    digests: list[tuple[int, ...]] = []
    with progress.phase(name, sum(len(window.tokens) for window in windows), "tokens") as phase:
        for window in windows:
            rows, digest = run_window(model, window.tokens, watch=len(hidden) < watched)
            hidden.append(rows)
            if len(digests) < watched:
                digests.append(digest)
            phase.advance(len(window.tokens))
    parts = tuple(len(part) for part in model.vocabulary)
    return Capture(
        model.weights.head, model.config.vocab_size, tuple(hidden), tuple(digests), model.group, parts
    )


def run_window(
    model: Glm5NextModel, tokens: Sequence[int], *, watch: bool = False
) -> tuple[Tensor, tuple[int, ...]]:
    """Hidden rows [T, D] of one sequence without any kept state, and a hash a layer when it is watched."""
    model.check_tokens(tokens)
    pages = -(-len(tokens) // DEFAULT_PAGE)
    state = model.new_state(StateSettings(streams=1, window=pages * DEFAULT_PAGE, pages=pages))
    state.map_pages(0, range(pages))
    hashes = [xxhash.xxh3_64() for _ in model.weights.layers]

    def see(layer: int, streams: Tensor) -> None:
        real = streams[:count].contiguous().cpu()
        hashes[layer].update(real.view(torch.uint8).numpy().data)

    parts = []
    for begin in range(0, len(tokens), PROMPT_ROWS):
        piece = list(tokens[begin : begin + PROMPT_ROWS])
        count = len(piece)
        rows = state.rows([Piece(0, begin, piece, recurrent=False)])
        parts.append(model.hidden(rows, state, see if watch else None)[:count])
    return torch.cat(parts), tuple(found.intdigest() for found in hashes) if watch else ()
