"""Products with stored weights: as many matrices as the network multiplies at once, in their formats."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear as cublas

from intarsia.evidence.kernels.bench import Bench
from intarsia.evidence.kernels.timing import Call
from intarsia.evidence.synthetic.values import random_stored
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.formats.stored import Stored
from intarsia.kernels import choice
from intarsia.kernels.linear import linear_swiglu, linears, linears_apart

ROWS = (1, 8, 16, 32, 64, 2048)
PADDED, USED = 16, 8
FEW = 64
"""Up to so many rows the plain Triton kernels are timed too; of more they take too long."""
CUBLAS = "cuBLAS on BF16"
SOME_REAL = f"{USED} of {PADDED} rows real"


@dataclass(frozen=True, slots=True)
class Work:
    """Matrices of one format that are multiplied together. `kind`: of the same rows, apart, or a SwiGLU."""

    name: str
    form: str
    sizes: tuple[int, ...]
    columns: int
    kind: str = "together"

    @property
    def numbers(self) -> int:
        """Weights in all matrices."""
        return sum(self.sizes) * self.columns

    def moved(self, weights: list[Stored], rows: int) -> int:
        """Bytes read and written: weights as stored, x and results in BF16."""
        results = sum(self.sizes) // (2 if self.kind == "swiglu" else 1)
        return sum(weight.nbytes for weight in weights) + 2 * rows * (self.columns + results)


def works(config: Glm5NextConfig) -> tuple[Work, ...]:
    """The products of a network in the formats of `fp4-local`."""
    hidden, wide, head = config.hidden_size, config.linear_width, config.linear_head_dim
    q_rank, heads = config.q_lora_rank, config.num_attention_heads
    shared, dense = config.shared_width, config.intermediate_size
    return (
        Work("KDA q, k, v", "MXFP8", (wide, wide, wide), hidden),
        Work("KDA o", "MXFP8", (hidden,), wide),
        Work("head", "MXFP8", (config.vocab_size,), hidden),
        Work("MLA q_b", "FP8_PB_WO", (heads * config.qk_nope_head_dim,), q_rank),
        Work("MLA o", "FP8_PB_WO", (hidden,), heads * config.v_head_dim),
        Work("MLA q_a, kv_a", "FP8_PB_WO", (q_rank, config.kv_lora_rank), hidden),
        Work("shared gate+up", "FP8_PB_WO", (2 * shared,), hidden, "swiglu"),
        Work("shared down", "FP8_PB_WO", (hidden,), shared),
        Work("dense gate+up", "MXFP8", (2 * dense,), hidden, "swiglu"),
        Work("dense down", "MXFP8", (hidden,), dense),
        Work("KDA b, f_a, g_a", "BF16", (config.linear_num_heads, head, head), hidden),
        Work("KDA f_b, g_b", "BF16", (wide, wide), head, "apart"),
        Work("eh_proj", "BF16", (hidden,), 2 * hidden),
    )


def measure(bench: Bench) -> None:
    """All products, each at every row count."""
    for work in works(bench.config):
        _measure(bench, work)
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()


def _measure(bench: Bench, work: Work) -> None:
    one = work.numbers * (2 if work.form == "BF16" else 1)
    turns = range(bench.turns(one))
    sets = [[_weight(bench, work.form, size, work.columns) for size in work.sizes] for _ in turns]
    wide = [bench.numbers(sum(work.sizes), work.columns) for _ in range(bench.turns(2 * work.numbers))]
    few = bench.integers([USED])
    for count in bench.counts(ROWS):
        x = bench.numbers(count, work.columns)
        calls = _calls(bench, work, x, sets)
        beside: dict[str, float] = {}
        taken = bench.clock(calls)
        if count == PADDED:
            beside[SOME_REAL] = bench.us(_calls(bench, work, x, sets, few))
        if count <= FEW:
            beside |= bench.variant("triton", choice.TRITON, calls)
        beside[CUBLAS] = bench.us([partial(cublas, x, w) for w in wide])
        bench.table.add(
            "linear",
            f"{work.name} {work.form}",
            count,
            taken,
            moved=work.moved(sets[0], count),
            operations=2 * count * work.numbers,
            beside=beside,
        )


def _weight(bench: Bench, form: str, rows: int, columns: int) -> Stored:
    if form != "BF16":
        return random_stored(form, rows, columns, bench.generator)
    return Stored("BF16", {"weight": bench.numbers(rows, columns) * columns**-0.5}, (rows, columns))


def _calls(
    bench: Bench, work: Work, x: Tensor, sets: list[list[Stored]], used: Tensor | None = None
) -> list[Call]:
    limit = bench.config.swiglu_limit
    return [partial(_product, work, x, weights, limit, used) for weights in sets]


def _product(work: Work, x: Tensor, weights: list[Stored], limit: float, used: Tensor | None) -> object:
    if work.kind == "swiglu":
        return linear_swiglu(x, weights[0], limit, used=used)
    if work.kind == "apart":
        return linears_apart([x] * len(weights), weights, used=used)
    return linears(x, weights, used=used)
