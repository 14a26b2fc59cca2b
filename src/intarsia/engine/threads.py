"""How many CPU threads compute."""

import torch

# Matrices of narrower networks are done before a second thread has woken up. On a busy machine every
# operation would even wait for the other core: 30 tokens a second of the demo became 0.3 (2 cores, load 9).
NARROW = 1024


def use_threads(wanted: int | None, hidden_size: int) -> None:
    """Set torch's threads: as many as wanted, else one for a narrow network, else torch's own choice."""
    if wanted is None and hidden_size < NARROW:
        wanted = 1
    if wanted is not None:
        torch.set_num_threads(wanted)
