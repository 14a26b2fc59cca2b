"""From the last layer to tokens: final norm, head and draw, each by itself and one after another."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from intarsia.core.config import SamplingSettings
from intarsia.engine.sampling.captured import Way, draw_captured
from intarsia.engine.sampling.rows import Rows
from intarsia.evidence.kernels.bench import Bench
from intarsia.evidence.synthetic.values import random_stored
from intarsia.kernels import hyper_connection as hyper
from intarsia.kernels.linear import linear

ROWS = (1, 8, 32)
MOST_ROWS = 128
SIZE = 16
"""Rows in turn: streams for the norm, logits for the draw."""
NORM, WHOLE = "final norm", "final norm, head and draw, greedy"
DRAWS = {
    Way.GREEDY: SamplingSettings(temperature=0.0),
    Way.UNCUT: SamplingSettings(temperature=0.8, seed=1),
    Way.CUT: SamplingSettings(temperature=0.8, top_p=0.95, seed=1),
}


def measure(bench: Bench) -> None:
    """The head's matrix in MXFP8; logits normal random numbers."""
    config = bench.config
    weights = [
        random_stored("MXFP8", config.vocab_size, config.hidden_size, bench.generator)
        for _ in range(bench.turns(config.vocab_size * config.hidden_size))
    ]
    norm = bench.numbers(config.hidden_size)
    for rows in bench.counts(ROWS, most=MOST_ROWS):
        given = [_streams(bench, rows) for _ in range(SIZE)]
        read = rows * config.hidden_size * (2 * config.hc_mult + 4)
        written = rows * config.hidden_size * 2 * (config.hc_mult + 1)
        finish = [partial(hyper.finish, *one, norm, config.rms_norm_eps) for one in given]
        bench.table.add("head", NORM, rows, bench.clock(finish), moved=read + written)
        logits = [bench.numbers(rows, config.vocab_size, dtype=torch.float32) for _ in range(SIZE)]
        for way, settings in DRAWS.items():
            _draw(bench, rows, logits, way, settings)

        def whole(before: Callable[[], tuple[Tensor, Tensor]], weight: object) -> Tensor:
            _, hidden = before()
            return draw_captured(linear(hidden, weight, out_dtype=torch.float32), None, Way.GREEDY)  # type: ignore[arg-type]

        taken = bench.clock([partial(whole, f, w) for f, w in zip(finish, weights, strict=False)])
        moved = read + written + weights[0].nbytes + 2 * logits[0].nbytes
        operations = 2 * rows * config.vocab_size * config.hidden_size
        bench.table.add("head", WHOLE, rows, taken, moved=moved, operations=operations)


def _streams(bench: Bench, rows: int) -> tuple[Tensor, hyper.Pending]:
    config, wide = bench.config, torch.float32
    streams = config.hc_mult
    mix = hyper.HyperMix(
        bench.numbers(rows, streams, dtype=wide),
        bench.numbers(rows, streams, dtype=wide),
        bench.numbers(rows, streams, streams, dtype=wide),
    )
    pending = hyper.Pending(bench.numbers(rows, config.hidden_size, dtype=wide), mix)
    return bench.numbers(rows, streams, config.hidden_size), pending


def _draw(bench: Bench, rows: int, logits: list[Tensor], way: Way, settings: SamplingSettings) -> None:
    """The floor: all logits read once."""
    where = Rows.of([settings] * rows, torch.arange(rows, device=bench.device))
    taken = bench.clock([partial(draw_captured, one, where, way) for one in logits])
    bench.table.add("head", f"draw, {way.value}", rows, taken, moved=logits[0].nbytes)
