"""Grammars as text, built from what a client asked for. Equal text is compiled once."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from intarsia.server.errors import InvalidRequestError

LARGEST_SCHEMA = 256 << 10
# Blanks between the tokens of JSON: a reply that only writes white space would otherwise fit for ever.
BLANKS = r"[\x20\x0A\x0D\x09]{0,32}"
# llguidance reads options from this key, among them one that ignores what it cannot enforce.
OPTIONS_KEY = "x-guidance"


Notation = Literal["json", "regex", "lark"]


@dataclass(frozen=True, slots=True)
class Source:
    """A grammar in one of llguidance's notations, and the request's field it came from."""

    notation: Notation
    text: str
    field: str

    @property
    def key(self) -> tuple[str, str]:
        """What two requests for the same grammar have in common."""
        return self.notation, self.text


def schema_source(schema: Mapping[str, Any], field: str) -> Source:
    """JSON that fits a schema."""
    return Source("json", schema_text(schema, field), field)


def any_object(field: str) -> Source:
    """Any JSON object."""
    return schema_source({"type": "object"}, field)


def regex_source(pattern: str, field: str) -> Source:
    """Text that matches a regular expression from beginning to end."""
    return Source("regex", pattern, field)


def choice_source(options: Sequence[str], field: str) -> Source:
    """One of several texts."""
    return Source("lark", "start: " + " | ".join(map(quoted, options)), field)


def lark_source(grammar: str, field: str) -> Source:
    """A grammar in Lark's notation."""
    return Source("lark", grammar, field)


def quoted(text: str) -> str:
    """A text as a Lark literal."""
    return json.dumps(text, ensure_ascii=False)


def schema_text(schema: Mapping[str, Any], field: str) -> str:
    """A schema on one line. Refuses one that is too large, or carries options for the compiler."""
    if OPTIONS_KEY in schema:
        raise InvalidRequestError(f"A schema cannot hold '{OPTIONS_KEY}'.", field=field)
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    if len(text) > LARGEST_SCHEMA:
        raise InvalidRequestError(
            f"The schema has {len(text):,} characters, more than {LARGEST_SCHEMA:,}.", field=field
        )
    return text
