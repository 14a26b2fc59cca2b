"""The kernels that choose experts and sort rows for them, in Triton's interpreter: run as a program with
TRITON_INTERPRET=1.

Prints one JSON object: case -> what is wrong with it, nothing where all is right.
"""

import json
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from intarsia import formats
from intarsia.kernels.experts import launch as experts
from intarsia.kernels.experts import reference as experts_reference
from intarsia.kernels.experts import triton_grouping as grouping
from intarsia.kernels.router import launch as router
from intarsia.kernels.router import reference
from tests.kernels.steps import padded, randn, step

EXPERTS, TOP, WIDTH, NT = 7, 3, 256, 4


def chosen(rows: int, real: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    experts = torch.stack([torch.randperm(EXPERTS, generator=generator)[:TOP] for _ in range(rows)]).int()
    experts[:, 0] = 2  # more than one block of it
    experts[real:] = -1
    return experts


def ordered(x: Tensor, many: bool) -> Tensor:
    """Column [lane, word, h, i] of each 128 at [word, i, lane, h], or at [word, lane, i, h]; times 2^64."""
    values = (x.float() * 2.0**64).bfloat16().view(x.shape[0], -1, 4, 4, 2, 4)
    values = values.permute(0, 1, 3, 5, 2, 4) if many else values.permute(0, 1, 3, 2, 5, 4)
    return values.reshape(x.shape)


def grouping_case(rows: int, real: int, many: bool, chunk: int = 16) -> str:
    """Every pair once, in a block of its expert, pairs of an expert in their order; x in order."""
    experts = chosen(rows, real)
    pairs = experts.numel()
    blocks = EXPERTS + pairs // NT if many else pairs
    order, expert, start, count = (
        torch.full([size], -7, dtype=torch.int32) for size in (pairs, blocks, blocks, blocks)
    )
    total = torch.full([1], -7, dtype=torch.int32)
    x = randn(rows, WIDTH).bfloat16()
    arranged = torch.zeros_like(x)
    shape = {"K": WIDTH, "PIECE": 128, "NT": NT, "OVERLAP": False}
    if many:
        grouping.group_many[(EXPERTS + rows,)](
            experts, order, expert, start, count, total, x, arranged, pairs, blocks,
            EXPERTS=EXPERTS, CHUNK=chunk, **shape,
        )  # fmt: skip
    else:
        places = max(16, 1 << (pairs - 1).bit_length())
        grouping.group_few[(1 + rows,)](
            experts, order, expert, start, count, x, arranged, pairs, PLACES=places, **shape
        )
    if not torch.equal(arranged, ordered(x, False)):
        return "x is out of order"
    flat = experts.flatten().tolist()
    seen: list[int] = []
    for number in sorted(range(blocks), key=lambda block: int(start[block])):
        begin, size = int(start[number]), int(count[number])
        if not 0 <= size <= NT:
            return f"block {number} counts {size}"
        members = order[begin : begin + size].tolist() if size else []
        if any(flat[pair] != int(expert[number]) for pair in members):
            return f"block {number} holds pairs of other experts"
        seen += members
    if seen != sorted((p for p in range(pairs) if flat[p] >= 0), key=lambda p: (flat[p], p)):
        return "not every pair once, sorted by expert"
    if many and int(total) != len(seen):
        return f"a total of {int(total)}"
    if many:
        gathered = torch.zeros(pairs, WIDTH, dtype=torch.bfloat16)
        grouping.gather_rows[(pairs,)](x, order, total, gathered, TOP=TOP, K=WIDTH, PIECE=256)
        rows_of = order[: len(seen)].long() // TOP
        if not torch.equal(gathered[: len(seen)], ordered(x, True)[rows_of]) or gathered[len(seen) :].any():
            return "gathered rows are wrong"
    return ""


def router_case(name: str, width: int, experts: int, top: int) -> str:
    """Whole numbers, so that equal scores are equal whatever the order of additions; many of them are."""
    x = padded((2 * randn(19, width)).round()).bfloat16()
    weight = ((2 * randn(experts, width, seed=1)).round() / 128)[torch.arange(experts) % (experts - 3)]
    stored = formats.get(name).encode(weight)
    bias = (4 * randn(experts, seed=2)).round()[torch.arange(experts) % (experts - 3)] / 8
    rows = step((0, 0, 19))
    got = router.launch(x, stored, bias, rows, top=top, scaling=2.5)
    expected = reference.route(x, stored, bias, rows, top=top, scaling=2.5)
    if not torch.equal(got.experts, expected.experts):
        return f"experts {got.experts[:19].tolist()}, expected {expected.experts[:19].tolist()}"
    error = float((got.weights[:19] - expected.weights[:19]).abs().max())
    if not error < 1e-6 or got.weights[19:].any():
        return f"weights are off by {error}"
    return ""


def swiglu_case(dtype: torch.dtype) -> str:
    """Columns that fill no tile, beyond the limits on all sides."""
    both = (6 * randn(5, 2 * 700, seed=3)).to(dtype)
    got, expected = experts.launch_swiglu(both, 10.0), experts_reference.swiglu(both, 10.0)
    error = float((got.double() - expected.double()).abs().max())
    return (
        "" if got.dtype == dtype and error <= (1e-5 if dtype == torch.float32 else 0.5) else f"off by {error}"
    )


def cases() -> dict[str, Callable[[], str]]:
    return {
        "few pairs": partial(grouping_case, 5, 5, False),
        "few pairs, padding": partial(grouping_case, 16, 11, False),
        "few pairs, all padding": partial(grouping_case, 2, 0, False),
        "many pairs": partial(grouping_case, 16, 16, True),
        "many pairs, padding": partial(grouping_case, 32, 21, True),
        "many pairs, all padding": partial(grouping_case, 16, 0, True),
        "swiglu float32": partial(swiglu_case, torch.float32),
        "swiglu bfloat16": partial(swiglu_case, torch.bfloat16),
        "router BF16": partial(router_case, "BF16", 1024, 12, 4),
        "router F32": partial(router_case, "F32", 96, 40, 8),
    }


def main() -> None:
    torch.set_num_threads(1)
    print(json.dumps({name: run() for name, run in cases().items()}))


if __name__ == "__main__":
    main()
