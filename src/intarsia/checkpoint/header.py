"""Reading a safetensors header: an 8-byte little-endian length, JSON, then data.

Every statement of the header is checked before it is believed: its own length, names, types, shapes, byte
ranges (exactly shape x type, in file order without hole or overlap, up to the last byte of the file).
Nothing is accepted that the safetensors library refuses; several things it accepts are refused here.
"""

import os
import re
from typing import Any, NamedTuple

from intarsia.checkpoint.dtypes import BITS
from intarsia.checkpoint.findings import Findings
from intarsia.core.json import JsonError, Pairs, parse_object, type_name, unique_object

MAX_HEADER_BYTES = 100_000_000
MAX_ENTRIES = 500_000
MAX_TENSOR_NAME = 1024
MAX_RANK = 8
LENGTH_BYTES = 8
METADATA = "__metadata__"

_FIELDS = ("dtype", "shape", "data_offsets")
_INT = {int}
_NEGATIVE_ZERO = re.compile(rb"[\[,]\s*-0\s*[\],]")


class TensorEntry(NamedTuple):
    """Where one tensor lies. `begin` and `end` are byte offsets in the shard's file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: str
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        return self.end - self.begin


class Header(NamedTuple):
    """What a shard's header says. `size` is the offset of the first data byte."""

    entries: dict[str, TensorEntry]
    metadata: dict[str, str]
    size: int


def read_header(descriptor: int, file_size: int, shard: str, findings: Findings) -> Header | None:
    """Read and check the header of an open file; None when it cannot be read at all.

    Reads the length and the header, never data. Violations go to `findings`; entries that broke a rule
    are left out of the result.
    """
    text = _header_bytes(descriptor, file_size, shard, findings)
    if text is None:
        return None
    return parse_header(text, file_size - LENGTH_BYTES - len(text), shard, findings)


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


def parse_header(text: bytes, data_bytes: int, shard: str, findings: Findings) -> Header | None:
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
    size = LENGTH_BYTES + len(text)
    entries: dict[str, TensorEntry] = {}
    known: dict[tuple[str, tuple[int, ...]], int] = {}
    # true equals 1 as a key of `known`, so its short cut is only for headers without booleans.
    short_cut = b"true" not in text and b"false" not in text
    for name, value in raw.items():
        entry = _known_entry(name, value, size, data_bytes, shard, known) if short_cut else None
        if entry is None:
            entry = _entry(name, value, size, data_bytes, shard, findings)
            if entry is not None:
                known[entry.dtype, entry.shape] = entry.end - entry.begin
        if entry is not None:
            entries[name] = entry
    spans = [(entry.begin, entry.end, entry.name) for entry in entries.values()]
    if len(entries) == len(raw):  # a refused entry already explains a hole
        _check_cover(spans, size, data_bytes, shard, findings)
    return Header(entries, metadata, size)


def _compact(pairs: Pairs) -> Any:
    """An entry in the order every writer uses becomes a tuple, which JSON itself never makes."""
    if len(pairs) == 3:
        (first, dtype), (second, shape), (third, offsets) = pairs
        if first == "dtype" and second == "shape" and third == "data_offsets":
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


def _known_entry(
    name: str,
    value: Any,
    size: int,
    data_bytes: int,
    shard: str,
    known: dict[tuple[str, tuple[int, ...]], int],
) -> TensorEntry | None:
    """An entry whose type and shape were checked before in the same header, which most were; else None."""
    if type(value) is not tuple or not name or len(name) > MAX_TENSOR_NAME or not name.isprintable():
        return None
    dtype, shape, offsets = value
    if type(dtype) is not str or type(shape) is not list or type(offsets) is not list or len(offsets) != 2:
        return None
    begin, end = offsets
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end <= data_bytes:
        return None
    sizes = tuple(shape)
    try:
        expected = known.get((dtype, sizes))
    except TypeError:  # something in the shape is no number
        return None
    if expected != end - begin:
        return None
    return TensorEntry(name, dtype, sizes, shard, size + begin, size + end)


def _entry(
    name: str, value: Any, size: int, data_bytes: int, shard: str, findings: Findings
) -> TensorEntry | None:
    """One tensor's entry, or None after noting what is wrong with it."""
    where = f"{shard}: {name}"
    if not name or len(name) > MAX_TENSOR_NAME or not name.isprintable():
        findings.add(
            "header-name",
            f"{shard}: {name[:80]!r}",
            f"a name of {len(name)} characters",
            f"1 to {MAX_TENSOR_NAME} printable characters",
        )
        return None
    if type(value) is dict and value.keys() == set(_FIELDS):
        value = tuple(value[field] for field in _FIELDS)
    if type(value) is not tuple:
        found = f"the fields {sorted(value)[:8]}" if isinstance(value, dict) else type_name(value)
        findings.add("header-entry", where, found, "dtype, shape and data_offsets, and nothing else")
        return None
    dtype, shape, offsets = value
    bits = BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        findings.add(
            "header-dtype",
            where,
            f"dtype {dtype!r:.80}",
            "one of " + ", ".join(BITS),
            "read it with a release that knows the type",
        )
        return None
    if type(shape) is not list or len(shape) > MAX_RANK or not _natural(shape):
        findings.add(
            "header-shape", where, f"shape {shape!r:.80}", f"at most {MAX_RANK} non-negative integers"
        )
        return None
    if type(offsets) is not list or len(offsets) != 2 or not _natural(offsets):
        findings.add("header-offsets", where, f"data_offsets {offsets!r:.80}", "two non-negative integers")
        return None
    begin, end = offsets
    if begin > end or end > data_bytes:
        rule = "header-offsets" if begin > end else "shard-truncated"
        findings.add(
            rule,
            where,
            f"bytes {begin:,} to {end:,} of {data_bytes:,} data bytes",
            "a range inside the file",
            "download the shard again",
        )
        return None
    expected = _stored_bytes(shape, bits)
    if expected != end - begin:
        findings.add(
            "header-size",
            where,
            f"{end - begin:,} bytes",
            f"{_count(expected)} for {dtype} {list(shape)!r:.80}",
        )
        return None
    return TensorEntry(name, dtype, tuple(shape), shard, size + begin, size + end)


def _natural(numbers: list[Any]) -> bool:
    """Non-negative integers; true and false are not integers here."""
    return not numbers or (set(map(type, numbers)) == _INT and min(numbers) >= 0)


def _stored_bytes(shape: list[int], bits: int) -> int | None:
    """Bytes of a tensor; None when elements do not fill bytes, or a product leaves 64 bits on the way."""
    total = 1
    for n in shape:
        total *= n
        if n >= 1 << 64 or total >= 1 << 64:
            return None
    total *= bits
    return total // 8 if total < 1 << 64 and total % 8 == 0 else None


def _count(expected: int | None) -> str:
    return "a whole number of bytes below 2**64" if expected is None else f"{expected:,}"


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
