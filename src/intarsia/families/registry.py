"""Which data we have about an architecture, by the `model_type` of its configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.fused import GROUP_RULES
from intarsia.families.glm5_next.inventory import TEXT, TensorSpec, inventory
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

    `tensors` is the unquantized inventory when the architecture is known tensor by tensor, else None.
    """

    name: str
    groups: tuple[GroupRule, ...] = ()
    # (prefix a runtime uses, prefix in the checkpoint), tried in order
    prefixes: tuple[tuple[str, str], ...] = ()
    draft_prefixes: tuple[str, ...] = ()
    tensors: Mapping[str, TensorSpec] | None = None
    glm5_next: Glm5NextConfig | None = None

    def is_draft(self, name: str) -> bool:
        """True for a tensor or module of the draft (MTP) layers."""
        return name.startswith(self.draft_prefixes) if self.draft_prefixes else False


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a parsed `config.json`.

    An architecture without data is a family named by its `model_type`, with no groups: its modules are
    selected by exact names. Raises ConfigError when a known family's configuration is refused.
    """
    model_type = str(config.get("model_type") or "unknown")
    if model_type in ("glm5_next", "glm5_next_text"):
        glm = Glm5NextConfig.from_checkpoint_config(config)
        return Family(
            "glm5_next",
            GROUP_RULES,
            (("language_model.model.", TEXT), ("model.", TEXT), ("", TEXT), ("language_model.", "")),
            tuple(f"{TEXT}layers.{layer}." for layer in glm.mtp_layers),
            inventory(glm),
            glm,
        )
    return Family(model_type, LLAMA_LIKE if model_type in _LLAMA_LIKE_TYPES else ())
