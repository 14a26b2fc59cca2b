"""The other names under which metadata may speak of a module.

Exporters, runtimes and repositories disagree about prefixes (`model.language_model.` or
`language_model.model.`), about MTP layers (`mtp.layers.0` or the layer after the last) and about the names
of experts. An alias only helps when it is the only hit, which the resolver checks.
"""

import re
from functools import lru_cache

_PREFIXES = (
    ("language_model.model.", "model.language_model."),
    ("model.language_model.", "language_model.model."),
    ("model.language_model.", "model."),
    ("model.", "model.language_model."),
    ("language_model.", ""),
    ("backbone.", "model."),
    ("model.", "backbone."),
)
_EXPERTS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
_HEAD = re.compile(r"(?:[^.]+\.){0,4}?layers\.\d{1,6}(?=\.|$)")
_LAYER = re.compile(r"((?:model\.|language_model\.)*)layers\.(\d{1,6})")
_MTP = re.compile(r"((?:model\.|language_model\.)*)mtp\.layers\.(\d{1,6})")
_HEADS = ("lm_head", "model.lm_head", "language_model.lm_head", "model.language_model.lm_head")


def aliases(name: str, layers: int | None) -> tuple[str, ...]:
    """Names for `name`, itself first. `layers` is the number of main layers, for MTP layer indices."""
    if name == "lm_head" or name.endswith(".lm_head"):
        return tuple(dict.fromkeys((name, *_HEADS)))
    match = _HEAD.match(name)
    head, rest = (match[0], name[match.end() :]) if match else (name, "")
    rests = (rest, _as_mlp(rest)) if "block_sparse_moe" in rest else (rest,)
    heads = _head_aliases(head, layers)
    return heads if match is None else tuple(other + end for end in rests for other in heads)


@lru_cache(maxsize=4096)
def _head_aliases(head: str, layers: int | None) -> tuple[str, ...]:
    """Other spellings of the beginning of a name, up to its layer number (or of a whole name without one)."""
    names = {head: None}
    for twin in _mtp_twins(head, layers):
        names[twin] = None
    for other in list(names):
        for old, new in _PREFIXES:
            if other.startswith(old) and not (new.startswith(old) and other.startswith(new)):
                names[new + other[len(old) :]] = None
    return tuple(names)


def _as_mlp(rest: str) -> str:
    parts = rest.replace("block_sparse_moe", "mlp").split(".")
    return ".".join([*parts[:-1], _EXPERTS.get(parts[-1], parts[-1])])


def _mtp_twins(head: str, layers: int | None) -> list[str]:
    if layers is None:
        return []
    if match := _MTP.fullmatch(head):
        return [f"{match[1] or 'model.'}layers.{layers + int(match[2])}"]
    match = _LAYER.fullmatch(head)
    if match and int(match[2]) >= layers:
        rest = f"mtp.layers.{int(match[2]) - layers}"
        return list(dict.fromkeys((rest, match[1] + rest, "model." + rest)))
    return []
