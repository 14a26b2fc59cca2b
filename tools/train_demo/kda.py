"""Kimi delta attention (KDA) for training: the chunked form over [batch x heads, chunks], differentiable."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .fused import fused
from .hyper import RMSNorm, stored
from .settings import NetworkSettings

CHUNK = 64
BLOCK = (
    16  # inside 16 tokens the log decay spans at most 80, so factored exponentials around its middle fit F32
)


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 for strictly lower triangular A, by doubling the size of inverted diagonal blocks."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        size = a.shape[-1]
        index = torch.arange(size, device=a.device)
        inverse = torch.eye(size, dtype=a.dtype, device=a.device).expand_as(a)
        width = 1
        while width < size:
            pair, half = index // (2 * width), index // width
            below = (pair[:, None] == pair[None, :]) & (half[:, None] > half[None, :])
            corner = a * below
            inverse = inverse - (corner if width == 1 else inverse @ corner @ inverse)
            width *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return -(transposed @ grad @ transposed).tril(-1)


@fused
def convolve(x: Tensor, taps: Tensor) -> Tensor:
    """Depthwise causal convolution and SiLU, F32: x [B, T, C], taps [C, 4], current token last."""
    count = taps.shape[1]
    length = x.shape[1]
    padded = functional.pad(x.float(), (0, 0, count - 1, 0))
    mixed = padded[:, :length] * taps[:, 0]
    for j in range(1, count):
        mixed = mixed + padded[:, j : j + length] * taps[:, j]
    return functional.silu(mixed)


@fused
def chunk_factors(
    qkv: Tensor, gate: Tensor, beta: Tensor, a_log: Tensor, dt_bias: Tensor, heads: int, bound: float
) -> tuple[Tensor, ...]:
    """Per-chunk factors of the delta rule.

    qkv [B, T, 3HK] convolved, gate [B, T, HK], beta [B, T, H] logits; T a multiple of 64.
    Returns rows [n, c, 4, 32, K], columns [n, c, 4, 64, K], beta*v, beta*k*exp(G), q*exp(G), k*exp(G_last-G),
    each [n, c, 64, K] with n = B*H, and exp(G_last) [n, c, K].
    """
    batch, length, width = qkv.shape
    dim = width // (3 * heads)

    def split(x: Tensor) -> Tensor:
        return x.reshape(batch, length // CHUNK, CHUNK, heads, dim).permute(0, 3, 1, 2, 4).flatten(0, 1)

    q, k, v = (split(part) for part in qkv.split(heads * dim, -1))
    q = q * torch.rsqrt(q.pow(2).sum(-1, keepdim=True) + 1e-6) * dim**-0.5
    k = k * torch.rsqrt(k.pow(2).sum(-1, keepdim=True) + 1e-6)
    rate = a_log.exp().repeat_interleave(dim)
    g = split(bound * torch.sigmoid(rate * (gate.float() + dt_bias))).cumsum(-2)
    b = torch.sigmoid(beta.float()).reshape(batch, length // CHUNK, CHUNK, heads)
    b = b.permute(0, 3, 1, 2).flatten(0, 1)[..., None]
    blocks = g.unflatten(-2, (CHUNK // BLOCK, BLOCK))
    middle = blocks[..., BLOCK // 2 - 1, :]
    row = (blocks - middle[..., None, :]).exp()
    # Later tokens are masked afterwards; the clamp only keeps their exponential finite.
    column = (middle[..., None, :] - g[..., None, :, :]).clamp(max=45.0).exp()
    kb = k * b
    rows = torch.cat([q.unflatten(-2, (-1, BLOCK)) * row, kb.unflatten(-2, (-1, BLOCK)) * row], -2)
    last = g[..., -1:, :]
    decay = g.exp()
    return (
        rows,
        k[..., None, :, :] * column,
        v * b,
        kb * decay,
        q * decay,
        k * (last - g).exp(),
        last[..., 0, :].exp(),
    )


@fused
def mask_pairs(pairs: Tensor) -> tuple[Tensor, Tensor]:
    """[n, c, 4, 32, 64] products -> (q.k for s <= t, beta k.k for s < t), each [n, c, 64, 64]."""
    query = pairs[..., :BLOCK, :].flatten(-3, -2)
    key = pairs[..., BLOCK:, :].flatten(-3, -2)
    return query.tril(), key.tril(-1)


def chunked_delta_rule(factors: tuple[Tensor, ...], batch: int, heads: int) -> Tensor:
    """Outputs [B, T, H, V] F32 of the gated delta rule from an empty state."""
    rows, columns, vb, kbg, qg, kg, decay = factors
    attention, a = mask_pairs(rows @ columns.transpose(-1, -2))
    inverse = UnitLowerInverse.apply(a)
    u, w = (inverse @ torch.cat([vb, kbg], -1)).split(vb.shape[-1], -1)
    state = torch.zeros_like(u[:, 0, :1]).expand(-1, kg.shape[-1], -1)
    states, fresh = [], []
    for c in range(u.shape[1]):
        states.append(state)
        new = torch.baddbmm(u[:, c], w[:, c], state, alpha=-1)
        fresh.append(new)
        state = torch.baddbmm(state * decay[:, c, :, None], kg[:, c].transpose(-1, -2), new)
    values = torch.stack(fresh, 1)
    out = qg @ torch.stack(states, 1) + attention @ values
    return out.flatten(1, 2).unflatten(0, (batch, heads)).transpose(1, 2)


@fused
def gated_norm(o: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over a head's values times sigmoid(z)."""
    o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + eps) * weight
    return o * torch.sigmoid(z.float())


