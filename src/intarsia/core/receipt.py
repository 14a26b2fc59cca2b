"""Receipts: what a run did, on what, with which settings, and what it measured; written once and checkable.

A receipt is canonical JSON (sorted keys, UTF-8, one newline at the end). Its `id` is the sha256 of that JSON
without the id, so a changed receipt no longer fits its name. Tensors are named by the sha256 of their stored
bytes in C order: two machines compare weights without sharing them.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from intarsia.core.errors import IntarsiaError, Violation
from intarsia.core.json import JsonError, parse_object
from intarsia.core.provenance import Code, Machine, code, machine

SCHEMA: Final = "intarsia.receipt/2"
"""What is written. Receipts of schema 1, which do not name their code's sources, are read."""
MAX_BYTES = 256 << 20


class ReceiptError(IntarsiaError):
    """A receipt that cannot be read, or would overwrite another file."""


class SourceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the source. `sha256` is null where its content was not hashed."""

    name: str
    size: int
    sha256: str | None = None


class SourceIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was read. `inventory_sha256` covers every tensor's name, dtype and shape."""

    path: str
    model_type: str
    inventory_sha256: str
    files: list[SourceFile]


class PhaseTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of the run."""

    name: str
    seconds: float
    bytes: int = 0


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes on one device, beside what was there before. `working` is what is beside the weights at its most;
    `by` tells how the figures came about, such as "plan", "allocator" or "resident size".
    """

    by: str
    weights: int
    working: int
    peak: int
    peak_at: str = ""


class Receipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run. `not_run` says in sentences what these figures do not cover."""

    schema: Literal["intarsia.receipt/1", "intarsia.receipt/2"]
    kind: str
    created: str
    code: Code
    machine: Machine
    settings: dict[str, Any]
    source: SourceIdentity | None = None
    manifest_sha256: str | None = None
    predicted: Memory | None = None
    measured: Memory | None = None
    phases: list[PhaseTime] = []
    tensors: dict[str, str] = {}
    results: dict[str, Any] = {}
    not_run: list[str] = []
    id: str = ""


def make(kind: str, created: str, settings: Mapping[str, Any], **fields: Any) -> Receipt:
    """A receipt of this code on this machine, with its id."""
    blank = Receipt(
        schema=SCHEMA,
        kind=kind,
        created=created,
        code=code(),
        machine=machine(),
        settings=dict(settings),
        **fields,
    )
    return msgspec.structs.replace(blank, id=identity(blank))


def canonical(receipt: Receipt) -> bytes:
    """The receipt's only form as bytes."""
    text = json.dumps(
        msgspec.to_builtins(receipt), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False
    )
    return (text + "\n").encode()


def identity(receipt: Receipt) -> str:
    """sha256 of the canonical form without the id."""
    return hashlib.sha256(canonical(msgspec.structs.replace(receipt, id=""))).hexdigest()


def write(receipt: Receipt, path: str | os.PathLike[str]) -> Path:
    """Writes a receipt, complete or not at all. Raises ReceiptError when something is there already."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    problem = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("xb") as file:
            file.write(canonical(receipt))
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, target)  # unlike a rename, this never replaces
    except OSError as error:
        problem = error.strerror or str(error)
    finally:
        partial.unlink(missing_ok=True)
    if problem:
        raise ReceiptError(str(target), found=problem, expected="a file that does not exist yet")
    return target


def refuse_existing(path: str | os.PathLike[str]) -> None:
    """Raises ReceiptError when something is there already, before the work that the receipt would be of."""
    if os.path.lexists(path):
        raise ReceiptError(
            str(path), found="something already there", expected="a file that does not exist yet"
        )


def read(path: str | os.PathLike[str]) -> Receipt:
    """Reads a receipt. Raises ReceiptError: unreadable, not strict JSON, or of another schema."""
    problem = ""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        found = msgspec.convert(parse_object(data, str(path), max_bytes=MAX_BYTES), Receipt, strict=True)
        if (found.schema == SCHEMA) == (found.code.sources_sha256 is not None):
            return found
        problem = f"{found.schema} and sources_sha256 {found.code.sources_sha256}"
    except OSError as error:
        problem = error.strerror or str(error)
    except JsonError as error:
        problem = error.found
    except msgspec.ValidationError as error:
        problem = str(error)
    raise ReceiptError(str(path), found=problem, expected=f"a receipt of schema {SCHEMA} or /1")


def verify(path: str | os.PathLike[str]) -> tuple[Receipt, list[Violation]]:
    """Reads a receipt and recomputes what can be: its id, its form, and source files that are still there.

    Returns it with what does not fit. Files that are gone are no violation; see `unchecked`. Raises
    ReceiptError.
    """
    receipt = read(path)
    found = []
    if receipt.id != identity(receipt):
        action = "it was changed after it was written"
        found.append(Violation("receipt-id", str(path), receipt.id[:16], identity(receipt)[:16], action))
    elif Path(path).read_bytes() != canonical(receipt):
        found.append(Violation("receipt-form", str(path), "another spelling", "canonical JSON"))
    return receipt, found + verify_files(receipt)


def verify_files(receipt: Receipt) -> list[Violation]:
    """Source files that are there and are not what the receipt says."""
    found = []
    for file, there in _files(receipt):
        if there.is_file():
            found += _check_file(file, there)
    return found


def unchecked(receipt: Receipt) -> list[str]:
    """What `verify` had nothing to hold against, in sentences."""
    notes = [f"{file.name} is not there" for file, there in _files(receipt) if not there.is_file()]
    notes += [
        f"{file.name}: its content was not hashed" for file, _ in _files(receipt) if file.sha256 is None
    ]
    if receipt.tensors:
        notes.append(f"{len(receipt.tensors)} tensor hashes: load or audit the weights to compare them")
    return notes


def _files(receipt: Receipt) -> list[tuple[SourceFile, Path]]:
    if receipt.source is None:
        return []
    return [(file, Path(receipt.source.path) / file.name) for file in receipt.source.files]


def _check_file(file: SourceFile, path: Path) -> list[Violation]:
    size = path.stat().st_size
    if size != file.size:
        return [Violation("source-size", file.name, f"{size:,} bytes", f"{file.size:,} bytes")]
    if file.sha256 is None:
        return []
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != file.sha256:
        return [Violation("source-hash", file.name, digest[:16], file.sha256[:16])]
    return []
