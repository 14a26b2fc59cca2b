"""What serving several streams costs beside the network, and what it brings.

    python benchmarks/engine_overhead.py [PATH|demo] [--steps 200] [--json]

Three figures, each from the bundled model unless another checkpoint is named:

1. Time of a step at eight streams beside the calls of the network; drawing is told apart. CPU time of the
   engine's thread, so that other processes count little; the median over the steps and the fastest tenth.
2. Tokens a second of eight streams against one, each with the number of guesses the engine chooses for it.
3. Time from submitting a 2,000-token prompt to its first token, cold and with the prompt kept.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

import intarsia
from intarsia.core.config import SamplingSettings
from intarsia.engine.engine import Engine
from intarsia.engine.events import Handle
from intarsia.engine.lanes import mtp, verify
from intarsia.engine.requests import Request
from intarsia.engine.settings import StreamSettings
from intarsia.models.glm5_next.model import Glm5NextModel

STREAMS = 8
PROMPT = 64
WARM_UP = 10


class Meter:
    """Adds up the time of wrapped functions."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds = 0.0

    def wrap(self, owner: object, name: str) -> None:
        """Time every call of `owner.name` from now on."""
        function = getattr(owner, name)

        def timed(*arguments: object, **options: object) -> object:
            begin = self.clock()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += self.clock() - begin

        setattr(owner, name, timed)


class EveryGuess:
    """Costs by which every guess is made: the most work a step can be for the engine."""

    def step(self, rows: int) -> float:
        return 1.0 + 1e-6 * rows

    def absorb(self, rows: int) -> float:
        return 1e-6

    def chain(self, streams: int) -> float:
        return 1e-6


def prompt(model: Glm5NextModel, seed: int, length: int) -> tuple[int, ...]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, model.config.vocab_size, (length,), generator=generator).tolist())


def submit_writers(
    engine: Engine, model: Glm5NextModel, count: int, tokens: int, sampling: SamplingSettings
) -> None:
    """Submit `count` requests and step until all are writing."""
    for index in range(count):
        request = Request(
            id=str(index),
            tokens=prompt(model, index, PROMPT),
            sampling=replace(sampling, seed=index),
            max_tokens=tokens,
            cache=False,
        )
        engine.submit(request)
    engine.step()
    while not all(lane.writing for lane in engine.loop.running):
        engine.step()


def overhead(
    model: Glm5NextModel, steps: int, sampling: SamplingSettings, *, every: bool = False
) -> dict[str, float]:
    """Milliseconds of a step, in parts; with `every` guess there can be, or as many as the engine chooses."""
    network, drawing = Meter(time.thread_time), Meter(time.thread_time)
    for name in ("hidden", "head", "mtp_hidden"):
        network.wrap(model, name)
    for module in (verify, mtp):
        drawing.wrap(module, "draw")
    try:
        costs = EveryGuess() if every else None
        engine = Engine(model, StreamSettings(streams=STREAMS, window=1024), costs=costs)
        submit_writers(engine, model, STREAMS, 1024 - PROMPT, sampling)
        rest, draws, calls = [], [], []
        for step in range(WARM_UP + steps):
            if len(engine.loop.running) < STREAMS:
                break
            network.seconds = drawing.seconds = 0.0
            begin = time.thread_time()
            engine.step()
            total = time.thread_time() - begin
            if step >= WARM_UP:
                rest.append(total - network.seconds - drawing.seconds)
                draws.append(drawing.seconds)
                calls.append(network.seconds)
    finally:
        for name in ("hidden", "head", "mtp_hidden"):
            delattr(model, name)
        for module in (verify, mtp):
            module.draw = drawing_original
    return {
        "engine_ms": 1000 * statistics.median(rest),
        "engine_ms_fastest_tenth": 1000 * statistics.quantiles(rest, n=10)[0],
        "drawing_ms": 1000 * statistics.median(draws),
        "network_ms": 1000 * statistics.median(calls),
        "steps": len(rest),
    }


def throughput(model: Glm5NextModel, streams: int, tokens: int, draft: bool) -> float:
    """Tokens a second while all streams write, by the wall clock."""
    settings = StreamSettings(streams=streams, window=1024)
    engine = Engine(model, settings if draft else replace(settings, drafts=0, copy_drafts=0))
    submit_writers(engine, model, streams, tokens, SamplingSettings())
    for _ in range(WARM_UP):
        engine.step()
    lanes = list(engine.loop.running)
    written = sum(len(lane.reply.tokens) for lane in lanes)
    begin = time.perf_counter()
    while len(engine.loop.running) == streams:
        engine.step()
    return (sum(len(lane.reply.tokens) for lane in lanes) - written) / (time.perf_counter() - begin)


def first_token(engine: Engine, model: Glm5NextModel, length: int) -> tuple[float, int]:
    """Seconds to the first token of a prompt, and how much of it was reused."""
    begin = time.perf_counter()
    handle: Handle = engine.submit(Request(id="prompt", tokens=prompt(model, 99, length), max_tokens=1))
    while engine.step():
        pass
    seconds = time.perf_counter() - begin
    *_, finished = handle.events()
    return seconds, finished.usage.cached_tokens


def cached(model: Glm5NextModel, length: int, repeats: int = 5) -> dict[str, float]:
    """Cold and kept, the fastest of a few."""
    cold, warm, reused = [], [], 0
    for _ in range(repeats):
        engine = Engine(
            model, StreamSettings(streams=1, window=min(4096, model.config.max_position_embeddings))
        )
        cold.append(first_token(engine, model, length)[0])
        seconds, reused = first_token(engine, model, length)
        warm.append(seconds)
    return {"cold_ms": 1000 * min(cold), "kept_ms": 1000 * min(warm), "reused_tokens": reused}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", nargs="?", default="demo")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = intarsia.load(options.path)
    greedy, sampled = SamplingSettings(), SamplingSettings(temperature=0.8, top_p=0.95, seed=0)
    result = {
        "overhead greedy": overhead(model, options.steps, greedy),
        "overhead greedy, every guess": overhead(model, options.steps, greedy, every=True),
        "overhead sampled": overhead(model, options.steps, sampled),
        "tokens a second": {
            f"{streams} streams{'' if draft else ', no guesses'}": throughput(
                model, streams, options.tokens, draft
            )
            for streams in (1, STREAMS)
            for draft in (False, True)
        },
        "first token of 2,000": cached(model, 2000),
    }
    if options.json:
        print(json.dumps(result))
        return
    for title, figures in result.items():
        print(f"{title}: " + ", ".join(f"{name} {value:.2f}" for name, value in figures.items()))


drawing_original = verify.draw

if __name__ == "__main__":
    main()
