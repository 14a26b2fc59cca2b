"""Sigmoid scores with a selection bias that never enters the weights, all in float32."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from intarsia.kernels.elementwise import sigmoid
from intarsia.kernels.rows import Rows
from intarsia.kernels.tiles import in_row_tiles
from intarsia.kernels.weights import Weight, dense

WEIGHT_EPS = 1e-20


@dataclass(frozen=True, slots=True)
class Routing:
    """experts int32 [R, k], -1 for padding rows; weights float32 [R, k].

    `arranged` [R, D]: the rows in the order of the experts' products of few rows, where they were made.
    """

    experts: Tensor
    weights: Tensor
    arranged: Tensor | None = None


def route(x: Tensor, weight: Weight, bias: Tensor, rows: Rows, *, top: int, scaling: float) -> Routing:
    """The `top` experts by sigmoid(x W^T) + bias, ties to the lowest number.

    Weights are the sigmoid values at the chosen, without the bias, divided by (their sum + 1e-20), times
    `scaling`.
    """
    wide = dense(weight, torch.float32)
    scores = sigmoid(in_row_tiles(lambda part: F.linear(part, wide), x.float()))
    order = torch.sort(scores + bias.float(), dim=1, descending=True, stable=True).indices[:, :top]
    chosen = scores.gather(1, order)
    weights = chosen / (chosen.sum(1, keepdim=True) + WEIGHT_EPS) * scaling
    experts = order.to(torch.int32).masked_fill(rows.padding.unsqueeze(1), -1)
    return Routing(experts, weights)
