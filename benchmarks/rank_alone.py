"""Speed of one rank of two, alone on one GPU: decode steps of its share of a network with random weights.

    python benchmarks/rank_alone.py [--layers 45] [--streams 1,8,32]

The rank's exchanges are the kernels that two GPUs run, but answered by itself: what it writes for the other
rank arrives where the other one would have written. So nothing travels over a link and nobody is waited for,
which makes its time a bound from below of a step over two GPUs. The numbers computed are not those of the
network. Prints a JSON line each: seconds of a step (median) with the exchanges and without any.
"""

import argparse
import json

import torch
from torch import Tensor

from intarsia.evidence.speed.steps import floors
from intarsia.evidence.speed.steps.decode import time_decode
from intarsia.evidence.synthetic import geometry, network
from intarsia.groups.group import SingleRank
from intarsia.kernels.exchange import MOST, Exchange, buffer_bytes

CONTEXT = 2048
RANKS = 2


class Alone(SingleRank):
    """Rank 0 of two, whose other rank is itself."""

    ranks = RANKS

    def __init__(self, device: torch.device) -> None:
        place = MOST * 8  # bytes of a rank's place in a buffer; what is written for rank 1 lands one further
        self._memory = torch.zeros(buffer_bytes(RANKS), dtype=torch.uint8, device=device)
        buffers = [self._memory.data_ptr(), self._memory.data_ptr() + place]
        self._exchange = Exchange(buffers, 0, device, timeout=5.0, keep=self._memory)
        self.exchanging = True

    @property
    def late(self) -> bool:
        """Whether an exchange was not answered."""
        return bool(self._exchange.failed)

    def sum_in_rank_order(self, partial: Tensor, rows: int | None = None) -> Tensor:
        """The rank's numbers twice, or once where nothing is exchanged."""
        return self._exchange.sum_in_rank_order(partial) if self._few(partial) else partial

    def sum_where_read(self, partial: Tensor, rows: int | None = None) -> tuple[Tensor, Exchange | None]:
        """The same, summed where they are read."""
        return partial, self._exchange if self._few(partial) else None

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensor twice."""
        takes = self.exchanging and self._exchange.takes(tensor)
        return list(self._exchange.gather(tensor).unbind(0)) if takes else [tensor] * RANKS

    def _few(self, partial: Tensor) -> bool:
        return self.exchanging and partial.numel() <= self._exchange.few


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=45)
    parser.add_argument("--geometry", default="glm-5.3-flash")
    parser.add_argument("--recipe", default="fp4-local")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    device = torch.device(options.device)
    group = Alone(device)
    config = geometry(options.geometry, layers=options.layers)
    model = network(config, recipe=options.recipe, device=device, group=group)
    rate = floors.bandwidth(device)
    held = torch.cuda.memory_allocated(device)
    print(json.dumps({"layers": options.layers, "weights_gb": round(held / 1e9, 2), "bytes_a_second": rate}))
    for streams in map(int, options.streams.split(",")):
        for group.exchanging in (True, False):
            done = time_decode(model, streams=streams, context=CONTEXT, bytes_a_second=rate)
            line = {"decode": streams, "exchanges": group.exchanging, "ms": round(done.seconds * 1e3, 3)}
            line |= {"floor_ms": round(done.bytes / rate * 1e3, 3), "late": group.late}
            line |= {"ratio": round(done.bytes / rate / done.seconds, 3), "eager": done.eager_because}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
