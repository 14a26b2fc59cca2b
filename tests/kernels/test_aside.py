"""Without a GPU, and without leave, nothing runs aside."""

import torch

from intarsia.kernels import aside


def test_on_a_cpu_everything_runs_in_its_order():
    x = torch.ones(2)
    with aside.allowed():
        assert not aside.branches(x)
        with aside.aside(x):
            y = x + 1
        aside.join(x)
    assert y.tolist() == [2, 2]
