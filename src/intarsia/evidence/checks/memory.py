"""Paths of kept states and of too little room."""

from dataclasses import replace

from intarsia.engine.engine import Engine
from intarsia.engine.lanes.lane import Lane
from intarsia.engine.requests import Request
from intarsia.evidence.checks.bench import GREEDY, PAGE, SAMPLED, Bench, Reader

REPLY = 12
MOST_STEPS = 10_000


def cover_kept_states(bench: Bench) -> None:
    """Resumed alone, beside who wrote the state and beside who resumes it too; rewound, evicted, run
    again."""
    coverage = bench.coverage
    coverage.expect(
        "resume", ("fresh", "alone", "beside others", "rewound", "evicted", "without kept states")
    )
    engine = bench.engine(kept_bytes=1 << 28)
    first = Request("kept", bench.prompt(20, 330), max_tokens=REPLY, sampling=SAMPLED, keep_at=(325, 130))
    _resumes(bench, engine, [first], "fresh", 0)
    _resumes(bench, engine, [replace(first, id="resumed")], "alone", 320)
    branches = [
        replace(first, id=f"branch {index}", tokens=first.tokens[:320] + bench.prompt(30 + index, 20 + index))
        for index in range(3)
    ]
    _resumes(bench, engine, branches, "beside others", 320)
    edited = replace(first, id="edited", tokens=first.tokens[:130] + bench.prompt(40, 90), keep_at=(215, 130))
    _resumes(bench, engine, [edited], "rewound", 128)
    engine.loop.store.clear()
    _resumes(bench, engine, [replace(first, id="evicted")], "evicted", 0)
    _resumes(bench, engine, [replace(first, id="plain", cache=False)], "without kept states", 0)
    bench.check_clean(engine, "kept states")


def _resumes(bench: Bench, engine: Engine, requests: list[Request], path: str, position: int) -> None:
    for reader in bench.run(engine, requests):
        cached = -1 if reader.finished is None else reader.finished.usage.cached_tokens
        if cached == position:
            bench.coverage.took("resume", path)
        else:
            bench.coverage.require(False, f"{reader.request.id} resumed at {cached}, expected {position}")


def cover_pressure(bench: Bench) -> None:
    """Requests cancelled at every stage; places given up for others and for pages; states dropped for
    pages."""
    coverage = bench.coverage
    coverage.expect("cancelled", ("waiting", "prompt", "writing", "running again"))
    coverage.expect("place given up", ("to a more important request", "for want of pages"))
    coverage.expect("kept states", ("dropped for pages",))
    for stage in ("waiting", "prompt", "writing", "running again"):
        _cancel_at(bench, stage)
    _grow(bench)


def _cancel_at(bench: Bench, stage: str) -> None:
    coverage = bench.coverage
    engine = bench.engine(streams=1, chunk=64, prompt_rows=64)
    readers = []
    if stage == "waiting":
        readers.append(bench.submit(engine, Request("holder", bench.prompt(50, 20), max_tokens=REPLY)))
        engine.step()
    victim = Request(f"cancelled {stage}", bench.prompt(51, 200), max_tokens=40, priority=1, draft=False)
    readers.append(bench.submit(engine, victim))
    interrupted = False
    for _ in range(MOST_STEPS):
        engine.step()
        now = _stage(engine, victim.id)
        if now == "writing" and stage == "running again" and not interrupted and len(readers[-1].ids) > 3:
            interrupted = True
            readers.append(bench.submit(engine, Request("important", bench.prompt(52, 70), max_tokens=3)))
        if now == stage or engine.loop.idle:
            break
    reader = next(reader for reader in readers if reader.request.id == victim.id)
    reader.cancel()
    bench.finish(engine)
    for one in readers:
        bench.check(one)
    if _ended(reader) == "cancelled":
        coverage.took("cancelled", stage)
    if interrupted and engine.loop.counters.sent_back:
        coverage.took("place given up", "to a more important request")
    bench.check_clean(engine, f"cancelled {stage}")


def _ended(reader: Reader) -> str:
    return "" if reader.finished is None else reader.finished.reason


def _stage(engine: Engine, name: str) -> str:
    lanes = [lane for lane in engine.loop.running if lane.request.id == name]
    if not lanes:
        return "waiting"
    return _lane_stage(lanes[0])


def _lane_stage(lane: Lane) -> str:
    if lane.reply.tokens and not lane.writing:
        return "running again"
    return "prompt" if lane.prompt_left else "writing"


def _grow(bench: Bench) -> None:
    """Replies that together outgrow the pool, over kept states that have to go first."""
    coverage = bench.coverage
    engine = bench.engine(streams=2, window=8 * PAGE, pool_tokens=8 * PAGE, reply_share=8)
    kept = [Request(f"kept {index}", bench.prompt(60 + index, 140), max_tokens=1) for index in range(2)]
    bench.run(engine, kept)
    states = len(engine.loop.store)
    requests = [
        Request(
            f"grows {index}", bench.prompt(70 + index, 100), max_tokens=200, sampling=sampling, cache=False
        )
        for index, sampling in enumerate((GREEDY, SAMPLED))
    ]
    bench.run(engine, requests)
    if engine.loop.counters.sent_back:
        coverage.took("place given up", "for want of pages")
    if len(engine.loop.store) < states:
        coverage.took("kept states", "dropped for pages")
    bench.check_clean(engine, "growing replies")
