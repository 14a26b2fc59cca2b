"""SwiGLU with a clamp before the activation, and its routed form.

gate+up is one stacked matrix, gate rows first: [2I, D], or [E, 2I, D] for experts.
"""

import torch
from torch import Tensor

from intarsia.core.rows import pad_rows
from intarsia.kernels.elementwise import silu
from intarsia.kernels.experts.packed import ExpertStack
from intarsia.kernels.linear import linear
from intarsia.kernels.looks import look
from intarsia.kernels.router import Routing
from intarsia.kernels.weights import Weight


def swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """silu(min(g, limit)) * clamp(u, -limit, limit) of `gate_up` [R, 2I] -> [R, I]; float32, rounded once."""
    gate, up = gate_up.float().chunk(2, -1)
    return (silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)).to(gate_up.dtype)


def routed_experts(
    x: Tensor, routing: Routing, gate_up: ExpertStack, down: ExpertStack, limit: float
) -> Tensor:
    """Weighted sum, float32 [R, D], of each row's experts; padding rows get zeros.

    gate_up [E, 2I, D] and down [E, D, I]. Only experts that a row needs are decoded, one at a time. A row's
    results are added in the order of its own choice, so its bits do not depend on other rows.
    """
    look("which experts are chosen")
    top = routing.experts.shape[1]
    parts = torch.zeros(x.shape[0], top, x.shape[1], dtype=torch.float32, device=x.device)
    for expert in sorted(set(routing.experts.flatten().tolist()) - {-1}):
        where, slot = (routing.experts == expert).nonzero(as_tuple=True)
        inner = swiglu(linear(pad_rows(x[where]), _expert(gate_up, expert)), limit)
        y = linear(inner, _expert(down, expert), out_dtype=torch.float32)
        parts[where, slot] = y[: where.shape[0]]
    total = torch.zeros_like(parts[:, 0])
    for slot in range(top):
        total = total + routing.weights[:, slot, None] * parts[:, slot]
    return total


def _expert(weight: ExpertStack, expert: int) -> Weight:
    return weight[expert] if isinstance(weight, Tensor) else weight.expert(expert)
