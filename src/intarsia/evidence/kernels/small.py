"""What is small in a step: embeddings, norms by themselves, and both of the MTP layer's in one."""

from functools import partial

import torch

from intarsia.evidence.kernels.bench import Bench
from intarsia.kernels.embedding import embed, join_norms
from intarsia.kernels.norm import add_norm

ROWS = (1, 8, 32, 1024)
TURNS = 16
VOCABULARY = 1 << 16
"""Most entries of the table; rows are drawn from all of it."""


def measure(bench: Bench) -> None:
    """In turn with other rows; the floor counts each row read and written once."""
    config, width = bench.config, bench.config.hidden_size
    table = bench.numbers(min(VOCABULARY, config.vocab_size), width)
    norms = bench.numbers(width), bench.numbers(width)
    for rows in bench.counts(ROWS):
        tokens = [
            torch.randint(table.shape[0], (rows,), generator=bench.generator, device=bench.device)
            for _ in range(TURNS)
        ]
        row = rows * width
        taken = bench.clock([partial(embed, one, table, torch.bfloat16) for one in tokens])
        bench.table.add("small", "embedding", rows, taken, moved=4 * row)
        positions = torch.arange(1, rows + 1, device=bench.device, dtype=torch.int32)
        hidden = [bench.numbers(rows, width) for _ in range(TURNS)]
        taken = bench.clock(
            [
                partial(join_norms, one, positions, table, x, norms, config.rms_norm_eps)
                for one, x in zip(tokens, hidden, strict=True)
            ]
        )
        bench.table.add("small", "embedding and hidden row, normed", rows, taken, moved=8 * row)
        added = bench.numbers(rows, width, dtype=torch.float32)
        taken = bench.clock([partial(add_norm, x, added, norms[0], config.rms_norm_eps) for x in hidden])
        bench.table.add("small", "residual and norm", rows, taken, moved=(2 + 4 + 2 + 2) * row)
