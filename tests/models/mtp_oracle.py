"""The MTP layer put together from transformers' modules, which has none of its own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.models.cases import Case
from tests.models.oracle import quiet


class FixedSelection(torch.nn.Module):
    """Stands in for an indexer; answers with token positions that are given."""

    def __init__(self, selected: Tensor) -> None:
        super().__init__()
        self.selected = selected

    def forward(self, **_: Any) -> Tensor:
        return self.selected


class MtpOracle:
    """One pass over all rows of a sequence, without any cache."""

    def __init__(self, case: Case) -> None:
        with quiet():
            from transformers.models.glm5_next import modeling_glm5_next as modules

        config = case.oracle.config.text_config
        prefix = f"model.language_model.layers.{config.num_hidden_layers}."
        self.own = {
            name.removeprefix(prefix): w for name, w in case.tensors.items() if name.startswith(prefix)
        }
        self.eps = config.rms_norm_eps
        self.embedding = case.tensors["model.language_model.embed_tokens.weight"]
        self.head = case.tensors["lm_head.weight"]
        self.attention = modules.Glm5NextTextAttention(config, config.layer_types.index("indexed_attention"))
        self.attention.load_state_dict(self._part("self_attn."))
        self.indexer = self.attention.indexer
        self.experts = modules.Glm5NextTextMoE(config)
        self.experts.load_state_dict(_stacked(self._part("mlp."), config.n_routed_experts))

    def hidden(self, following: Sequence[int], hidden: Tensor, selected: Tensor | None = None) -> Tensor:
        """Normed hidden rows [T, D]: row i takes the token after position i and the main hidden of i."""
        embedded = self.embedding[torch.tensor(following)]
        embedded[0] = 0
        joined = torch.cat([self._norm(embedded, "enorm"), self._norm(hidden, "hnorm")], -1)
        x = joined @ self.own["eh_proj.weight"].T
        self.attention.indexer = self.indexer if selected is None else FixedSelection(selected)
        with torch.no_grad(), quiet():
            mask = torch.ones(1, len(following), dtype=torch.bool)
            x = x + self.attention(self._norm(x, "input_layernorm").unsqueeze(0), mask)[0][0]
            x = x + self.experts(self._norm(x, "post_attention_layernorm").unsqueeze(0))[0]
        return self._norm(x, "shared_head.norm")

    def selection(self, following: Sequence[int], hidden: Tensor) -> Tensor:
        """The token positions int32 [1, T, S] that the layer's own indexer selects."""
        seen = []
        hook = self.indexer.register_forward_hook(lambda _, __, result: seen.append(result))
        self.hidden(following, hidden)
        hook.remove()
        return seen[0]

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.own[f"{name}.weight"]

    def _part(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): w for name, w in self.own.items() if name.startswith(prefix)}


def _stacked(part: dict[str, Tensor], experts: int) -> dict[str, Tensor]:
    """Experts as transformers holds them: stacked, gate above up."""
    rest = {name: weight for name, weight in part.items() if not name.startswith("experts.")}

    def each(kind: str) -> list[Tensor]:
        return [part[f"experts.{expert}.{kind}_proj.weight"] for expert in range(experts)]

    gate_up = [torch.cat(pair) for pair in zip(each("gate"), each("up"), strict=True)]
    return rest | {
        "experts.gate_up_proj": torch.stack(gate_up),
        "experts.down_proj": torch.stack(each("down")),
    }
