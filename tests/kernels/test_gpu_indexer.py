"""The indexer on a GPU: scores right and a row's bits its own, the selection exact."""

import pytest
import torch
from torch import Tensor

from intarsia.kernels import choice
from intarsia.kernels.indexer import choose_tokens, launch, select_tokens, selected_width
from intarsia.kernels.rows import Piece, Rows, rows_of
from tests.kernels.steps import page_table

pytestmark = pytest.mark.gpu

HEADS, WIDTH, PAGE, GROUP, TOP = 32, 128, 512, 4, 2048
STREAMS, WINDOW = 3, 40
COUNTS = [*range(1, 18), 32, 64]
DTYPES = (torch.bfloat16, torch.float32)
POOLS = WINDOW * PAGE // GROUP
# Of the sum of all magnitudes: float32 sums of 128 products and of 32 heads.
SUMS = 2e-6


@pytest.fixture(autouse=True)
def needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="module", autouse=True)
def poisoned_memory():
    """Memory that torch hands out again holds NaN, so that an output nobody writes shows."""
    if torch.cuda.is_available():
        torch.full((256 << 20,), torch.nan, device="cuda")
        torch.cuda.synchronize()


def gpu(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")


def step(*parts: tuple[int, int, int, bool]) -> Rows:
    """Rows of parts (stream, position, count, recurrent)."""
    order = torch.randperm(STREAMS * WINDOW, generator=torch.Generator().manual_seed(1)).tolist()
    table = page_table(STREAMS, WINDOW, order).cuda()
    return rows_of([Piece(stream, at, [0] * n, form) for stream, at, n, form in parts], table)


def inputs(rows: int, dtype: torch.dtype, heads: int = HEADS, width: int = WIDTH):
    """Queries, head weights of both signs and a cache whose null page is NaN."""
    cache = gpu(STREAMS * WINDOW + 1, PAGE // GROUP, width, seed=2).to(dtype)
    cache[-1] = torch.nan
    return gpu(rows, heads, width, seed=3).to(dtype), gpu(rows, heads, seed=4), cache


def exact(q: Tensor, weights: Tensor, cache: Tensor, rows: Rows, row: int) -> Tensor:
    """Scores of the pools that a row sees, float64."""
    heads, width = q.shape[1:]
    pools = torch.arange((int(rows.positions[row]) + 1) // GROUP, device="cuda")
    per_page = PAGE // GROUP
    keys = cache[
        rows.page_table[rows.streams[row].long(), pools // per_page].long(), pools % per_page
    ].double()
    relevant = torch.relu(q[row].double() @ keys.T * width**-0.5)
    return (weights[row].double() * heads**-0.5) @ relevant


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "width"), [(HEADS, WIDTH), (16, 32)])
def test_scores(heads, width, dtype):
    rows = step((0, 9000, 4, True), (1, 2, 3, True), (2, 20000, 30, False))
    q, weights, cache = inputs(rows.tokens.shape[0], dtype, heads, width)
    scores = torch.full((q.shape[0], POOLS), torch.nan, device="cuda")
    launch.launch_scores(q, weights, cache, rows, GROUP, scores)
    for row in range(int(rows.starts[-1])):
        expected = exact(q, weights, cache, rows, row)
        got = scores[row, : len(expected)].double()
        magnitude = exact(q.abs(), weights.abs(), cache.abs(), rows, row)
        assert ((got - expected).abs() <= SUMS * magnitude).all()
        assert scores[row, len(expected) :].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_scores_are_the_rows_own(dtype):
    rows = step((0, 9000, 64, True), (1, 2047, 33, False), (2, 300, 47, False))
    q, weights, cache = inputs(144, dtype)
    whole = torch.full((144, POOLS), torch.nan, device="cuda")
    launch.launch_scores(q, weights, cache, rows, GROUP, whole)
    wrong = []
    for count in COUNTS:
        for stream, first, at in ((0, 5, 9005), (1, 64, 2047), (2, 97, 300)):
            taken = min(count, (59, 33, 47)[stream])
            own = step((stream, at, taken, False))
            part = slice(first, first + taken)
            scores = torch.full((taken, POOLS), torch.nan, device="cuda")
            launch.launch_scores(q[part], weights[part], cache, own, GROUP, scores)
            if not torch.equal(scores.nan_to_num(7.0), whole[part].nan_to_num(7.0)):
                wrong.append((count, stream))
    assert not wrong


SEEN = (0, 1, 3, 511, 512, 513, 1000, 2047, 2048, 2049, 8191, 8192, 8193, 20000, 30000, 32768)


def check(scores: Tensor, positions: Tensor, top: int = TOP) -> None:
    """Against the reference, on every row; unseen scores are NaN for the kernel."""
    hidden = torch.arange(scores.shape[1], device="cuda") >= (positions + 1).unsqueeze(1) // GROUP
    expected = select_tokens(scores.masked_fill(hidden, -torch.inf), positions, top, GROUP)
    got = torch.full((len(scores), selected_width(top, GROUP)), -7, dtype=torch.int32, device="cuda")
    streams = torch.zeros(len(scores), dtype=torch.int32, device="cuda")
    launch.launch_selection(scores.masked_fill(hidden, torch.nan), positions, streams, top, GROUP, got)
    wrong = (got != expected).any(1).nonzero().flatten().tolist()
    assert not wrong


@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "one_exponent", "rising", "falling", "huge"])
@pytest.mark.parametrize("pools", [2048, 8192, 32768])
def test_the_selection_is_exact(pools, kind):
    positions = [GROUP * n - 1 + extra for n in SEEN if n <= pools for extra in range(3)]
    positions = torch.tensor([max(0, p) for p in positions], dtype=torch.int32, device="cuda")
    values = gpu(len(positions), pools, seed=5)
    order = torch.arange(pools, device="cuda", dtype=torch.float32)
    scores = {
        "normal": values,
        "ties": (values * 2).round() / 2,
        "zeros": torch.where(values > 2.5, values, torch.where(values > 0, 0.0, -0.0)),
        "one_exponent": 1 + (values.abs() * 1e-3).clamp(max=0.5),
        "rising": order.expand_as(values).contiguous(),
        "falling": -order.expand_as(values).contiguous(),
        "huge": values * 10 ** (30 * values).clamp(1e-30, 1e30),
    }[kind]
    check(scores, positions)


