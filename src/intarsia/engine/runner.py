"""Runs one stream of a network step by step: prompt, verify, commit, draft."""

from array import array
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from xxhash import xxh64_intdigest

from intarsia.core.config import CPU_PROMPT_ROWS, GPU_PROMPT_ROWS, SamplingSettings
from intarsia.core.rows import pad_rows
from intarsia.engine.errors import StepOrderError, WindowError
from intarsia.engine.graphs.capture import Captures, Recorder
from intarsia.engine.graphs.main_step import MainOutput, MainSteps
from intarsia.engine.graphs.mtp_step import MtpOutput, MtpSteps
from intarsia.engine.pages import PagePool
from intarsia.engine.sampling.shards import Shards, draw_shards
from intarsia.kernels.rows import Piece, Rows
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.models.glm5_next.state import DEFAULT_PAGE, StateSettings

Pick = Callable[[Tensor, int], int]
STREAM = 0


class ModelRunner:
    """One stream over `model`, with caches for `window` tokens and up to `max_drafts` drafts a step.

    Prompt rows run in the chunked form on the absolute 64-token grid, verified rows in the recurrent form,
    one row at a time in effect: what a row computes does not depend on how many drafts follow it.

    On several ranks logits are those of this rank's part of the vocabulary, and only `draw` may choose by
    them. All ranks make the same calls.
    """

    def __init__(
        self,
        model: Glm5NextModel,
        *,
        window: int,
        max_drafts: int = 3,
        page: int = DEFAULT_PAGE,
        eager: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        """`eager` turns captured steps off; `recorder` takes the place of the device's way of capturing."""
        self.model = model
        self.vocab_size = model.config.vocab_size
        self.window = window
        self.max_drafts = max_drafts
        pages = -(-window // page)
        settings = StateSettings(streams=1, window=window, pages=pages, page=page, step_rows=1 + max_drafts)
        self.state = model.new_state(settings)
        capturing = (model.device, model.group.host_ranks, eager, recorder)
        self.captures: Captures[MainOutput] = Captures.on(*capturing)
        self._captured = MainSteps(model, self.state, self.captures)
        self._captured_mtp = MtpSteps(model, self.state, Captures.on(*capturing))
        self._shards = Shards.of(model)
        self._pool = PagePool(self.state.tables.pages, pages, page)
        self._length = 0
        self._verified: Tensor | None = None
        self._verified_tokens: list[int] = []
        # Final-normed hidden rows that the MTP layer has not seen, and the tokens that follow them.
        self._unabsorbed: list[Tensor] = []
        self._following: list[int] = []

    @property
    def can_draft(self) -> bool:
        """True if the checkpoint has an MTP layer and drafts are allowed."""
        return self.model.weights.mtp is not None and self.max_drafts > 0

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._length

    @property
    def reused(self) -> int:
        """Tokens of the last prompt that did not have to run again: here none."""
        return 0

    def start(self, tokens: Sequence[int]) -> Tensor:
        """Drop what the stream held and run a prompt; logits float32 [V] of its last row."""
        self.check_prompt(tokens)
        self.empty(0)
        return self.logits_of(self.run_prompt(tokens, 0, len(tokens)))

    def check_prompt(self, tokens: Sequence[int]) -> None:
        """Raise StepOrderError, StateError or WindowError for a prompt that cannot be run."""
        if not tokens:
            raise StepOrderError("prompt", found="no token", expected="at least one")
        self.model.check_tokens(tokens)
        self._check_window(len(tokens))

    def empty(self, keep: int) -> None:
        """Forget all but the pages of the first `keep` tokens."""
        self._pool.truncate(STREAM, keep)
        self.state.reset(STREAM)
        self._length = keep
        self._verified = None
        self._unabsorbed, self._following = [], []

    def run_prompt(self, tokens: Sequence[int], begin: int, end: int) -> Tensor:
        """Run rows `begin` to `end` of a prompt, `begin` on the grid; the final-normed hidden of the last."""
        self._pool.ensure(STREAM, end)
        hidden = torch.empty(0)
        rows = CPU_PROMPT_ROWS if self.model.device.type == "cpu" else GPU_PROMPT_ROWS
        for first in range(begin, end, rows):
            piece = list(tokens[first : min(end, first + rows)])
            hidden = self._run(piece, first, recurrent=False)[: len(piece)]
            self.state.commit(STREAM, 1)
            if self.can_draft:
                self._absorb_prompt(tokens, first, hidden)
        self._length = end
        return hidden[-1]

    def absorb(self, following: list[int], position: int, hidden: Tensor) -> None:
        """Show the MTP layer rows from `position` on, `following` the tokens behind them."""
        self._mtp(following, position, hidden)

    def logits_of(self, hidden: Tensor) -> Tensor:
        """Logits float32 [V] of one final-normed row [D]."""
        return self.model.head_shard(pad_rows(hidden.unsqueeze(0)))[0]

    def draw(self, logits: Tensor, positions: Tensor, settings: SamplingSettings) -> Tensor:
        """Draw a token for each row of this rank's logits, int64 [n]; the same on all ranks."""
        drawn = draw_shards(logits, positions, settings, self._shards)
        self.model.group.require_all()
        return drawn

    def verify(self, tokens: Sequence[int]) -> Tensor:
        """Append rows without committing them; logits float32 [n, V]. `commit` must follow."""
        if self._verified is not None:
            raise StepOrderError(
                "verify", found="rows that were neither kept nor dropped", action="call commit first"
            )
        if not 1 <= len(tokens) <= 1 + self.max_drafts:
            raise StepOrderError(
                "verify", found=f"{len(tokens)} rows", expected=f"1 to {1 + self.max_drafts}"
            )
        self.model.check_tokens(tokens)
        self._check_window(self._length + len(tokens))
        self._pool.ensure(STREAM, self._length + len(tokens))
        self._verified_tokens = list(tokens)
        output = self._replay(tokens)
        if output is not None:
            # The next step overwrites these.
            self._verified = output.hidden[: len(tokens)].clone()
            return output.logits[: len(tokens)].clone()
        hidden = self._run(list(tokens), self._length, recurrent=True)
        self._verified = hidden[: len(tokens)]
        return self.model.head_shard(hidden)[: len(tokens)]

    def commit(self, count: int) -> None:
        """Keep the first `count` (at least one) of the verified rows."""
        verified = self._verified
        if verified is None:
            raise StepOrderError("commit", found="no verified rows", action="call verify first")
        if not 1 <= count <= verified.shape[0]:
            raise StepOrderError("commit", found=f"{count} rows", expected=f"1 to {verified.shape[0]}")
        self.state.commit(STREAM, count)
        if self.can_draft:
            # The first verified token follows the last unabsorbed row, if there is one.
            self._following += self._verified_tokens[0 if self._unabsorbed else 1 : count]
            self._unabsorbed.append(verified[:count])
        self._length += count
        self._pool.truncate(STREAM, self._length)
        self._verified = None

    def draft(self, pending: int, count: int, pick: Pick) -> list[int]:
        """Up to `count` tokens that may follow `pending`, the token at the committed length.

        `pick(logits [V], position)` chooses the token at `position`. The MTP layer first takes in the
        committed rows it has not seen, with the main model's hidden; further drafts feed on its own.
        """
        if not self.can_draft or count < 1 or not self._unabsorbed:
            return []
        count = min(count, self.max_drafts)
        hidden = torch.cat(self._unabsorbed)
        first = self._length - hidden.shape[0]
        following = [*self._following, pending]
        self._unabsorbed, self._following = [], []
        output = self._pass(following, first, hidden)
        last = hidden.shape[0] - 1
        drafts: list[int] = []
        while True:
            position = self._length + 1 + len(drafts)
            drafts.append(pick(output.logits[last], position))
            if len(drafts) == count or position >= self.window:
                return drafts
            output = self._chain(drafts[-1], position - 1, output, last)
            last = 0

    @torch.inference_mode()
    def _replay(self, tokens: Sequence[int]) -> MainOutput | None:
        if self.captures.possible:
            self._check_equal(tokens, self._length, True)
        return self._captured.run([Piece(STREAM, self._length, tokens, True)])

    @torch.inference_mode()
    def _replay_mtp(self, piece: Piece, hidden: Tensor, selected: Tensor | None) -> MtpOutput | None:
        return self._captured_mtp.run([piece], hidden, selected)

    def _run(self, tokens: list[int], position: int, *, recurrent: bool) -> Tensor:
        self._check_equal(tokens, position, recurrent)
        return self.model.hidden(self._rows(tokens, position, recurrent=recurrent), self.state)

    def _check_equal(self, tokens: Sequence[int], position: int, recurrent: bool) -> None:
        group = self.model.group
        if group.ranks > 1:
            words = array("q", [position, recurrent, *tokens, *self.state.tables.pages[STREAM].tolist()])
            group.check_equal(f"step at token {position}", xxh64_intdigest(words.tobytes()))

    def _rows(self, tokens: list[int], position: int, *, recurrent: bool) -> Rows:
        return self.state.rows([Piece(STREAM, position, tokens, recurrent)])

    def _absorb_prompt(self, tokens: Sequence[int], begin: int, hidden: Tensor) -> None:
        """Show the MTP layer the rows of a prompt piece whose next token is known; keep the last."""
        following = list(tokens[begin + 1 : begin + 1 + hidden.shape[0]])
        if following:
            self._mtp(following, begin, hidden[: len(following)])
        if len(following) < hidden.shape[0]:
            self._unabsorbed = [hidden[len(following) :]]

    def _mtp(
        self, following: list[int], position: int, hidden: Tensor, selected: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        rows = self._rows(following, position, recurrent=False)
        return self.model.mtp_hidden(rows, pad_rows(hidden), self.state, selected)

    def _pass(
        self, following: list[int], position: int, hidden: Tensor, selected: Tensor | None = None
    ) -> MtpOutput:
        """A pass of the MTP layer with logits over hidden rows [n, D], captured where it can be."""
        output = self._replay_mtp(Piece(STREAM, position, following, True), hidden, selected)
        if output is not None:
            return output
        shared = None if selected is None else pad_rows(selected, -1)
        state, selected = self._mtp(following, position, hidden, shared)
        return MtpOutput(state, selected, self.model.head_shard(state))

    def _chain(self, token: int, position: int, before: MtpOutput, row: int) -> MtpOutput:
        """A further draft row. With a shared index it attends to what the last true row selected."""
        self._pool.ensure(STREAM, position + 1)
        shares = self.model.config.index_share_for_mtp_iteration
        shared = before.selected[row : row + 1] if shares else None
        return self._pass([token], position, before.hidden[row : row + 1], shared)

    def _check_window(self, tokens: int) -> None:
        if tokens > self.window:
            raise WindowError(
                "stream",
                found=f"{tokens} tokens",
                expected=f"at most {self.window}",
                action="use a larger window",
            )
