"""What one carrier says about one module, before the tensors are asked.

Excludes come first, then an entry of the module's own name (or an alias), then the entry of the expert
container it belongs to, then the checkpoint-wide algorithm. Nothing is inherited from a sibling or from any
other ancestor.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from intarsia.checkpoint.aliases import aliases
from intarsia.checkpoint.merge import is_legacy
from intarsia.checkpoint.patterns import Patterns
from intarsia.checkpoint.recipes import Carrier, Recipe, TargetGroup

_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,6})(?:\.|$)")
_SPECIAL = re.compile(r"^re:|[?\[]|\*.")  # anything but a name, or a name's beginning and a star
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_ROUTERS = frozenset(("gate", "router", "shared_expert_gate", "wg"))
_VISION = frozenset(
    ("visual", "vision_tower", "vision_model", "vision_encoder", "multi_modal_projector", "audio_tower")
)


class Verdict(NamedTuple):
    """A recipe, or None for a plain module. `explicit`: the metadata names the module itself."""

    recipe: Recipe | None
    why: str
    explicit: bool = False


class Judge:
    """Answers for one carrier, and remembers which of its entries were ever used."""

    def __init__(self, carrier: Carrier, layers: int | None) -> None:
        self.carrier = carrier
        self.layers = layers
        self.exclude = Patterns(carrier.exclude or (), legacy=is_legacy(carrier))
        self.conflicts: list[tuple[str, list[str]]] = []
        self._recipes: Mapping[str, Recipe] = carrier.layers or {}
        self._used: set[str] = set()
        self._targets = [(group, _target_patterns(group)) for group in carrier.groups]
        self._containers: dict[str, list[Verdict]] | None = {} if self._experts_are_alike() else None

    def _experts_are_alike(self) -> bool:
        """Whether nothing in the metadata can tell one expert of a layer from another."""
        if is_legacy(self.carrier) or self._targets:
            return False
        names = (*(self.carrier.exclude or ()), *self._recipes)
        return not any(".experts." in name or _SPECIAL.search(name) for name in names)

    def unused(self) -> list[str]:
        """Entries of `quantized_layers` that no module asked for."""
        return [name for name in self._recipes if name not in self._used]

    def verdicts(self, name: str) -> list[Verdict]:
        """What the carrier says about a module; several only where target groups overlap."""
        container, inside, _ = name.partition(".experts.")
        if self._containers is None or not inside:
            return self._verdicts(name)
        if container not in self._containers:
            self._containers[container] = self._verdicts(name)
        return self._containers[container]

    def _verdicts(self, name: str) -> list[Verdict]:
        names = aliases(name, self.layers)
        if pattern := self.exclude.match(names):
            return [Verdict(None, f"excluded by {pattern!r}")]
        if (listed := self._listed(name, names)) is not None:
            return [Verdict(listed, f"listed in {listed.source}", True)]
        if self.carrier.mixed:
            return [Verdict(None, "not listed in quantized_layers")]
        if self._targets:
            return self._targeted(names)
        if self.carrier.experts is not None and ".experts." in name:
            return [Verdict(self.carrier.experts, "moe_quant_algo", True)]
        if self.carrier.algo is not None:
            return [Verdict(self.carrier.algo, f"quant_algo of {self.carrier.source}")]
        return [Verdict(None, "no algorithm in " + self.carrier.source)]

    def _listed(self, name: str, names: tuple[str, ...]) -> Recipe | None:
        if not self._recipes:
            return None
        found = self._unique(name, names)
        if found is not None:
            return found
        before, experts, _ = name.rpartition(".experts.")
        if not experts:
            return None
        found = self._unique(name, aliases(before + ".experts", self.layers))
        if found is not None:
            return found
        # Some exports list the three projections under the parent; no other child may speak for experts.
        parents = aliases(before, self.layers)
        return self._unique(name, tuple(f"{parent}.{part}" for parent in parents for part in _PROJECTIONS))

    def _unique(self, name: str, keys: tuple[str, ...]) -> Recipe | None:
        """The recipe under any of the keys; different recipes under two of them are a conflict."""
        hits = [key for key in keys if key in self._recipes]
        if not hits:
            return None
        self._used.update(hits)
        recipes = [self._recipes[key] for key in hits]
        if any(recipe != recipes[0] and recipe.title != recipes[0].title for recipe in recipes):
            self.conflicts.append((name, hits))
        return recipes[0]

    def _targeted(self, names: tuple[str, ...]) -> list[Verdict]:
        """The most specific of compressed-tensors' target groups; equally specific ones all answer."""
        ranked = [
            (rank, group) for group, patterns in self._targets if (rank := _rank(patterns, group, names))
        ]
        if not ranked:
            return [Verdict(None, "no target group")]
        best = max(rank for rank, _ in ranked)
        return [
            Verdict(group.recipe, f"group {group.name}", best > 1) for rank, group in ranked if rank == best
        ]


def _target_patterns(group: TargetGroup) -> Patterns:
    return Patterns([target for target in group.targets if target != "Linear"])


def _rank(patterns: Patterns, group: TargetGroup, names: tuple[str, ...]) -> int:
    """3 when the group names the module, 2 when a pattern of it does, 1 for its class, 0 for none."""
    if any(name in group.targets for name in names):
        return 3
    if patterns.match(names):
        return 2
    return 1 if "Linear" in group.targets else 0


def main_layers(config: Mapping[str, Any]) -> int | None:
    """`num_hidden_layers` of the text model, which tells MTP layers from main ones."""
    text = config.get("text_config")
    for source in (text if isinstance(text, dict) else {}, config):
        value = source.get("num_hidden_layers")
        if type(value) is int and 0 < value < 1_000_000:
            return value
    return None


def part_of(name: str, layers: int | None) -> str:
    """`mtp`, `vision` or `main`: which part of a model a module belongs to, by its name."""
    components = name.split(".")
    if any(part in _VISION for part in components):
        return "vision"
    if "mtp" in components:
        return "mtp"
    match = _LAYER.search(name)
    return "mtp" if match and layers is not None and int(match[1]) >= layers else "main"


def never_wrapped(name: str, rank: int, layers: int | None) -> bool:
    """Whether modelopt leaves such a module alone without listing it as excluded.

    It only lists modules it wrapped: matrices of the main text model that are not routers or embeddings.
    """
    last = name.rpartition(".")[2]
    if rank != 2 or last in _ROUTERS or "embed" in last or "norm" in last or "conv" in last:
        return True
    return part_of(name, layers) != "main"
