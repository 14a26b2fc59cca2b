"""Reading a safetensors header: an 8-byte little-endian length, JSON, then data.

Every statement of the header is checked before it is believed: its own length, names, types, shapes, byte
ranges (exactly shape x type, in file order without hole or overlap, up to the last byte of the file).
Nothing is accepted that the safetensors library refuses; several things it accepts are refused here.
"""

import os
import re
from typing import Any, NamedTuple

from intarsia.checkpoint.entry import FIELDS, TensorEntry, known_entry, read_entry
from intarsia.checkpoint.findings import Findings
from intarsia.core.json import JsonError, Pairs, parse_object, type_name, unique_object

__all__ = ["Header", "TensorEntry", "parse_header", "read_header"]

MAX_HEADER_BYTES = 100_000_000
MAX_ENTRIES = 500_000
MAX_DATA_BYTES = 1 << 62
LENGTH_BYTES = 8
METADATA = "__metadata__"

_NEGATIVE_ZERO = re.compile(rb"[\[,]\s*-0\s*[\],]")


class Header(NamedTuple):
    """What a shard's header says. `size` is the offset of the first data byte."""

    entries: dict[str, TensorEntry]
    metadata: dict[str, str]
    size: int


def read_header(
    descriptor: int, file_size: int, shard: str, findings: Findings, *, data_required: bool = True
) -> Header | None:
    """Read and check the header of an open file; None when it cannot be read at all.

    Reads the length and the header, never data. Violations go to `findings`; entries that broke a rule
    are left out of the result. Without `data_required` a file may end anywhere behind its header.
    """
    text = _header_bytes(descriptor, file_size, shard, findings)
    if text is None:
        return None
    present = file_size - LENGTH_BYTES - len(text)
    return parse_header(text, present, shard, findings, data_required=data_required)


def _header_bytes(descriptor: int, file_size: int, shard: str, findings: Findings) -> bytes | None:
    if file_size < LENGTH_BYTES + 2:
        findings.add(
            "header-truncated",
            shard,
            f"a file of {file_size} bytes",
            "at least 10 bytes",
            "download the shard again",
        )
        return None
    length = int.from_bytes(_read_all(descriptor, 0, LENGTH_BYTES), "little")
    if length > MAX_HEADER_BYTES:
        findings.add(
            "header-too-long",
            shard,
            f"a header of {length:,} bytes",
            f"at most {MAX_HEADER_BYTES:,}",
            "the file is not a safetensors file, or damaged",
        )
        return None
    if length > file_size - LENGTH_BYTES:
        findings.add(
            "header-truncated",
            shard,
            f"a header of {length:,} bytes in a file of {file_size:,}",
            "a header that lies within the file",
            "download the shard again",
        )
        return None
    text = _read_all(descriptor, LENGTH_BYTES, length)
    if len(text) != length:
        findings.add("header-truncated", shard, "a file that became shorter while it was read")
        return None
    return text


def _read_all(descriptor: int, begin: int, count: int) -> bytes:
    pieces = []
    while count > 0:
        piece = os.pread(descriptor, count, begin)
        if not piece:
            break
        pieces.append(piece)
        begin += len(piece)
        count -= len(piece)
    return b"".join(pieces)


def parse_header(
    text: bytes, data_bytes: int, shard: str, findings: Findings, *, data_required: bool = True
) -> Header | None:
    """Check the JSON of a header against the number of data bytes that follow it."""
    if text[:1] != b"{":
        findings.add("header-json", shard, f"a header that starts with {text[:1]!r}", "'{'")
        return None
    if text.count(b'"data_offsets"') > MAX_ENTRIES:
        findings.add("header-entries", shard, f"more than {MAX_ENTRIES:,} tensors")
        return None
    problem = ""
    raw: dict[str, Any] = {}
    try:
        raw = parse_object(
            text,
            shard,
            max_bytes=MAX_HEADER_BYTES,
            max_depth=None,
            object_hook=_compact,
            integers_only=True,
        )
    except JsonError as error:
        problem = error.found
    if not problem and b"-0" in text and _NEGATIVE_ZERO.search(text):
        problem = "a number written -0"
    if problem:
        findings.add("header-json", shard, problem, "strict JSON")
        return None
    metadata = _metadata(raw.pop(METADATA, {}), shard, findings)
    if not data_required:
        data_bytes = max(data_bytes, _promised(raw))
    size = LENGTH_BYTES + len(text)
    entries: dict[str, TensorEntry] = {}
    known: dict[tuple[str, tuple[int, ...]], int] = {}
    # true equals 1 as a key of `known`, so its short cut is only for headers without booleans.
    short_cut = b"true" not in text and b"false" not in text
    for name, value in raw.items():
        entry = known_entry(name, value, size, data_bytes, shard, known) if short_cut else None
        if entry is None:
            entry = read_entry(name, value, size, data_bytes, shard, findings)
            if entry is not None:
                known[entry.dtype, entry.shape] = entry.end - entry.begin
        if entry is not None:
            entries[name] = entry
    spans = [(entry.begin, entry.end, entry.name) for entry in entries.values()]
    if len(entries) == len(raw):  # a refused entry already explains a hole
        _check_cover(spans, size, data_bytes, shard, findings)
    return Header(entries, metadata, size)


def _promised(raw: dict[str, Any]) -> int:
    """The end of the last tensor by the header; entries that are none count nothing."""
    ends = []
    for value in raw.values():
        offsets = value[2] if type(value) is tuple else value.get(FIELDS[2]) if type(value) is dict else None
        if type(offsets) is list and len(offsets) == 2 and type(offsets[1]) is int:
            ends.append(offsets[1])
    return min(max(ends, default=0), MAX_DATA_BYTES)


def _compact(pairs: Pairs) -> Any:
    """An entry in the order every writer uses becomes a tuple, which JSON itself never makes."""
    if len(pairs) == 3:
        (first, dtype), (second, shape), (third, offsets) = pairs
        if (first, second, third) == FIELDS and type(shape) is list:
            return dtype, shape, offsets
    return unique_object(pairs)


def _metadata(value: Any, shard: str, findings: Findings) -> dict[str, str]:
    if not isinstance(value, dict):
        findings.add("header-metadata", f"{shard}: {METADATA}", type_name(value), "an object of strings")
        return {}
    wrong = [key for key, item in value.items() if not isinstance(item, str)]
    if wrong:
        findings.add(
            "header-metadata", f"{shard}: {METADATA}.{wrong[0][:200]}", type_name(value[wrong[0]]), "a string"
        )
        return {}
    return value


def _check_cover(
    spans: list[tuple[int, int, str]], size: int, data_bytes: int, shard: str, findings: Findings
) -> None:
    """The entries must cover the data exactly: no hole, no overlap, nothing behind the last."""
    spans.sort()
    position = size
    for begin, end, name in spans:
        if begin > position:
            findings.add(
                "header-hole",
                f"{shard}: {name}",
                f"{begin - position:,} bytes before it that belong to no tensor",
            )
        elif begin < position:
            findings.add(
                "header-overlap", f"{shard}: {name}", f"{position - begin:,} bytes shared with another tensor"
            )
        position = max(position, end)
    if position < size + data_bytes:
        findings.add(
            "header-trailing",
            shard,
            f"{size + data_bytes - position:,} bytes behind the last tensor",
            "a file that ends with its last tensor",
        )
