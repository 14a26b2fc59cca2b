"""Built-in recipes: which number format each kind of module gets, as patterns that fit any inventory.

A recipe is applied to a source to write a manifest of exact names. It is data; adding one needs no code.
"""

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, field

from intarsia.families.groups import container_of
from intarsia.selection.errors import RecipeNameError, SelectionError
from intarsia.selection.manifest import SCHEMA, Manifest, ScalePolicy, Section
from intarsia.selection.source import Source, SourceModule


@dataclass(frozen=True, slots=True)
class Rule:
    """Modules whose name fits the glob `pattern` get `format`; the first rule that fits decides.

    `beside` asks for a sibling of that name, which tells MLA's o_proj from KDA's. Routed experts are matched
    by their container's name.
    """

    pattern: str
    format: str
    beside: str | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """Rules for the main model and for the draft, and how block scales are kept."""

    about: str
    main: tuple[Rule, ...] = ()
    draft: tuple[Rule, ...] = ()
    grouping: str = "default"
    main_scales: ScalePolicy = field(default_factory=ScalePolicy)
    draft_scales: ScalePolicy = field(default_factory=ScalePolicy)


_ATTENTION_MXFP8 = (
    Rule("*.self_attn.*_proj", "MXFP8"),
    Rule("*.self_attn.kv_a_proj_with_mqa", "MXFP8"),
    Rule("*.self_attn.indexer.w[qk]*", "MXFP8"),
)
_SHARED_MXFP8 = Rule("*.mlp.shared_experts.*_proj", "MXFP8")
_DRAFT_EXPERTS = Rule("*.mlp.experts", "W4A16_NVFP4")
_LATENT = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")

RECIPES: dict[str, Recipe] = {
    "bf16": Recipe("everything as stored"),
    "spark": Recipe(
        "attention projections and shared experts in MXFP8, the draft's experts in NVFP4",
        main=(*_ATTENTION_MXFP8, _SHARED_MXFP8),
        draft=(*_ATTENTION_MXFP8, _SHARED_MXFP8, _DRAFT_EXPERTS),
        draft_scales=ScalePolicy("inherit"),
    ),
    "fp4-local": Recipe(
        "NVFP4 experts with compressed scales, MXFP8 and block FP8 elsewhere",
        main=(
            Rule("*.mlp.experts", "NVFP4"),
            Rule("lm_head", "MXFP8"),
            Rule("*.mlp.shared_experts.*_proj", "FP8_PB_WO"),
            Rule("*.mlp.*_proj", "MXFP8"),
            *(Rule(f"*.self_attn.{name}", "FP8_PB_WO", beside="kv_a_proj_with_mqa") for name in _LATENT),
            Rule("*.self_attn.[qkvo]_proj", "MXFP8", beside="q_proj"),
        ),
        draft=(
            _DRAFT_EXPERTS,
            _SHARED_MXFP8,
            *(Rule(f"*.self_attn.{name}", "MXFP8", beside="kv_a_proj_with_mqa") for name in _LATENT),
        ),
        grouping="qkv",
        main_scales=ScalePolicy("csf"),
    ),
    "nvfp4-experts": Recipe(
        "the main model's routed experts in NVFP4", main=(Rule("*.mlp.experts", "NVFP4"),)
    ),
}


def recipe(name: str) -> Recipe:
    """A built-in recipe; raises RecipeNameError with the names there are."""
    if name not in RECIPES:
        raise RecipeNameError(
            "recipe", found=repr(name), expected="one of " + ", ".join(RECIPES), action="or write a manifest"
        )
    return RECIPES[name]


def apply_recipe(name: str, source: Source) -> Manifest:
    """The manifest of exact names that a recipe means for this source.

    Where the recipe says NVFP4 and the source has no activation scales (BF16 never has), the weight-only
    W4A16_NVFP4 is written. Modules that are quantized already are left out. Raises RecipeNameError, and
    SelectionError for a source whose headers contradict its configuration.
    """
    chosen = recipe(name)
    if source.violations:
        raise SelectionError("source", source.violations)
    main = _section(source, False, chosen.main, chosen.grouping, chosen.main_scales)
    draft = None
    if any(module.draft for module in source.modules.values()):
        draft = _section(source, True, chosen.draft, chosen.grouping, chosen.draft_scales)
    return Manifest(schema=SCHEMA, recipe=name, source=source.identity, main=main, draft=draft)


def _section(
    source: Source, draft: bool, rules: tuple[Rule, ...], grouping: str, scales: ScalePolicy
) -> Section:
    targets: dict[str, str] = {}
    done: set[str] = set()
    for module in source.modules.values():
        if module.draft != draft or module.kind == "other" or not module.used:
            continue
        name = container_of(module.name) or module.name
        if name in done:
            continue
        done.add(name)
        wanted = _format_for(name, rules, source)
        members = [source.modules[member] for member in source.containers.get(name, (module.name,))]
        if wanted == "NVFP4" and not all(member.input_scale for member in members):
            wanted = "W4A16_NVFP4"
        if wanted is not None and not _already(members, wanted):
            targets[name] = wanted
    if grouping not in source.family.groupings:
        grouping = "default"
    return Section(targets=targets, strict=bool(targets), grouping=grouping, scales=scales)


def _already(members: Iterable[SourceModule], wanted: str) -> bool:
    family = {"NVFP4", "W4A16_NVFP4"} if wanted.endswith("NVFP4") else {wanted}
    # What is stored in another quantized format stays so: encoding it again is only done when asked by name.
    return any(member.quantized for member in members) or all(member.format in family for member in members)


def _format_for(name: str, rules: tuple[Rule, ...], source: Source) -> str | None:
    parent = name.rpartition(".")[0]
    for rule in rules:
        beside = rule.beside is None or f"{parent}.{rule.beside}" in source.modules
        if beside and fnmatch.fnmatchcase(name, rule.pattern):
            return rule.format
    return None
