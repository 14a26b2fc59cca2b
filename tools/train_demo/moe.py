"""Feed-forward parts: SwiGLU with the clamp, the router, routed experts.

Training computes every expert for every token and weights the unselected ones by zero: for twelve small
experts that
costs less than moving tokens, and the shapes stay fixed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .fused import fused
from .hyper import stored
from .kda import Linear
from .settings import NetworkSettings


@fused
def clamped_swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit) in F32, returned in the inputs' dtype."""
    act = functional.silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)
    return act.to(gate.dtype)


@fused
def weighted_swiglu(hidden: Tensor, weights: Tensor, limit: float) -> Tensor:
    """hidden [..., E, 2I], weights [..., E] -> [..., E * I]."""
    gate, up = hidden.float().chunk(2, -1)
    act = functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    return (act * weights[..., None]).to(hidden.dtype).flatten(-2)


class DenseMLP(nn.Module):
    """A dense or shared SwiGLU block."""

    def __init__(self, hidden: int, width: int, limit: float) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = Linear(hidden, width), Linear(hidden, width)
        self.down_proj = Linear(width, hidden, 0.35)
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(clamped_swiglu(self.gate_proj(x), self.up_proj(x), self.limit))


class Router(nn.Module):
    """Sigmoid scores; the correction bias takes part in the choice only."""

    def __init__(self, s: NetworkSettings) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(s.experts, s.hidden_size) / math.sqrt(s.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(s.experts))
        self.register_buffer("load", torch.zeros(s.experts), persistent=False)
        self.top, self.factor, self.rounded = s.experts_per_token, s.routed_scaling_factor, False

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, D] -> combine weights [B, T, E], zero for the experts not chosen; counts the load."""
        p = torch.sigmoid(functional.linear(x.float(), stored(self.weight, self.rounded)))
        best = (p.detach() + self.e_score_correction_bias).topk(self.top, -1).indices
        chosen = torch.zeros_like(p).scatter_(-1, best, 1.0)
        if self.training:
            self.load.copy_(chosen.detach().flatten(0, -2).mean(0))
        kept = p * chosen
        return kept / (kept.sum(-1, keepdim=True) + 1e-20) * self.factor

    @torch.no_grad()
    def balance(self, rate: float | Tensor) -> None:
        """Raises the bias of experts with less than the mean load and lowers the others'."""
        self.e_score_correction_bias.add_((self.load.mean() - self.load).sign() * rate)


class Experts(nn.Module):
    """Routed experts stacked: gate_up_proj [E, 2I, D] (gate rows first), down_proj [E, D, I]."""

    def __init__(self, s: NetworkSettings) -> None:
        super().__init__()
        width = s.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(
            torch.randn(s.experts, 2 * width, s.hidden_size) / math.sqrt(s.hidden_size)
        )
        self.down_proj = nn.Parameter(torch.randn(s.experts, s.hidden_size, width) * 0.2 / math.sqrt(width))
        self.limit, self.compute = s.swiglu_limit, torch.float32

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        up = self.gate_up_proj.to(self.compute)
        down = self.down_proj.to(self.compute)
        hidden = functional.linear(x.to(self.compute), up.flatten(0, 1)).unflatten(-1, up.shape[:2])
        act = weighted_swiglu(hidden, weights, self.limit)
        return functional.linear(act, down.transpose(0, 1).flatten(1))


class MoE(nn.Module):
    """Routed experts plus the shared expert."""

    def __init__(self, s: NetworkSettings) -> None:
        super().__init__()
        self.gate = Router(s)
        self.experts = Experts(s)
        self.shared_experts = DenseMLP(s.hidden_size, s.moe_intermediate_size, s.swiglu_limit)

    def forward(self, x: Tensor) -> Tensor:
        return self.experts(x, self.gate(x)) + self.shared_experts(x)