class Linear(nn.Module):
    """A bias-free projection whose matmul runs in `compute` on weights rounded to it."""

    def __init__(self, inputs: int, outputs: int, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * (gain / math.sqrt(inputs)))
        self.compute = torch.float32

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x.to(self.compute), self.weight.to(self.compute))


class Conv1d(nn.Module):
    """Holds the taps [C, 1, 4] under the checkpoint's name."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        weight = torch.randn(channels, 1, taps) * 0.2
        weight[:, :, -1] += 0.7
        self.weight = nn.Parameter(weight)


class DeltaAttention(nn.Module):
    """One KDA layer's attention: x [B, T, D] -> [B, T, D]."""

    def __init__(self, s: NetworkSettings) -> None:
        super().__init__()
        self.heads, self.dim, self.bound, self.eps = (
            s.kda_heads,
            s.kda_head_dim,
            s.gate_lower_bound,
            s.rms_norm_eps,
        )
        width = self.heads * self.dim
        self.q_proj, self.k_proj, self.v_proj = (Linear(s.hidden_size, width) for _ in range(3))
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (Conv1d(width, s.conv_taps) for _ in range(3))
        self.f_a_proj, self.g_a_proj = (Linear(s.hidden_size, self.dim) for _ in range(2))
        self.f_b_proj, self.g_b_proj = (Linear(self.dim, width) for _ in range(2))
        self.b_proj = Linear(s.hidden_size, self.heads)
        self.o_norm = RMSNorm(self.dim, s.rms_norm_eps)
        self.o_proj = Linear(width, s.hidden_size, 0.35)
        self.A_log = nn.Parameter(0.1 * torch.randn(self.heads))
        self.dt_bias = nn.Parameter(torch.empty(width).uniform_(-7.0, -1.5))
        self.rounded = False

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)
        convs = (self.q_conv1d, self.k_conv1d, self.v_conv1d)
        taps = stored(torch.cat([c.weight for c in convs]), self.rounded).squeeze(1)
        qkv = convolve(qkv, taps)
        gate, beta = self.f_b_proj(self.f_a_proj(x)), self.b_proj(x)
        if pad := -length % CHUNK:
            qkv, gate, beta = (functional.pad(part, (0, 0, 0, pad)) for part in (qkv, gate, beta))
        factors = chunk_factors(qkv, gate, beta, self.A_log, self.dt_bias, self.heads, self.bound)
        o = chunked_delta_rule(factors, batch, self.heads)[:, :length]
        z = self.g_b_proj(self.g_a_proj(x)).unflatten(-1, (self.heads, self.dim))
        return self.o_proj(gated_norm(o, z, self.o_norm.value, self.eps).flatten(-2))
