"""Seeded damage to documents and bytes, for the fuzz tests."""

import json
import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

TOKENS = (
    *(b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b" ", b"\n", b"\x00", b"\xff", b"\xef\xbb\xbf"),
    *(b"null", b"true", b"NaN", b"Infinity", b"-0", b"-1", b"1e3", b"1.0", b"9" * 40),
    *(b"18446744073709551615", b"18446744073709551616", b'"\\ud800"', b"\\u0000", b"F8_E8M0", b"F4"),
    *(b"[[[[[[[[", b'{"a":' * 40, b'"dtype":"F32",', b'"shape":[],', b'"weight_map":{},'),
    *(b'"__metadata__":{"a":"b"},', b'"__metadata__":{"a":1},'),
)
NUMBERS = (0, 1, -1, 2, 7, 8, 127, 128, 255, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30)
STRANGE: tuple[Any, ...] = (
    *NUMBERS,
    *(None, True, False, 1.5, -0.0, 1e308, "", "x", "x" * 5000, "\u0000", "\ud800"),
    *("F32", "F8_E4M3", "F6_E2M3", "BOOL", "NVFP4", "mxfp8", "FP8", "MIXED_PRECISION", "NOPE"),
    *("..", "/etc/passwd", "../x.safetensors", "a/../b.safetensors", "a\\b.safetensors", "C:x.safetensors"),
    *("re:(a+)+$", "re:[", "re:.*", "*" * 50, "[", "**.*?*"),
    *([], {}, [[]], [0], [0, 0], [1, 0], [0, 2**64], [True, 1], [1] * 9, [2**40] * 3),
    *({"a": {}}, {"quant_algo": "NVFP4"}),
)
KEYS = ("", "x", "dtype", "shape", "weight_map", "\u0000", "a.weight", "y" * 2000)

Path = list[tuple[Any, Any]]


def damage_bytes(text: bytes, rng: random.Random) -> bytes:
    """One to four random edits of raw text."""
    data = bytearray(text)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        until = min(len(data), at + rng.choice((1, 1, 2, 5, 30)))
        match rng.randrange(5):
            case 0:
                if at < len(data):
                    data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:until]
            case 2:
                data[at:at] = data[at:until]
            case 3:
                data[at:at] = rng.choice(TOKENS)
            case 4:
                data[at:until] = rng.choice(TOKENS)
    return bytes(data)


def damage_document(document: Any, rng: random.Random) -> Any:
    """One to three random edits of a JSON document's structure."""
    document = deepcopy(document)
    for _ in range(rng.randint(1, 3)):
        places: Path = []
        _collect(document, places)
        if not places:
            return deepcopy(rng.choice(STRANGE))
        holder, key = rng.choice(places)
        _edit(document, holder, key, rng)
    return document


def _collect(value: Any, places: Path) -> None:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(pairs):
        places.append((value, key))
        _collect(item, places)


def _edit(document: Any, holder: Any, key: Any, rng: random.Random) -> None:
    kind = rng.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[rng.choice(("", "x", "dtype", "shape", "weight_map", "\u0000", "a.weight", "y" * 2000))] = (
            holder[key]
        )
    elif kind == 2 and isinstance(holder, dict):
        holder[key + rng.choice((".weight", "x", "_scale", ".csf_base"))] = holder.pop(key)
    elif kind == 3 and isinstance(holder[key], int) and not isinstance(holder[key], bool):
        holder[key] += rng.choice((-1, 1, -8, 8, 2**32))
    elif kind == 4:
        places: Path = []
        _collect(document, places)
        other, name = rng.choice(places)
        holder[key] = deepcopy(other[name])
    else:
        holder[key] = deepcopy(rng.choice(STRANGE))


def any_damage(document: Any, rng: random.Random, dump: Callable[[Any], str] = json.dumps) -> bytes:
    """A damaged document as bytes: its structure, its text, or both."""
    if rng.random() < 0.55:
        text = dump(damage_document(document, rng)).encode("utf-8", "surrogatepass")
        return damage_bytes(text, rng) if rng.random() < 0.15 and text else text
    return damage_bytes(dump(document).encode(), rng)
