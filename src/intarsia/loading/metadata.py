"""The quantization metadata of an exported checkpoint, in both of ModelOpt's carriers.

`hf_quant_config.json` and `quantization_config` in `config.json` say the same; different readers believe
different ones. Unlisted modules are unquantized.
"""

from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import version
from typing import Any

from intarsia.checkpoint import Module
from intarsia.families.groups import container_of
from intarsia.selection.resolve import Target

Json = dict[str, Any]

GROUP_SIZES = {"NVFP4": 16, "W4A16_NVFP4": 16, "MXFP8": 32}
# How readers of ModelOpt checkpoints spell the codec of compressed scales.
ENCODINGS = {"nvfp4_slab": "csf", "csf_32x2_v1": "csf_32x2_v1"}


def layer_config(target: Target) -> Json:
    """One entry of `quantized_layers`."""
    entry: Json = {"quant_algo": target.format}
    if target.format in GROUP_SIZES:
        entry["group_size"] = GROUP_SIZES[target.format]
    if target.codec is not None:
        entry["weight_scale_encoding"] = ENCODINGS[target.codec]
    return entry


def quantized_layers(targets: Iterable[Target]) -> dict[str, Json]:
    """Module -> its entry; a layer's routed experts are one entry, named by their container."""
    return {container_of(target.module) or target.module: layer_config(target) for target in targets}


def stored_layers(modules: Mapping[str, Module], targets: Collection[str]) -> dict[str, Json]:
    """The entries of modules that were quantized before and stay as they are."""
    kept = [
        Target(module.name, module.format, "", "", codec=module.codec)
        for module in modules.values()
        if module.format is not None and module.name not in targets
    ]
    return quantized_layers(kept)


def carriers(layers: Mapping[str, Json], kv_algo: str | None = None) -> tuple[Json, Json]:
    """The contents of `hf_quant_config.json` and of `quantization_config` for these `quantized_layers`."""
    producer = {"name": "intarsia", "version": version("intarsia")}
    ordered = {name: dict(layers[name]) for name in sorted(layers)}
    nested: Json = {
        "producer": producer,
        "quantization": {
            "quant_algo": "MIXED_PRECISION",
            "kv_cache_quant_algo": kv_algo,
            "quantized_layers": ordered,
        },
    }
    flat: Json = {
        "config_groups": _config_groups(ordered),
        "quantized_layers": ordered,
        "ignore": [],
        "quant_algo": "MIXED_PRECISION",
        "producer": producer,
        "quant_method": "modelopt",
    }
    if kv_algo is not None:
        flat["kv_cache_quant_algo"] = kv_algo
    return nested, flat


def _config_groups(layers: Mapping[str, Json]) -> dict[str, Json]:
    """One group for each distinct entry and the names it is for; scale encodings do not tell groups apart."""
    groups: list[tuple[Json, Json]] = []
    for name, entry in layers.items():
        key = {field: value for field, value in entry.items() if field != "weight_scale_encoding"}
        for known, group in groups:
            if known == key:
                group["targets"].append(name)
                break
        else:
            groups.append((key, {**_numbers(key), "targets": [name]}))
    return {f"group_{index}": group for index, (_, group) in enumerate(groups)}


def _numbers(entry: Json) -> Json:
    """What compressed-tensors' vocabulary says about an algorithm; just its name where that has no words."""
    match entry["quant_algo"]:
        case "NVFP4":
            return {"input_activations": _quantizer(4, entry), "weights": _quantizer(4, entry)}
        case "W4A16_NVFP4":
            return {"weights": _quantizer(4, entry)}
        case "MXFP8":
            return {"input_activations": _quantizer(8, entry), "weights": _quantizer(8, entry)}
        case "FP8":
            return {"input_activations": _quantizer(8, entry), "weights": _quantizer(8, entry)}
        case "FP8_PER_CHANNEL_PER_TOKEN":
            weights = {**_quantizer(8, entry), "strategy": "channel"}
            return {"input_activations": _quantizer(8, entry), "weights": weights}
    return dict(entry)


def _quantizer(bits: int, entry: Json) -> Json:
    size = {"group_size": entry["group_size"]} if "group_size" in entry else {}
    return {"dynamic": False, "num_bits": bits, "type": "float", **size}
