"""Feed-forward blocks: one SwiGLU for all rows, or many behind a router."""

from torch import Tensor

from intarsia.kernels.choice import TRITON, Case, choose
from intarsia.kernels.experts import launch, reference
from intarsia.kernels.experts.reference import swiglu
from intarsia.kernels.linear.launch import format_of
from intarsia.kernels.router import Routing
from intarsia.kernels.weights import Weight

__all__ = ["routed_experts", "swiglu"]


def routed_experts(x: Tensor, routing: Routing, gate_up: Weight, down: Weight, limit: float) -> Tensor:
    """Weighted sum, float32 [R, D], of each row's experts; padding rows get zeros.

    gate_up [E, 2I, D] and down [E, D, I]. A row's results are added in the order of its own choice, so its
    bits do not depend on other rows.
    """
    formats = (format_of(gate_up), format_of(down))
    case = Case("experts", formats, x.dtype, x.device, (down.shape[0], down.shape[2], down.shape[1]))
    run = launch.launch if choose(case) == TRITON else reference.routed_experts
    return run(x, routing, gate_up, down, limit)
