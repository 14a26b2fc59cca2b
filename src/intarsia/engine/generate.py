"""The loop that turns a prompt into a reply on one stream of a network.

Each step runs the last drawn token and some guesses behind it. Row j then says what the token after it is,
drawn by the keyed rule; guesses are kept while they equal what was drawn. A reply is therefore the same token
for token with any drafter, and without one.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from intarsia.core.config import GenerationSettings
from intarsia.engine.drafting import FixedDepth, NoDrafts
from intarsia.engine.errors import DraftError, LogitsError, StepOrderError
from intarsia.engine.protocols import DraftDepth, Drafter, Runner
from intarsia.engine.sampling import NOTHING_ALLOWED, seed_from
from intarsia.engine.stream import Delta, GenerationResult, Stream, Timing
from intarsia.engine.text.reply import ReplyText


class Generation(Iterator[Delta]):
    """A reply being drawn: iterate for what each step adds; `result` once it has ended.

    Nothing runs before the first `next`, except that the request is checked. Leaving early is fine: the
    stream then holds every token handed out but the last.

    Raises `UsageError` or `WindowError` for a request that cannot be served; while iterating, `LogitsError`
    when the network gives no number to draw from and `DraftError` when the drafter breaks its contract.
    """

    def __init__(
        self,
        runner: Runner,
        prompt: Sequence[int],
        settings: GenerationSettings,
        *,
        stop_tokens: Collection[int] = (),
        text: ReplyText | None = None,
        drafter: Drafter | None = None,
        depth: DraftDepth | None = None,
    ) -> None:
        if settings.seed is None:
            settings = replace(settings, seed=seed_from(prompt))
        self._runner = runner
        self.settings = settings
        self._drafter = drafter or NoDrafts()
        self._depth = depth or FixedDepth(0)
        self.stream = Stream(
            prompt,
            settings,
            vocab_size=runner.vocab_size,
            window=runner.window,
            stop_tokens=stop_tokens,
            text=text,
        )
        self.steps = 0
        self._reused = 0
        self.drafted: list[int] = []
        self.accepted: list[int] = []
        self._seconds = [0.0, 0.0]
        self._failed = False

    def __iter__(self) -> "Generation":
        return self

    def __next__(self) -> Delta:
        if self.stream.finish_reason is not None or self._failed:
            raise StopIteration
        begin = time.perf_counter()
        phase = int(len(self.stream.tokens) > self.stream.prompt_tokens)
        self._failed = True  # unless the step comes to its end
        delta = self._step() if phase else self._begin()
        self._failed = False
        self._seconds[phase] += time.perf_counter() - begin
        return delta

    @property
    def result(self) -> GenerationResult:
        """The finished reply; runs what is left of it."""
        for _ in self:
            pass
        stream = self.stream
        if stream.finish_reason is None:
            raise StepOrderError("result", found="a reply that ended in an error")
        return GenerationResult(
            prompt_tokens=stream.prompt_tokens,
            reused=self._reused,
            tokens=stream.reply,
            text=stream.text,
            finish_reason=stream.finish_reason,
            stopped_by=stream.stopped_by,
            steps=self.steps,
            drafted=tuple(self.drafted),
            accepted=tuple(self.accepted),
            timing=Timing(*self._seconds),
        )

    def _begin(self) -> Delta:
        logits = self._runner.start(self.stream.tokens)
        self._reused = self._runner.reused
        return self.stream.take(self._draw(logits[None], len(self.stream.tokens)))

    def _step(self) -> Delta:
        stream = self.stream
        drafts = self._guess(min(self._depth.depth(), stream.room - 1))
        logits = self._runner.verify([stream.pending, *drafts])
        drawn = self._draw(logits, len(stream.tokens))
        right = 0
        while right < len(drafts) and drafts[right] == drawn[right]:
            right += 1
        delta = stream.take(drawn[: right + 1])
        # The pending token's row and those of accepted guesses, up to the token that ended the reply.
        self._runner.commit(len(delta.tokens))
        self._count(len(drafts), min(right, len(delta.tokens)))
        return delta

    def _guess(self, count: int) -> list[int]:
        if count < 1:
            return []
        drafts = list(self._drafter.propose(self.stream.tokens, count, self._draw_one))
        if len(drafts) > count:
            raise DraftError("drafter", found=f"{len(drafts)} tokens", expected=f"at most {count}")
        for token in drafts:
            if not 0 <= token < self._runner.vocab_size:
                expected = f"ids below {self._runner.vocab_size}"
                raise DraftError("drafter", found=f"token {token}", expected=expected)
        return drafts

    def _count(self, drafted: int, accepted: int) -> None:
        self.steps += 1
        self._depth.record(drafted, accepted)
        for counts, number in ((self.drafted, drafted), (self.accepted, accepted)):
            counts += [0] * (drafted - len(counts))
            for place in range(number):
                counts[place] += 1

    def _draw(self, logits: Tensor, position: int) -> list[int]:
        """Tokens at `position` and the ones after it, one a row of logits [n, V]."""
        positions = torch.arange(position, position + len(logits), device=logits.device)
        drawn: list[int] = self._runner.draw(logits, positions, self.settings).tolist()
        if NOTHING_ALLOWED in drawn:
            where = f"logits of position {position + drawn.index(NOTHING_ALLOWED)}"
            raise LogitsError(where, found="NaN, infinity or no allowed token", expected="finite numbers")
        return drawn

    def _draw_one(self, logits: Tensor, position: int) -> int:
        return self._draw(logits[None], position)[0]
