"""One of two processes on two GPUs: sums over peer memory against NCCL's, eager and in a graph, in kernels of
their own and in those that read them.

    python -m tests.groups.peers_rank RANK PORT

Prints one line: how many sums were equal. Exit code 1 when one was not.
"""

import sys

import torch

from intarsia.groups.group import add_in_order
from intarsia.groups.join import Place, form, open_store
from intarsia.kernels import hyper_connection as hyper

WIDTH = 4096


def main() -> int:
    """Exchange in many sizes, one rank now and then late."""
    rank, port = int(sys.argv[1]), int(sys.argv[2])
    device = torch.device("cuda", rank)
    place = Place(rank, 2, "127.0.0.1", port, 30.0)
    group = form(place, open_store(place), device)
    if group.peers is None:
        print("no exchange over peer memory")
        return 1
    generator = torch.Generator(device).manual_seed(rank)
    wrong, count = 0, 0
    for call in range(400):
        rows = (1, 8, 200, 2, 64, 1024, 17, 65, 2049)[call % 9]
        partial = torch.randn(rows, WIDTH, generator=generator, device=device) * 10.0 ** (call % 7 - 3)
        if call % 11 == 3 * rank:
            torch.cuda._sleep(200_000)
        ours = group.sum_in_rank_order(partial)
        wrong += not torch.equal(ours, add_in_order(group.gather(partial)))
        count += 1
    static = torch.zeros(8, WIDTH, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = static
        for _ in range(4):
            total = group.sum_in_rank_order(total)
    for turn in range(100):
        static.copy_(torch.randn(8, WIDTH, generator=generator, device=device))
        if turn % 13 == 5 * rank:
            torch.cuda._sleep(500_000)
        graph.replay()
        expected = static
        for _ in range(4):
            expected = add_in_order(group.gather(expected))
        wrong += not torch.equal(total, expected)
        count += 1
    more, of = sites(group, generator, device)
    wrong, count = wrong + more, count + of
    group.check_equal("the end", count)
    print(f"{count - wrong} of {count} sums equal")
    return 1 if wrong else 0


def sites(group, generator, device) -> tuple[int, int]:
    """How many of so many sites that sum for themselves differ from sites that are given sums."""
    shared = torch.Generator(device).manual_seed(7)

    def numbers(*shape):
        return torch.randn(shape, generator=shared, device=device)

    fn = (numbers(24, 4 * WIDTH) / (4 * WIDTH) ** 0.5).bfloat16()
    site = hyper.Site(fn, numbers(24), numbers(3), numbers(WIDTH))
    rule = hyper.Rule(norm_eps=1e-5, eps=1e-6, iterations=20)
    wrong, calls = 0, 100
    for call in range(calls):
        rows = (1, 64, 2, 33, 8, 16, 5)[call % 7]
        partial = torch.randn(rows, WIDTH, generator=generator, device=device)
        streams = numbers(rows, 4, WIDTH).bfloat16()
        mix = hyper.HyperMix(numbers(rows, 4), numbers(rows, 4), torch.softmax(numbers(rows, 4, 4), -1))
        if call % 11 == 3 * group.rank:
            torch.cuda._sleep(200_000)
        y, sums = group.sum_where_read(partial)
        found = hyper.site(streams, hyper.Pending(y, mix, sums), site, rule)
        summed = hyper.Pending(add_in_order(group.gather(partial)), mix)
        expected = hyper.site(streams, summed, site, rule)
        same = torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
        wrong += sums is None or not same
    return wrong, calls


if __name__ == "__main__":
    sys.exit(main())
