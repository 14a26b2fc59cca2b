"""The feed-forward half of a block."""

import torch
from torch import Tensor

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels.aside import aside, join
from intarsia.kernels.experts import routed_experts, takes_arranged
from intarsia.kernels.linear import linear, linear_swiglu
from intarsia.kernels.router import route
from intarsia.kernels.rows import Rows
from intarsia.models.glm5_next.weights import MlpWeights, MoeWeights


def feed_forward(x: Tensor, w: MlpWeights | MoeWeights, config: Glm5NextConfig, rows: Rows) -> Tensor:
    """Dense or routed SwiGLU of normed rows [R, D]; float32 [R, D]. The shared expert is not scaled."""
    used = rows.starts[-1:]
    if isinstance(w, MlpWeights):
        inner = linear_swiglu(x, w.gate_up, config.swiglu_limit, used=used)
        join(x)  # not later: the launch after this half reads what the launch before this half wrote aside
        return linear(inner, w.down, out_dtype=torch.float32, used=used)
    with aside(x):
        inner = linear_swiglu(x, w.shared.gate_up, config.swiglu_limit, used=used)
        shared = linear(inner, w.shared.down, out_dtype=torch.float32, used=used)
    top, experts = config.num_experts_per_tok, (w.experts.gate_up, w.experts.down)
    routing = route(
        x,
        w.router,
        w.bias,
        rows,
        top=top,
        scaling=config.routed_scaling_factor,
        arrange=takes_arranged(x, *experts, top),
    )
    return routed_experts(x, routing, *experts, config.swiglu_limit, plus=shared)
