"""Published configurations, cut down to what a machine can hold."""

import json
from importlib.resources import files
from typing import Any

from intarsia.core.errors import UsageError

_FOLDER = files("intarsia.evidence") / "geometries"


def names() -> list[str]:
    """The geometries that are known."""
    return sorted(
        entry.name.removesuffix(".json") for entry in _FOLDER.iterdir() if entry.name.endswith(".json")
    )


def geometry(
    name: str, *, layers: int | None = None, experts: int | None = None, vocabulary: int | None = None
) -> dict[str, Any]:
    """The `config.json` of a published model, unquantized and without its vision tower.

    `layers` keeps the first main layers (the MTP layer stays), `experts` and `vocabulary` override those
    counts; everything else is the model's. Raises UsageError for an unknown name or a count that cannot be.
    """
    if name not in names():
        raise UsageError("geometry", found=name, expected=f"one of {', '.join(names())}")
    config: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text())
    text = config["text_config"]
    if layers is not None:
        _check("layers", layers, 1, text["num_hidden_layers"])
        text["num_hidden_layers"] = layers
        for kinds in ("layer_types", "mlp_layer_types", "indexer_types"):
            text[kinds] = text[kinds][:layers]
        attention = text["linear_attn_config"]
        for kind in ("full_attn_layers", "kda_layers"):
            attention[kind] = [layer for layer in attention[kind] if layer < layers]
    if experts is not None:
        _check("experts", experts, text["num_experts_per_tok"], text["n_routed_experts"])
        text["n_routed_experts"] = experts
    if vocabulary is not None:
        _check("vocabulary", vocabulary, 64, text["vocab_size"])
        text["vocab_size"] = vocabulary
        text["eos_token_id"] = config["eos_token_id"] = [vocabulary - 1]
        text["pad_token_id"] = config["pad_token_id"] = vocabulary - 1
    return config


def _check(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(field, found=str(value), expected=f"{low} to {high}")
