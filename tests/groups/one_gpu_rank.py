"""One rank of several that share a GPU, by the command line of `intarsia`.

    python -m tests.groups.one_gpu_rank generate demo TEXT --tp 2 --rank 0 --master 127.0.0.1 ..

NCCL refuses ranks on one GPU, and so does the meeting over peer memory. Here gloo carries what NCCL would,
and peer memory is that of another process on the same GPU: whatever is captured goes over it. With EAGER in
the environment nothing is captured.
"""

import os
import sys

import torch

from intarsia.cli.main import main
from intarsia.engine.graphs.capture import Captures
from intarsia.groups import join
from intarsia.groups.peer import meet


def gloo(place, store, device):
    """As joining by NCCL."""
    torch.cuda.set_device(device)
    return join._gloo(place, store)


if __name__ == "__main__":
    join._nccl = gloo
    meet._apart = lambda places, device: ""
    if os.environ.get("EAGER"):
        Captures.on = classmethod(lambda cls, *case: cls(None, "a test compares it with captured steps"))
    sys.exit(main())
