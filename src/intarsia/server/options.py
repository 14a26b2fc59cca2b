"""The settings as options: their outside names, a settings file, and the reference page.

The command line, the file and the page are all read from the one dataclass, so they cannot disagree.
"""

import ast
import inspect
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from intarsia.core.errors import UsageError
from intarsia.server.settings import ServerSettings

# vLLM's words where the meaning is the same.
NAMES = {
    "window": "max-model-len",
    "streams": "max-num-seqs",
    "prompt_rows": "max-num-batched-tokens",
    "page": "block-size",
    "state_bytes": "kv-cache-memory-bytes",
    "drafts": "num-speculative-tokens",
}
# Rarely turned: no flag of their own, but a line in the settings file.
FILE_ONLY = frozenset(
    (
        *(
            "threads",
            "expert_scales",
            "tuning",
            "page",
            "reply_share",
            "kept_apart",
            "kept_minimum",
            "kept_every",
        ),
        *("header_timeout", "body_timeout", "write_timeout", "stall_timeout"),
        *("copy_drafts", "max_connections"),
    )
)
MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Option:
    """One setting as users see it."""

    field: str
    name: str
    kind: type
    """str, int, float or bool; of the items if `several`."""
    several: bool
    default: Any
    help: str
    flag: bool
    """True if the command line has it too."""
    group: str


def options() -> tuple[Option, ...]:
    """All settings, from the engine's to the server's own."""
    hints = get_type_hints(ServerSettings)
    told = _docstrings()
    return tuple(_option(field, hints[field.name], told) for field in fields(ServerSettings))


def read_file(path: Path) -> dict[str, Any]:
    """The settings of a TOML file, by field name. Raises UsageError for unknown names and wrong types."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(str(path), found="a file of more than 1 MiB", expected="a settings file")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(str(path), found=f"{error}"[:300], expected="a TOML file") from None
    known = {name: option for option in options() for name in (option.name, option.field)}
    result: dict[str, Any] = {}
    for key, value in document.items():
        option = known.get(key) or known.get(key.replace("_", "-"))
        if option is None:
            raise UsageError(
                f"{path}: {key}", found="an unknown setting", expected="a name of the reference page"
            )
        if option.field in result:
            raise UsageError(f"{path}: {key}", found="the setting twice", expected="it once")
        result[option.field] = _value(f"{path}: {key}", option, value)
    return result


def settings_from(file: Path | None, flags: Mapping[str, Any]) -> ServerSettings:
    """Defaults, then the file, then the flags (by field name; None was not given). Raises UsageError."""
    values = read_file(file) if file is not None else {}
    values |= {name: value for name, value in flags.items() if value is not None}
    return ServerSettings(**values)


def reference_page() -> str:
    """docs/serve-reference.md."""
    lines = [
        "# Settings of `intarsia serve`",
        "",
        "Written by `python -m intarsia.server.options`; do not edit.",
        "",
        "    intarsia serve PATH|demo [--config FILE.toml] [--FLAG VALUE] ...",
        "",
        "A setting is a flag on the command line, a line in the settings file, or both; a flag wins. In the",
        "file a setting is written without dashes in front: `max-model-len = 32768`. Lists are written as",
        '`served-model-name = ["glm", "default"]` there, and as a repeated flag on the command line.',
        "Names are vLLM's where the meaning is the same.",
    ]
    group = ""
    for option in options():
        if option.group != group:
            group = option.group
            lines += ["", f"## {group}", "", "| setting | value | default | meaning |", "|---|---|---|---|"]
        name = f"`--{option.name}`" if option.flag else f"`{option.name}` (file)"
        kind = option.kind.__name__ + (", several" if option.several else "")
        default = "" if option.default in (None, ()) else f"`{option.default}`"
        lines.append(f"| {name} | {kind} | {default} | {option.help} |")
    return "\n".join(lines) + "\n"


def _option(field: Field[Any], hint: Any, told: Mapping[str, tuple[str, str]]) -> Option:
    parts = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kind = next(part for part in parts if part is not NoneType)
    several = get_origin(kind) is tuple
    group, text = told[field.name]
    if several:
        kind = get_args(kind)[0]
    elif not isinstance(kind, type):  # a Literal of words
        kind = type(get_args(kind)[0])
    return Option(
        field=field.name,
        name=NAMES.get(field.name, field.name.replace("_", "-")),
        kind=kind,
        several=several,
        default=None if field.default is MISSING else field.default,
        help=text,
        flag=field.name not in FILE_ONLY,
        group=group,
    )


def _docstrings() -> dict[str, tuple[str, str]]:
    """Field -> (what its class is about, the string below it)."""
    told: dict[str, tuple[str, str]] = {}
    for owner in reversed(ServerSettings.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        if not isinstance(body, ast.ClassDef):
            continue
        about = (owner.__doc__ or "").strip().splitlines()[0]
        for line, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(line, ast.AnnAssign)
                and isinstance(line.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                told[line.target.id] = (about, " ".join(str(text.value.value).split()))
    return told


def _value(where: str, option: Option, value: Any) -> Any:
    items = value if option.several else [value]
    if not isinstance(items, list):
        items = [items]
    for item in items:
        accepted = (int, float) if option.kind is float else (option.kind,)
        if type(item) not in accepted:  # exact types: True is no number
            raise UsageError(where, found=f"{item!r}"[:80], expected=option.kind.__name__)
    return tuple(items) if option.several else option.kind(items[0])


if __name__ == "__main__":
    print(reference_page(), end="")
