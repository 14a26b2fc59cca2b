"""The exchange over peer memory: several ranks as streams of one GPU, and its code for sm_90."""

import functools
import importlib.util
import re
import time

import pytest
import torch

from intarsia.groups.group import add_in_order
from intarsia.kernels.exchange import TILE, Exchange, buffer_bytes, launch, refuse
from intarsia.kernels.exchange.launch import CHUNK, SITE_PROGRAMS, SITE_TILE, WIDE_PROGRAMS
from tests.kernels.ranks_on_one_gpu import MOST, Ranks, numbers

FEW_PROGRAMS = 64  # of the wide exchange: those of all ranks must find room on one GPU
WIDE = CHUNK * FEW_PROGRAMS  # numbers of a turn


@pytest.fixture(params=[2, 3])
def ranks(request, monkeypatch):
    monkeypatch.setattr(launch, "WIDE_PROGRAMS", FEW_PROGRAMS)
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    # Loading a kernel may wait for those that run: load all ranks' kernels before one waits for another.
    hurried = Ranks(request.param, timeout=0.001)
    for end in hurried.ends:
        for count in (TILE, 4 * MOST, MOST + 1):
            end.sum_in_rank_order(torch.zeros(count, device="cuda"))
        for count in (1, TILE, MOST):
            end.gather(torch.zeros(count, device="cuda"))
        end.sum_of_own(torch.zeros(64, 4096, device="cuda"), 32)
        end.gather_own(torch.zeros(32, 4096, device="cuda"), 32, 96)
    torch.cuda.synchronize()
    return Ranks(request.param)


@pytest.mark.gpu
def test_sums_have_the_bits_of_gathering_and_adding(ranks):
    # any count after any other: both halves of the buffers, tiles that sit out calls, a ragged last tile
    for call, count in enumerate(
        [1, 256, 4096, 257, 16384, 16385, 3 * WIDE, 256, 131072, 100, 16384, 7 * WIDE + 1, 65536, 1] * 3
    ):
        partials = numbers(len(ranks.ends), count, call)
        torch.cuda.synchronize()
        totals = ranks.sum(partials)
        torch.cuda.synchronize()
        for total in totals:
            assert torch.equal(total, add_in_order(partials)), (call, count)
    assert not any(int(end.failed) for end in ranks.ends)


@pytest.mark.gpu
def test_special_numbers_pass_unchanged(ranks):
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-42], device="cuda")
    partials = [special, torch.full_like(special, -0.0), torch.zeros_like(special)][: len(ranks.ends)]
    torch.cuda.synchronize()
    expected = add_in_order(partials).view(torch.int32)
    torch.cuda.synchronize()
    totals = ranks.sum(partials)
    torch.cuda.synchronize()
    assert all(torch.equal(total.view(torch.int32)[:4], expected[:4]) for total in totals)
    assert all(bool(total[4].isnan()) and float(total[5]) == float(special[5]) for total in totals)


