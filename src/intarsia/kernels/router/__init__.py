"""Which experts a row goes to, and with what weight."""

from torch import Tensor

from intarsia.kernels.choice import TRITON, Case, choose
from intarsia.kernels.linear.launch import format_of
from intarsia.kernels.router import launch, reference
from intarsia.kernels.router.reference import Routing
from intarsia.kernels.rows import Rows
from intarsia.kernels.weights import Weight

__all__ = ["Routing", "route"]


def route(
    x: Tensor,
    weight: Weight,
    bias: Tensor,
    rows: Rows,
    *,
    top: int,
    scaling: float,
    arrange: bool = False,
) -> Routing:
    """The `top` experts of each row [R, D] by sigmoid(x W^T) + bias, ties to the lowest number.

    Weights are the sigmoid values at the chosen, without the bias, divided by (their sum + 1e-20), times
    `scaling`. Scores are float32. `arrange`: rows are also put in the order of the experts' products, where
    that costs nothing beside the scores.
    """
    shape = (weight.shape[0], weight.shape[1])
    name = choose(Case("router", (format_of(weight),), x.dtype, x.device, shape))
    if name == TRITON:
        return launch.launch(x, weight, bias, rows, top=top, scaling=scaling, arrange=arrange)
    return reference.route(x, weight, bias, rows, top=top, scaling=scaling)
