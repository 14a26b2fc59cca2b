"""The feed-forward half of a block."""

import torch
from torch import Tensor

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels.experts import routed_experts
from intarsia.kernels.linear import linear, linear_swiglu
from intarsia.kernels.router import route
from intarsia.kernels.rows import Rows
from intarsia.models.glm5_next.weights import MlpWeights, MoeWeights


def feed_forward(x: Tensor, w: MlpWeights | MoeWeights, config: Glm5NextConfig, rows: Rows) -> Tensor:
    """Dense or routed SwiGLU of normed rows [R, D]; float32 [R, D]. The shared expert is not scaled."""
    used = rows.starts[-1:]
    if isinstance(w, MlpWeights):
        return _mlp(x, w, config.swiglu_limit, used)
    routing = route(
        x, w.router, w.bias, rows, top=config.num_experts_per_tok, scaling=config.routed_scaling_factor
    )
    shared = _mlp(x, w.shared, config.swiglu_limit, used)
    return routed_experts(x, routing, w.experts.gate_up, w.experts.down, config.swiglu_limit, plus=shared)


def _mlp(x: Tensor, w: MlpWeights, limit: float, used: Tensor) -> Tensor:
    inner = linear_swiglu(x, w.gate_up, limit, used=used)
    return linear(inner, w.down, out_dtype=torch.float32, used=used)
