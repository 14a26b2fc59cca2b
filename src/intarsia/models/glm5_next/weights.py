"""The weights of the network by role, taken from a flat mapping of run-time names until nothing is left."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from intarsia.core.errors import Violation
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels.experts import ExpertStack, prepare
from intarsia.kernels.weights import Weight
from intarsia.models.errors import ModelWeightsError


@dataclass(frozen=True, slots=True)
class KdaWeights:
    """Linear attention: q, k, v, their convolution, the decay and output gates, and the output."""

    q: Weight
    k: Weight
    v: Weight
    conv: Tensor
    b: Weight
    f_a: Weight
    f_b: Weight
    a_log: Tensor
    dt_bias: Tensor
    g_a: Weight
    g_b: Weight
    o_norm: Tensor
    o: Weight


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    """The pooled sparse indexer of one MLA layer."""

    wq_b: Weight
    wk: Weight
    k_norm: Tensor
    k_norm_bias: Tensor
    weights: Weight
    gate: Weight
    ape: Tensor


@dataclass(frozen=True, slots=True)
class MlaWeights:
    """Latent attention."""

    q_a: Weight
    q_a_norm: Tensor
    q_b: Weight
    kv_a: Weight
    kv_a_norm: Tensor
    kv_b: Weight
    o: Weight
    indexer: IndexerWeights


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """One SwiGLU: gate rows first in `gate_up`."""

    gate_up: Weight
    down: Weight


@dataclass(frozen=True, slots=True)
class ExpertsWeights:
    """The routed experts, stacked, as stored or in their kernel's order: gate rows first in `gate_up`."""

    gate_up: ExpertStack
    down: ExpertStack


@dataclass(frozen=True, slots=True)
class MoeWeights:
    """Routed experts and the shared expert beside them."""

    router: Weight
    bias: Tensor
    experts: ExpertsWeights
    shared: MlpWeights


@dataclass(frozen=True, slots=True)
class HyperWeights:
    """One site of the hyper-connections."""

    fn: Tensor
    base: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """Attention and feed-forward with the norms before them."""

    attention_norm: Tensor
    attention: KdaWeights | MlaWeights
    mlp_norm: Tensor
    mlp: MlpWeights | MoeWeights


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """A main layer: a block and the hyper-connections around its two sites."""

    block: BlockWeights
    attention_mix: HyperWeights
    mlp_mix: HyperWeights


@dataclass(frozen=True, slots=True)
class MtpWeights:
    """The multi-token-prediction layer; its embedding and head are the main model's."""

    enorm: Tensor
    hnorm: Tensor
    eh_proj: Weight
    block: BlockWeights
    norm: Tensor


@dataclass(frozen=True, slots=True)
class NetworkWeights:
    """The whole text network; `mtp` is None where the checkpoint has no such layer."""

    embedding: Weight
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Weight
    mtp: MtpWeights | None


def network_weights(flat: Mapping[str, Weight], config: Glm5NextConfig) -> NetworkWeights:
    """Sort run-time weights into their roles.

    Names are those of `families.glm5_next.runtime`. Raises ModelWeightsError with every name that is missing
    or left over.
    """
    take = _Take(flat)
    has_mtp = any(name.startswith("mtp.") for name in flat)
    result = NetworkWeights(
        embedding=take("embed_tokens"),
        layers=tuple(_layer(take, config, i) for i in range(config.num_hidden_layers)),
        norm=take.tensor("norm"),
        head=take("lm_head"),
        mtp=_mtp(take) if has_mtp else None,
    )
    take.finish()
    return result


def prepare_experts(
    weights: NetworkWeights, dtype: torch.dtype, device: torch.device | str, *, resident: bool = False
) -> NetworkWeights:
    """The same network with each layer's experts as their kernel wants them for rows in `dtype`.

    Where that is another order of their bytes it is made in their own memory: the stacks given are spent.
    `resident`: with block scales compressed; KernelError where no kernel reads them so.
    """

    def prepared(block: BlockWeights) -> BlockWeights:
        if not isinstance(block.mlp, MoeWeights):
            return block
        experts = block.mlp.experts
        stacks = prepare(experts.gate_up, experts.down, dtype, torch.device(device), resident=resident)
        return replace(block, mlp=replace(block.mlp, experts=ExpertsWeights(*stacks)))

    layers = tuple(replace(layer, block=prepared(layer.block)) for layer in weights.layers)
    mtp = weights.mtp and replace(weights.mtp, block=prepared(weights.mtp.block))
    return replace(weights, layers=layers, mtp=mtp)


