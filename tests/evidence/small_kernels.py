"""Operations at small sizes, timed by a clock that always says the same."""

import torch

from intarsia.evidence.kernels.bench import Bench
from intarsia.evidence.kernels.table import Rates, Table
from intarsia.evidence.kernels.timing import Timing
from intarsia.families.glm5_next.config import Glm5NextConfig
from tests.evidence.test_synthetic import small_geometry

RATES = Rates(bytes_a_second=1e9, operations_a_second=1e12)


class Clock:
    """Runs the calls and answers 3 us: what they took here says nothing."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, calls):
        assert calls
        for call in calls:
            call()
        self.calls.append(len(calls))
        return Timing(3.0, 2.9, 3.2)


def small_bench(rows=(), peers=False) -> Bench:
    config = Glm5NextConfig.from_checkpoint_config(small_geometry())
    return Bench(config, torch.device("cpu"), Clock(), Table(RATES), rows, peers)


def cases(bench: Bench) -> set[tuple[str, int]]:
    return {(row.case, row.rows) for row in bench.table.rows}
