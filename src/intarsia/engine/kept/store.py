"""Kept prompt states: found by exact prefix, dropped in a fixed order when room is needed."""

import logging
from array import array
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from intarsia.engine.kept.blocks import common_length
from intarsia.engine.kept.plan import Kind
from intarsia.engine.kept.snapshot import Snapshot
from intarsia.engine.pages import KeptPages, PagePool
from intarsia.engine.settings import GRID

LOG = logging.getLogger(__name__)
# How many dropped states are remembered by name, to say later why a prompt was run again.
REMEMBERED = 4096
COMPARED = 64


@dataclass(eq=False, slots=True)
class KeptState:
    """A prompt's state before `position`, which is a multiple of 64."""

    prompt: "array[int]"
    digests: Sequence[bytes]
    position: int
    kind: Kind
    run: int
    """Which pass over a prompt made it."""
    snapshot: Snapshot
    pages: KeptPages
    used: int = 0
    superseded: bool = False
    """A later prompt of the same conversation goes beyond it."""

    @property
    def digest(self) -> bytes:
        return self.digests[self.position // GRID - 1]


@dataclass(frozen=True, slots=True)
class Match:
    """What is known about a prompt before it runs."""

    state: KeptState | None
    reason: str
    existing: frozenset[int] = frozenset()
    """Positions of the prompt at which states are kept."""
    parting: int = 0
    """How many tokens the prompt shares with the nearest kept prompt."""

    @property
    def position(self) -> int:
        """Where the prompt can be resumed."""
        return 0 if self.state is None else self.state.position


@dataclass(slots=True)
class KeptCounts:
    """Counters since the start."""

    hits: int = 0
    misses: int = 0
    evicted: int = 0
    refused: int = 0


@dataclass(eq=False)
class KeptStore:
    """All kept states, within a budget of bytes that counts their pages once each.

    `fixed_bytes` is what a state's fixed part is counted as; None: what it takes. Several ranks count alike,
    though their shares are not alike, since what is dropped has to be the same on all.
    """

    pool: PagePool
    budget: int
    page_bytes: int
    fixed_bytes: int | None = None
    counts: KeptCounts = field(default_factory=KeptCounts)
    _states: dict[bytes, KeptState] = field(default_factory=dict)
    _blocks: dict[bytes, list[KeptState]] = field(default_factory=dict)
    _pages: "Counter[int]" = field(default_factory=Counter)
    _gone: "OrderedDict[bytes, str]" = field(default_factory=OrderedDict)
    _snapshot_bytes: int = 0
    _clock: int = 0
    version: int = 0
    """Changes whenever a state is kept or dropped."""

    def __len__(self) -> int:
        return len(self._states)

    @property
    def nbytes(self) -> int:
        """Bytes held: fixed parts, and every page once."""
        return self._snapshot_bytes + len(self._pages) * self.page_bytes

    def _fixed(self, state: KeptState) -> int:
        return state.snapshot.nbytes if self.fixed_bytes is None else self.fixed_bytes

    def find(self, prompt: "array[int]", digests: Sequence[bytes]) -> Match:
        """The longest kept prefix that leaves at least one token to run, and why it is not longer."""
        depth = 0
        while depth < len(digests) and digests[depth] in self._blocks:
            depth += 1
        known = [self._states[digest] for digest in digests[:depth] if digest in self._states]
        known = [state for state in known if state.prompt[: state.position] == prompt[: state.position]]
        usable = [state for state in known if state.position < len(prompt)]
        best = usable[-1] if usable else None
        near = self._blocks[digests[depth - 1]][-1:] if depth else self._recent()
        parting = max((common_length(state.prompt, prompt) for state in near), default=0)
        reason = self._reason(prompt, digests, best, parting)
        return Match(best, reason, frozenset(state.position for state in known), parting)

    def use(self, state: KeptState | None) -> None:
        """Note that a prompt was resumed from a state, or from none."""
        if state is None:
            self.counts.misses += 1
            return
        self.counts.hits += 1
        # What is resumed again is not a mere step of one conversation, whatever was kept after it.
        state.superseded = False
        self._touch(state)

    def make_room(self, needed: int, spare: Collection[KeptState] = ()) -> bool:
        """Drop states until `needed` more bytes fit the budget; False, with nothing dropped, if they
        cannot."""
        spared = sum(self._fixed(state) for state in spare)
        spared += self.page_bytes * len({page for state in spare for page in state.pages.pages})
        if spared + needed > self.budget:
            return False
        while self.nbytes + needed > self.budget:
            if not self._drop_one(spare, "the budget of kept states was used up"):
                return False
        return True

    def give_pages(self, free: int, spare: Collection[KeptState] = ()) -> bool:
        """Drop states until the pool has `free` pages; False, with nothing dropped, if it cannot get
        there."""
        if self.pool.free >= free:
            return True
        idle = self.pool.only_kept
        spared = {page for state in spare for page in state.pages.pages if page in idle}
        if self.pool.free + len(idle) - len(spared) < free:
            return False
        while self.pool.free < free:
            if not self._drop_one(spare, "its pages were needed by running requests"):
                return False
        return True

    def keep(self, state: KeptState) -> bool:
        """Take a state whose pages are already held; False, with the pages released, if it is over the
        budget."""
        fresh = sum(page not in self._pages for page in state.pages.pages)
        size = self._fixed(state) + fresh * self.page_bytes
        if state.digest in self._states or self.nbytes + size > self.budget:
            self.counts.refused += state.digest not in self._states
            self.pool.release(state.pages)
            return False
        self._states[state.digest] = state
        self._gone.pop(state.digest, None)
        self._snapshot_bytes += self._fixed(state)
        self._pages.update(state.pages.pages)
        blocks = state.digests[: state.position // GRID]
        for digest in blocks:
            self._blocks.setdefault(digest, []).append(state)
        self._touch(state)
        self.version += 1
        if state.kind == "end":
            self._supersede(state, blocks[:-1])
        return True

    def clear(self, why: str = "the store was cleared") -> None:
        """Drop everything, as a change of weights must."""
        for state in list(self._states.values()):
            self._drop(state, why)

    def _supersede(self, end: KeptState, blocks: Sequence[bytes]) -> None:
        for digest in blocks:
            state = self._states.get(digest)
            if state is None or state.kind == "shared":
                continue
            state.superseded |= state.run != end.run or state.kind == "between"

    def _recent(self) -> list[KeptState]:
        return sorted(self._states.values(), key=lambda state: -state.used)[:COMPARED]

    def _touch(self, state: KeptState) -> None:
        self._clock += 1
        state.used = self._clock

    def _drop_one(self, spare: Collection[KeptState], why: str) -> bool:
        victims = [state for state in self._states.values() if state not in spare]
        if not victims:
            return False
        self._drop(min(victims, key=lambda state: (not state.superseded, state.used)), why)
        return True

    def _drop(self, state: KeptState, why: str) -> None:
        self.version += 1
        del self._states[state.digest]
        for digest in state.digests[: state.position // GRID]:
            holders = self._blocks[digest]
            holders.remove(state)
            if not holders:
                del self._blocks[digest]
        self._snapshot_bytes -= self._fixed(state)
        self._pages -= Counter(state.pages.pages)
        self.pool.release(state.pages)
        self.counts.evicted += 1
        self._gone[state.digest] = why
        if len(self._gone) > REMEMBERED:
            self._gone.popitem(last=False)
        LOG.info("dropped the kept state at token %d: %s", state.position, why)

    def _reason(
        self, prompt: "array[int]", digests: Sequence[bytes], best: KeptState | None, parting: int
    ) -> str:
        begin = 0 if best is None else best.position
        reused = f"resumed at token {begin} of {len(prompt)}" if begin else "not resumed"
        for index in range(min(len(digests), (len(prompt) - 1) // GRID), begin // GRID, -1):
            why = self._gone.get(digests[index - 1])
            if why is not None:
                return f"{reused}: the state kept at token {index * GRID} was dropped since {why}"
        if not self._states:
            return f"{reused}: no prompt is kept"
        parts = f"token {parting}, where the prompt parts from the nearest kept one"
        if parting // GRID * GRID > begin and parting < len(prompt):
            return f"{reused}: no state is kept nearer to {parts}"
        return reused if begin else f"{reused}: no state is kept before {parts}"