def test_a_window_of_a_million_tokens():
    positions = torch.tensor([1048575, 1048574, 524287, 99999, 31, 4095], dtype=torch.int32, device="cuda")
    check(gpu(6, 262144, seed=6), positions)
    check((gpu(6, 262144, seed=7) * 4).round(), positions)


@pytest.mark.parametrize("top", [64, 1024])
def test_other_counts(top):
    positions = torch.arange(0, 8000, 37, dtype=torch.int32, device="cuda")
    check((gpu(len(positions), 2048, seed=8) * 8).round(), positions, top)


def test_scores_and_selection_together(monkeypatch):
    """In parts of 16 rows too; at the cut, exact scores differ by what a float32 sum may be off by."""
    rows = step((0, 19000, 40, False), (1, 2046, 9, False), (2, 50, 5, False))
    q, weights, cache = inputs(rows.tokens.shape[0], torch.bfloat16)
    got = choose_tokens(q, weights, cache, rows, TOP, GROUP)
    monkeypatch.setattr(launch, "_SCORES", 16 * POOLS)
    assert torch.equal(choose_tokens(q, weights, cache, rows, TOP, GROUP), got)
    for row in range(int(rows.starts[-1])):
        position, scores = int(rows.positions[row]), exact(q, weights, cache, rows, row)
        chosen = got[row][got[row] >= 0].long()
        assert torch.equal(chosen, chosen.sort().values)
        tail = range((position + 1) // GROUP * GROUP, position + 1)
        kept = min(TOP // GROUP, len(scores))
        assert len(chosen) == kept * GROUP + len(tail)
        pools = chosen[: kept * GROUP : GROUP] // GROUP
        left_out = torch.ones(len(scores), dtype=torch.bool, device="cuda")
        left_out[pools] = False
        if left_out.any():
            assert scores[pools].min() >= scores[left_out].max() - 2e-6 * scores.abs().max()


def test_a_captured_graph_follows_its_rows():
    first = step((0, 19000, 1, True), (1, 2046, 4, True), (2, 50, 1, True))
    other = step((2, 10007, 2, True), (1, 5, 0, True), (0, 11, 3, True))
    q, weights, cache = inputs(16, torch.bfloat16)
    choose_tokens(q, weights, cache, first, TOP, GROUP)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = choose_tokens(q, weights, cache, first, TOP, GROUP)
    expected = choose_tokens(q, weights, cache, other, TOP, GROUP)
    for name in ("positions", "streams", "starts"):
        getattr(first, name).copy_(getattr(other, name))
    captured.fill_(-7)
    graph.replay()
    assert torch.equal(captured, expected)
    assert (captured[5:] == -1).all()


def test_the_table_takes_triton():
    shape = (HEADS, WIDTH, TOP // GROUP, GROUP)
    case = choice.Case("choose_tokens", (), torch.bfloat16, torch.device("cuda"), shape)
    assert [row.candidate for row in choice.explain(case) if row.chosen] == ["triton"]
