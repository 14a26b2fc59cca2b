"""How each tensor is divided among ranks: one rule a name, applied by planning and loading.

An axis is cut in whole units (a head, 64 channels of a width, 64 vocabulary rows), the remainder going to the
lowest ranks, so three ranks hold 704/704/640 of a width of 2,048. What feeds all heads is replicated. The
embedding is replicated too: splitting it would cost one more exchange a step.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from intarsia.families.errors import UnknownTensorError
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.inventory import TEXT, VISION

WIDTH_UNIT = 64


@dataclass(frozen=True, slots=True)
class SplitRule:
    """Cut along `axis` (0 rows, 1 columns) in `units` whole units of `unit` entries; axis None: every rank
    holds all of it. `reason` names what is cut: "head", "width", "vocabulary" or "replicate".
    """

    reason: Literal["replicate", "head", "width", "vocabulary", "unused"]
    axis: int | None = None
    unit: int = 1
    units: int = 1


REPLICATE = SplitRule("replicate")
UNUSED = SplitRule("unused")

# (pattern of the module inside a layer, rule key); each name matches exactly one.
_LAYER_RULES = (
    (r"(input|post_attention)_layernorm|hc_(attn|ffn)_(fn|base|scale)", "replicate"),
    (r"eh_proj|enorm|hnorm|shared_head\.norm", "replicate"),
    (r"self_attn\.(q|k|v)_(proj|conv1d)", "linear rows"),
    (r"self_attn\.(f|g)_b_proj|self_attn\.dt_bias", "linear rows"),
    (r"self_attn\.b_proj|self_attn\.A_log", "linear head rows"),
    (r"self_attn\.(f|g)_a_proj|self_attn\.o_norm", "replicate"),
    (r"self_attn\.(q_a_proj|kv_a_proj_with_mqa|q_a_layernorm|kv_a_layernorm)", "replicate"),
    (r"self_attn\.indexer\..*", "replicate"),
    (r"self_attn\.q_b_proj", "query rows"),
    (r"self_attn\.kv_b_proj", "key value rows"),
    (r"self_attn\.o_proj", "output columns"),
    (r"mlp\.(gate|up)_proj", "dense rows"),
    (r"mlp\.down_proj", "dense columns"),
    (r"mlp\.gate(\.e_score_correction_bias)?", "replicate"),
    (r"mlp\.shared_experts\.(gate|up)_proj", "shared rows"),
    (r"mlp\.shared_experts\.down_proj", "shared columns"),
    (r"mlp\.experts\.\d+\.(gate|up)_proj", "expert rows"),
    (r"mlp\.experts\.\d+\.down_proj", "expert columns"),
)
_COMPILED = tuple((re.compile(pattern), key) for pattern, key in _LAYER_RULES)
_LAYER = re.compile(re.escape(TEXT) + r"layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"\.\d+\.")


def split_rule(config: Glm5NextConfig, name: str) -> SplitRule:
    """The rule of a tensor or module name of the checkpoint.

    Raises UnknownTensorError for a name that no rule matches, or more than one.
    """
    stem = name.removesuffix(".weight").removesuffix(".bias")
    if stem == "lm_head":
        return _width("vocabulary", 0, config.vocab_size)
    if stem in (TEXT + "embed_tokens", TEXT + "norm"):
        return REPLICATE
    if stem.startswith(VISION):
        return UNUSED
    match = _LAYER.fullmatch(stem)
    # Which expert it is does not matter, and there are hundreds.
    keys = _keys(_EXPERT.sub(".0.", match[2])) if match else frozenset()
    if match is None or len(keys) != 1:
        found = " and ".join(sorted(keys)) or "no split rule"
        raise UnknownTensorError(name, found=found, expected="exactly one split rule")
    return _rule(config, next(iter(keys)), int(match[1]))


@lru_cache(maxsize=1024)
def _keys(inner: str) -> frozenset[str]:
    return frozenset(key for pattern, key in _COMPILED if pattern.fullmatch(inner))


def shares(rule: SplitRule, ranks: int) -> tuple[range, ...]:
    """Entries of the split axis that each rank holds; empty ranges when there are fewer units than ranks."""
    whole, rest = divmod(rule.units, ranks)
    starts = [rule.unit * (rank * whole + min(rank, rest)) for rank in range(ranks + 1)]
    return tuple(range(starts[rank], starts[rank + 1]) for rank in range(ranks))


def _rule(config: Glm5NextConfig, key: str, layer: int) -> SplitRule:
    heads, kda = config.num_attention_heads, config.linear_num_heads
    match key:
        case "replicate":
            return REPLICATE
        case "linear rows":
            return SplitRule("head", 0, config.linear_head_dim, kda)
        case "linear head rows":
            return SplitRule("head", 0, 1, kda)
        case "query rows":
            return SplitRule("head", 0, config.qk_nope_head_dim, heads)
        case "key value rows":
            return SplitRule("head", 0, config.qk_nope_head_dim + config.v_head_dim, heads)
        case "output columns":
            if config.attention_kind(layer) == "kda":
                return SplitRule("head", 1, config.linear_head_dim, kda)
            return SplitRule("head", 1, config.v_head_dim, heads)
    widths = {
        "dense": config.intermediate_size,
        "shared": config.shared_width,
        "expert": config.moe_intermediate_size,
    }
    kind, axis = key.split(" ")
    return _width("width", 0 if axis == "rows" else 1, widths[kind])


def _width(reason: Literal["width", "vocabulary"], axis: int, size: int) -> SplitRule:
    # A width that 64 does not divide is one piece: it serves on one rank and is refused on more.
    unit = WIDTH_UNIT if size % WIDTH_UNIT == 0 else size
    return SplitRule(reason, axis, unit, size // unit)
