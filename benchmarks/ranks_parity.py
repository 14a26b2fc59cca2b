"""Holds several ranks against one on many prompts: text, logits, and equal bits when repeated.

    python benchmarks/ranks_parity.py [PATH|demo] [--ranks 2,3,4] [--prompts 50] [--tokens 16]

Ranks are threads of this process joined by gloo. Prints a JSON line a number of ranks: prompts with the same
greedy tokens (drafted and plain), the largest difference of a logit in parts of the logits' standard
deviation, and whether all ranks and a second run had equal bits. Exit code 1 when a token differs.
"""

import argparse
import json
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from intarsia import api
from intarsia.checkpoint import open_checkpoint
from intarsia.core.config import GenerationSettings
from intarsia.engine.drafting import FixedDepth, MtpDrafter
from intarsia.engine.generate import Generation
from intarsia.engine.runner import ModelRunner
from intarsia.groups.join import Place, form
from intarsia.models.glm5_next.model import Glm5NextModel

dist: Any = torch.distributed
CPU = torch.device("cpu")


def on_ranks(ranks: int, work: Callable[[Any], Any]) -> list[Any]:
    """`work(group)` on every rank, each a thread."""
    store, results = dist.HashStore(), [None] * ranks
    store.set_timeout(timedelta(seconds=60))

    def run(rank: int) -> None:
        results[rank] = work(form(Place(rank, ranks, "127.0.0.1", 1, 60.0), store, CPU))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def measure(model: Glm5NextModel, prompts: list[list[int]], count: int) -> tuple[list[Any], torch.Tensor]:
    """The greedy replies, plain and drafted, and the logits of every prompt's last row."""
    settings = GenerationSettings(max_tokens=count, ignore_eos=True)
    replies, last = [], []
    for tokens in prompts:
        last.append(model.logits(tokens)[-1])
        for drafts in (0, 3):
            runner = ModelRunner(model, window=256, max_drafts=3)
            extra: dict[str, Any] = {"drafter": MtpDrafter(runner), "depth": FixedDepth(3)} if drafts else {}
            replies.append(Generation(runner, tokens, settings, **extra).result.tokens)
    return replies, torch.stack(last)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", nargs="?", default="demo")
    parser.add_argument("--ranks", default="2,3,4")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint = open_checkpoint(options.path)
    model = api.load(checkpoint)
    generator = torch.Generator().manual_seed(0)
    # What the model itself says after one random token, cut at different places: text of its own kind.
    prompts = []
    for index in range(options.prompts):
        first = int(torch.randint(300, model.config.vocab_size, (1,), generator=generator))
        settings = GenerationSettings(temperature=1.0, seed=index, max_tokens=4 + index % 13, ignore_eos=True)
        runner = ModelRunner(model, window=64, max_drafts=1)
        prompts.append([first, *Generation(runner, [first], settings).result.tokens])
    plain, logits = measure(model, prompts, options.tokens)
    wrong = 0
    for ranks in map(int, options.ranks.split(",")):
        runs = []
        for _ in range(2):
            runs += on_ranks(
                ranks, lambda group: measure(api.load(checkpoint, group=group), prompts, options.tokens)
            )
        replies, own = runs[0]
        same = sum(a == b for a, b in zip(replies, plain, strict=True))
        wrong += len(plain) - same
        row = {
            "checkpoint": options.path,
            "ranks": ranks,
            "replies": len(plain),
            "same": same,
            "logit_difference_in_std": float((own - logits).abs().max() / logits.std()),
            "equal_bits": all(torch.equal(other[1], own) and other[0] == replies for other in runs[1:]),
        }
        print(json.dumps(row), flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
