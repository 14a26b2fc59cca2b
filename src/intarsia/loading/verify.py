"""Holding an exported checkpoint against its manifest, its own record, and the source it was made from."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from intarsia import formats
from intarsia.checkpoint import Checkpoint, Module, Reader, TensorEntry, modules
from intarsia.checkpoint.contracts import FREE
from intarsia.core.errors import Violation
from intarsia.core.json import JsonError, parse_object
from intarsia.core.progress import SILENT, Phase, Progress
from intarsia.formats import TensorSpec, csf
from intarsia.loading.converter import Converter
from intarsia.loading.extras import RECORD, RECORD_SCHEMA
from intarsia.loading.staging import Staging
from intarsia.selection.errors import SelectionError
from intarsia.selection.expect import expect
from intarsia.selection.manifest import Manifest, manifest_hash
from intarsia.selection.resolve import Selection, Target, resolve
from intarsia.selection.source import source_of

STEP = 8 << 20


def verify_export(
    checkpoint: Checkpoint,
    manifest: Manifest,
    *,
    source: Checkpoint | None = None,
    progress: Progress = SILENT,
) -> list[Violation]:
    """Every way in which a checkpoint is not exactly what the manifest makes; empty when it is.

    Headers and metadata always. Where the checkpoint has the record that `convert` writes, every tensor's
    bytes are held against it. With `source`, everything is encoded again and compared byte for byte, which
    needs no trust in the record.
    """
    record, violations = read_record(checkpoint)
    kept: Mapping[str, str] | None = record.get("kept") if record is not None else None
    if source is not None:
        kept = {m.name: m.format for m in modules(source).values() if m.format is not None}
    violations += expect(checkpoint, manifest, kept=kept)
    if violations:
        return violations
    if record is not None:
        violations += _against_record(checkpoint, manifest, record, progress)
    if source is not None:
        violations += _against_source(checkpoint, manifest, source, progress)
    return violations


def read_record(checkpoint: Checkpoint) -> tuple[dict[str, Any] | None, list[Violation]]:
    """The record in a checkpoint's folder; None when there is none, a violation when it cannot be read."""
    path = checkpoint.path / RECORD
    if not path.is_file():
        return None, []
    try:
        record = parse_object(path.read_bytes(), RECORD)
    except JsonError as error:
        return None, [Violation("record", RECORD, error.found, "strict JSON")]
    if record.get("schema") != RECORD_SCHEMA or not isinstance(record.get("tensors"), dict):
        return None, [Violation("record", RECORD, str(record.get("schema")), RECORD_SCHEMA)]
    return record, []


def _against_record(
    checkpoint: Checkpoint, manifest: Manifest, record: Mapping[str, Any], progress: Progress
) -> list[Violation]:
    found = []
    if record.get("manifest_sha256") != manifest_hash(manifest):
        written, wanted = str(record.get("manifest_sha256"))[:12], manifest_hash(manifest)[:12]
        found.append(Violation("record-manifest", RECORD, f"manifest {written}", f"manifest {wanted}"))
    digests: Mapping[str, str] = record["tensors"]
    for name in checkpoint.tensors.keys() ^ digests.keys():
        where = "the checkpoint" if name in checkpoint.tensors else "the record"
        found.append(Violation("record-tensor", name, f"only in {where}", "it in both"))
    total = sum(entry.nbytes for entry in checkpoint.tensors.values())
    with checkpoint.reader() as reader, progress.phase("hashing", total) as phase:
        for name, entry in checkpoint.tensors.items():
            if name in digests and _sha256(reader, entry, phase) != digests[name]:
                found.append(Violation("changed-bytes", name, "other bytes", "those that were written"))
    return found


def _sha256(reader: Reader, entry: TensorEntry, phase: Phase) -> str:
    digest = hashlib.sha256()
    for begin in range(0, entry.nbytes, STEP):
        part = bytearray(min(STEP, entry.nbytes - begin))
        reader.read_into(entry, part, begin, begin + len(part))
        digest.update(part)
        phase.advance(len(part))
    return digest.hexdigest()


def _against_source(
    checkpoint: Checkpoint, manifest: Manifest, source: Checkpoint, progress: Progress
) -> list[Violation]:
    try:
        selection = resolve(manifest, source_of(source))
    except SelectionError as error:
        return list(error.violations)
    found: list[Violation] = []
    total = sum(entry.nbytes for entry in source.tensors.values())
    with (
        source.reader() as before,
        checkpoint.reader() as after,
        progress.phase("encoding again", total) as phase,
    ):
        _copied(source, checkpoint, selection, before, after, phase, found)
        held, stored = modules(source), modules(checkpoint)
        converter = Converter(selection, held, Staging(before, torch.device("cpu")), phase)
        converter.convert(
            (target, _Compare(target, stored[module], after, found))
            for module, target in selection.targets.items()
        )
    return found


def _copied(
    source: Checkpoint,
    checkpoint: Checkpoint,
    selection: Selection,
    before: Reader,
    after: Reader,
    phase: Phase,
    found: list[Violation],
) -> None:
    for name, entry in source.tensors.items():
        module, _, suffix = name.rpartition(".")
        if module.removesuffix(".weight_scale") in selection.targets and suffix not in FREE:
            continue
        other = checkpoint.tensors.get(name)
        if other is None or (other.dtype, other.shape) != (entry.dtype, entry.shape):
            held = f"{other.dtype} {list(other.shape)}" if other is not None else "no such tensor"
            found.append(Violation("not-copied", name, held, f"{entry.dtype} {list(entry.shape)}"))
        elif _sha256(before, entry, phase) != _sha256(after, other, _Quiet()):
            found.append(Violation("other-value", name, "other bytes", "the source's"))


class _Quiet:
    def advance(self, count: int) -> None:
        pass


class _Compare:
    """A sink that keeps nothing: it holds encoded rows against stored ones, one violation a module."""

    window = None

    def __init__(self, target: Target, module: Module, reader: Reader, found: list[Violation]) -> None:
        self._target = target
        self._module = module
        self._reader = reader
        self._found = found
        self._clean = True
        self._layout: dict[str, TensorSpec] = formats.get(target.format).layout(module.shape or ())
        self._scales: torch.Tensor | None = None

    def put(self, suffix: str, row: int, part: torch.Tensor) -> None:
        """Compares the part with what is stored there."""
        if not self._clean:
            return
        stored = self._stored(suffix, row, part)
        if not torch.equal(stored.reshape(-1).view(torch.uint8), part.reshape(-1).view(torch.uint8)):
            self._clean = False
            where = f"{self._target.module}.{suffix}"
            expected = f"{self._target.format} of the source"
            self._found.append(Violation("other-value", where, f"other bytes from row {row} on", expected))

    def _stored(self, suffix: str, row: int, part: torch.Tensor) -> torch.Tensor:
        if suffix == "weight_scale" and self._module.codec is not None:
            if self._scales is None:
                self._scales = self._expanded(self._module.codec)
            return self._scales[row : row + part.shape[0]]
        entry = self._module.tensors[suffix]
        if not part.ndim:
            return self._reader.read_entry(entry)
        return self._reader.read_rows(entry, range(row, row + part.shape[0]))

    def _expanded(self, codec: str) -> torch.Tensor:
        parts = {
            suffix.partition(".")[2]: self._reader.read_entry(entry)
            for suffix, entry in self._module.tensors.items()
            if "." in suffix
        }
        rows, columns = self._layout["weight_scale"].shape
        return csf.decode(parts, rows, columns, codec)
