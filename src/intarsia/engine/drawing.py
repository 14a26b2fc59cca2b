"""What the lanes of a step draw from its logits, and what they tell of a prompt's."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from intarsia.engine.events import PromptLogprobs
from intarsia.engine.lanes.lane import Lane
from intarsia.engine.lanes.logprobs import token_logprob
from intarsia.engine.lanes.verify import adjusted, draw_rows, drawn_rows
from intarsia.engine.sampling import NOTHING_ALLOWED
from intarsia.engine.sampling.shards import Shards
from intarsia.engine.step import Part, StepOutput

Drawn = tuple[Tensor | None, list[int]]
"""The logits of a part if they are to be told, and what its lane draws from each of its rows."""


class Drawing:
    """Draws for the parts of a step: inside the graph where nothing had to change, else from the logits."""

    def __init__(self, shards: Shards, fail: Callable[[Lane, Exception], None]) -> None:
        """`fail` ends a lane whose own change of its logits fails."""
        self._shards = shards
        self._fail = fail

    def of(self, output: StepOutput, parts: Sequence[Part]) -> dict[int, Drawn]:
        """By the `id` of every part that has logits, as all of `parts` do."""
        logits = output.logits
        if logits is None:
            return {}
        changed = any(part.lane.adjustment is not None or part.lane.masks is not None for part in parts)
        told = any(part.lane.request.logprobs is not None for part in parts)
        own: Sequence[Tensor | None] = [None] * len(parts)
        if changed or told:
            own = torch.split(self._shards.whole(logits), [part.logits for part in parts])
        if changed:
            return self._adjusted(parts, own)
        lanes = [(part.lane, part.logits) for part in parts]
        drawn = None if output.drawn is None else drawn_rows(output.drawn, lanes)
        if drawn is None:
            drawn = draw_rows(logits, lanes, self._shards)
        self._require_all(drawn)
        return {id(part): (plain, row) for part, plain, row in zip(parts, own, drawn, strict=True)}

    def _adjusted(self, parts: Sequence[Part], own: Sequence[Tensor | None]) -> dict[int, Drawn]:
        """The same where some lanes change their logits first; a lane whose change fails ends alone."""
        rows: list[Tensor] = []
        ready: list[tuple[Part, Tensor]] = []
        for part, plain in zip(parts, own, strict=True):
            if plain is None:
                continue
            try:
                rows.append(adjusted(plain, part.lane))
                ready.append((part, plain))
            except Exception as error:
                self._fail(part.lane, error)
        if not ready:
            return {}
        drawn = draw_rows(torch.cat(rows), [(part.lane, part.logits) for part, _ in ready])
        self._require_all(drawn)
        return {id(part): (plain, tokens) for (part, plain), tokens in zip(ready, drawn, strict=True)}

    def _require_all(self, drawn: Sequence[Sequence[int]]) -> None:
        """Where nothing could be drawn another rank may be gone, rather than the network wrong."""
        if any(NOTHING_ALLOWED in tokens for tokens in drawn):
            self._shards.group.require_all()


def tell_prompt(part: Part, blocks: Iterable[Tensor], top: int) -> None:
    """Keep the logprobs of the tokens that follow a prompt's rows, whose logits come in blocks of rows; tell
    them once there are all of the prompt."""
    lane, following = part.lane, part.lane.prompt[part.position + 1 : part.end + 1]
    del lane.prompt_logprobs[part.position :]
    row = 0
    for block in blocks:
        for logits in block[: len(following) - row]:
            lane.prompt_logprobs.append(token_logprob(logits, following[row], top))
            row += 1
    if not lane.prompt_left:
        lane.prompt_told = True
        lane.handle.deliver(PromptLogprobs((None, *lane.prompt_logprobs)))
        lane.prompt_logprobs = []
