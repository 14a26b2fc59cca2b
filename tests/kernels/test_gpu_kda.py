"""Linear attention's kernels on a GPU: against formulas in double precision, and a row's bits its own."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from intarsia.kernels.kda import Cache, attention_step, prompt, prompt_gluon, recurrent
from intarsia.kernels.kda.step import reference_step
from intarsia.kernels.rows import Piece
from tests.kernels.kda_cases import DECAYS, cache, exact, parameters, projected, rows_for, some, to

pytestmark = pytest.mark.gpu

BFLOAT16 = torch.bfloat16
# Kernel, dtype, width of a head: all that run the recurrent form.
STEPS = [
    ("gluon", BFLOAT16, 128),
    ("triton", BFLOAT16, 128),
    ("triton", BFLOAT16, 64),
    ("triton", torch.float32, 128),
]
PROMPTS = [("gluon", 128), ("triton", 128), ("triton", 64)]
HEADS = 4


@pytest.fixture(autouse=True)
def needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


def relative(got, expected):
    return float((got.double() - expected.double()).abs().max() / expected.double().abs().max())


def poisoned(rows, width, dtype=BFLOAT16):
    return torch.full((rows, HEADS * width), torch.nan, dtype=dtype, device="cuda")


def run_step(name, given, weights, kept, rows, **options):
    out = poisoned(given.raw.shape[0], weights.norm.shape[0], given.raw.dtype)
    recurrent.launch(name, given, weights, kept, rows, out, **options)
    return out


def run_prompt(name, given, weights, kept, rows):
    out = poisoned(given.raw.shape[0], weights.norm.shape[0])
    prompt.launch(name, given, weights, kept, rows, out)
    return out


def states(kept: Cache) -> Cache:
    """States of equal bits where they are NaN too."""
    return replace(kept, memory=kept.memory.nan_to_num(7.0))


@pytest.mark.parametrize(("name", "dtype", "width"), STEPS)
@pytest.mark.parametrize("decay", DECAYS)
def test_recurrent_rows_are_right(name, dtype, width, decay):
    counts, copies = (8, 1, 3, 5), 8
    positions = [100, 0, 2, 65]
    rows = rows_for([Piece(s, positions[s], [0] * n, True) for s, n in enumerate(counts)], 4, "cuda")
    given, weights = projected(rows.tokens.shape[0], HEADS, width, dtype, decay), parameters(HEADS, width)
    before = cache(4, copies, HEADS, width, dtype)
    given_gpu, weights_gpu, kept = to("cuda", given, weights, before)
    out = run_step(name, given_gpu, weights_gpu, kept, rows).cpu()
    ring = before.window.shape[1]
    first = 0
    for stream, count in enumerate(counts):
        at = [positions[stream] - 3 + i for i in range(3)]
        columns = torch.stack([before.window[stream, p % ring] * (p >= 0) for p in at])
        for j in range(count):
            state = before.memory[stream, before.current[stream]]
            part = some(given, first, first + j + 1)
            part = replace(part, **{n: getattr(part, n)[: j + 1] for n in ("raw", "decay", "gate", "beta")})
            expected, after = exact(part, weights, columns, state)
            assert relative(kept.memory[stream, j].cpu(), after) <= 2e-6
            assert relative(out[first + j], expected[-1]) <= (3e-6 if dtype == torch.float32 else 6e-3)
        first += count
    assert (out[first:] == 0).all()
    (reference,) = to("cuda", before)
    reference_step(given_gpu, weights_gpu, reference, rows)
    assert torch.equal(reference.window, kept.window)


@pytest.mark.parametrize(("name", "dtype", "width"), STEPS)
def test_recurrent_rows_one_by_one_and_beside_others_have_the_same_bits(name, dtype, width):
    copies, count, streams = 8, 8, 3
    given, weights, kept = to(
        "cuda",
        projected(32, HEADS, width, dtype),
        parameters(HEADS, width),
        cache(streams, copies, HEADS, width, dtype),
    )
    (alone,) = to("cuda", kept)
    together = rows_for([Piece(s, 40, [0] * count, True) for s in range(streams)], streams, "cuda")
    out = run_step(name, given, weights, kept, together)
    for stream in range(streams):
        for j in range(count):
            row = stream * count + j
            step = rows_for([Piece(stream, 40 + j, [0], True)], streams, "cuda")
            got = run_step(name, some(given, row, row + 1), weights, alone, step)
            assert torch.equal(got[0], out[row]), row
            assert torch.equal(alone.memory[stream, 0], kept.memory[stream, j]), row
            alone.current[stream] = 0
    assert torch.equal(alone.window, kept.window)


@pytest.mark.parametrize(("name", "dtype", "width"), STEPS[:2])
@pytest.mark.parametrize("overlap", [False, True])
def test_empty_segments_do_nothing(name, dtype, width, overlap):
    given, weights, kept = to(
        "cuda", projected(16, HEADS, width, dtype), parameters(HEADS, width), cache(4, 3, HEADS, width, dtype)
    )
    (other,) = to("cuda", kept)
    plain = rows_for([Piece(2, 9, [0] * 3, True), Piece(0, 0, [0], True)], 4, "cuda")
    starts = torch.tensor([0, 0, 3, 3, 4, 4, 4], dtype=torch.int32, device="cuda")
    expected = run_step(name, given, weights, kept, plain)
    got = run_step(
        name, given, weights, other, replace(plain, starts=starts, recurrent_segments=6), overlap=overlap
    )
    assert torch.equal(got, expected)
    assert (got[4:] == 0).all()
    assert torch.equal(states(other).memory, states(kept).memory)
    assert torch.equal(other.window, kept.window)
    none = torch.zeros(3, dtype=torch.int32, device="cuda")
    empty = replace(plain, starts=none, recurrent_segments=2, streams=torch.full_like(plain.streams, -1))
    assert (run_step(name, given, weights, other, empty) == 0).all()
    assert torch.equal(states(other).memory, states(kept).memory)


@pytest.mark.parametrize(("streams", "programs"), [(1, 1), (3, 1), (9, 2), (9, 4), (9, 16), (40, 33)])
@pytest.mark.parametrize("overlap", [False, True])
def test_programs_that_stay_have_the_bits_of_programs_for_each_head(monkeypatch, streams, programs, overlap):
    """With empty segments between others and behind them, padding rows, and streams in another order."""
    given, weights, kept = to(
        "cuda",
        projected(streams + 3, HEADS, 128, BFLOAT16),
        parameters(HEADS, 128),
        cache(streams + 1, 1, HEADS, 128, BFLOAT16),
    )
    other, reference = to("cuda", kept, kept)
    pieces = [Piece(stream, 3 * stream, [0], True) for stream in reversed(range(1, streams + 1))]
    rows = rows_for(pieces, streams + 1, "cuda")
    given = some(given, 0, streams)
    expected = run_step("gluon", given, weights, kept, rows)
    plain = reference_step(given, weights, reference, rows)
    assert relative(expected[:streams], plain[:streams]) <= 8e-3
    assert relative(kept.memory, reference.memory) <= 2e-6
    starts = [0, *range(streams + 1), streams, streams]
    empty = replace(
        rows,
        starts=torch.tensor(starts, dtype=torch.int32, device="cuda"),
        recurrent_segments=len(starts) - 1,
    )
    monkeypatch.setattr(recurrent, "staying", lambda memory, segments: programs * HEADS)
    got = run_step("gluon", given, weights, other, empty, overlap=overlap)
    assert torch.equal(got, expected)
    assert torch.equal(other.memory, kept.memory)
    assert torch.equal(other.window, kept.window)


def pieces_of(lengths, begin=0):
    return [Piece(s, begin, [0] * n, False) for s, n in enumerate(lengths)]


@pytest.mark.parametrize(("name", "width"), PROMPTS)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("begin", [0, 37])
def test_prompts_are_right(name, width, decay, begin):
    """Lengths that end before, on and after the grid, of which the longest spans four chunks."""
    lengths = (200, 1, 63, 91)
    rows = rows_for(pieces_of(lengths, begin), 4, "cuda")
    given = projected(rows.tokens.shape[0], HEADS, width, BFLOAT16, decay)
    weights, before = parameters(HEADS, width), cache(4, 2, HEADS, width, BFLOAT16)
    given_gpu, weights_gpu, kept, reference = to("cuda", given, weights, before, before)
    out = run_prompt(name, given_gpu, weights_gpu, kept, rows).cpu()
    plain = reference_step(given_gpu, weights_gpu, reference, rows).cpu()
    assert torch.equal(kept.window, reference.window)
    ring, first = before.window.shape[1], 0
    for stream, count in enumerate(lengths):
        columns = torch.stack([before.window[stream, p % ring] * (p >= 0) for p in range(begin - 3, begin)])
        part = replace(
            given, **{n: getattr(given, n)[first : first + count] for n in ("raw", "decay", "gate", "beta")}
        )
        expected, after = exact(part, weights, columns, before.memory[stream, before.current[stream]])
        here = slice(first, first + count)
        # Products keep 16 bits; what is rounded to bfloat16 at the end shows little of that.
        assert relative(kept.memory[stream, 0].cpu(), after) <= 5e-5
        assert relative(out[here], expected) <= 1.1 * relative(plain[here], expected) + 1e-4
        first += count
    assert (out[first:] == 0).all()


@pytest.mark.parametrize(("name", "width"), PROMPTS)
def test_a_prompts_bits_do_not_depend_on_what_follows_or_lies_beside(name, width):
    length = 200
    weights, before = parameters(HEADS, width), cache(3, 2, HEADS, width, BFLOAT16)
    given = projected(320, HEADS, width, BFLOAT16)
    given, weights, before = to("cuda", given, weights, before)
    (kept,) = to("cuda", before)
    whole = run_prompt(name, some(given, 0, length), weights, kept, rows_for(pieces_of((length,)), 3, "cuda"))
    for count in [*range(1, 18), 31, 33, 63, 64, 65, 100, 128, 199]:
        (part,) = to("cuda", before)
        rows = rows_for(pieces_of((count,)), 3, "cuda")
        got = run_prompt(name, some(given, 0, count), weights, part, rows)
        assert torch.equal(got[:count], whole[:count]), count
    (beside,) = to("cuda", before)
    rows = rows_for(pieces_of((length, 70, 45)), 3, "cuda")
    got = run_prompt(name, some(given, 0, length + 115), weights, beside, rows)
    assert torch.equal(got[:length], whole[:length])
    assert torch.equal(beside.memory[0, 0], kept.memory[0, 0])
    assert torch.equal(beside.window[0], kept.window[0])


@pytest.mark.parametrize("cuts", [(64,), (128,), (64, 128, 192)])
@pytest.mark.parametrize(("name", "width"), PROMPTS)
def test_a_prompt_resumed_on_the_grid_has_the_bits_of_a_fresh_one(name, width, cuts):
    length = 210
    given, weights, kept = to(
        "cuda",
        projected(224, HEADS, width, BFLOAT16),
        parameters(HEADS, width),
        cache(1, 2, HEADS, width, BFLOAT16),
    )
    (resumed,) = to("cuda", kept)
    whole = run_prompt(name, some(given, 0, length), weights, kept, rows_for(pieces_of((length,)), 1, "cuda"))
    bounds = [0, *cuts, length]
    for begin, end in pairwise(bounds):
        rows = rows_for([Piece(0, begin, [0] * (end - begin), False)], 1, "cuda")
        got = run_prompt(name, some(given, begin, end), weights, resumed, rows)
        assert torch.equal(got[: end - begin], whole[begin:end])
        resumed.current[0] = 0
    assert torch.equal(resumed.memory[0, 0], kept.memory[0, 0])
    assert torch.equal(resumed.window, kept.window)


@pytest.mark.parametrize(("name", "width"), PROMPTS)
def test_long_prompts_are_right_across_what_runs_at_once(name, width):
    """More chunks than share their room: the state goes on from one group to the next."""
    length = 64 * (prompt_gluon.CHUNKS_AT_ONCE + 3) + 5
    rows = rows_for(pieces_of((length,)), 1, "cuda")
    given = projected(64, HEADS, width, BFLOAT16)
    times = -(-rows.tokens.shape[0] // 64)
    given = replace(
        given,
        **{
            n: getattr(given, n).repeat(times, 1)[: rows.tokens.shape[0]]
            for n in ("raw", "decay", "gate", "beta")
        },
    )
    given, weights, kept, reference = to(
        "cuda", given, parameters(HEADS, width), *[cache(1, 1, HEADS, width, BFLOAT16)] * 2
    )
    out = run_prompt(name, given, weights, kept, rows)
    plain = reference_step(given, weights, reference, rows)
    assert relative(out[:length], plain[:length]) <= 8e-3
    assert relative(kept.memory, reference.memory) <= 5e-5
    assert torch.equal(kept.window, reference.window)


def test_prompts_beside_recurrent_rows_and_empty_segments():
    width = 128
    both = [Piece(0, 9, [0] * 2, True), Piece(1, 70, [0] * 90, False), Piece(2, 0, [0] * 5, False)]
    rows = rows_for(both, 3, "cuda")
    given, weights, kept = to(
        "cuda",
        projected(rows.tokens.shape[0], HEADS, width, BFLOAT16),
        parameters(HEADS, width),
        cache(3, 2, HEADS, width, BFLOAT16),
    )
    (other, reference) = to("cuda", kept, kept)
    out = attention_step(given, weights, kept, rows)
    plain = reference_step(given, weights, reference, rows)
    assert relative(out[:97], plain[:97]) <= 8e-3
    assert (out[97:] == 0).all()
    starts = torch.tensor([0, 2, 2, 92, 92, 97, 97], dtype=torch.int32, device="cuda")
    again = attention_step(given, weights, other, replace(rows, starts=starts, recurrent_segments=2))
    assert torch.equal(again, out)
    assert torch.equal(states(other).memory, states(kept).memory)
    assert torch.equal(other.window, kept.window)


def test_captured_steps_have_the_eager_bits():
    """Three replays advance the state as three eager steps do."""
    width = 128
    rows = rows_for([Piece(0, 9, [0] * 2, True), Piece(1, 64, [0] * 30, False)], 2, "cuda")
    given, weights, kept = to(
        "cuda",
        projected(32, HEADS, width, BFLOAT16),
        parameters(HEADS, width),
        cache(2, 2, HEADS, width, BFLOAT16),
    )
    warm, other = to("cuda", kept, kept)
    attention_step(given, weights, warm, rows, overlap=True)
    expected = [attention_step(given, weights, kept, rows) for _ in range(3)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attention_step(given, weights, other, rows, overlap=True)
    for eager in expected:
        captured.fill_(torch.nan)
        graph.replay()
        assert torch.equal(captured, eager)
    assert torch.equal(states(other).memory, states(kept).memory)
