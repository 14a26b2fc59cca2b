"""One site of the hyper-connections: update of the streams, coefficients, next input."""

from functools import partial

import torch

from intarsia.evidence.kernels.bench import Bench
from intarsia.kernels import hyper_connection as hyper

ROWS = (1, 8, 16, 128, 1024)
SITES = 16


def measure(bench: Bench) -> None:
    """Sites in turn at every row count."""
    config, wide = bench.config, torch.float32
    streams, hidden = config.hc_mult, config.hidden_size
    numbers = streams * (streams + 2)
    sites = [
        hyper.Site(
            fn=bench.numbers(numbers, streams * hidden) * (streams * hidden) ** -0.5,
            base=bench.numbers(numbers, dtype=wide),
            scale=bench.numbers(3, dtype=wide),
            norm=bench.numbers(hidden),
        )
        for _ in range(SITES)
    ]
    rule = hyper.Rule(norm_eps=config.rms_norm_eps, eps=config.hc_eps, iterations=config.hc_sinkhorn_iters)
    for rows in bench.counts(ROWS):
        mix = hyper.HyperMix(
            bench.numbers(rows, streams, dtype=wide),
            bench.numbers(rows, streams, dtype=wide),
            bench.numbers(rows, streams, streams, dtype=wide),
        )
        pending = hyper.Pending(bench.numbers(rows, hidden, dtype=wide), mix)
        x = bench.numbers(rows, streams, hidden)
        taken = bench.clock([partial(hyper.site, x, pending, site, rule) for site in sites])
        # the streams are read, written, and read again by what collects them; then y and the next input
        moved = sites[0].fn.nbytes + rows * hidden * (3 * streams * 2 + 4 + 2)
        bench.table.add("hyper", "a site", rows, taken, moved=moved)
