"""One of two processes on two GPUs: sums over peer memory against NCCL's, eager and in a graph.

    python -m tests.groups.peers_rank RANK PORT

Prints one line: how many sums were equal. Exit code 1 when one was not.
"""

import sys

import torch

from intarsia.groups.group import add_in_order
from intarsia.groups.join import Place, form, open_store
from intarsia.groups.peer.meet import open_exchange

WIDTH = 4096


def main() -> int:
    """Exchange in many sizes, one rank now and then late."""
    rank, port = int(sys.argv[1]), int(sys.argv[2])
    device = torch.device("cuda", rank)
    place = Place(rank, 2, "127.0.0.1", port, 30.0)
    store = open_store(place)
    group = form(place, store, device)
    if group.peers is not None:
        prefixed = torch.distributed.PrefixStore("wide", store)
        group.peers = open_exchange(prefixed, rank, 2, device, timeout=30.0, wide=True)
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
    group.check_equal("the end", count)
    print(f"{count - wrong} of {count} sums equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
