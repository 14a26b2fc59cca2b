"""Settings of the whole suite."""

import gc

import torch

# The suite runs in as many workers as there are cores; threads of torch's own would only fight over them.
torch.set_num_threads(1)

# What collecting makes, millions of objects of tests and libraries, stays to the end: no need to look through
# it again and again.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on garbage is collected, among what tests make."""
    gc.freeze()
    gc.enable()
