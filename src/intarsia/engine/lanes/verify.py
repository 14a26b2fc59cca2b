"""From logits to tokens: what each lane draws, and how many of its guesses that confirms."""

from collections.abc import Sequence

from torch import Tensor

from intarsia.core.config import SamplingSettings
from intarsia.engine.errors import LogitsError
from intarsia.engine.graphs.read import read
from intarsia.engine.lanes.adjust import masked
from intarsia.engine.lanes.lane import Lane
from intarsia.engine.lanes.logprobs import token_logprob
from intarsia.engine.sampling import NOTHING_ALLOWED
from intarsia.engine.sampling.captured import UNCERTAIN
from intarsia.engine.sampling.shards import WHOLE, Shards, draw_shards


def adjusted(rows: Tensor, lane: Lane) -> Tensor:
    """A lane's logits as it draws from them; the tensor itself where nothing changes."""
    if lane.adjustment is not None:
        rows = lane.adjustment.apply(rows, lane.drafts[: len(rows) - 1])
    return rows if lane.masks is None else masked(rows, lane.masks)


def draw_rows(logits: Tensor, lanes: Sequence[tuple[Lane, int]], shards: Shards = WHOLE) -> list[list[int]]:
    """Draw a token for every row of adjusted logits, so many rows for each lane, in one draw: of whole rows
    [n, V], or of `shards`, of which this rank has its part.

    Row j of a lane stands after the first j of its guesses, so it draws the token at `length` + j.
    """
    positions: list[int] = []
    settings: list[SamplingSettings] = []
    for lane, count in lanes:
        positions += range(lane.length, lane.length + count)
        settings += [lane.sampling] * count
    drawn = read(draw_shards(logits, positions, settings, shards))
    return _split(drawn, lanes)


def drawn_rows(drawn: Tensor, lanes: Sequence[tuple[Lane, int]]) -> list[list[int]] | None:
    """Tokens [n] that the step has drawn itself, for each lane; None where a row is uncertain."""
    tokens = read(drawn)
    return None if UNCERTAIN in tokens else _split(tokens, lanes)


def _split(drawn: Sequence[int], lanes: Sequence[tuple[Lane, int]]) -> list[list[int]]:
    result, first = [], 0
    for _, count in lanes:
        result.append(list(drawn[first : first + count]))
        first += count
    return result


def take(lane: Lane, rows: Tensor | None, drawn: Sequence[int]) -> tuple[int, int]:
    """Append what was drawn to the reply while it confirms the guesses: tokens taken, and guesses confirmed.

    rows [n, V] are the network's own logits, needed where logprobs are told. A forced token takes the place
    of the drawn one.
    """
    reply, drafts, top = lane.reply, lane.drafts, lane.request.logprobs
    taken = right = 0
    for row, token in enumerate(drawn):
        token = reply.forced[0] if reply.forced else token
        if token == NOTHING_ALLOWED:
            raise LogitsError(
                f"logits of position {lane.length}",
                found="NaN, infinity or no allowed token",
                expected="finite numbers",
            )
        reply.push(token, None if top is None or rows is None else token_logprob(rows[row], token, top))
        if lane.adjustment is not None:
            lane.adjustment.push(token)
        if lane.copies is not None:
            lane.copies.push(token)
        taken += 1
        confirmed = row < len(drafts) and drafts[row] == token
        right += confirmed
        if reply.finish is not None or not confirmed:
            break
    return taken, right
