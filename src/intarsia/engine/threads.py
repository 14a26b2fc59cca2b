"""How many CPU threads compute."""

import torch

# Matrices of narrower networks are done before a second thread has woken up. On a busy machine every
# operation would even wait for the other core: the demo wrote 0.3 tokens a second with two threads where one
# wrote 14 to 30 (2 cores, load 5 to 9).
NARROW = 1024


def use_threads(wanted: int | None, hidden_size: int) -> None:
    """Set torch's threads: as many as wanted, else one for a narrow network, else torch's own choice."""
    if wanted is None and hidden_size < NARROW:
        wanted = 1
    if wanted is not None:
        torch.set_num_threads(wanted)
