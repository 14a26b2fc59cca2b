"""Typed access to the objects of quantization metadata, and the parts that all dialects share."""

from collections.abc import Mapping
from typing import Any

from intarsia.checkpoint.algorithms import READ, is_known, normalise
from intarsia.checkpoint.findings import Findings
from intarsia.checkpoint.recipes import ENCODINGS, Recipe
from intarsia.core.json import type_name

_RECIPE_KEYS = frozenset(("quant_algo", "group_size", "weight_scale_encoding"))
_EXCLUDE_KEYS = ("exclude_modules", "ignore", "modules_to_not_convert", "ignored_layers")

Json = Mapping[str, Any]


class Fields:
    """Typed access to one object of the metadata; a wrong type is noted and reads as absent."""

    def __init__(self, values: Json, where: str, findings: Findings) -> None:
        self.values, self.where, self.findings = values, where, findings

    def get(self, key: str, kind: type, expected: str) -> Any:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            self.wrong(key, value, expected)
            return None
        return value

    def text(self, key: str) -> str | None:
        value: str | None = self.get(key, str, "a string")
        return value

    def number(self, key: str) -> int | None:
        value: int | None = self.get(key, int, "an integer")
        return value

    def section(self, key: str) -> Json | None:
        value: Json | None = self.get(key, dict, "an object")
        return value

    def strings(self, key: str) -> tuple[str, ...] | None:
        value = self.get(key, list, "a list of strings")
        if value is None:
            return None
        if not all(isinstance(item, str) for item in value):
            self.wrong(key, value, "a list of strings")
            return None
        return tuple(value)

    def wrong(self, key: str, value: Any, expected: str) -> None:
        found = f"{type_name(value)} {value!r:.80}"
        self.findings.add("quantization-field", f"{self.where}.{key}", found, expected)


def read_recipe(fields: Fields, key: str, default: str | None = None) -> Recipe | None:
    """The recipe of an object with `quant_algo`, `group_size` and `weight_scale_encoding`."""
    written = fields.text(key) if key in fields.values else default
    if written is None:
        fields.findings.add("recipe-field", f"{fields.where}.{key}", "nothing", "the name of an algorithm")
        return None
    algo = normalise(written)
    if not is_known(algo):
        fields.findings.add(
            "unknown-recipe",
            fields.where,
            f"the algorithm {written[:80]!r}",
            "one of " + ", ".join(READ),
            "read it with a release that knows the algorithm",
        )
        return None
    encoding = fields.text("weight_scale_encoding")
    if encoding is not None and encoding not in ENCODINGS:
        fields.findings.add(
            "unknown-encoding",
            f"{fields.where}.weight_scale_encoding",
            repr(encoding[:80]),
            "one of " + ", ".join(ENCODINGS),
        )
        return None
    extras = {name: value for name, value in fields.values.items() if name not in _RECIPE_KEYS}
    return Recipe(algo, written, fields.number("group_size"), encoding, fields.where, extras)


def read_exclude(fields: Fields) -> tuple[str, ...] | None:
    lists = [found for key in _EXCLUDE_KEYS if (found := fields.strings(key)) is not None]
    if not lists:
        return None
    return tuple(dict.fromkeys(pattern for patterns in lists for pattern in patterns))


def read_producer(fields: Fields) -> tuple[str, str]:
    raw = fields.section("producer")
    if raw is None:
        return "", ""
    producer = Fields(raw, f"{fields.where}.producer", fields.findings)
    return producer.text("name") or "", producer.text("version") or ""
