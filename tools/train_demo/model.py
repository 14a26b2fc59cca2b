"""The trainable network: GLM-5.3-Flash's text tower and its MTP layer in plain torch.

Module paths are the checkpoint's tensor names, except that routed experts are stacked (`export.py` splits
them).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .hyper import HyperSite, RMSNorm, read_streams, stored, write_streams
from .kda import DeltaAttention, Linear
from .mla import LatentAttention
from .moe import DenseMLP, MoE, Router
from .settings import NetworkSettings


class Layer(nn.Module):
    """A decoder layer: attention site, then feed-forward site, over the residual streams."""

    def __init__(self, s: NetworkSettings, index: int) -> None:
        super().__init__()
        self.settings, self.rounded = s, False
        self.is_mla = index in s.mla_layers
        self.self_attn = LatentAttention(s) if self.is_mla else DeltaAttention(s)
        dense = index < s.dense_layers
        self.mlp = DenseMLP(s.hidden_size, s.intermediate_size, s.swiglu_limit) if dense else MoE(s)
        self.input_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps, exact=True)
        self.hc_attn_fn, self.hc_attn_base, self.hc_attn_scale = HyperSite.initial(s, 2 * index)
        self.hc_ffn_fn, self.hc_ffn_base, self.hc_ffn_scale = HyperSite.initial(s, 2 * index + 1)

    def forward(self, streams: Tensor, sparse: bool) -> tuple[Tensor, Tensor | None]:
        """Streams [B, T, N, D] F32 -> (new streams, the indexer's loss in an MLA layer)."""
        s, loss = self.settings, None
        fn = stored(self.hc_attn_fn, self.rounded)
        x, post, mixing = read_streams(
            streams, fn, self.hc_attn_base, self.hc_attn_scale, self.input_layernorm.value, s
        )
        if self.is_mla:
            y, loss = self.self_attn(x, sparse)
        else:
            y = self.self_attn(x)
        streams = write_streams(streams, y, post, mixing)
        fn = stored(self.hc_ffn_fn, self.rounded)
        x, post, mixing = read_streams(
            streams, fn, self.hc_ffn_base, self.hc_ffn_scale, self.post_attention_layernorm.value, s
        )
        return write_streams(streams, self.mlp(x), post, mixing), loss


class DraftLayer(nn.Module):
    """The MTP layer: plain residuals, its own MLA and experts, the target's embedding and head."""

    def __init__(self, s: NetworkSettings) -> None:
        super().__init__()
        d, eps = s.hidden_size, s.rms_norm_eps
        self.enorm, self.hnorm = RMSNorm(d, eps), RMSNorm(d, eps)
        self.eh_proj = Linear(2 * d, d)
        self.self_attn, self.mlp = LatentAttention(s), MoE(s)
        self.input_layernorm = RMSNorm(d, eps)
        self.post_attention_layernorm = RMSNorm(d, eps, exact=True)
        self.shared_head = nn.ModuleDict({"norm": RMSNorm(d, eps)})

    def forward(self, embedded: Tensor, hidden: Tensor, sparse: bool) -> tuple[Tensor, Tensor]:
        """Embedding of token i+1 and final hidden at i -> (normed output, the indexer's loss)."""
        embedded = torch.cat([torch.zeros_like(embedded[:, :1]), embedded[:, 1:]], 1)
        x = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], -1)).float()
        y, loss = self.self_attn(self.input_layernorm(x), sparse)
        x = x + y.float()
        x = x + self.mlp(self.post_attention_layernorm(x)).float()
        return self.shared_head["norm"](x), loss


class Embedding(nn.Module):
    """Token rows, read as their BF16 file copy when `rounded`."""

    def __init__(self, s: NetworkSettings) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(s.vocab_size, s.hidden_size) * 0.25)
        self.rounded = False

    def forward(self, tokens: Tensor) -> Tensor:
        # index_select: its gradient needs no word from the host, so a CUDA graph can hold it.
        rows = stored(self.weight, self.rounded).index_select(0, tokens.flatten())
        return rows.unflatten(0, tokens.shape)


class Tower(nn.Module):
    """Embedding, layers (the MTP layer last), final norm."""

    def __init__(self, s: NetworkSettings) -> None:
        super().__init__()
        self.embed_tokens = Embedding(s)
        self.layers = nn.ModuleList([Layer(s, i) for i in range(s.num_layers)] + [DraftLayer(s)])
        self.norm = RMSNorm(s.hidden_size, s.rms_norm_eps, exact=True)


@dataclass
class Hidden:
    """What a pass over tokens gives: hidden after the final norm [B, T, D], and the indexers' mean loss."""

    states: Tensor
    index_loss: Tensor


class DemoModel(nn.Module):
    """The whole network. `precision(torch.bfloat16)` also makes it read weights as their BF16 file copy."""

    def __init__(self, s: NetworkSettings) -> None:
        super().__init__()
        self.settings = s
        self.model = nn.ModuleDict({"language_model": Tower(s)})
        self.lm_head = Linear(s.hidden_size, s.vocab_size, 0.5)

    def precision(self, compute: torch.dtype) -> DemoModel:
        """Chooses the matmuls' dtype; rounding of stored weights goes with BF16."""
        for module in self.modules():
            if hasattr(module, "compute"):
                module.compute = compute
            if hasattr(module, "rounded"):
                module.rounded = compute == torch.bfloat16
        return self

    @property
    def tower(self) -> Tower:
        return self.model["language_model"]  # type: ignore[return-value]

    @property
    def draft_layer(self) -> DraftLayer:
        return self.tower.layers[-1]  # type: ignore[return-value]

    def routers(self) -> Iterator[Router]:
        return (m for m in self.modules() if isinstance(m, Router))

    def main(self, tokens: Tensor, sparse: bool = True) -> Hidden:
        """tokens [B, T] -> hidden states after the final norm."""
        streams = self.tower.embed_tokens(tokens)[:, :, None].expand(-1, -1, self.settings.streams, -1)
        losses = []
        for layer in list(self.tower.layers)[:-1]:
            streams, loss = layer(streams, sparse)
            if loss is not None:
                losses.append(loss)
        return Hidden(self.tower.norm(streams.mean(2)), torch.stack(losses).mean())

    def draft(self, following: Tensor, hidden: Tensor, sparse: bool = True) -> Hidden:
        """MTP rows i from token i+1 ("following") and the hidden at i; their outputs predict token i+2."""
        states, loss = self.draft_layer(self.tower.embed_tokens(following), hidden, sparse)
        return Hidden(states, loss)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V] F32."""
        return self.lm_head(hidden).float()
