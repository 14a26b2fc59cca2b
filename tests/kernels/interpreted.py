"""Every Triton kernel once on a small shape, in Triton's interpreter: run as a program with
TRITON_INTERPRET=1.

Prints one JSON object: case -> the largest error relative to the reference's largest value, and what must
be equal.
"""

import json
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from intarsia import formats
from intarsia.formats.stored import Stored
from intarsia.kernels.experts import launch as experts
from intarsia.kernels.experts import reference as experts_reference
from intarsia.kernels.kda import step as kda
from intarsia.kernels.linear import launch as linear
from intarsia.kernels.router import Routing
from intarsia.kernels.rows import Piece, rows_of
from tests.kernels.steps import page_table, randn

LINEAR = ("MXFP8", "FP8_PB_WO", "BF16", "F32")
EXPERTS = ("NVFP4", "W4A16_NVFP4", "MXFP8", "BF16", "F32")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def error(got: Tensor, expected: Tensor) -> float:
    """NaN wherever an output was not written, since outputs begin as NaN where a kernel could miss some."""
    return float((got.double() - expected.double()).abs().max() / expected.abs().max())


def linear_case(name: str, dtype: torch.dtype, rows: int = 17) -> float:
    """40 x 160 with rows and columns that fill no tile; the block format cut in the middle of a block."""
    number_format = formats.get(name)
    stored = number_format.encode(randn(110, 224, seed=1))
    left = 70 if name == "FP8_PB_WO" else 64
    stored = number_format.cut(stored, range(70, 110), range(left, left + 96))
    x = randn(rows, 96).to(dtype)
    out = torch.full((rows, 40), torch.nan)
    linear.launch(x, stored, torch.float32, out)
    return error(out, x.double() @ number_format.decode(stored, torch.float32).double().T)


def ranges_case(name: str, dtype: torch.dtype) -> float:
    """Several ranges of K, added by a second kernel for few rows and inside the first for many: equal
    bits.
    """
    stored = formats.get(name).encode(randn(32, 1056, seed=2))
    x = randn(65, 1056, seed=3).to(dtype)
    many, few = linear.launch(x, stored, torch.float32), linear.launch(x[:3], stored, torch.float32)
    if not torch.equal(many[:3], few):
        return torch.inf
    return error(many, x.double() @ formats.get(name).decode(stored, torch.float32).double().T)


def experts_case(name: str, dtype: torch.dtype) -> float:
    """Five experts, one without rows, padding rows of NaN, and two global scales an expert."""
    count, inner, width, top, rows, real = 5, 64, 128, 3, 16, 11
    number_format = formats.get(name)
    gate_up = number_format.encode(0.3 * randn(count, 2 * inner, width, seed=4))
    down = number_format.encode(0.1 * randn(count, width, inner, seed=5))
    if "weight_scale_2" in gate_up:
        scale = gate_up["weight_scale_2"]
        tensors = dict(gate_up.tensors) | {"weight_scale_2": torch.stack([scale, 1.7 * scale], 1)}
        gate_up = Stored(name, tensors, gate_up.shape)
    generator = torch.Generator().manual_seed(6)
    chosen = torch.stack([torch.randperm(count - 1, generator=generator)[:top] for _ in range(rows)]).int()
    chosen[real:] = -1
    x = randn(rows, width, seed=7).to(dtype)
    x[real:] = torch.nan
    routing = Routing(chosen, torch.rand(rows, top, generator=generator))
    got = experts.launch(x, routing, gate_up, down, 1.5)
    expected = experts_reference.routed_experts(x.float(), routing, gate_up, down, 1.5)
    return error(got, expected) if (got[real:] == 0).all() else torch.inf


def kda_case(dtype: torch.dtype) -> float:
    """Three streams that verify three, two and one rows, one of them at the beginning of its sequence."""
    heads, width, copies, taps, rows = 3, 16, 3, 4, 16
    step = rows_of(
        [Piece(2, 1, [0] * 3, True), Piece(0, 70, [0] * 2, True), Piece(1, 5, [0], True)], page_table(3, 8)
    )
    projected = kda.Projected(
        raw=randn(rows, 3 * heads * width, seed=1).to(dtype),
        decay=randn(rows, heads * width, seed=2).to(dtype),
        gate=randn(rows, heads * width, seed=3).to(dtype),
        beta=randn(rows, heads, seed=4),
    )
    parameters = kda.Parameters(
        taps=randn(3 * heads * width, taps, seed=5),
        a_log=0.3 * randn(heads, seed=6),
        dt_bias=0.3 * randn(heads * width, seed=7),
        norm=1 + 0.1 * randn(width, seed=8),
        lower_bound=-5.0,
        eps=1e-5,
    )
    results = []
    for run in (kda.reference_step, kda.launch):
        memory = randn(3, copies, heads, width, width, seed=9)
        window = randn(3, taps - 1 + copies, 3 * heads * width, seed=10).to(dtype)
        current = torch.tensor([1, 0, 2], dtype=torch.int32)
        results.append((run(projected, parameters, memory, window, current, step), memory, window))
    (expected, memory, window), (out, other_memory, other_window) = results
    if not torch.equal(window, other_window):
        return torch.inf
    return max(error(out, expected), error(other_memory, memory))


def cases() -> dict[str, Callable[[], float]]:
    """Products are formed in float32 whatever the rows, so bfloat16 rows are tried on one format each."""
    found: dict[str, Callable[[], float]] = {}
    for label, dtype in DTYPES.items():
        some = slice(None) if dtype == torch.float32 else slice(1)
        for name in LINEAR[some]:
            found[f"linear {name} {label}"] = partial(linear_case, name, dtype)
        for name in EXPERTS[some]:
            found[f"experts {name} {label}"] = partial(experts_case, name, dtype)
        found[f"kda {label}"] = partial(kda_case, dtype)
    return found | {"ranges FP8_PB_WO float32": partial(ranges_case, "FP8_PB_WO", torch.float32)}


def main() -> None:
    torch.set_num_threads(1)
    print(json.dumps({name: run() for name, run in cases().items()}))


if __name__ == "__main__":
    main()
