"""Settings of the whole suite."""

import torch

# The suite runs in as many workers as there are cores; threads of torch's own would only fight over them.
torch.set_num_threads(1)
