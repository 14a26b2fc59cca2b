"""Several streams with staggered arrivals through the real engine thread: each reply is the one it has
alone."""

import random
import time
from collections.abc import Sequence

from intarsia.core.progress import SILENT, Progress
from intarsia.engine.engine import Engine
from intarsia.engine.requests import Request
from intarsia.evidence.checks.bench import GREEDY, SAMPLED, SEEDED, Bench, Reader
from intarsia.evidence.checks.coverage import CheckReport, Coverage
from intarsia.models.glm5_next.model import Glm5NextModel

SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED, "seeded": SEEDED}
ARRIVALS = ("together", "staggered")
LENGTHS = (3, 40, 64, 100, 190)
REPLIES = (4, 12, 24)
SHORT, LONG_REPLY = 40, 24
LONGEST_PAUSE = 0.05
PATIENCE = 600.0


def check_lanes_concurrent(
    model: Glm5NextModel, progress: Progress = SILENT, *, seed: int = 0, most: int = 8
) -> CheckReport:
    """2 to `most` streams and one request more than streams, together and one after another, one cancelled.

    Cells: how many streams there were, how many ran at once, how they arrived, were drawn and ended.
    """
    coverage = Coverage("lanes-concurrent", progress)
    bench = Bench(model, coverage, window=512)
    rng = random.Random(seed)
    with coverage.part():
        coverage.expect("streams", range(2, most + 1))
        coverage.expect("arrival", ARRIVALS)
        coverage.expect("sampling", SAMPLINGS)
        coverage.expect("ended", ("length", "cancelled"))
        coverage.expect("at once", range(1, most + 1))
        for streams in range(2, most + 1):
            for arrival in ARRIVALS:
                _round(bench, streams, arrival, _requests(bench, streams, arrival, rng))
                coverage.took("streams", streams)
                coverage.took("arrival", arrival)
        for streams in range(1, most + 1):
            # How many of the above run at once depends on the machine; these all do.
            _round(bench, streams, "together", _alike(bench, streams))
    return coverage.report()


def _requests(bench: Bench, streams: int, arrival: str, rng: random.Random) -> list[tuple[Request, float]]:
    """One more than streams, of any length and way of drawing, each with a pause before the next."""
    requests = []
    for index in range(streams + 1):
        sampling = rng.choice(tuple(SAMPLINGS))
        bench.coverage.took("sampling", sampling)
        request = Request(
            id=f"request {index} of {streams} streams {arrival}",
            tokens=bench.prompt(rng.randrange(4), rng.choice(LENGTHS)),
            max_tokens=rng.choice(REPLIES),
            sampling=SAMPLINGS[sampling],
        )
        requests.append((request, rng.random() * LONGEST_PAUSE))
    return requests


def _alike(bench: Bench, streams: int) -> list[tuple[Request, float]]:
    """As many as streams, all as long, so that they begin and write together."""
    return [
        (
            Request(
                id=f"request {index} of {streams} alike",
                tokens=bench.prompt(index % 4, SHORT),
                max_tokens=LONG_REPLY,
                sampling=GREEDY,
            ),
            0.0,
        )
        for index in range(streams)
    ]


def _round(bench: Bench, streams: int, arrival: str, requests: list[tuple[Request, float]]) -> None:
    coverage = bench.coverage

    def watch(parts: Sequence[object]) -> None:
        coverage.took("at once", max(len(parts), len(engine.loop.running)))

    engine = bench.serving(streams=streams, watch=watch)
    if not bench.leads:
        bench.follow(engine)
        for request, _ in requests:
            bench.truth(request)  # every rank has a part in it
    else:
        readers = _served(engine, requests, arrival)
        engine.close(timeout=PATIENCE)
        for reader in readers:
            bench.check(reader)
            if reader.finished is not None:
                coverage.took("ended", reader.finished.reason)
    bench.check_clean(engine, f"{streams} streams {arrival}")


def _served(engine: Engine, requests: Sequence[tuple[Request, float]], arrival: str) -> list[Reader]:
    """Submit requests with their pauses, the last one being cancelled, or all at once; wait for all."""
    readers = []
    if arrival == "staggered":
        engine.start()
    for request, pause in requests:
        readers.append(Reader(request, engine.submit(request)))
        if arrival == "staggered":
            time.sleep(pause)
    if arrival == "staggered":
        readers[-1].cancel()
    else:
        engine.start()
    for reader in readers:
        reader.read()
    return readers
