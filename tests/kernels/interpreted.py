"""Every Triton kernel once on a small shape, in Triton's interpreter: run by `interpreting`. Gluon kernels of
linear attention run on what stands in for Gluon.

Prints one JSON object: case -> the largest error relative to the reference's largest value, and what must
be equal.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor

from intarsia import formats
from intarsia.formats.stored import Stored
from intarsia.kernels import hyper_connection as hyper
from intarsia.kernels.experts import launch as experts
from intarsia.kernels.experts import reference as experts_reference
from intarsia.kernels.hyper_connection import launch
from intarsia.kernels.kda import low_rank, prompt, recurrent
from intarsia.kernels.kda.step import reference_step
from intarsia.kernels.linear import launch as linear
from intarsia.kernels.router import Routing
from intarsia.kernels.rows import Piece
from tests.kernels import gluon_stand_in
from tests.kernels import kda_cases as kda
from tests.kernels.kda_cases import rows_for
from tests.kernels.steps import error, randn

LINEAR = ("MXFP8", "FP8_PB_WO", "BF16", "F32")
EXPERTS = ("NVFP4", "W4A16_NVFP4", "MXFP8", "BF16", "F32")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


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


def kda_step_case(dtype: torch.dtype) -> float:
    """Three streams that verify three, two and one rows, one of them at the beginning of its sequence."""
    pieces = [Piece(2, 1, [0] * 3, True), Piece(0, 70, [0] * 2, True), Piece(1, 5, [0], True)]
    return kda_case(dtype, pieces, 16, partial(recurrent.launch, "triton"))


def kda_prompt_case(dtype: torch.dtype) -> float:
    """A prompt that goes on from inside a chunk into the next, and a short one that begins its sequence."""
    return kda_case(
        dtype,
        [Piece(1, 50, [0] * 20, False), Piece(0, 0, [0] * 3, False)],
        64,
        partial(prompt.launch, "triton"),
    )


def gluon_step_case() -> float:
    pieces = [Piece(1, 1, [0] * 2, True), Piece(0, 70, [0], True)]
    return kda_case(torch.bfloat16, pieces, 128, partial(recurrent.launch, "gluon"))


def gluon_streams_case() -> float:
    """Seven streams of a row each and two empty segments: as many programs as heads, and three times as many.

    The bits of both kernels of the recurrent form are the same.
    """
    heads, count = 2, 7
    plain = rows_for([Piece(s, 5 * s, [0], True) for s in (3, 0, 6, 1, 2, 5, 4)], count)
    given, weights = kda.projected(16, heads, 128, torch.bfloat16), kda.parameters(heads, 128)
    before = kda.cache(count, 1, heads, 128, torch.bfloat16)
    starts = torch.tensor([0, 1, 1, 2, 3, 4, 5, 6, 7, 7], dtype=torch.int32)
    rows = replace(plain, starts=starts, recurrent_segments=9)
    first, expected = kda.to("cpu", before)[0], torch.full((16, heads * 128), torch.nan, dtype=torch.bfloat16)
    recurrent.launch("gluon", given, weights, first, plain, expected)
    for programs in (heads, 3 * heads):
        (kept,) = kda.to("cpu", before)
        out = torch.full_like(expected, torch.nan)
        with patch.object(recurrent, "staying", lambda memory, segments, programs=programs: programs):
            recurrent.launch("gluon", given, weights, kept, rows, out)
        same = [torch.equal(out, expected), torch.equal(kept.window, first.window)]
        if not all([*same, torch.equal(kept.memory, first.memory)]):
            return torch.inf
    return 0.0


def gluon_gates_case() -> float:
    """Three heads and rows that do not fill their tile, of which two are padding."""
    rows, real, heads = 11, 9, 3
    f, g = [randn(rows, 128, seed=seed).bfloat16() for seed in (1, 2)]
    f_b, g_b = [(0.1 * randn(128 * heads, 128, seed=seed)).bfloat16() for seed in (3, 4)]
    outs = [torch.full((rows, 128 * heads), torch.nan, dtype=torch.bfloat16) for _ in "fg"]
    low_rank.launch(f, g, f_b, g_b, *outs, torch.tensor([real], dtype=torch.int32))
    if any((out[real:] != 0).any() for out in outs):
        return torch.inf
    pairs = zip(outs, (f.float() @ f_b.float().T, g.float() @ g_b.float().T), strict=True)
    return max(error(out[:real], expected[:real]) for out, expected in pairs)


def gluon_prompt_case() -> float:
    """A prompt that begins inside a chunk and fills the next, and a short one that begins its sequence."""
    pieces = [Piece(1, 44, [0] * 90, False), Piece(0, 0, [0] * 3, False)]
    return kda_case(torch.bfloat16, pieces, 128, partial(prompt.launch, "gluon"))


def gluon_exact_case(decay: str) -> float:
    """Against the formulas in double precision, nothing rounded: a chunk in the middle of a prompt, with what
    the state before it leaves, and a few rows of the next. Decays reach what one number cannot hold.
    """
    rows, begin = rows_for([Piece(0, 64, [0] * 70, False)], 1), 64
    given, weights = kda.projected(80, 1, 128, torch.bfloat16, decay), kda.parameters(1, 128)
    before, kept = kda.to("cpu", *[kda.cache(1, 1, 1, 128, torch.bfloat16)] * 2)
    out = torch.full((80, 128), torch.nan)
    prompt.launch("gluon", given, weights, kept, rows, out)
    ring = torch.stack([before.window[0, at % before.window.shape[1]] for at in range(begin - 3, begin)])
    real = replace(given, **{name: getattr(given, name)[:70] for name in ("raw", "decay", "gate", "beta")})
    expected, state = kda.exact(real, weights, ring, before.memory[0, 0])
    return max(error(out[:70], expected), error(kept.memory[0, 0], state))


def gluon_prefix_case() -> float:
    """Rows of a prompt have the same bits whatever follows them in their chunk: 0, or infinity."""
    given, weights = kda.projected(64, 1, 128, torch.bfloat16), kda.parameters(1, 128)
    before = kda.cache(1, 1, 1, 128, torch.bfloat16)

    def rows_of(count: int) -> Tensor:
        (kept,) = kda.to("cpu", before)
        part, step = kda.some(given, 0, count), rows_for([Piece(0, 64, [0] * count, False)], 1)
        out = torch.full((part.raw.shape[0], 128), torch.nan)
        prompt.launch("gluon", part, weights, kept, step, out)
        return out[:count]

    whole = rows_of(64)
    same = all(torch.equal(rows_of(count), whole[:count]) for count in (1, 17, 33, 50))
    return 0.0 if same else torch.inf


def kda_case(dtype: torch.dtype, pieces: list[Piece], width: int, launch: Callable[..., None]) -> float:
    heads, copies, streams = 2, 3, len(pieces)
    step = rows_for(pieces, streams)
    rows = step.tokens.shape[0]
    given, weights = kda.projected(rows, heads, width, dtype), kda.parameters(heads, width)
    first, second = kda.to("cpu", *[kda.cache(streams, copies, heads, width, dtype)] * 2)
    expected = reference_step(given, weights, first, step)
    out = torch.full_like(expected, torch.nan)
    launch(given, weights, second, step, out)
    if not torch.equal(first.window, second.window):
        return torch.inf
    return max(error(out, expected), error(second.memory.nan_to_num(), first.memory.nan_to_num()))


def hyper_case(dtype: torch.dtype) -> float:
    """A first site, one after it, and the last, over 19 rows: what the streams and the inputs become."""
    rows, width = 19, 128
    site = hyper.Site(
        fn=(randn(24, 4 * width, seed=1) / (4 * width) ** 0.5).to(dtype),
        base=randn(24, seed=2),
        scale=1 + 0.3 * randn(3, seed=3),
        norm=1 + 0.1 * randn(width, seed=4),
    )
    rule, y = hyper.Rule(norm_eps=1e-5, eps=1e-6, iterations=4), randn(rows, width, seed=5)
    first = randn(rows, 1, width, seed=6).to(dtype).expand(-1, 4, -1)
    results = []
    for run, last, tail in ((hyper.site, hyper.finish, 32 - rows), (launch.site, launch.finish, 0)):
        padded = [torch.cat([x, x.new_zeros(tail, *x.shape[1:])]) for x in (first, y)]
        streams, x, mix = run(padded[0], None, site, rule)
        parts = [x]
        streams, x, mix = run(streams, hyper.Pending(padded[1], mix), site, rule)
        parts += [streams, x, mix.pre, mix.post, mix.mixing]
        parts += last(streams, hyper.Pending(padded[1], mix), site.norm, rule.norm_eps)
        results.append([part[:rows] for part in parts])
    return max(error(got, expected) for expected, got in zip(*results, strict=True))


def cases() -> dict[str, Callable[[], float]]:
    """Products are formed in float32 whatever the rows, so bfloat16 rows are tried on one format each."""
    found: dict[str, Callable[[], float]] = {}
    for label, dtype in DTYPES.items():
        some = slice(None) if dtype == torch.float32 else slice(1)
        for name in LINEAR[some]:
            found[f"linear {name} {label}"] = partial(linear_case, name, dtype)
        for name in EXPERTS[some]:
            found[f"experts {name} {label}"] = partial(experts_case, name, dtype)
        found[f"kda step {label}"] = partial(kda_step_case, dtype)
    found["kda prompt float32"] = partial(kda_prompt_case, torch.float32)
    found["gluon step bfloat16"] = gluon_step_case
    found["gluon gates bfloat16"] = gluon_gates_case
    found["gluon streams exact"] = gluon_streams_case
    found["gluon prompt bfloat16"] = gluon_prompt_case
    found["gluon prompt prefixes exact"] = gluon_prefix_case
    for decay in kda.DECAYS:
        found[f"gluon prompt {decay} exact"] = partial(gluon_exact_case, decay)
    found["hyper bfloat16"] = partial(hyper_case, torch.bfloat16)
    return found | {"ranges FP8_PB_WO float32": partial(ranges_case, "FP8_PB_WO", torch.float32)}


def main() -> None:
    torch.set_num_threads(1)
    names = ("delta", "step", "streams", "gates", "rows", "inverse", "solved", "terms", "carry")
    gluon_stand_in.load_kernels(*[f"intarsia.kernels.kda.gluon_{name}" for name in names])
    print(json.dumps({name: run() for name, run in cases().items()}))


if __name__ == "__main__":
    main()