def _layer(take: "_Take", config: Glm5NextConfig, index: int) -> LayerWeights:
    prefix = f"layers.{index}."
    return LayerWeights(
        block=_block(take, prefix, config.attention_kind(index) == "kda", config.mlp_kind(index) == "sparse"),
        attention_mix=_hyper(take, prefix + "hc_attn_"),
        mlp_mix=_hyper(take, prefix + "hc_ffn_"),
    )


def _mtp(take: "_Take") -> MtpWeights:
    return MtpWeights(
        enorm=take.tensor("mtp.enorm"),
        hnorm=take.tensor("mtp.hnorm"),
        eh_proj=take("mtp.eh_proj"),
        block=_block(take, "mtp.", kda=False, sparse=True),
        norm=take.tensor("mtp.shared_head.norm"),
    )


def _block(take: "_Take", prefix: str, kda: bool, sparse: bool) -> BlockWeights:
    return BlockWeights(
        attention_norm=take.tensor(prefix + "input_layernorm"),
        attention=(_kda if kda else _mla)(take, prefix + "self_attn."),
        mlp_norm=take.tensor(prefix + "post_attention_layernorm"),
        mlp=(_moe if sparse else _mlp)(take, prefix + "mlp."),
    )


def _kda(take: "_Take", prefix: str) -> KdaWeights:
    return KdaWeights(
        q=take(prefix + "q_proj"),
        k=take(prefix + "k_proj"),
        v=take(prefix + "v_proj"),
        conv=take.tensor(prefix + "conv1d"),
        b=take(prefix + "b_proj"),
        f_a=take(prefix + "f_a_proj"),
        f_b=take(prefix + "f_b_proj"),
        a_log=take.tensor(prefix + "A_log"),
        dt_bias=take.tensor(prefix + "dt_bias"),
        g_a=take(prefix + "g_a_proj"),
        g_b=take(prefix + "g_b_proj"),
        o_norm=take.tensor(prefix + "o_norm"),
        o=take(prefix + "o_proj"),
    )


def _mla(take: "_Take", prefix: str) -> MlaWeights:
    indexer = prefix + "indexer."
    return MlaWeights(
        q_a=take(prefix + "q_a_proj"),
        q_a_norm=take.tensor(prefix + "q_a_layernorm"),
        q_b=take(prefix + "q_b_proj"),
        kv_a=take(prefix + "kv_a_proj_with_mqa"),
        kv_a_norm=take.tensor(prefix + "kv_a_layernorm"),
        kv_b=take(prefix + "kv_b_proj"),
        o=take(prefix + "o_proj"),
        indexer=IndexerWeights(
            wq_b=take(indexer + "wq_b"),
            wk=take(indexer + "wk"),
            k_norm=take.tensor(indexer + "k_norm"),
            k_norm_bias=take.tensor(indexer + "k_norm.bias"),
            weights=take(indexer + "weights_proj"),
            gate=take(indexer + "index_kpool_compress_gate"),
            ape=take.tensor(indexer + "index_kpool_compress_ape"),
        ),
    )


def _mlp(take: "_Take", prefix: str) -> MlpWeights:
    return MlpWeights(gate_up=take(prefix + "gate_up"), down=take(prefix + "down"))


def _moe(take: "_Take", prefix: str) -> MoeWeights:
    return MoeWeights(
        router=take(prefix + "gate"),
        bias=take.tensor(prefix + "gate.e_score_correction_bias"),
        experts=ExpertsWeights(take(prefix + "experts.gate_up"), take(prefix + "experts.down")),
        shared=_mlp(take, prefix + "shared_experts."),
    )


def _hyper(take: "_Take", prefix: str) -> HyperWeights:
    return HyperWeights(
        take.tensor(prefix + "fn"), take.tensor(prefix + "base"), take.tensor(prefix + "scale")
    )


class _Take:
    """Hands out each weight once and remembers what was missing."""

    def __init__(self, flat: Mapping[str, Weight]) -> None:
        self._left = dict(flat)
        self._missing: list[str] = []

    def __call__(self, name: str) -> Weight:
        weight = self._left.pop(name, None)
        if weight is None:
            self._missing.append(name)
            return torch.empty(0)  # a stand-in; `finish` raises before it can be used
        return weight

    def tensor(self, name: str) -> Tensor:
        weight = self(name)
        return weight if isinstance(weight, Tensor) else weight.tensors["weight"]

    def finish(self) -> None:
        violations = [
            Violation("missing-weight", name, found="nothing", action=self._nearest(name))
            for name in self._missing
        ]
        violations += [
            Violation("unused-weight", name, found="a weight that the network has no place for")
            for name in self._left
        ]
        if violations:
            raise ModelWeightsError("network", violations)

    def _nearest(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._left, n=1)
        return f"the nearest unused name is {near[0]}" if near else ""
