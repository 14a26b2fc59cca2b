"""Linear attention and hyper-connections at GLM-5.3-Flash's geometry: times, floors, and fla-core beside.

    python benchmarks/kda.py [--only decode verify prompt hyper] [--peer] [--json FILE]

64 heads of 128 columns, bfloat16 rows, float32 state, random numbers made on the device. `decode` is all of
a row between its projections: convolution, gates, delta rule, norm and output gate; `verify` the same for
4 rows a stream, each leaving its state. `prompt` is one prompt, from raw projections to gated rows; `hyper`
one site: update of four streams of 4096 columns, coefficients, next input. A figure is the median over
replays of one CUDA graph, whose calls take turns with other streams. The floor is the bytes that must move
over the bandwidth of a copy measured at the start. With --peer also fla-core's fused_recurrent_kda and
chunk_kda, which take convolved bfloat16 rows and leave out convolution, norm and output gate.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from timing import machine, microseconds, write_json
from torch import Tensor

from intarsia.kernels import choice
from intarsia.kernels import hyper_connection as hyper
from intarsia.kernels.kda import Cache, Parameters, Projected, attention_step
from intarsia.kernels.rows import Rows

HEADS, WIDTH, STREAMS, DRAFTS = 64, 128, 128, 3
COLUMNS = HEADS * WIDTH
BATCHES, VERIFIED = (1, 8, 32, 128), (1, 8, 32)
PROMPTS = (1024, 2048, 8192)
HYPER_ROWS, HIDDEN = (1, 8, 16, 128, 1024), 4096


class Table:
    """Prints a row when it is known and keeps all of them."""

    def __init__(self, bytes_a_second: float) -> None:
        self.bytes_a_second = bytes_a_second
        self.rows: list[dict[str, object]] = []
        print(f"{'operation':10} {'rows':>6} {'us':>9} {'floor':>8} {'ratio':>6} {'peer':>9}")

    def add(self, operation: str, rows: int, us: float, moved: float, peer: float | None) -> None:
        floor = moved / self.bytes_a_second * 1e6
        other = f"{peer:9.1f}" if peer is not None else f"{'-':>9}"
        print(f"{operation:10} {rows:6} {us:9.1f} {floor:8.1f} {us / floor:6.2f} {other}", flush=True)
        self.rows.append({"operation": operation, "rows": rows, "us": us, "floor_us": floor, "peer_us": peer})


def numbers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


def projected(rows: int) -> Projected:
    return Projected(
        raw=numbers(rows, 3 * COLUMNS),
        decay=numbers(rows, COLUMNS),
        gate=numbers(rows, COLUMNS),
        beta=numbers(rows, HEADS, dtype=torch.float32),
    )


def parameters() -> Parameters:
    wide = torch.float32
    return Parameters(
        taps=numbers(3 * COLUMNS, 4, dtype=wide),
        a_log=0.1 * numbers(HEADS, dtype=wide),
        dt_bias=0.1 * numbers(COLUMNS, dtype=wide),
        norm=1 + 0.1 * numbers(WIDTH, dtype=wide),
        lower_bound=-5.0,
        eps=1e-5,
    )


def caches(streams: int, copies: int) -> Cache:
    return Cache(
        memory=numbers(streams, copies, HEADS, WIDTH, WIDTH, dtype=torch.float32),
        window=numbers(streams, 3 + copies, 3 * COLUMNS),
        current=torch.zeros(streams, dtype=torch.int32, device="cuda"),
    )


def rows_of_streams(first: int, streams: int, each: int, recurrent: bool) -> Rows:
    """`each` rows of each of some streams, at position 128 and after it, padded to 16."""
    count = streams * each
    padded = max(16, -(-count // 16) * 16)

    def integers(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    return Rows(
        tokens=torch.zeros(padded, dtype=torch.int64, device="cuda"),
        positions=integers([128 + i % each for i in range(padded)]),
        streams=integers([first + i // each for i in range(count)] + [-1] * (padded - count)),
        starts=integers(list(range(0, count + 1, each))),
        page_table=integers([0] * STREAMS).unsqueeze(1),
        recurrent_segments=streams if recurrent else 0,
    )


def bench_rows(table: Table, operation: str, each: int, batches: tuple[int, ...], peer: bool) -> None:
    weights, kept = parameters(), caches(STREAMS, each)
    state, window = 4 * HEADS * WIDTH * WIDTH, 2 * 3 * COLUMNS
    for batch in batches:
        firsts = range(0, STREAMS - batch + 1, batch)[:16]
        steps = [rows_of_streams(first, batch, each, True) for first in firsts]
        given = projected(steps[0].tokens.shape[0])
        us = microseconds([partial(attention_step, given, weights, kept, r, overlap=True) for r in steps])
        moved = batch * (state * (1 + each) + window * (3 + 2 * each) + each * 2 * 3 * COLUMNS)
        theirs = fla_rows(kept, firsts, batch) if peer and each == 1 else None
        table.add(operation, batch * each, us, moved, theirs)


def bench_decode(table: Table, peer: bool) -> None:
    bench_rows(table, "decode", 1, BATCHES, peer)


def bench_verify(table: Table, peer: bool) -> None:
    bench_rows(table, "verify", 1 + DRAFTS, VERIFIED, peer)


def bench_prompt(table: Table, peer: bool) -> None:
    weights, kept = parameters(), caches(2, 1)
    for count in PROMPTS:
        given = projected(count)
        steps = [rows_of_streams(stream, 1, count, False) for stream in range(2)]
        us = microseconds([partial(attention_step, given, weights, kept, r) for r in steps])
        moved = count * 2 * (3 + 1 + 1 + 1) * COLUMNS + 8 * HEADS * WIDTH * WIDTH
        table.add("prompt", count, us, moved, fla_prompt(count) if peer else None)


def fla_inputs(batch: int, rows: int) -> dict[str, Tensor]:
    shape = (batch, rows, HEADS, WIDTH)
    inputs = {name: numbers(*shape) for name in ("q", "k", "v", "g")}
    return inputs | {
        "beta": numbers(batch, rows, HEADS),
        "A_log": 0.1 * numbers(HEADS, dtype=torch.float32),
        "dt_bias": 0.1 * numbers(COLUMNS, dtype=torch.float32),
    }


FLA = {
    "output_final_state": True,
    "use_qk_l2norm_in_kernel": True,
    "use_gate_in_kernel": True,
    "use_beta_sigmoid_in_kernel": True,
    "safe_gate": True,
    "lower_bound": -5.0,
}


def fla_rows(kept: Cache, firsts: range, batch: int) -> float:
    from fla.ops.kda import fused_recurrent_kda

    inputs = fla_inputs(batch, 1)
    states = [kept.memory[first : first + batch, 0] for first in firsts]
    options = {name: value for name, value in FLA.items() if name != "safe_gate"}
    return microseconds([partial(fused_recurrent_kda, **inputs, initial_state=s, **options) for s in states])


def fla_prompt(rows: int) -> float:
    from fla.ops.kda import chunk_kda

    inputs = fla_inputs(1, rows)
    state = numbers(1, HEADS, WIDTH, WIDTH, dtype=torch.float32)
    return microseconds([partial(chunk_kda, **inputs, initial_state=state, **FLA)] * 2)


def bench_hyper(table: Table, _: bool) -> None:
    wide = torch.float32
    sites = [
        hyper.Site(
            fn=numbers(24, 4 * HIDDEN) * (4 * HIDDEN) ** -0.5,
            base=numbers(24, dtype=wide),
            scale=numbers(3, dtype=wide),
            norm=numbers(HIDDEN),
        )
        for _ in range(16)
    ]
    rule = hyper.Rule(norm_eps=1e-5, eps=1e-6, iterations=20)
    for rows in HYPER_ROWS:
        mix = hyper.HyperMix(
            numbers(rows, 4, dtype=wide), numbers(rows, 4, dtype=wide), numbers(rows, 4, 4, dtype=wide)
        )
        pending = hyper.Pending(numbers(rows, HIDDEN, dtype=wide), mix)
        streams = numbers(rows, 4, HIDDEN)
        us = microseconds([partial(hyper.site, streams, pending, s, rule) for s in sites])
        moved = sites[0].fn.nbytes + rows * HIDDEN * (4 * 2 * 3 + 4 + 2)
        table.add("hyper", rows, us, moved, None)


PARTS: dict[str, Callable[[Table, bool], None]] = {
    "decode": bench_decode,
    "verify": bench_verify,
    "prompt": bench_prompt,
    "hyper": bench_hyper,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--peer", action="store_true", help="also time fla-core, which must be installed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if reason := choice.no_triton(torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")):
        sys.exit(f"needs a GPU and triton: {reason}")
    torch.manual_seed(0)
    about = machine()
    print(*(f"{key} {value}" for key, value in about.items()), sep=" · ")
    table = Table(float(str(about["bytes_a_second"])))
    for part in options.only:
        PARTS[part](table, options.peer)
    write_json(options.json, about, table.rows)


if __name__ == "__main__":
    main()