@pytest.mark.gpu
def test_gathering_copies_every_bit_between_sums(ranks):
    generator = torch.Generator("cuda").manual_seed(8)
    for call, (count, dtype) in enumerate(
        [
            (1, torch.int64),
            (130, torch.int64),
            (5, torch.float32),
            (MOST // 2, torch.int64),
            (257, torch.int32),
        ]
        * 4
    ):
        words = [
            torch.randint(-(2**31), 2**31, (count * dtype.itemsize // 4,), generator=generator, device="cuda")
            .int().view(dtype)
            for _ in ranks.ends
        ]  # fmt: skip
        partials = numbers(len(ranks.ends), 300 * (call % 3 + 1), call)
        torch.cuda.synchronize()
        assert all(end.takes(own) for end, own in zip(ranks.ends, words, strict=True))
        gathered, totals = ranks.gather(words), ranks.sum(partials)
        torch.cuda.synchronize()
        for found, total in zip(gathered, totals, strict=True):
            assert (found.dtype, found.shape) == (dtype, (len(words), count))
            assert torch.equal(found.view(torch.int32), torch.stack([own.view(torch.int32) for own in words]))
            assert torch.equal(total, add_in_order(partials))
    end = ranks.ends[0]
    assert not end.takes(torch.zeros(MOST + 1, device="cuda"))
    assert not end.takes(torch.zeros(3, dtype=torch.uint8, device="cuda"))
    assert not end.takes(torch.zeros(0, device="cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("width", [4096, 6144])
def test_rows_are_summed_where_they_are_kept_and_gathered_again(ranks, width):
    count = len(ranks.ends)
    generator = torch.Generator("cuda").manual_seed(9)
    for call, rows in enumerate([count * 512, 1023, 512, 64, count * 512 + 16, 2048] * 2):
        partials = numbers(count, rows * width, call)
        partials = [one.view(rows, width) for one in partials]
        each = -(-rows // count)
        whole = torch.randn(rows, width, generator=generator, device="cuda").bfloat16()
        parts = [whole[rank * each : (rank + 1) * each].clone() for rank in range(count)]
        torch.cuda.synchronize()
        summed = ranks.each(functools.partial(Exchange.sum_of_own, rows=each), partials)
        gathered = ranks.each(functools.partial(Exchange.gather_own, rows=each, total=rows), parts)
        torch.cuda.synchronize()
        assert torch.equal(torch.cat(summed), add_in_order(partials)), (call, rows)
        assert all(torch.equal(found, whole) for found in gathered), (call, rows)
    assert not any(int(end.failed) for end in ranks.ends)


@pytest.mark.gpu
@pytest.mark.parametrize("wide", [False, True])
def test_a_graph_replays_exchanges(ranks, wide):
    count = 65536 if wide else 4096
    partials = numbers(len(ranks.ends), count, 5)
    torch.cuda.synchronize()
    graphs, outputs = [], []
    for end, stream, partial in zip(ranks.ends, ranks.streams, partials, strict=True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            total = partial
            outputs.append([total := end.sum_in_rank_order(total) for _ in range(3)])
        graphs.append(graph)
    for turn in range(5):
        for partial, fresh in zip(partials, numbers(len(partials), count, 100 + turn), strict=True):
            partial.copy_(fresh)
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, ranks.streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        expected = partials
        for step in range(3):
            expected = [add_in_order(expected)] * len(partials)
            assert all(torch.equal(own[step], expected[0]) for own in outputs)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [2048, 65536])
def test_a_rank_that_does_not_come_is_noticed_in_time(ranks, count):
    alone = Ranks(len(ranks.ends), timeout=0.05)
    total = alone.ends[0].sum_in_rank_order(torch.zeros(count, device="cuda"))
    torch.cuda.synchronize()
    assert bool(total.isnan().all())
    words = alone.ends[0].gather(torch.zeros(4, dtype=torch.int64, device="cuda"))
    assert bool((words[1] == 0x7FFFFFFF7FFFFFFF).all())  # no token's offer
    begin = time.monotonic()
    for _ in range(100):
        alone.ends[0].sum_in_rank_order(torch.zeros(count, device="cuda"))
    torch.cuda.synchronize()
    assert time.monotonic() - begin < 2  # one wait for all
    assert int(alone.ends[0].failed) == 1
    assert int(alone.ends[1].failed) == 0


def test_what_is_not_exchanged_so_is_said():
    assert refuse(torch.zeros(4), 8) == "the device is cpu, not cuda"
    sites = 2 * 2 * SITE_PROGRAMS * SITE_TILE * 8
    assert buffer_bytes(2, 2 * TILE + 1) == 2 * 2 * 3 * TILE * 8 + sites
    assert buffer_bytes(2, TILE, True) == 2 * 2 * TILE * 8 + sites + 2 * WIDE_PROGRAMS * (4 * CHUNK * 4 + 4)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_exchange_compiles_without_spills_to_stores_of_whole_words(monkeypatch, ranks):
    from intarsia.kernels.exchange import triton_exchange
    from tests.kernels.ahead_of_time import Compiled, usage

    kernel = Compiled(triton_exchange.exchange)
    monkeypatch.setattr(triton_exchange, "exchange", kernel)
    end = Exchange([0] * ranks, 1, torch.device("cpu"), most=MOST, timeout=1.0)
    end.sum_in_rank_order(torch.zeros(8, 512))
    end.gather(torch.zeros(8, 130, dtype=torch.int64))
    each = TILE // 128  # numbers of a thread
    for built in kernel.built:
        code = built.asm["ptx"]
        assert usage(built)["stack"] == 0
        assert code.count("st.relaxed.sys.global.b64") == (ranks - 1) * each
        assert code.count("ld.relaxed.sys.global.b64") == (ranks - 1) * each  # taken once, in one layout
        # only addresses are read before the launch before it is over
        first = re.search(r"(ld|st)\.global(\.v\d)?\.b32", code)
        assert code.index("griddepcontrol.wait") < first.start()


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize("add", [True, False])
def test_the_wide_exchange_compiles_to_wide_stores_and_one_release_a_rank(monkeypatch, add):
    from intarsia.kernels.exchange import triton_wide
    from tests.kernels.ahead_of_time import Compiled, usage

    kernel = Compiled(triton_wide.exchange_wide)
    monkeypatch.setattr(triton_wide, "exchange_wide", kernel)
    end = Exchange([0] * 3, 1, torch.device("cpu"), most=TILE, wide=True, timeout=1.0)
    if add:
        end.sum_in_rank_order(torch.zeros(64, 4096))
    else:
        end.gather_own(torch.zeros(32, 4096, dtype=torch.bfloat16), 32, 96)
    code = kernel.built[0].asm["ptx"]
    assert usage(kernel.built[0])["stack"] <= 8
    each = CHUNK // 256 // 4  # stores of a thread
    assert code.count("release.exch") == 2
    assert code.count("st.global.v4") == (3 if add else 5) * each
    assert code.count("ld.acquire.sys") == 2 * 2
