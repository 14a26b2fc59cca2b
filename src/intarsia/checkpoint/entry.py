"""One tensor's entry in a safetensors header: reading it without believing it."""

from typing import Any, NamedTuple

from intarsia.checkpoint.dtypes import BITS
from intarsia.checkpoint.findings import Findings
from intarsia.core.json import type_name

MAX_TENSOR_NAME = 1024
MAX_RANK = 8
FIELDS = ("dtype", "shape", "data_offsets")

_INT = {int}


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


def known_entry(
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


def read_entry(
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
    if type(value) is dict and value.keys() == set(FIELDS):
        value = tuple(value[field] for field in FIELDS)
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
