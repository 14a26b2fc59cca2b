"""The form of the file that keeps tuned configurations, its checksum, and the way to and from bytes."""

import hashlib
import json
from typing import Any, Final, Literal

import msgspec

from intarsia.core.errors import Violation
from intarsia.core.json import JsonError, parse_object
from intarsia.kernels.tuning.errors import TuningError
from intarsia.kernels.tuning.identity import DeviceIdentity, Versions

SCHEMA: Final = "intarsia.tuning/1"
MAX_BYTES = 16 << 20
Values = dict[str, bool | int | str | list[int] | None]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One site: its configuration, and microseconds of that and of the default. Times are medians of
    `repeats`, spreads the range of those.
    """

    operation: str
    formats: list[str]
    shape: list[int]
    rows: int
    configuration: Values
    us: float
    spread_us: float
    default_us: float
    default_spread_us: float
    repeats: int


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate that could not run at a site, or gave other bits than the default."""

    operation: str
    formats: list[str]
    shape: list[int]
    rows: int
    configuration: Values
    reason: str


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. `checksum` is the sha256 of the canonical JSON of everything else."""

    schema: Literal["intarsia.tuning/1"]
    created: str
    device: DeviceIdentity
    versions: Versions
    kernels_sha256: str
    entries: list[Entry]
    refused: list[Refused] = []
    clocks: dict[str, dict[str, Any]] = {}
    checksum: str = ""


def sealed(document: Document) -> Document:
    """The document with its checksum."""
    return msgspec.structs.replace(document, checksum=checksum(document))


def checksum(document: Document) -> str:
    """sha256 of the canonical JSON, the checksum itself left empty."""
    return hashlib.sha256(encode(msgspec.structs.replace(document, checksum=""))).hexdigest()


def encode(document: Document) -> bytes:
    """Canonical JSON: sorted keys, indented, one newline at the end."""
    values = msgspec.to_builtins(document)
    return (json.dumps(values, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def decode(data: bytes, where: str) -> Document:
    """The document in strict JSON. Raises TuningError for anything else, and for a wrong checksum."""
    try:
        document = msgspec.convert(parse_object(data, where, max_bytes=MAX_BYTES), Document)
    except JsonError as error:
        raise TuningError(where, [Violation("json", where, error.found, error.expected)]) from None
    except msgspec.ValidationError as error:
        raise TuningError(where, [Violation("form", where, str(error), f"a file of {SCHEMA}")]) from None
    found = checksum(document)
    if document.checksum != found:
        raise TuningError(
            where, [Violation("checksum", where, document.checksum[:16], found[:16], "it was changed")]
        )
    return document
