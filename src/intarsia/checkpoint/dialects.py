"""The quantization metadata of other programs: fp8 blocks and compressed-tensors."""

from typing import Any

from intarsia.checkpoint.algorithms import CT_NVFP4
from intarsia.checkpoint.fields import Fields, read_exclude, read_producer, read_recipe
from intarsia.checkpoint.recipes import Carrier, Recipe, TargetGroup
from intarsia.core.json import type_name


def block_fp8(fields: Fields) -> Carrier:
    """`quant_method: fp8`: 128 x 128 blocks when `weight_block_size` says so, else one scale a tensor."""
    blocks = fields.get("weight_block_size", list, "[128, 128]")
    if blocks is not None and blocks != [128, 128]:
        fields.wrong("weight_block_size", blocks, "[128, 128]")
    algo = "FP8" if blocks is None else "FP8_PB_WO"
    recipe = Recipe(algo, "fp8", source=fields.where)
    experts = None
    if "moe_quant_algo" in fields.values:
        experts = read_recipe(fields, "moe_quant_algo")
    return Carrier(
        source=fields.where,
        method="fp8",
        algo=recipe,
        says_algo=True,
        exclude=read_exclude(fields),
        experts=experts,
        producer=read_producer(fields),
    )


def compressed_tensors(fields: Fields) -> Carrier:
    """compressed-tensors: every group is resolved by its own targets; no group is taken as the global one."""
    groups = []
    for name, item in (fields.section("config_groups") or {}).items():
        where = f"{fields.where}.config_groups[{name[:80]!r}]"
        if not isinstance(item, dict):
            fields.findings.add("quantization-field", where, type_name(item), "an object")
            continue
        group = Fields(item, where, fields.findings)
        targets = group.strings("targets") or ()
        layout = group.text("format") or fields.text("format") or ""
        groups.append(TargetGroup(name, targets, _scheme(group, layout)))
    return Carrier(
        source=fields.where,
        method="compressed-tensors",
        exclude=read_exclude(fields),
        groups=tuple(groups),
        producer=("compressed-tensors", fields.text("version") or ""),
    )


def _scheme(group: Fields, layout: str) -> Recipe | None:
    """The algorithm that a compressed-tensors weight scheme means."""
    weights = group.section("weights")
    if weights is None:
        group.findings.add("recipe-field", f"{group.where}.weights", "nothing", "a weight scheme")
        return None
    kind = tuple(weights.get(key) for key in ("num_bits", "type", "strategy"))
    schemes: dict[tuple[Any, ...], str] = {
        (4, "float", "tensor_group"): CT_NVFP4,
        (8, "float", "tensor"): "FP8",
        (8, "float", "channel"): "FP8_PER_CHANNEL_PER_TOKEN",
        (8, "float", "block"): "FP8_PB_WO",
    }
    algo = schemes.get(kind) if all(isinstance(part, int | str) for part in kind) else None
    if algo is None:
        group.findings.add(
            "unknown-recipe",
            f"{group.where}.weights",
            f"{kind[0]!r:.20} bits, type {kind[1]!r:.20}, strategy {kind[2]!r:.20}, format {layout[:40]!r}",
            "nvfp4-pack-quantized, or 8-bit floats by tensor, channel or block",
        )
        return None
    return Recipe(algo, layout or algo, source=group.where)
