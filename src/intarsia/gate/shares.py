"""The documented shares, written down a second time: which axis of a tensor is cut, and where.

Heads are cut one by one, widths and the vocabulary in units of 64; the ranks before the remainder hold one
unit more.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ROWS, COLUMNS = 0, 1
UNIT = 64

_BY_HEADS = {
    # name in a linear-attention layer -> (axis, rows or columns a head: None means the head's width)
    "q_proj": (ROWS, None), "k_proj": (ROWS, None), "v_proj": (ROWS, None),
    "q_conv1d": (ROWS, None), "k_conv1d": (ROWS, None), "v_conv1d": (ROWS, None),
    "f_b_proj": (ROWS, None), "g_b_proj": (ROWS, None), "dt_bias": (ROWS, None),
    "b_proj": (ROWS, 1), "A_log": (ROWS, 1),
}  # fmt: skip
_WHOLE = frozenset(
    (
        *("input_layernorm", "post_attention_layernorm", "hc_attn_fn", "hc_attn_base", "hc_attn_scale"),
        *("hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale", "eh_proj", "enorm", "hnorm", "norm", "embed_tokens"),
        *("f_a_proj", "g_a_proj", "o_norm", "q_a_proj", "kv_a_proj_with_mqa", "q_a_layernorm"),
        *("kv_a_layernorm", "gate", "e_score_correction_bias"),
    )
)


@dataclass(frozen=True, slots=True)
class Part:
    """What a rank holds of one matrix: all of it (axis None), or entries start .. stop of an axis."""

    axis: int | None
    start: int = 0
    stop: int = 0


def part_of(
    name: str, text: Mapping[str, Any], layer_types: Mapping[int, str], rank: int, ranks: int
) -> Part:
    """The part of a module or tensor that `rank` holds; `text` is the text part of config.json.

    Raises KeyError for a name that the table does not have.
    """
    stem = re.sub(r"\.(weight|bias)$", "", name)
    last = stem.rpartition(".")[2]
    if stem == "lm_head":
        return _units(ROWS, text["vocab_size"], UNIT, rank, ranks)
    if ".indexer." in stem:
        return Part(None)
    if ".mlp." in stem and last in ("gate_proj", "up_proj", "down_proj"):
        axis = COLUMNS if last == "down_proj" else ROWS
        return _units(axis, _width(stem, text), UNIT, rank, ranks)
    if last in _BY_HEADS:
        axis, size = _BY_HEADS[last]
        return _heads(axis, _linear(text, "num_heads"), size or _linear(text, "head_dim"), rank, ranks)
    heads, key, value = text["num_attention_heads"], text["qk_nope_head_dim"], text["v_head_dim"]
    if last == "q_b_proj":
        return _heads(ROWS, heads, key, rank, ranks)
    if last == "kv_b_proj":
        return _heads(ROWS, heads, key + value, rank, ranks)
    if last == "o_proj":
        layer = int(re.search(r"\.layers\.(\d+)\.", stem)[1])  # type: ignore[index]
        if layer_types.get(layer) == "linear_attention":
            return _heads(COLUMNS, _linear(text, "num_heads"), _linear(text, "head_dim"), rank, ranks)
        return _heads(COLUMNS, heads, value, rank, ranks)
    if last in _WHOLE:
        return Part(None)
    raise KeyError(name)


def _linear(text: Mapping[str, Any], key: str) -> int:
    nested = text.get("linear_attn_config") or {}
    return int(nested[key] if key in nested else text[f"linear_{key}"])


def _width(stem: str, text: Mapping[str, Any]) -> int:
    if ".shared_experts." in stem:
        return int(text["moe_intermediate_size"]) * int(text["n_shared_experts"])
    if ".experts." in stem:
        return int(text["moe_intermediate_size"])
    return int(text["intermediate_size"])


def _heads(axis: int, heads: int, size: int, rank: int, ranks: int) -> Part:
    return _units(axis, heads * size, size, rank, ranks)


def _units(axis: int, total: int, unit: int, rank: int, ranks: int) -> Part:
    start = 0
    for other in range(rank + 1):
        count = total // unit // ranks + (1 if other < total // unit % ranks else 0)
        if other == rank:
            return Part(axis, start, start + count * unit)
        start += count * unit
    raise ValueError(f"rank {rank} of {ranks}")
