"""Settings of the whole suite."""

import gc

import torch

# The suite runs in as many workers as there are cores; threads of torch's own would only fight over them.
torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Spare the garbage collector millions of objects that tests and their libraries keep until the end."""
    gc.collect()
    gc.freeze()
