"""One of two processes on two GPUs: captured steps in bfloat16 against eager ones whose sums go by NCCL.

    python -m tests.groups.captured_rank RANK PORT WAY..

Prints a line for each way of serving (see WAYS): whether its replies have the bits of those that each request
gives alone, one row a step, every kernel launched by itself, nothing divided. Exit code 1 when one has not.
The network has the published one's widths, and few layers, of each kind one.
"""

import sys
from dataclasses import replace

import torch

from intarsia.engine.engine import Engine
from intarsia.evidence.synthetic import geometry, network
from intarsia.groups.join import Place, form, open_store
from tests.engine.serving import EvenCosts, serve
from tests.engine.test_gpu_step import SETTINGS, requests, told

LAYERS = 5
REQUESTS = 3
WAYS = {"plain": (0, None), "divided": (0, 64), "drafted": (2, None)}
"""Guesses a step, and the rows of a prompt from which residual streams are divided."""


def main() -> int:
    """Every rank drives its own engine with the same requests."""
    rank, port = int(sys.argv[1]), int(sys.argv[2])
    device = torch.device("cuda", rank)
    place = Place(rank, 2, "127.0.0.1", port, 60.0)
    group = form(place, open_store(place), device)
    peers = group.peers
    if peers is None:
        print("no exchange over peer memory")
        return 1
    config = geometry("glm-5.3-flash", layers=LAYERS)
    model = network(config, recipe="fp4-local", device=device, seed=3, group=group)
    asked = requests()[:REQUESTS]

    def engine(**changes) -> Engine:
        return Engine(model, replace(SETTINGS, **changes), costs=EvenCosts())

    group.peers, group.divide_from = None, None
    alone = engine(eager=True, drafts=0, copy_drafts=0, streams=1)
    expected = [told(serve(alone, [request])[0]) for request in asked]
    if not all(ids for ids, _ in expected):
        print("a request was not answered")
        return 1
    group.peers = peers
    wrong = 0
    for name in sys.argv[3:]:
        drafts, group.divide_from = WAYS[name]
        together = engine(drafts=drafts, copy_drafts=drafts)
        equal = [told(outcome) for outcome in serve(together, asked)] == expected
        reason = together.loop.steps.reason or together.loop.chains.reason
        wrong += not equal or bool(reason)
        print(f"{name}: {'equal' if equal else 'different'}, {reason or 'captured'}")
    group.require_all()
    group.barrier("the end")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
