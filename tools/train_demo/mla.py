"""Latent attention (MLA, no positions) with the pooled sparse indexer and the indexer's own loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .fused import fused
from .hyper import RMSNorm, stored
from .kda import Linear
from .settings import NetworkSettings

NEGATIVE = -1e30


@fused
def pooled_keys(k: Tensor, gate: Tensor, ape: Tensor) -> Tensor:
    """[B, T, C] keys and gates -> [B, T // 4, C]: a softmax over the pool's tokens for each channel."""
    pool = ape.shape[0]
    pools = k.shape[1] // pool
    k, gate = (x[:, : pools * pool].float().unflatten(1, (pools, pool)) for x in (k, gate))
    return ((gate + ape).softmax(2) * k).sum(2)


@fused
def index_scores(dots: Tensor, weights: Tensor, visible: Tensor, scale: float) -> Tensor:
    """dots [B, T, H, P] -> scores [B, T, P]; pools that are not complete yet get a large negative score."""
    scores = (functional.relu(dots.float() * scale) * weights[..., None]).sum(2)
    return scores.masked_fill(~visible, NEGATIVE)


@fused
def indexer_loss(scores: Tensor, attention: Tensor, visible: Tensor, pool: int) -> Tensor:
    """Mean KL(attention || indexer) over the complete pools; rows without one add nothing."""
    pools = scores.shape[-1]
    target = attention[..., : pools * pool].unflatten(-1, (pools, pool)).sum(-1) * visible
    target = target / (target.sum(-1, keepdim=True) + 1e-9)
    log_q = scores.log_softmax(-1)
    return (target * ((target + 1e-9).log() - log_q)).masked_fill(~visible, 0.0).sum(-1).mean()


@fused
def attend(scores: Tensor, allowed: Tensor, scale: float) -> Tensor:
    """softmax(scores * scale) over the allowed tokens, F32; scores [B, H, T, T], allowed broadcast to it."""
    return (scores.float() * scale).masked_fill(~allowed, NEGATIVE).softmax(-1)


class Indexer(nn.Module):
    """Scores pools of four tokens for each query. Its inputs are detached: only its own loss trains it."""

    def __init__(self, s: NetworkSettings) -> None:
        super().__init__()
        self.heads, self.dim, self.pool = s.index_heads, s.index_head_dim, s.pool
        self.wq_b = Linear(s.q_lora_rank, self.heads * self.dim)
        self.wk = Linear(s.hidden_size, self.dim)
        self.weights_proj = Linear(s.hidden_size, self.heads)
        self.k_norm = nn.LayerNorm(self.dim, eps=1e-6)
        self.index_kpool_compress_ape = nn.Parameter(0.02 * torch.randn(self.pool, self.dim))
        self.index_kpool_compress_gate = nn.Parameter(0.02 * torch.randn(self.dim, s.hidden_size))
        self.rounded = False

    def forward(self, x: Tensor, latent: Tensor, visible: Tensor) -> Tensor:
        """x [B, T, D], q latent [B, T, R], visible [T, P] -> scores [B, T, P] F32."""
        x, latent = x.detach(), latent.detach()
        rounded = self.rounded
        q = self.wq_b(latent).unflatten(-1, (self.heads, self.dim))
        norm = (stored(self.k_norm.weight, rounded), stored(self.k_norm.bias, rounded))
        k = functional.layer_norm(self.wk(x).float(), (self.dim,), *norm, 1e-6)
        gate = functional.linear(x.to(q.dtype), self.index_kpool_compress_gate.to(q.dtype))
        keys = pooled_keys(k, gate, stored(self.index_kpool_compress_ape, rounded)).to(q.dtype)
        dots = torch.einsum("bthc,bpc->bthp", q, keys)
        weights = functional.linear(x.float(), stored(self.weights_proj.weight, rounded)) * self.heads**-0.5
        return index_scores(dots, weights, visible, self.dim**-0.5)


class LatentAttention(nn.Module):
    """One MLA layer's attention. `sparse` chooses between the selected tokens and all earlier ones."""

    def __init__(self, s: NetworkSettings) -> None:
        super().__init__()
        self.heads, self.qk, self.v = s.mla_heads, s.qk_head_dim, s.v_head_dim
        self.pool, self.keep = s.pool, s.index_pools
        self.q_a_proj = Linear(s.hidden_size, s.q_lora_rank)
        self.q_a_layernorm = RMSNorm(s.q_lora_rank, s.rms_norm_eps)
        self.q_b_proj = Linear(s.q_lora_rank, self.heads * self.qk)
        self.kv_a_proj_with_mqa = Linear(s.hidden_size, s.kv_lora_rank)
        self.kv_a_layernorm = RMSNorm(s.kv_lora_rank, s.rms_norm_eps)
        self.kv_b_proj = Linear(s.kv_lora_rank, self.heads * (self.qk + self.v))
        self.o_proj = Linear(self.heads * self.v, s.hidden_size, 0.35)
        self.indexer = Indexer(s)

    def select(self, scores: Tensor, visible: Tensor, causal: Tensor) -> Tensor:
        """Tokens each query may see: its best complete pools and the unfinished pool; [B, 1, T, T]."""
        length, pools = causal.shape[0], scores.shape[-1]
        tail = causal & (
            torch.arange(length, device=causal.device) // self.pool == pools_seen(length, self.pool, causal)
        )
        if pools == 0:
            return tail.expand(scores.shape[0], 1, -1, -1)
        best = scores.topk(min(self.keep, pools), -1).indices
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True) & visible
        tokens = functional.pad(chosen.repeat_interleave(self.pool, -1), (0, length - pools * self.pool))
        return (tokens | tail)[:, None]

    def forward(self, x: Tensor, sparse: bool) -> tuple[Tensor, Tensor]:
        """x [B, T, D] -> (output [B, T, D], the indexer's loss)."""
        length, device = x.shape[1], x.device
        latent = self.q_a_layernorm(self.q_a_proj(x))
        q = self.q_b_proj(latent).unflatten(-1, (self.heads, self.qk)).transpose(1, 2)
        c = self.kv_a_layernorm(self.kv_a_proj_with_mqa(x))
        k, v = (
            self.kv_b_proj(c)
            .unflatten(-1, (self.heads, self.qk + self.v))
            .transpose(1, 2)
            .split([self.qk, self.v], -1)
        )
        position = torch.arange(length, device=device)
        causal = position[:, None] >= position
        last = torch.arange(length // self.pool, device=device) * self.pool + self.pool - 1
        visible = position[:, None] >= last
        index = self.indexer(x, latent, visible)
        scores = q @ k.transpose(-1, -2)
        scale = self.qk**-0.5
        with torch.no_grad():
            dense = attend(scores, causal, scale)
        loss = indexer_loss(index, dense.mean(1), visible, self.pool)
        allowed = self.select(index.detach(), visible, causal) if sparse else causal
        out = attend(scores, allowed, scale).to(v.dtype) @ v
        return self.o_proj(out.transpose(1, 2).flatten(-2)), loss


def pools_seen(length: int, pool: int, like: Tensor) -> Tensor:
    """[T, 1]: the number of pools complete at each position, which is also the unfinished pool's number."""
    return ((torch.arange(length, device=like.device) + 1) // pool)[:, None]
