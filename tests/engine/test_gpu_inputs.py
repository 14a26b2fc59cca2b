"""Inputs of captured steps on a GPU."""

import pytest
import torch

from intarsia.engine.graphs.capture import CudaRecorder
from intarsia.engine.graphs.inputs import Inputs

pytestmark = pytest.mark.gpu

STEPS = 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_step_sees_what_was_filled_for_it_however_late_it_runs():
    device = torch.device("cuda")
    inputs = Inputs({"number": (torch.int64, (3,))}, device)
    seen = torch.zeros(STEPS + 1, 3, dtype=torch.int64, device=device)
    at = torch.zeros(1, dtype=torch.int64, device=device)

    def run() -> None:
        torch.cuda._sleep(20_000_000)  # about 10 ms before the step takes its inputs
        inputs.take()
        seen.index_copy_(0, at, inputs["number"].unsqueeze(0))
        at.add_(1)

    def fill(value: int) -> None:
        def write(arrays) -> None:
            arrays["number"][:] = value

        inputs.fill(write)

    fill(7)
    run()
    fill(0)  # waits for the eager run, which may not have taken 7 yet
    step = CudaRecorder(device)(run)
    for value in range(1, 1 + STEPS):
        fill(value)
        inputs.launch(step)
    assert seen.tolist() == [[value] * 3 for value in (7, *range(1, 1 + STEPS))]
