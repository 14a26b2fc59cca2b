"""Hyper-connections as published for GLM-5.3: a doubly stochastic mix of the streams (Sinkhorn), all in
float32.

X is the residual state [R, N, D] of N streams. A site's weights are `fn` [N*(N+2), N*D], `base` [N*(N+2)] and
`scale` [3], in the order pre, post, mix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from intarsia.kernels.elementwise import sigmoid
from intarsia.kernels.tiles import in_row_tiles

POST_MULTIPLIER = 2.0


@dataclass(frozen=True, slots=True)
class HyperMix:
    """One site's float32 coefficients: `pre` and `post` [R, N], `mixing` [R, N, N] from stream i to j."""

    pre: Tensor
    post: Tensor
    mixing: Tensor

    def part(self, rows: slice) -> "HyperMix":
        """The coefficients of some of the rows."""
        return HyperMix(self.pre[rows], self.post[rows], self.mixing[rows])

    @staticmethod
    def joined(parts: Sequence["HyperMix"]) -> "HyperMix":
        """The coefficients of rows that were formed in parts."""
        return HyperMix(
            torch.cat([part.pre for part in parts]),
            torch.cat([part.post for part in parts]),
            torch.cat([part.mixing for part in parts]),
        )


def mix(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, norm_eps: float, eps: float, iterations: int
) -> HyperMix:
    """The coefficients of a site from the residual state [R, N, D]."""
    rows, count, _ = streams.shape
    flat = streams.reshape(rows, -1).float()
    inverse_rms = torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    wide = fn.float()
    m = in_row_tiles(lambda part: F.linear(part, wide), flat) * inverse_rms
    base, scale = base.float(), scale.float()
    pre = sigmoid(m[:, :count] * scale[0] + base[:count]) + eps
    post = POST_MULTIPLIER * sigmoid(m[:, count : 2 * count] * scale[1] + base[count : 2 * count])
    logits = (m[:, 2 * count :] * scale[2] + base[2 * count :]).view(rows, count, count)
    return HyperMix(pre, post, sinkhorn(torch.softmax(logits, -1) + eps, eps, iterations))


def sinkhorn(matrix: Tensor, eps: float, iterations: int) -> Tensor:
    """Normalise columns, then rows and columns in turn: `iterations` column passes in all."""
    matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        matrix = matrix / (matrix.sum(-1, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    return matrix


def collect(streams: Tensor, pre: Tensor) -> Tensor:
    """The block's input [R, D]: the streams [R, N, D] weighted by `pre`, rounded once to their dtype."""
    return in_row_tiles(torch.bmm, pre.unsqueeze(1), streams.float()).squeeze(1).to(streams.dtype)


def update(streams: Tensor, y: Tensor, coefficients: HyperMix) -> Tensor:
    """The next residual state: stream j gets post[j] * y and mixing[i, j] of every stream i; one rounding."""
    mixed = in_row_tiles(torch.bmm, coefficients.mixing.transpose(1, 2), streams.float())
    return (coefficients.post.unsqueeze(-1) * y.float().unsqueeze(1) + mixed).to(streams.dtype)


def merge(streams: Tensor) -> Tensor:
    """The mean of the streams, [R, D], which the final norm takes."""
    return streams.float().mean(1).to(streams.dtype)
