"""The kernels that choose experts and sort rows for them, in Triton's interpreter: run by `interpreting`.

Prints one JSON object: case -> what is wrong with it, nothing where all is right.
"""

import json
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from intarsia import formats
from intarsia.kernels.experts import launch as experts
from intarsia.kernels.experts import packed, resident
from intarsia.kernels.experts import reference as experts_reference
from intarsia.kernels.experts import triton_grouping as grouping
from intarsia.kernels.experts import triton_packing as packing
from intarsia.kernels.router import launch as router
from intarsia.kernels.router import reference
from intarsia.kernels.router import triton_router as routing
from tests.kernels.steps import padded, randn, step

EXPERTS, TOP, WIDTH, NT = 7, 3, 256, 4


def chosen(rows: int, real: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    experts = torch.stack([torch.randperm(EXPERTS, generator=generator)[:TOP] for _ in range(rows)]).int()
    experts[:, 0] = 2  # more than one block of it
    experts[real:] = -1
    return experts


def ordered(x: Tensor) -> Tensor:
    """Column [lane, word, h, i] of each 128 at [word, lane, i, h]; times 2^64."""
    values = (x.float() * 2.0**64).bfloat16().view(x.shape[0], -1, 4, 4, 2, 4)
    return values.permute(0, 1, 3, 2, 5, 4).reshape(x.shape)


def ordered_by_words(x: Tensor) -> Tensor:
    """Column [lane, word, h, i] of each 128 at [word, i, lane, h]; times 2^64."""
    values = (x.float() * 2.0**64).bfloat16().view(x.shape[0], -1, 4, 4, 2, 4)
    return values.permute(0, 1, 3, 5, 2, 4).reshape(x.shape)


def grouping_case(kind: str, rows: int, real: int) -> str:
    """Every pair once, in a block of its expert, pairs of an expert in their order, blocks without gaps; x in
    order.
    """
    experts = chosen(rows, real)
    pairs = experts.numel()
    blocks = min(pairs, EXPERTS + pairs // NT)
    order, expert, start, count = (
        torch.full([size], -7, dtype=torch.int32) for size in (pairs, blocks, blocks, blocks)
    )
    lists = (order, expert, start, count)
    x = randn(rows, WIDTH).bfloat16()
    shape = {"EXPERTS": EXPERTS, "BINS": 8, "NT": NT, "CHUNK": 16}
    if kind == "some":
        arranged = torch.zeros_like(x)
        grouping.group_some[(EXPERTS + rows,)](
            experts, *lists, x, arranged, pairs, blocks, K=WIDTH, PIECE=128, OVERLAP=False, **shape
        )
        wrong = not torch.equal(arranged, ordered(x))
    else:
        chunks = -(-pairs // 16)
        counts = torch.full((chunks, 8), -7, dtype=torch.int32)
        places = torch.full([pairs], -7, dtype=torch.int32)
        arranged = torch.zeros(pairs, WIDTH, dtype=x.dtype)
        grouping.count_pairs[(chunks,)](experts, counts, pairs, BINS=8, CHUNK=16)
        grouping.place_pairs[(max(chunks, EXPERTS),)](
            experts, counts, places, *lists, pairs, blocks, chunks, PIECE=4, AT_ONCE=2, **shape
        )
        grouping.spread_row[(rows,)](x, places, arranged, TOP=TOP, K=WIDTH, PIECE=128)
        total = real * TOP
        wrong = not torch.equal(arranged[:total], ordered_by_words(x)[order[:total] // TOP])
        wrong |= bool(arranged[total:].any())
    if wrong:
        return "x is out of order"
    real_blocks = int((count > 0).sum())
    if count[real_blocks:].any():
        return "a gap between blocks"
    return wrong_blocks(experts.flatten().tolist(), *lists)


def arranged_case() -> str:
    """Rows in the products' order, by the kernel that makes nothing else and by the router's."""
    x, made = randn(5, 1024).bfloat16(), torch.zeros(5, 1024, dtype=torch.bfloat16)
    grouping.arrange_rows[(5,)](x, made, K=1024, PIECE=256, OVERLAP=False)
    weight, parts = randn(40, 1024, seed=1).bfloat16(), torch.zeros(2, 5, 40)
    beside = torch.zeros_like(x)
    routing.score_few[(3 + 5, 2)](
        x, weight, parts, beside, 5, EXPERTS=40, K=1024, RANGES=2, BE=16, NT=16, OVERLAP=False
    )
    return "" if torch.equal(made, ordered(x)) and torch.equal(beside, made) else "x is out of order"


def wrong_blocks(flat: list[int], order: Tensor, expert: Tensor, start: Tensor, count: Tensor) -> str:
    seen: list[int] = []
    for number in sorted(range(count.numel()), key=lambda block: int(start[block])):
        begin, size = int(start[number]), int(count[number])
        if not 0 <= size <= NT:
            return f"block {number} counts {size}"
        members = order[begin : begin + size].tolist() if size else []
        if any(flat[pair] != int(expert[number]) for pair in members):
            return f"block {number} holds pairs of other experts"
        seen += members
    if seen != sorted((p for p in range(len(flat)) if flat[p] >= 0), key=lambda p: (flat[p], p)):
        return "not every pair once, sorted by expert"
    return ""


def router_case(name: str, width: int, experts: int, top: int, some: int = 19) -> str:
    """Whole numbers, so that equal scores are equal whatever the order of additions; many of them are."""
    x = padded((2 * randn(some, width)).round()).bfloat16()
    weight = ((2 * randn(experts, width, seed=1)).round() / 128)[torch.arange(experts) % (experts - 3)]
    stored = formats.get(name).encode(weight)
    bias = (4 * randn(experts, seed=2)).round()[torch.arange(experts) % (experts - 3)] / 8
    rows = step((0, 0, some))
    got = router.launch(x, stored, bias, rows, top=top, scaling=2.5)
    expected = reference.route(x, stored, bias, rows, top=top, scaling=2.5)
    if not torch.equal(got.experts, expected.experts):
        return f"experts {got.experts[:some].tolist()}, expected {expected.experts[:some].tolist()}"
    error = float((got.weights[:some] - expected.weights[:some]).abs().max())
    if not error < 1e-6 or got.weights[some:].any():
        return f"weights are off by {error}"
    return ""


def moved_case() -> str:
    """The kernel that moves bits of codes, and the plain form of it, to and fro."""
    codes = torch.randint(
        0, 256, (3, 5, 4 * 777), generator=torch.Generator().manual_seed(4), dtype=torch.uint8
    )
    expected = packed._moved(codes.clone(), back=False)
    words = codes.clone().view(torch.int32).flatten()
    for back, target in ((False, expected), (True, codes)):
        packing.move_bits[(-(-words.numel() // 1024),)](words, words.numel(), BACK=back, SIZE=1024)
        if not torch.equal(words.view(torch.uint8), target.flatten()):
            return "bits differ on the way " + ("back" if back else "there")
    return ""


def expanded_case(odd: float) -> str:
    """The kernel that writes compressed scales out."""
    generator = torch.Generator().manual_seed(5)
    plain = torch.randint(40, 48, (2, 256, 40), generator=generator, dtype=torch.uint8)
    other = torch.randint(0, 127, plain.shape, generator=generator, dtype=torch.uint8)
    plain = torch.where(torch.rand(plain.shape, generator=generator) < odd, other, plain)
    small = resident.compress(plain)
    out = torch.full((4, 5, 32, 4, 2), -1, dtype=torch.int32)
    parts = (small.nibbles, small.bases, small.marks, small.records)
    packing.expand_scales[(4, 3)](*parts, out, STEPS=5, SIZE=256)
    return "" if torch.equal(out.view(torch.uint8).flatten(), plain.flatten()) else "bytes differ"


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
        **{
            f"{kind} pairs, {real} of {rows} rows": partial(grouping_case, kind, rows, real)
            for kind, rows, real in (
                ("some", 5, 5),
                ("some", 16, 16),
                ("some", 32, 21),
                ("some", 16, 0),
                ("many", 16, 16),
                ("many", 32, 21),
                ("many", 16, 0),
            )
        },
        "arranged rows": arranged_case,
        "moved bits": moved_case,
        "compressed scales": partial(expanded_case, 0.01),
        "compressed scales, all odd": partial(expanded_case, 1.0),
        "swiglu float32": partial(swiglu_case, torch.float32),
        "swiglu bfloat16": partial(swiglu_case, torch.bfloat16),
        "router BF16": partial(router_case, "BF16", 1024, 12, 4),
        "router BF16, few rows": partial(router_case, "BF16", 1024, 40, 8, 5),
        "router F32": partial(router_case, "F32", 96, 40, 8),
    }


def main() -> None:
    torch.set_num_threads(1)
    print(json.dumps({name: run() for name, run in cases().items()}))


if __name__ == "__main__":
    main()
