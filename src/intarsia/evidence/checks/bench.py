"""What the engine checks share: engines to try, the replies they must give, prompts to give them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from intarsia.core.config import GenerationSettings, SamplingSettings
from intarsia.engine.engine import Engine
from intarsia.engine.events import Event, Finished, Handle, Tokens
from intarsia.engine.generate import Generation
from intarsia.engine.lanes.guesser import GuessSource
from intarsia.engine.loop import Watch
from intarsia.engine.ranked import RankedEngine
from intarsia.engine.requests import Request
from intarsia.engine.runner import ModelRunner
from intarsia.engine.settings import StreamSettings
from intarsia.evidence.checks.coverage import Coverage
from intarsia.evidence.checks.ranks import LockstepEngine, PrefixedStore
from intarsia.groups.exchanging import RankGroup
from intarsia.models.glm5_next.model import Glm5NextModel

GREEDY = SamplingSettings()
SAMPLED = SamplingSettings(temperature=0.8, top_p=0.95, seed=7)
SEEDED = SamplingSettings(temperature=1.0, seed=3)
MOST_STEPS = 100_000
PAGE = 64


class AlwaysPays:
    """Costs by which every guess is worth its row, so that checks do not depend on the machine's speed."""

    def step(self, rows: int) -> float:
        return 1.0 + 1e-6 * rows

    def absorb(self, rows: int) -> float:
        return 1e-6

    def chain(self, streams: int) -> float:
        return 1e-6


@dataclass
class Reader:
    """Collects a request's events."""

    request: Request
    handle: Handle | None = None
    ids: list[int] = field(default_factory=list)
    finished: Finished | None = None

    def cancel(self) -> None:
        """End the request."""
        if self.handle is not None:
            self.handle.cancel()

    def read(self) -> None:
        """Wait for all events of a request that is served by a thread."""
        for event in () if self.handle is None else self.handle.events():
            self.take(event)

    def take(self, event: Event) -> None:
        """Take one event, as `on_event`."""
        if isinstance(event, Tokens):
            self.ids += event.ids
        elif isinstance(event, Finished):
            self.finished = event


class Bench:
    """Runs requests through engines over one model and compares every reply with the one it has alone."""

    def __init__(self, model: Glm5NextModel, coverage: Coverage, *, window: int) -> None:
        self.model = model
        self.coverage = coverage
        limit = model.config.max_position_embeddings
        self.window = min(window, limit)
        self.settings = StreamSettings(
            streams=8,
            window=self.window,
            page=PAGE,
            pool_tokens=4 * self.window,
            chunk=128,
            prompt_rows=256,
            kept_every=0,
            kept_apart=64,
        )
        self._truths: dict[tuple[tuple[int, ...], SamplingSettings], list[int]] = {}
        self._group = model.group if isinstance(model.group, RankGroup) else None
        self._served = 0
        self._runner = ModelRunner(model, window=self.window, max_drafts=0, page=PAGE)

    def prompt(self, seed: int, length: int) -> tuple[int, ...]:
        """Random token ids; the same seed gives the same beginning at every length."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, self.model.config.vocab_size, (self.window,), generator=generator)
        return tuple(ids[:length].tolist())

    def engine(
        self, source: GuessSource | None = None, watch: Watch | None = None, **changes: object
    ) -> Engine:
        """An engine with changed settings that guesses whenever it can. Of several ranks each drives its own,
        in lockstep with the others.
        """
        settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        if self._group is None:
            return Engine(self.model, settings, costs=AlwaysPays(), source=source, watch=watch)
        return LockstepEngine(
            self.model,
            settings,
            self._group,
            self._group.store,
            costs=AlwaysPays(),
            source=source,
            watch=watch,
        )

    @property
    def leads(self) -> bool:
        """True where requests are taken: alone, and on rank 0."""
        return self._group is None or self._group.rank == 0

    def serving(self, watch: Watch | None = None, **changes: object) -> Engine:
        """The same to serve with a thread: of several ranks as a service does, followers and all."""
        if self._group is None:
            return self.engine(None, watch, **changes)
        settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        self._served += 1
        store = PrefixedStore(self._group.store, f"check/{self._served}/")
        return RankedEngine(self.model, settings, self._group, store, costs=AlwaysPays(), watch=watch)

    def follow(self, engine: Engine) -> None:
        """On a rank that does not lead: do rank 0's steps until its engine is closed."""
        if isinstance(engine, RankedEngine):
            engine.follow()

    def submit(self, engine: Engine, request: Request) -> Reader:
        """Submit a request."""
        reader = Reader(request)
        reader.handle = engine.submit(request, reader.take)
        return reader

    def run(self, engine: Engine, requests: Sequence[Request]) -> list[Reader]:
        """Submit all, step until they have ended, compare them and see that nothing leaked."""
        readers = [self.submit(engine, request) for request in requests]
        self.finish(engine)
        for reader in readers:
            self.check(reader)
        return readers

    def finish(self, engine: Engine) -> None:
        """Step until nothing is left."""
        for _ in range(MOST_STEPS):
            if not engine.step():
                break
        self.coverage.require(engine.loop.idle, "the engine does not come to rest")

    def truth(self, request: Request) -> list[int]:
        """The reply alone: one stream, one row a step, nothing kept, no guesses.

        Requests whose logits nothing changes run on the single-stream runner, which shares only the network
        with the engine; the others on an engine for one plain stream.
        """
        if request.logit_bias or request.penalties.any:
            engine = self.engine(streams=1, drafts=0, copy_drafts=0, kept_bytes=0)
            reader = self.submit(engine, replace(request, draft=False, cache=False))
            self.finish(engine)
            return reader.ids
        key = request.tokens, request.sampling
        known = self._truths.get(key, [])
        wanted = request.max_tokens or 0
        if len(known) < wanted:
            sampling = request.sampling
            settings = GenerationSettings(
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                min_p=sampling.min_p,
                seed=sampling.seed,
                max_tokens=wanted,
            )
            with torch.inference_mode():
                known = list(Generation(self._runner, request.tokens, settings).result.tokens)
            self._truths[key] = known
        return known[:wanted]

    def check(self, reader: Reader) -> None:
        """Compare a reply with the one it has alone; of a cancelled one the part there is."""
        request, truth = reader.request, self.truth(reader.request)
        if reader.finished is None:
            self.coverage.require(False, f"{request.id} never ended")
            return
        if reader.finished.reason == "cancelled":
            truth = truth[: len(reader.ids)]
        elif reader.finished.reason == "error":
            self.coverage.require(False, f"{request.id} failed: {reader.finished.error}")
        self.coverage.compare(f"tokens of {request.id}", reader.ids, truth, len(truth))

    def check_clean(self, engine: Engine, what: str) -> None:
        """Nothing is held, and the null page is still empty."""
        loop, require = engine.loop, self.coverage.require
        loop.store.clear()
        require(loop.pool.free == loop.pool.pages, f"{what}: {loop.pool.pages - loop.pool.free} pages leaked")
        require(loop.places.free == engine.settings.streams, f"{what}: a stream leaked")
        require(
            bool((loop.state.tables.pages == loop.state.null_page).all()), f"{what}: a page is still mapped"
        )
        null = loop.state.null_page
        empty = not any(cache[:, null].float().any() for cache in loop.state.paged)
        require(empty, f"{what}: the null page was written")
