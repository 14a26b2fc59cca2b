"""Which data we have about an architecture, by the `model_type` of its configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.fused import GROUPINGS
from intarsia.families.glm5_next.inventory import TEXT, TensorSpec, inventory
from intarsia.families.glm5_next.runtime import runtime_modules
from intarsia.families.groups import LLAMA_LIKE, GroupRule

_LLAMA_LIKE_TYPES = frozenset(
    [
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen2_moe",
        "qwen3_moe",
        "gemma2",
        "gemma3_text",
        "glm4",
    ]
)


@dataclass(frozen=True, slots=True)
class Family:
    """What selection and planning need to know: fused groups, other spellings of a name, the draft's layers.

    `groupings` are tables of fused groups by name, with "default" among them. `prefixes` are the beginnings
    under which checkpoints and runtimes know the same module. `stacks` maps a run-time weight to its sources.
    `tensors` is the unquantized inventory when the architecture is known tensor by tensor, else None.
    """

    name: str
    groupings: Mapping[str, tuple[GroupRule, ...]] = field(default_factory=lambda: {"default": ()})
    prefixes: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    stacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    draft_prefixes: tuple[str, ...] = ()
    tensors: Mapping[str, TensorSpec] | None = None
    glm5_next: Glm5NextConfig | None = None

    def is_draft(self, name: str) -> bool:
        """True for a tensor or module of the draft (MTP) layers."""
        return bool(self.draft_prefixes) and name.startswith(self.draft_prefixes)

    def key(self, name: str) -> str:
        """The part of a module's name that all its spellings share."""
        for prefix in self.prefixes:
            if name.startswith(prefix):
                name = name.removeprefix(prefix)
                break
        for spelling, meant in self.renames:
            if name.startswith(spelling):
                return meant + name.removeprefix(spelling)
        return name


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a parsed `config.json`.

    An architecture without data is a family named by its `model_type`, with no groups: its modules are
    selected by exact names. Raises ConfigError when a known family's configuration is refused.
    """
    model_type = str(config.get("model_type") or "unknown")
    if model_type in ("glm5_next", "glm5_next_text"):
        return _glm5_next(Glm5NextConfig.from_checkpoint_config(config))
    return Family(model_type, {"default": LLAMA_LIKE if model_type in _LLAMA_LIKE_TYPES else ()})


def _glm5_next(config: Glm5NextConfig) -> Family:
    return Family(
        "glm5_next",
        groupings=GROUPINGS,
        prefixes=(TEXT, "language_model.model.", "language_model.", "model."),
        renames=tuple(("mtp.", f"layers.{layer}.") for layer in config.mtp_layers),
        stacks={module.name: module.sources for module in runtime_modules(config) if module.matrix},
        draft_prefixes=tuple(f"{TEXT}layers.{layer}." for layer in config.mtp_layers),
        tensors=inventory(config),
        glm5_next=config,
    )
