"""Norms and manifold-constrained hyper-connections (mHC): four residual streams mixed per token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .fused import fused
from .settings import NetworkSettings
from .sinkhorn import sinkhorn


def stored(weight: Tensor, training: bool) -> Tensor:
    """`weight` as F32 holding the values its BF16 file copy has, so that training sees what is shipped."""
    return weight.to(torch.bfloat16).float() if training else weight


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm with F32 arithmetic throughout; F32 out."""
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class RMSNorm(nn.Module):
    """RMSNorm whose weight is stored BF16, or F32 when `exact`."""

    def __init__(self, size: int, eps: float, exact: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps, self.exact, self.rounded = eps, exact, False

    @property
    def value(self) -> Tensor:
        return stored(self.weight, self.rounded and not self.exact)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm_region(x, self.value, self.eps)


rms_norm_region = fused(rms_norm)


@fused
def stream_weights(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, norm: Tensor, s: NetworkSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Streams [B, T, N, D] -> (normed input [B, T, D] F32, post [B, T, N], mixing logits [B, T, N, N])."""
    n = s.streams
    flat = streams.flatten(-2).float()
    m = functional.linear(flat, fn) * torch.rsqrt(flat.pow(2).mean(-1, keepdim=True) + s.rms_norm_eps)
    pre = torch.sigmoid(m[..., :n] * scale[0] + base[:n]) + s.hc_eps
    post = 2.0 * torch.sigmoid(m[..., n : 2 * n] * scale[1] + base[n : 2 * n])
    mixing = m[..., 2 * n :] * scale[2] + base[2 * n :]
    collapsed = (pre[..., None] * streams).sum(-2)
    return rms_norm(collapsed, norm, s.rms_norm_eps), post, mixing.unflatten(-1, (n, n))


def read_streams(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, norm: Tensor, s: NetworkSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Streams [B, T, N, D] -> (normed block input [B, T, D] F32, post [B, T, N], mixing [B, T, N, N])."""
    x, post, logits = stream_weights(streams, fn, base, scale, norm, s)
    return x, post, sinkhorn(logits, s.sinkhorn_iterations, s.hc_eps)


@fused
def write_streams(streams: Tensor, block: Tensor, post: Tensor, mixing: Tensor) -> Tensor:
    """X'[j] = post[j] * y + sum_i M[i][j] X[i]."""
    mixed = (mixing[..., :, :, None] * streams[..., :, None, :]).sum(-3)
    return mixed + post[..., None] * block.float()[..., None, :]


class HyperSite(nn.Module):
    """The three mHC tensors of one site; registered by the layer under their checkpoint names."""

    @staticmethod
    def initial(s: NetworkSettings, site: int) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
        """(fn, base, scale): near-identity mixing, reading the mean of the streams, writing to all of them.

        A tilt that differs per site gives each stream its own readers, so that they do not stay copies.
        """
        n = s.streams
        fn = torch.randn((2 + n) * n, n * s.hidden_size) * 0.02
        pre = torch.full((n,), -1.1) + 0.5 * torch.randn(n)
        pre[site % n] += 1.0
        post = 0.4 * torch.randn(n)
        mixing = 3.5 * torch.eye(n) + 0.1 * torch.randn(n, n)
        base = torch.cat([pre, post, mixing.flatten()])
        return (
            nn.Parameter(fn),
            nn.Parameter(base),
            nn.Parameter(torch.full((3,), 0.5) + 0.01 * torch.randn(3)),
        )
