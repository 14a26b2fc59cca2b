"""intarsia bench: how fast a server, a model or two forms of one are, what kernels and a load take."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from intarsia.cli.bench_compare import BenchCompare
from intarsia.cli.bench_kernels import BenchKernels
from intarsia.cli.bench_load import BenchConvert, BenchLoad
from intarsia.cli.bench_memory import BenchMemory
from intarsia.cli.bench_serve import BenchServe
from intarsia.cli.bench_speed import BenchSpeed
from intarsia.cli.bench_steps import BenchDecode, BenchPrefill

Suite = (
    Annotated[BenchServe, tyro.conf.subcommand("serve", prefix_name=False)]
    | Annotated[BenchSpeed, tyro.conf.subcommand("speed", prefix_name=False)]
    | Annotated[BenchCompare, tyro.conf.subcommand("compare", prefix_name=False)]
    | Annotated[BenchKernels, tyro.conf.subcommand("kernels", prefix_name=False)]
    | Annotated[BenchDecode, tyro.conf.subcommand("decode", prefix_name=False)]
    | Annotated[BenchPrefill, tyro.conf.subcommand("prefill", prefix_name=False)]
    | Annotated[BenchMemory, tyro.conf.subcommand("memory", prefix_name=False)]
    | Annotated[BenchLoad, tyro.conf.subcommand("load", prefix_name=False)]
    | Annotated[BenchConvert, tyro.conf.subcommand("convert", prefix_name=False)]
)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure speed and memory: a running server, a model or two in turn, two runs, kernels, a load."""

    suite: Annotated[Suite, tyro.conf.arg(name="")]
    """What to measure."""

    def run(self) -> int:
        return self.suite.run()
