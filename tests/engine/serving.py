"""Driving an engine step by step, and what its replies should be."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch

from intarsia.core.config import SamplingSettings
from intarsia.engine.engine import Engine
from intarsia.engine.events import Finished, Handle, PromptLogprobs, Tokens
from intarsia.engine.requests import Request
from intarsia.engine.sampling import draw, seed_from
from intarsia.engine.settings import StreamSettings
from tests.engine.hash_network import VOCAB, HashNetwork, logits_after

SMALL = StreamSettings(
    streams=4, window=1024, page=32, pool_tokens=4096, chunk=64, prompt_rows=128, kept_every=0, copy_drafts=2
)


class EvenCosts:
    """Times that make every guess worth its row."""

    def step(self, rows: int) -> float:
        return 1.0 + 1e-6 * rows

    def absorb(self, rows: int) -> float:
        return 1e-6

    def chain(self, streams: int) -> float:
        return 1e-6


class DearCosts(EvenCosts):
    """Times that make no guess worth its row."""

    def step(self, rows: int) -> float:
        return float(rows)


@dataclass
class Outcome:
    """What a reader of a request's events saw."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    tokens: list[Tokens] = field(default_factory=list)
    prompt: PromptLogprobs | None = None
    finished: Finished | None = None

    def take(self, event) -> None:
        assert self.finished is None, "an event after the last one"
        if isinstance(event, Tokens):
            self.tokens.append(event)
            self.ids += event.ids
            self.text += event.text
        elif isinstance(event, PromptLogprobs):
            assert not self.tokens
            self.prompt = event
        else:
            self.finished = event

    @property
    def reason(self) -> str:
        assert self.finished is not None, "no last event"
        return self.finished.reason

    @property
    def usage(self):
        assert self.finished is not None, "no last event"
        return self.finished.usage


def engine_of(network: HashNetwork | None = None, settings: StreamSettings = SMALL, **changes) -> Engine:
    """An engine over a hash network, guessing as much as it can unless `costs` says otherwise."""
    changes.setdefault("costs", EvenCosts())
    return Engine(network or HashNetwork(), settings, **changes)


def submit(engine: Engine, request: Request) -> tuple[Handle, Outcome]:
    outcome = Outcome()
    return engine.submit(request, outcome.take), outcome


def run(engine: Engine, most: int = 5000) -> int:
    """Step until nothing is left; the number of steps."""
    for count in range(most):
        if not engine.step():
            return count
    raise AssertionError("the engine does not come to rest")


def serve(engine: Engine, requests: Sequence[Request]) -> list[Outcome]:
    """Submit all at once and run them."""
    outcomes = [submit(engine, request)[1] for request in requests]
    run(engine)
    return outcomes


def prompt_of(seed: int, length: int) -> tuple[int, ...]:
    """Random tokens; the same seed gives the same beginning at any length."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, VOCAB, (4096,), generator=generator)[:length].tolist())


def request_of(name: str, tokens: Sequence[int], **changes) -> Request:
    changes.setdefault("max_tokens", 12)
    return Request(id=name, tokens=tuple(tokens), **changes)


def expected(request: Request, count: int | None = None) -> list[int]:
    """The reply of a hash network from the request's tokens alone, without any rule but the draw."""
    sampling = request.sampling
    if sampling.seed is None:
        sampling = replace(sampling, seed=seed_from(request.tokens))
    reply: list[int] = []
    for _ in range(request.max_tokens if count is None else count):
        reply.append(_drawn(request.tokens, tuple(reply), sampling))
    return reply


@cache
def _drawn(prompt: tuple[int, ...], reply: tuple[int, ...], sampling: SamplingSettings) -> int:
    logits = logits_after(prompt, reply)
    return int(draw(logits[None], torch.tensor([len(prompt) + len(reply)]), sampling))


def assert_clean(engine: Engine, failed_steps: int = 0) -> None:
    """No step failed, nothing is held but kept states, and nothing at all once these are dropped."""
    loop = engine.loop
    assert loop.counters.failed_steps == failed_steps
    assert loop.idle
    assert loop.places.free == engine.settings.streams
    loop.state.tables.publish()  # the host's decisions after the last step, which no step has brought over
    assert torch.equal(loop.state.page_table, torch.full_like(loop.state.page_table, loop.state.null_page))
    assert not any(cache[:, loop.state.null_page].float().any() for cache in loop.state.paged)
    loop.store.clear()
    assert loop.store.nbytes == 0
    assert len(loop.store) == 0
    assert loop.pool.free == loop.pool.pages


SAMPLED = SamplingSettings(temperature=0.9, top_p=0.95, seed=11)
