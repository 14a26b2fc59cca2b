"""Strict JSON: what every configuration, index and header is read with.

Stricter than `json`, which keeps the last of two equal keys, reads NaN and lone surrogates, and stricter
than `msgspec`, which also accepts duplicates. Two readers that pick different duplicates see different
checkpoints, so a duplicate is refused. All limits are checked before or while parsing, so that a hostile
document costs a bounded amount of memory.
"""

import json
import math
import re
from collections.abc import Callable
from typing import Any

from intarsia.core.errors import IntarsiaError

MAX_BYTES = 64 << 20
MAX_DEPTH = 64
MAX_VALUES = 4_000_000

Pairs = list[tuple[str, Any]]
ObjectHook = Callable[[Pairs], Any]

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class JsonError(IntarsiaError):
    """A document that is not strict JSON, or exceeds a limit."""


class _RefusedError(ValueError):
    """Carries a refusal out of the decoder's callbacks."""


def parse(
    data: bytes,
    where: str,
    *,
    max_bytes: int = MAX_BYTES,
    max_depth: int | None = MAX_DEPTH,
    max_values: int = MAX_VALUES,
    object_hook: ObjectHook | None = None,
    integers_only: bool = False,
) -> Any:
    """The value of one JSON document in UTF-8; `where` names it in errors.

    `max_depth=None` leaves the nesting to a caller that knows the whole structure (the decoder itself
    stops near 1,000). `object_hook` builds objects from pairs in place of `unique_object`, which it should
    call for whatever it does not know. `integers_only` refuses numbers with a point or an exponent.

    Raises JsonError for malformed text, duplicate keys, NaN and infinities, lone surrogates, and for more
    bytes, nesting or values than allowed.
    """
    problem = ""
    value: Any = None
    try:
        _check_size(data, max_bytes, max_values)
        value = json.loads(
            data.decode(),
            object_pairs_hook=object_hook or unique_object,
            parse_constant=_no_constant,
            parse_float=_no_float if integers_only else _finite,
        )
        if b"\\u" in data and _SURROGATE.search(data):
            _refuse_lone_surrogates(value)
    except _RefusedError as refusal:
        problem = str(refusal)
    except UnicodeDecodeError as error:
        problem = f"bytes that are not UTF-8 at offset {error.start}"
    except json.JSONDecodeError as error:
        problem = f"malformed JSON at offset {error.pos} ({error.msg})"
    except RecursionError:
        problem = "very deep nesting"
    except ValueError as error:  # an integer of thousands of digits
        problem = f"an unreadable number ({error})"
    if not problem and max_depth is not None and _deeper_than(value, max_depth):
        problem = f"nesting deeper than {max_depth}"
    if problem:  # outside the handlers, so that the error carries no context of the decoder's
        raise JsonError(where, found=problem, expected="strict JSON", action="write the file again")
    return value


def parse_object(data: bytes, where: str, **limits: Any) -> dict[str, Any]:
    """Like `parse`, for documents that must be an object."""
    value = parse(data, where, **limits)
    if not isinstance(value, dict):
        raise JsonError(where, found=type_name(value), expected="a JSON object")
    return value


def type_name(value: object) -> str:
    """What a JSON value is called in messages."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _check_size(data: bytes, max_bytes: int, max_values: int) -> None:
    if len(data) > max_bytes:
        raise _RefusedError(f"{len(data):,} bytes, more than {max_bytes:,}")
    # Every value is preceded by one of these, so their number bounds what decoding can allocate.
    if len(data) > max_values and data.count(b",") + data.count(b"[") + data.count(b"{") > max_values:
        raise _RefusedError(f"more than {max_values:,} values")


def unique_object(pairs: Pairs) -> dict[str, Any]:
    """A dictionary of the pairs; a key that comes twice is refused."""
    unique = dict(pairs)
    if len(unique) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RefusedError(f"the key {key[:200]!r} twice in one object")
            seen.add(key)
    return unique


def _finite(text: str) -> float:
    """A number beyond the largest float would silently be read as infinity."""
    value = float(text)
    if math.isinf(value):
        raise _RefusedError(f"the number {text[:40]}, which is too large")
    return value


def _no_constant(text: str) -> Any:
    raise _RefusedError(f"the value {text}")


def _no_float(text: str) -> Any:
    raise _RefusedError(f"the number {text[:40]} where only integers belong")


def _refuse_lone_surrogates(value: Any) -> None:
    def check(item: Any) -> None:
        if isinstance(item, str) and any("\ud800" <= letter <= "\udfff" for letter in item):
            raise _RefusedError(f"a lone surrogate in {item[:200]!r}")

    _walk(value, check)


def _walk(value: Any, visit: Callable[[Any], None]) -> None:
    pending = [value]
    while pending:
        item = pending.pop()
        visit(item)
        if isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
