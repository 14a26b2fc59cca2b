"""The manifest: which modules become which number format, in one file with sections for model and draft.

`manifest.json` names every module it changes. What it does not name stays as stored.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from intarsia.core.json import JsonError, parse_object
from intarsia.selection.errors import ManifestError

SCHEMA: Final = "intarsia.manifest/1"
FILE_NAME = "manifest.json"
MAX_BYTES = 64 << 20

Policy = Literal["native", "csf", "inherit"]
Codec = Literal["csf_32x2_v1", "nvfp4_slab"]


class ScalePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How block scales of FP4 experts are kept: `native` plain, `csf` compressed, `inherit` as in main.

    `layers` overrides the policy for single experts containers, by name. MXFP8 scales are never compressed.
    """

    policy: Policy = "native"
    codec: Codec = "csf_32x2_v1"
    layers: dict[str, Literal["native", "csf"]] = {}


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Targets of the main model, or of the draft.

    `targets` maps module names to number formats. With `strict` every name must be exact, and no module may
    change that the manifest does not name. `requantize` names targets whose stored form is already quantized
    and which may be decoded and encoded again. `grouping` picks the family's table of fused groups.
    """

    targets: dict[str, str] = {}
    strict: bool = True
    ignore: list[str] = []
    requantize: list[str] = []
    grouping: str = "default"
    scales: ScalePolicy = ScalePolicy()
    activations: Literal["bf16"] = "bf16"


class SourceIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the manifest was written for: the hash covers every tensor's name, dtype and shape."""

    model_type: str
    tensors: int
    inventory_sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole manifest. `draft` is null for a source without MTP layers."""

    schema: Literal["intarsia.manifest/1"]
    main: Section
    draft: Section | None = None
    recipe: str | None = None
    source: SourceIdentity | None = None

    def sections(self) -> dict[str, Section]:
        """The sections by name, main first."""
        return {"main": self.main} | ({"draft": self.draft} if self.draft is not None else {})


def manifest_path(path: str | os.PathLike[str]) -> Path:
    """The manifest file for a path that names it or its folder."""
    given = Path(path)
    return given / FILE_NAME if given.is_dir() else given


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Reads a manifest file, or the one in a folder.

    Raises ManifestError: unreadable, not strict JSON (a duplicate key included), or another schema. The path
    of the offending field is named.
    """
    file = manifest_path(path)
    problem = ""
    data = b""
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        raise ManifestError(
            str(file), found=problem, expected="a manifest file, or a folder with manifest.json"
        )
    return parse_manifest(data, str(file))


def parse_manifest(data: bytes, where: str) -> Manifest:
    """A manifest from its bytes; raises ManifestError as `read_manifest` does."""
    problem = ""
    try:
        return msgspec.convert(parse_object(data, where, max_bytes=MAX_BYTES), Manifest, strict=True)
    except JsonError as error:
        problem = error.found
    except msgspec.ValidationError as error:
        problem = str(error)
    raise ManifestError(where, found=problem, expected=f"a manifest of schema {SCHEMA}")


def manifest_bytes(manifest: Manifest) -> bytes:
    """The canonical file content: indented, keys sorted, so that equal manifests are equal bytes."""
    text = json.dumps(msgspec.to_builtins(manifest), indent=1, sort_keys=True, ensure_ascii=False)
    return (text + "\n").encode()


def manifest_hash(manifest: Manifest) -> str:
    """sha256 of the canonical content."""
    return hashlib.sha256(manifest_bytes(manifest)).hexdigest()


def write_manifest(manifest: Manifest, folder: str | os.PathLike[str]) -> Path:
    """Writes `manifest.json` into a new folder and returns its path.

    The folder appears with the complete file in it or not at all. Raises ManifestError when it exists.
    """
    target = Path(folder)
    staging = target.with_name(f".{target.name}.partial-{os.getpid()}")
    problem = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(target):
            problem = "something already there"
        else:
            staging.mkdir()
            (staging / FILE_NAME).write_bytes(manifest_bytes(manifest))
            staging.rename(target)
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        _remove(staging)
        raise ManifestError(str(target), found=problem, expected="a folder that does not exist yet")
    return target / FILE_NAME


def _remove(staging: Path) -> None:
    (staging / FILE_NAME).unlink(missing_ok=True)
    if staging.is_dir():
        staging.rmdir()


def inventory_hash(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> str:
    """sha256 over every tensor's name, safetensors dtype and shape, in name order."""
    lines: list[Any] = [[name, dtype, list(shape)] for name, (dtype, shape) in sorted(tensors.items())]
    return hashlib.sha256(json.dumps(lines, separators=(",", ":")).encode()).hexdigest()
