"""Whether the engine's memory stays where it is over many requests.

    python benchmarks/engine_memory.py [PATH|demo] [--requests 10000] [--json]

Short requests, eight streams: prompts of 4 to 100 tokens of which every third begins like an earlier one,
replies of 1 to 6 tokens, greedy and sampled, a tenth of them cancelled, kept states in a budget that is full
before counting begins. Told are the resident bytes after every fifth of them, and what the engine holds then.
"""

import argparse
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import intarsia
from intarsia.core.config import SamplingSettings
from intarsia.engine.engine import Engine
from intarsia.engine.events import Finished, Handle
from intarsia.engine.requests import Request
from intarsia.engine.settings import StreamSettings

STREAMS, WAITING, WINDOW, PARTS = 8, 8, 256, 5
KEPT = 8 << 20


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def requests(count: int, vocabulary: int) -> Iterator[Request]:
    """A mixture that follows from a seed."""
    dice = random.Random(1)
    beginnings = [tuple(dice.randrange(vocabulary) for _ in range(80)) for _ in range(50)]
    for number in range(count):
        own = tuple(dice.randrange(vocabulary) for _ in range(dice.randint(4, 20)))
        yield Request(
            id=str(number),
            tokens=dice.choice(beginnings) + own if number % 3 == 0 else own,
            sampling=SamplingSettings(temperature=0.8, top_p=0.9, seed=number)
            if number % 2
            else SamplingSettings(),
            max_tokens=dice.randint(1, 6),
            logprobs=2 if number % 50 == 0 else None,
        )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", nargs="?", default="demo")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = intarsia.load(options.path)
    engine = Engine(model, StreamSettings(streams=STREAMS, window=WINDOW, page=64, kept_bytes=KEPT))
    part = options.requests // PARTS
    finished, dice = {"stop": 0, "length": 0, "cancelled": 0, "error": 0}, random.Random(2)
    readings: list[int] = []
    live: list[Handle] = []

    def count(event: object) -> None:
        if isinstance(event, Finished):
            finished[event.reason] += 1

    for number, request in enumerate(requests(PARTS * part, model.config.vocab_size)):
        live.append(engine.submit(request, count))
        if dice.random() < 0.1:
            dice.choice(live[-STREAMS:]).cancel()
        while (stats := engine.stats()).running + stats.waiting >= STREAMS + WAITING:
            engine.step()
        del live[:-STREAMS]
        if (number + 1) % part == 0:
            readings.append(resident())
            print(f"{number + 1:,} requests: {readings[-1] / 2**20:.1f} MiB", file=sys.stderr, flush=True)
    while engine.step():
        pass
    engine.loop.store.clear()
    result = {
        "requests": PARTS * part,
        "finished": finished,
        "resident_mib": [round(reading / 2**20, 2) for reading in readings],
        "growth_mib": round((readings[-1] - readings[0]) / 2**20, 2),
        "pages_held": engine.loop.pool.pages - engine.loop.pool.free,
        "streams_held": STREAMS - engine.loop.places.free,
    }
    print(
        json.dumps(result)
        if options.json
        else "\n".join(f"{name}: {value}" for name, value in result.items())
    )


if __name__ == "__main__":
    main()
