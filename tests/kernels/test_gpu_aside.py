"""Branches of a captured graph: what runs beside other work has the same bits, at every replay."""

import pytest
import torch

from intarsia.kernels import aside
from intarsia.kernels import hyper_connection as hyper
from tests.kernels.test_gpu_hyper import RULE, inputs, weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def captured(run):
    """A replay of `run`, and what it returns."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()), aside.allowed():
        outputs = run()
    return graph.replay, outputs


@pytest.mark.parametrize("marked", [False, True])
def test_what_is_launched_after_a_join_sees_both_branches(marked):
    x = torch.randn(512, 512, device="cuda")
    few = x[:1]  # steps of more rows do not branch

    def run():
        assert aside.branches(few) == torch.cuda.is_current_stream_capturing()
        since = aside.fork(few) if marked else None
        fast = x + 1
        with aside.aside(few, since=since):
            slow = x
            for _ in range(50):
                slow = (slow + x).sin()
        aside.join(few)
        return slow + fast

    expected = run()
    replay, found = captured(run)
    for _ in range(20):
        found.fill_(torch.nan)
        replay()
        assert torch.equal(found, expected)


def test_branches_open_only_where_they_are_allowed():
    x = torch.zeros(1, device="cuda")
    assert not aside.branches(x)
    seen = []
    captured(lambda: (seen.append(aside.branches(x)), x + 1)[1])
    assert seen == [False, True]
    with aside.in_order():
        captured(lambda: (seen.append(aside.branches(x)), x + 1)[1])
    assert seen == [False, True, False, False]


@pytest.mark.parametrize("rows", [1, 3, 16, 32, 33])
def test_sites_in_branches_have_the_bits_of_sites_in_order(rows):
    site = weights(4096)
    streams, pending = inputs(rows, 4096)

    def run():
        after, x, mix = hyper.site(streams, pending, site, RULE)
        y = x.float() * 2
        aside.join(x)
        after, x, mix = hyper.site(after, hyper.Pending(y, mix), site, RULE)
        return *hyper.finish(after, hyper.Pending(x.float(), mix), site.norm, 1e-5), x

    expected = run()
    replay, found = captured(run)
    for _ in range(10):
        for one in found:
            one.fill_(torch.nan)
        replay()
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
