"""Merging what `config.json` and `hf_quant_config.json` say.

Field by field: a field that one file has is taken from it; equal fields are fine; different fields are never
resolved by file order. Where tensors can decide (algorithm, recipes, excludes) both statements are kept as
views, and each module must fit exactly one. The KV-cache algorithm has no tensors to ask, so there a
disagreement is an error with both values.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from intarsia.checkpoint.algorithms import CONTRACTS
from intarsia.checkpoint.findings import Findings
from intarsia.checkpoint.recipes import Carrier, Quantization, Recipe

LEGACY_BEFORE = (0, 39)  # older modelopt releases listed bare name fragments


def merge(carriers: list[Carrier], findings: Findings) -> Quantization:
    """One normal form of up to two carriers; contradictions and unreadable recipes go to `findings`."""
    if not carriers:
        return Quantization()
    first, last = carriers[0], carriers[-1]
    views = [_filled(first, last), _filled(last, first)]
    if _statement(views[0]) == _statement(views[1]):
        views = views[:1]
    for view in views:
        if view.mixed and not view.layers:
            findings.add(
                "mixed-without-layers",
                view.source,
                "MIXED_PRECISION without quantized_layers",
                "a recipe for each quantized module",
                "download the missing configuration file of this revision",
            )
        for recipe in _recipes(view):
            _check_recipe(recipe, findings)
    if first.says_kv and last.says_kv and first.kv_algo != last.kv_algo:
        findings.add(
            "kv-disagreement",
            "KV-cache algorithm",
            f"{first.kv_algo} in {first.source}, {last.kv_algo} in {last.source}",
            "one value",
            "correct the file that is wrong; nothing in the tensors can decide it",
        )
    return Quantization(
        views=tuple(views),
        kv_algo=first.kv_algo if first.says_kv else last.kv_algo,
        sources=tuple(carrier.source for carrier in carriers),
    )


def is_legacy(carrier: Carrier) -> bool:
    """Whether exclude patterns may be bare fragments of names."""
    if carrier.method == "fp8":
        return True
    name, version = carrier.producer
    if not name:
        return True
    match = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    return name == "modelopt" and match is not None and (int(match[1]), int(match[2])) < LEGACY_BEFORE


def _filled(carrier: Carrier, other: Carrier) -> Carrier:
    """The carrier with the fields it lacks taken from the other one."""
    if carrier is other:
        return carrier
    changes: dict[str, Any] = {}
    if not carrier.says_algo and other.says_algo:
        changes.update(algo=other.algo, mixed=other.mixed, says_algo=True)
    elif carrier.algo is not None and other.algo is not None:
        changes["algo"] = _filled_recipe(carrier.algo, other.algo)
    if carrier.exclude is None:
        changes["exclude"] = other.exclude
    if carrier.layers is None:
        changes["layers"] = other.layers if carrier.mixed or other.mixed == carrier.mixed else None
    elif other.layers is not None:
        theirs = other.layers
        changes["layers"] = {
            name: _filled_recipe(recipe, theirs[name]) if name in theirs else recipe
            for name, recipe in carrier.layers.items()
        }
    if not carrier.producer[0]:
        changes["producer"] = other.producer
    return replace(carrier, **changes)


def _filled_recipe(recipe: Recipe, other: Recipe) -> Recipe:
    if recipe.algo != other.algo:
        return recipe
    return replace(
        recipe,
        group_size=other.group_size if recipe.group_size is None else recipe.group_size,
        encoding=other.encoding if recipe.encoding is None else recipe.encoding,
    )


def _statement(view: Carrier) -> tuple[Any, ...]:
    """What a view says about modules, in a comparable form."""

    def key(recipe: Recipe | None) -> tuple[Any, ...] | None:
        if recipe is None:
            return None
        return recipe.algo, recipe.group_size or CONTRACTS[recipe.algo].group, recipe.encoding

    layers: Mapping[str, Recipe] = view.layers or {}
    return (
        key(view.algo),
        view.mixed,
        frozenset(view.exclude or ()),
        {name: key(recipe) for name, recipe in layers.items()},
        key(view.experts),
        view.groups,
        view.implied_csf,
    )


def _recipes(view: Carrier) -> list[Recipe]:
    single = [recipe for recipe in (view.algo, view.experts) if recipe is not None]
    return single + list((view.layers or {}).values())


def _check_recipe(recipe: Recipe, findings: Findings) -> None:
    contract = CONTRACTS[recipe.algo]
    if recipe.group_size is not None and contract.group and recipe.group_size != contract.group:
        findings.add(
            "group-size",
            recipe.source,
            f"{recipe.written} with group_size {recipe.group_size}",
            f"{contract.group}",
            "this grouping is not read",
        )
    block = recipe.extras.get("weight_block_size")
    if block is not None and block != [128, 128]:
        findings.add("group-size", recipe.source, f"weight_block_size {block!r:.40}", "[128, 128]")
    if recipe.encoding is not None and recipe.algo not in ("NVFP4", "W4A16_NVFP4"):
        findings.add(
            "csf-recipe",
            recipe.source,
            f"weight_scale_encoding {recipe.encoding} with {recipe.written}",
            "NVFP4: only its scales are compressed in this layout",
        )
