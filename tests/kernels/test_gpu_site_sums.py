"""Sites that sum what is pending over ranks themselves: the bits of the exchange and a site after it."""

import importlib.util
import time
from functools import partial

import pytest
import torch

from intarsia.groups.group import add_in_order
from intarsia.kernels import hyper_connection as hyper
from intarsia.kernels.exchange import Exchange
from intarsia.kernels.exchange import launch as exchanges
from intarsia.kernels.exchange.launch import SITE_PROGRAMS, SITE_TILE
from intarsia.kernels.hyper_connection import launch
from tests.kernels.ranks_on_one_gpu import Ranks, numbers
from tests.kernels.steps import randn

RULE = hyper.Rule(norm_eps=1e-5, eps=1e-6, iterations=20)
WIDE, NARROW = 4096, 512
CASES = [(WIDE, [1, 8, 16, 3, 16, 1]), (NARROW, [1, 32, 17, 5, 32, 2])]
MANY = 80  # rows that are too many for the programs of a site


def site_of(width: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda") -> hyper.Site:
    return hyper.Site(
        fn=(randn(24, 4 * width, seed=1) / (4 * width) ** 0.5).to(device, dtype),
        base=randn(24, seed=2).to(device),
        scale=(1 + 0.3 * randn(3, seed=3)).to(device),
        norm=(1 + 0.1 * randn(width, seed=4)).to(device),
    )


def before(rows: int, width: int, device: str = "cuda") -> tuple[torch.Tensor, hyper.HyperMix]:
    mix = hyper.HyperMix(
        pre=randn(rows, 4, seed=6).to(device),
        post=(1 + 0.5 * randn(rows, 4, seed=7)).to(device),
        mixing=torch.softmax(randn(rows, 4, 4, seed=8), -1).to(device),
    )
    return randn(rows, 4, width, seed=5).to(device, torch.bfloat16), mix


def parts(count: int, rows: int, width: int, seed: int) -> list[torch.Tensor]:
    return [one.view(rows, width) for one in numbers(count, rows * width, seed)]


def flat(result) -> list[torch.Tensor]:
    after, x, mix = result
    return [after, x, mix.pre, mix.post, mix.mixing]


def two_sites(streams, mix, y, site, sums, copies=1):
    """A site, a block that makes something of its input, and a site after it, as in a layer."""
    after, x, own = launch.site(streams, hyper.Pending(y, mix, sums), site, RULE)
    block = add_in_order([x.float() + 1] * copies)
    return flat((after, x, own)) + flat(launch.site(after, hyper.Pending(block, own, sums), site, RULE))


@pytest.fixture(params=[2, 3])
def ranks(request, monkeypatch):
    monkeypatch.setattr(exchanges, "WIDE_PROGRAMS", 64)  # those of all ranks must find room on one GPU
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    # Loading a kernel may wait for those that run: load all ranks' kernels before one waits for another.
    hurried = Ranks(request.param, timeout=0.001)
    for width in (WIDE, NARROW):
        for dtype in (torch.bfloat16, torch.float32):
            streams, mix = before(1, width)
            for end in hurried.ends:
                two_sites(streams, mix, streams[:, 0].float(), site_of(width, dtype), end)
                end.sum_in_rank_order(streams[:, 0].float())
    streams, mix = before(MANY, NARROW)
    for end in hurried.ends:
        other_forms(streams, end, streams[:, 0].float(), mix)
    torch.cuda.synchronize()
    return Ranks(request.param)


@pytest.mark.gpu
@pytest.mark.parametrize(("width", "counts"), CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_summed_where_it_is_read_has_the_bits_of_summed_before(ranks, width, counts, dtype):
    # Any rows after any others, and plain exchanges between: each kind has buffers and calls of its own.
    site, count = site_of(width, dtype), len(ranks.ends)
    for call, rows in enumerate(counts * 3):
        streams, mix = before(rows, width)
        partials = parts(count, rows, width, call)
        whole = add_in_order(partials)
        expected = two_sites(streams, mix, whole, site, None, count)
        torch.cuda.synchronize()
        results = ranks.each(partial(summing_twice, streams, mix, site), partials)
        totals = ranks.sum(partials)
        torch.cuda.synchronize()
        for found, total in zip(results, totals, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), (call, rows)
            assert torch.equal(total, whole)
    assert not any(int(end.failed) for end in ranks.ends)


def summing_twice(streams, mix, site, end, own):
    return two_sites(streams, mix, own, site, end)


@pytest.mark.gpu
def test_a_graph_replays_them(ranks):
    rows, count = 8, len(ranks.ends)
    site = site_of(WIDE)
    streams, mix = before(rows, WIDE)
    partials = parts(count, rows, WIDE, 5)
    torch.cuda.synchronize()
    graphs, outputs = [], []
    for end, stream, own in zip(ranks.ends, ranks.streams, partials, strict=True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            outputs.append(two_sites(streams, mix, own, site, end))
        graphs.append(graph)
    for turn in range(5):
        for own, fresh in zip(partials, parts(count, rows, WIDE, 100 + turn), strict=True):
            own.copy_(fresh)
        for output in outputs:
            for part in output:
                part.fill_(torch.nan)
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, ranks.streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        expected = two_sites(streams, mix, add_in_order(partials), site, None, count)
        for output in outputs:
            assert all(torch.equal(a, b) for a, b in zip(output, expected, strict=True)), turn


@pytest.mark.gpu
def test_calls_may_wrap(ranks):
    for end in ranks.ends:
        end.at_site(1, 1).calls.fill_(2**31 - 3)
    streams, mix = before(4, WIDE)
    site, count = site_of(WIDE), len(ranks.ends)
    for call in range(4):
        partials = parts(count, 4, WIDE, call)
        expected = two_sites(streams, mix, add_in_order(partials), site, None, count)
        torch.cuda.synchronize()
        results = ranks.each(partial(summing_twice, streams, mix, site), partials)
        torch.cuda.synchronize()
        for found in results:
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), call
    assert int(ranks.ends[0].at_site(1, 1).calls[0]) == -(2**31) + 5


@pytest.mark.gpu
def test_a_rank_that_does_not_come_leaves_nan_and_is_waited_for_once(ranks):
    alone = Ranks(len(ranks.ends), timeout=0.05)
    streams, mix = before(4, WIDE)
    site, y = site_of(WIDE), streams[:, 0].float()
    after, x, _ = launch.site(streams, hyper.Pending(y, mix, alone.ends[0]), site, RULE)
    torch.cuda.synchronize()
    assert bool(after.isnan().all())
    assert bool(x.isnan().all())
    begin = time.monotonic()
    for _ in range(100):
        launch.site(streams, hyper.Pending(y, mix, alone.ends[0]), site, RULE)
    torch.cuda.synchronize()
    assert time.monotonic() - begin < 2
    assert [int(end.failed) for end in alone.ends[:2]] == [1, 0]


def other_forms(streams, sums, y, mix):
    """Too many rows for a site's programs, and the last site."""
    pending, site = hyper.Pending(y, mix, sums), site_of(NARROW)
    return [
        *flat(launch.site(streams, pending, site, RULE)),
        *hyper.finish(streams, pending, site.norm, 1e-5),
    ]


@pytest.mark.gpu
def test_other_forms_sum_before(ranks):
    streams, mix = before(MANY, NARROW)
    partials = parts(len(ranks.ends), MANY, NARROW, 3)
    torch.cuda.synchronize()
    results = ranks.each(partial(other_forms, streams, mix=mix), partials)
    torch.cuda.synchronize()
    expected = other_forms(streams, None, add_in_order(partials), mix)
    for found in results:
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


class Doubled:
    """Sums over two ranks that have the same."""

    def sum_in_rank_order(self, partial):
        return partial + partial


def test_the_reference_sums_before():
    streams, mix = before(5, NARROW, "cpu")
    site, y = site_of(NARROW, device="cpu"), randn(5, NARROW, seed=9)
    streams = streams.float()
    found = hyper.site(streams, hyper.Pending(y, mix, Doubled()), site, RULE)
    expected = hyper.site(streams, hyper.Pending(2 * y, mix), site, RULE)
    assert all(torch.equal(a, b) for a, b in zip(flat(found), flat(expected), strict=True))
    found = hyper.finish(streams, hyper.Pending(y, mix, Doubled()), site.norm, 1e-5)
    expected = hyper.finish(streams, hyper.Pending(2 * y, mix), site.norm, 1e-5)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_what_finds_no_room_is_summed_before():
    end = Exchange([0, 0], 0, torch.device("cpu"), most=512, timeout=1.0)
    assert end.at_site(SITE_PROGRAMS, SITE_TILE) is not None
    assert end.at_site(SITE_PROGRAMS + 1, SITE_TILE) is None
    assert end.at_site(1, SITE_TILE + 1) is None


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_site_with_sums_compiles_without_spills_and_takes_each_word_once(monkeypatch, ranks):
    from intarsia.kernels.hyper_connection import triton_site
    from tests.kernels.ahead_of_time import Compiled, usage

    kernel = Compiled(triton_site.update_and_measure)
    monkeypatch.setattr(triton_site, "update_and_measure", kernel)
    monkeypatch.setattr(launch, "_collect", lambda *words, **named: None)
    end = Exchange([0] * ranks, 1, torch.device("cpu"), most=512, timeout=1.0)
    streams, mix = before(16, WIDE, "cpu")
    pending = hyper.Pending(streams[:, 0].float(), mix, end)
    launch.site(streams, pending, site_of(WIDE, device="cpu"), RULE)
    code = kernel.built[0].asm["ptx"]
    assert usage(kernel.built[0])["stack"] == 0
    each = SITE_TILE // 256  # numbers of a thread
    assert code.count("st.relaxed.sys.global.b64") == (ranks - 1) * each
    assert code.count("ld.relaxed.sys.global.b64") == (ranks - 1) * each
    # the sums begin once the launch before is over, and what does not depend on it is there by then
    assert code.index("griddepcontrol.wait") < code.index("st.relaxed.sys")
    assert code.rindex("griddepcontrol.wait") > code.index("ld.global")
