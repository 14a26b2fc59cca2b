"""One request while it is served: its tokens, its place in the caches, what is planned for it."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

from intarsia.core.config import SamplingSettings
from intarsia.engine.events import Handle, TokenLogprob
from intarsia.engine.kept import KeepPoint, Match, block_digests
from intarsia.engine.lanes.acceptance import Acceptance
from intarsia.engine.lanes.adjust import Adjustment
from intarsia.engine.lanes.copying import CopyIndex
from intarsia.engine.lanes.reply import Reply
from intarsia.engine.requests import Request
from intarsia.engine.sampling import seed_from


class Stretch(NamedTuple):
    """Rows `begin` to `end` of the hidden rows [R, D] of a step."""

    step: Tensor
    begin: int
    end: int


@dataclass(slots=True)
class Unabsorbed:
    """Final-normed hidden rows, from position `first` on, that the MTP layer has not seen."""

    first: int = 0
    rows: list[Stretch] = field(default_factory=list)
    count: int = 0

    def add(self, position: int, rows: Stretch) -> None:
        """Append the rows that begin at `position`, the first ones or those after the last."""
        if not self.rows:
            self.first = position
        self.rows.append(rows)
        self.count += rows.end - rows.begin

    def split(self, count: int) -> "tuple[list[Stretch], Unabsorbed]":
        """The first `count` rows, and what is left."""
        early, rest = [], Unabsorbed(self.first + count)
        for step, begin, end in self.rows:
            middle = min(end, begin + count)
            count -= middle - begin
            if middle > begin:
                early.append(Stretch(step, begin, middle))
            if end > middle:
                rest.rows.append(Stretch(step, middle, end))
                rest.count += end - middle
        return early, rest


@dataclass(slots=True)
class Moments:
    """Readings of a monotonic clock, seconds; 0 before the moment came."""

    queued: float = 0.0
    admitted: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0


@dataclass(eq=False, slots=True)
class Lane:
    """A request from the queue to its end. The network's rows of the first `done` tokens are in the
    caches."""

    handle: Handle
    order: int
    """Place in the order of arrival."""
    prompt: "array[int]"
    digests: Sequence[bytes]
    reply: Reply
    sampling: SamplingSettings
    """With a seed."""
    copies: CopyIndex | None = None
    """None where nothing is to be copied."""
    adjustment: Adjustment | None = None
    """None where the network's logits are drawn from as they are."""
    slot: int = -1
    """Its stream in the caches, -1 while it waits."""
    done: int = 0
    match: tuple[int, Match] | None = None
    """What kept states had for it, and which version of them that was."""
    points: list[KeepPoint] = field(default_factory=list)
    """Where states are kept, the next one last."""
    run: int = 0
    """Number of its pass over the prompt."""
    reserved: int = 0
    """Pages it may use whatever the others do."""
    suspect: int = 0
    """It was in a step that failed, and runs alone up to this position."""
    passed_over: int = 0
    overtaken: int = 0
    drafts: list[int] = field(default_factory=list)
    """Guessed for the next step."""
    copied: bool = False
    """The drafts were copied from earlier text."""
    forced_drafts: bool = False
    """The drafts are not guessed: the reply's rules force them."""
    masks: Tensor | None = None
    """What the grammar allows at every row of the next step, int32 [drafts + 1, ceil(V / 32)]."""
    unabsorbed: Unabsorbed = field(default_factory=Unabsorbed)
    acceptance: Acceptance = field(default_factory=Acceptance)
    cached: int = 0
    cache_reason: str = ""
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Of the prompt tokens from the second on, as far as they have run."""
    prompt_told: bool = False
    moments: Moments = field(default_factory=Moments)

    @classmethod
    def of(cls, handle: Handle, order: int, reply: Reply) -> "Lane":
        """A lane that waits."""
        request = handle.request
        sampling = request.sampling
        if sampling.seed is None:
            sampling = replace(sampling, seed=seed_from(request.tokens))
        prompt = array("q", request.tokens)
        digests = block_digests(prompt, request.cache_salt) if request.cache else []
        return cls(handle, order, prompt, digests, reply, sampling)

    @property
    def request(self) -> Request:
        return self.handle.request

    @property
    def length(self) -> int:
        """Tokens of prompt and reply so far."""
        return len(self.prompt) + len(self.reply.tokens)

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that have not run."""
        return max(0, len(self.prompt) - self.done)

    @property
    def replay_left(self) -> int:
        """Reply tokens that ran before the lane lost its place, and must run again before it goes on."""
        return max(0, self.length - 1 - max(self.done, len(self.prompt)))

    @property
    def writing(self) -> bool:
        """True when all tokens but the last have run: the next row says what follows."""
        return self.slot >= 0 and bool(self.reply.tokens) and self.done == self.length - 1

    def tokens(self, begin: int, end: int) -> list[int]:
        """Tokens of prompt and reply from `begin` to `end`."""
        split = len(self.prompt)
        if end <= split:
            return self.prompt[begin:end].tolist()
        reply = self.reply.tokens[max(0, begin - split) : end - split]
        return self.prompt[begin:split].tolist() + reply if begin < split else reply
