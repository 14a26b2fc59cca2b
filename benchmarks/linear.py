"""Products with stored weights at GLM-5.3-Flash's geometry on a GPU: time, floor, ratio, and peers beside.

    python benchmarks/linear.py [--rows 1 8 16 32 64 2048] [--only NAME ...] [--json FILE]

Weights are random and made on the device. A figure is the median of replays of one CUDA graph, whose calls
take turns with weights that together cover the L2 cache four times. The floor is what must be read and
written (stored weights, x, results) over the bandwidth of a copy measured at the start, or the products at
the dense bfloat16 rate given, whichever is longer. Peers, in the same run: cuBLAS on bfloat16 weights of the
same shape (`torch.nn.functional.linear`), and this project's Triton kernels. `used` stands for 16 rows of
which 8 are real, as a padded step has them.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from timing import Call, in_turn, machine, microseconds, write_json
from torch import Tensor

from intarsia.evidence.synthetic.values import random_stored
from intarsia.formats.stored import Stored
from intarsia.kernels import choice
from intarsia.kernels.linear import linear_swiglu, linears, linears_apart

ROWS = (1, 8, 16, 32, 64, 2048)
DENSE_RATE = 790e12  # measured of cuBLAS on one H200 before its clock drops
LIMIT = 10.0


@dataclass(frozen=True)
class Work:
    """Matrices of one format that are multiplied together. `kind`: of the same rows, apart, or a SwiGLU."""

    name: str
    form: str
    sizes: tuple[int, ...]
    columns: int
    kind: str = "together"


WORKS = (
    Work("KDA q, k, v", "MXFP8", (8192, 8192, 8192), 4096),
    Work("KDA o", "MXFP8", (4096,), 8192),
    Work("head", "MXFP8", (154880,), 4096),
    Work("MLA q_b", "FP8_PB_WO", (16384,), 1536),
    Work("MLA o", "FP8_PB_WO", (4096,), 16384),
    Work("MLA q_a, kv_a", "FP8_PB_WO", (1536, 512), 4096),
    Work("shared gate+up", "FP8_PB_WO", (4096,), 4096, "swiglu"),
    Work("shared down", "FP8_PB_WO", (4096,), 2048),
    Work("dense gate+up", "MXFP8", (24576,), 4096, "swiglu"),
    Work("KDA b, f_a, g_a", "BF16", (64, 128, 128), 4096),
    Work("KDA f_b, g_b", "BF16", (8192, 8192), 128, "apart"),
    Work("eh_proj", "BF16", (4096,), 8192),
)


def weight(name: str, rows: int, columns: int, generator: torch.Generator) -> Stored:
    if name != "BF16":
        return random_stored(name, rows, columns, generator)
    values = torch.randn(rows, columns, generator=generator, device="cuda", dtype=torch.bfloat16)
    return Stored("BF16", {"weight": values * columns**-0.5}, (rows, columns))


def product(work: Work, x: Tensor, weights: list[Stored], used: Tensor | None = None) -> object:
    if work.kind == "swiglu":
        return linear_swiglu(x, weights[0], LIMIT, used=used)
    if work.kind == "apart":
        return linears_apart([x] * len(weights), weights, used=used)
    return linears(x, weights, used=used)


def measure(work: Work, counts: list[int], bytes_a_second: float) -> list[dict[str, object]]:
    generator = torch.Generator("cuda").manual_seed(0)
    total, k = sum(work.sizes), work.columns
    one = total * k * (2 if work.form == "BF16" else 1)
    sets = [[weight(work.form, n, k, generator) for n in work.sizes] for _ in range(in_turn(one))]
    wide = [torch.randn(total, k, device="cuda", dtype=torch.bfloat16) for _ in range(in_turn(2 * total * k))]
    few = torch.full((1,), 8, dtype=torch.int32, device="cuda")
    rows = []
    for count in counts:
        x = torch.randn(count, k, generator=generator, device="cuda", dtype=torch.bfloat16)
        moved = sum(w.nbytes for w in sets[0]) + 2 * count * (k + total)
        floor = max(moved / bytes_a_second, 2 * count * total * k / DENSE_RATE) * 1e6
        row: dict[str, object] = {"work": work.name, "form": work.form, "rows": count, "floor_us": floor}
        row["us"] = microseconds(calls(work, x, sets))
        if count == 16:
            row["used_us"] = microseconds(calls(work, x, sets, few))
        if count <= 64 or work.name.startswith(("KDA q", "MLA o")):
            with choice.forced(choice.TRITON):
                row["triton_us"] = microseconds(calls(work, x, sets))
        row["cublas_us"] = microseconds([lambda x=x, w=w: torch.nn.functional.linear(x, w) for w in wide])
        rows.append(row)
        show(row)
    return rows


def calls(work: Work, x: Tensor, sets: list[list[Stored]], used: Tensor | None = None) -> list[Call]:
    return [lambda w=w: product(work, x, w, used) for w in sets]


def show(row: dict[str, object]) -> None:
    def cell(name: str) -> str:
        return f"{row[name]:9.1f}" if name in row else f"{'-':>9}"

    print(
        f"{row['work']:16} {row['form']:10} {row['rows']:5} {cell('us')} {cell('floor_us')}"
        f" {row['us'] / row['floor_us']:6.2f} {cell('used_us')} {cell('triton_us')} {cell('cublas_us')}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--only", nargs="+", default=[], help="beginnings of the works' names")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("needs a GPU")
    about = machine()
    print(*(f"{key} {value}" for key, value in about.items()), sep=" · ")
    print(f"{'work':16} {'format':10} {'rows':>5} {'us':>9} {'floor':>9} {'ratio':>6} {'used':>9}", end="")
    print(f" {'Triton':>9} {'cuBLAS':>9}")
    rows = []
    for work in WORKS:
        if not options.only or work.name.startswith(tuple(options.only)):
            rows += measure(work, options.rows, float(str(about["bytes_a_second"])))
            torch.cuda.empty_cache()
    write_json(options.json, about, rows)


if __name__ == "__main__":
    main()
