"""Making the source of a CSF container again, byte for byte, from its receipts."""

import base64
import binascii
import hashlib
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import msgspec
import torch

from intarsia.checkpoint import Checkpoint, TensorEntry, open_checkpoint
from intarsia.checkpoint.container import METADATA, TENSORS
from intarsia.checkpoint.csf_container import CODEC, COPY_BYTES, EXCEPTIONS, FIXED, MAX_SMALL_FILE, RECEIPTS
from intarsia.checkpoint.errors import ContainerError, InvalidCheckpointError
from intarsia.checkpoint.files import read_small
from intarsia.checkpoint.findings import Findings
from intarsia.checkpoint.header import LENGTH_BYTES, parse_header
from intarsia.checkpoint.paths import lexical_problem, shard_problem
from intarsia.checkpoint.reader import Reader
from intarsia.checkpoint.write import flush_folders, refuse_existing, require_space, staging, write_file
from intarsia.core.json import parse_object
from intarsia.core.progress import SILENT, Phase, Progress
from intarsia.formats import csf


class _Scale(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    source_bytes: int
    source_sha256: str


class _Receipt(msgspec.Struct, frozen=True):
    file: str
    source_file_bytes: int
    source_sha256: str
    source_header_base64: str
    scales: dict[str, _Scale]
    source_path: str = ""


def restore_checkpoint(
    container: str | os.PathLike[str], out: str | os.PathLike[str], *, progress: Progress = SILENT
) -> Checkpoint:
    """Write the checkpoint that a container was made from: every shard and metadata file, byte for byte.

    Each shard's size and sha256 must be those of its receipt, and each scale's sha256 too. Raises
    ContainerError, InvalidCheckpointError, CsfError and what writing raises; on any failure nothing is left
    at `out`.
    """
    opened = open_checkpoint(container)
    target = Path(out)
    refuse_existing(target)
    with (
        opened.reader() as reader,
        staging(target) as folder,
        progress.phase("restoring", opened.weight_bytes) as phase,
    ):
        for shard in opened.shards:
            receipt = _receipt(opened.path, Path(shard.name).name)
            require_space(folder, receipt.source_file_bytes)
            _write_shard(opened, receipt, reader, folder / (receipt.source_path or receipt.file), phase)
        for path in sorted((opened.path / METADATA).iterdir()):
            write_file(folder, path.name, read_small(path, path.name, MAX_SMALL_FILE))
        flush_folders(folder)
        refuse_existing(target)
        folder.rename(target)
    return open_checkpoint(target)


def restore_shard(container: str | os.PathLike[str], file: str, out: str | os.PathLike[str]) -> None:
    """Write one source shard of a container to the new file `out`. Raises what `restore_checkpoint`
    raises.
    """
    opened = open_checkpoint(container)
    target = Path(out)
    refuse_existing(target)
    receipt = _receipt(opened.path, file)
    with opened.reader() as reader, staging(target) as folder:
        path = folder / "shard"
        require_space(folder, receipt.source_file_bytes)
        with SILENT.phase("restoring", receipt.source_file_bytes) as phase:
            _write_shard(opened, receipt, reader, path, phase)
        refuse_existing(target)
        path.rename(target)


def _receipt(container: Path, file: str) -> _Receipt:
    """The receipt of a shard, typed and with paths that stay inside."""
    name = f"{RECEIPTS}/{file}.json"
    if problem := lexical_problem(name):
        raise ContainerError(name, found=problem, expected="the name of one of the container's shards")
    document = parse_object(
        read_small(container / name, name, MAX_SMALL_FILE), name, max_bytes=MAX_SMALL_FILE
    )
    problem, receipt = "", None
    try:
        receipt = msgspec.convert(document, _Receipt)
    except msgspec.ValidationError as error:
        problem = str(error)
    if receipt is None:
        raise ContainerError(name, found=problem, expected="a receipt with header, hashes and scales")
    if receipt.file != file:
        raise ContainerError(name, found=f"a receipt of {receipt.file!r:.200}", expected=file)
    for path in {receipt.file, receipt.source_path} - {""}:
        if problem := shard_problem(path):
            raise ContainerError(
                f"{name}: {path!r:.200}", found=problem, expected="a shard inside the folder"
            )
    return receipt


def _write_shard(container: Checkpoint, receipt: _Receipt, reader: Reader, path: Path, phase: Phase) -> None:
    head, entries = _source_header(receipt)
    digest, size = hashlib.sha256(), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as out:
        for piece in chain((memoryview(head),), _data(container, receipt, entries, reader)):
            digest.update(piece)
            size += out.write(piece)
            phase.advance(len(piece))
        out.flush()
        os.fsync(out.fileno())
    if (size, digest.hexdigest()) != (receipt.source_file_bytes, receipt.source_sha256):
        raise ContainerError(
            f"{TENSORS}/{receipt.file}",
            found=f"{size:,} bytes with sha256 {digest.hexdigest()}",
            expected=f"{receipt.source_file_bytes:,} with {receipt.source_sha256[:64]}",
            action="the container or its receipt is damaged; nothing was kept",
        )


def _source_header(receipt: _Receipt) -> tuple[bytes, list[TensorEntry]]:
    """Length and JSON of the source's header, and its entries in the file's order."""
    where = f"{RECEIPTS}/{receipt.file}.json: source_header_base64"
    head, problem = b"", ""
    try:
        head = base64.b64decode(receipt.source_header_base64, validate=True)
    except (binascii.Error, ValueError) as error:
        problem = str(error)
    if problem:
        raise ContainerError(where, found=problem, expected="base64")
    if head[:1] == b"{" and int.from_bytes(head[:LENGTH_BYTES], "little") != len(head) - LENGTH_BYTES:
        head = (
            len(head).to_bytes(LENGTH_BYTES, "little") + head
        )  # a writer may keep the JSON without its length
    findings = Findings()
    header = None
    if int.from_bytes(head[:LENGTH_BYTES], "little") != len(head) - LENGTH_BYTES:
        findings.add("header-truncated", where, f"{len(head):,} bytes", "a length and as many bytes of JSON")
    else:
        header = parse_header(
            head[LENGTH_BYTES:], receipt.source_file_bytes - len(head), receipt.file, findings
        )
    if problems := findings.all():
        raise InvalidCheckpointError(where, problems)
    entries = list(header.entries.values()) if header is not None else []
    return head, sorted(entries, key=lambda entry: entry.begin)


def _data(
    container: Checkpoint, receipt: _Receipt, entries: list[TensorEntry], reader: Reader
) -> Iterator[memoryview]:
    """The source's data in the order of its file: stored bytes copied, scales decoded."""
    buffer = torch.empty(COPY_BYTES, dtype=torch.uint8)
    for entry in entries:
        if entry.name in receipt.scales:
            yield _decode(container, receipt, entry, reader).numpy().data
            continue
        stored = container.tensors.get(entry.name)
        if stored is None or (stored.dtype, stored.shape) != (entry.dtype, entry.shape):
            found = "no such tensor" if stored is None else f"{stored.dtype} {list(stored.shape)}"
            raise ContainerError(entry.name, found=found, expected=f"{entry.dtype} {list(entry.shape)}")
        for begin in range(0, stored.nbytes, COPY_BYTES):
            end = min(begin + COPY_BYTES, stored.nbytes)
            part = buffer[: end - begin]
            reader.read_into(stored, part, begin, end)
            yield part.numpy().data


def _decode(container: Checkpoint, receipt: _Receipt, entry: TensorEntry, reader: Reader) -> torch.Tensor:
    """One scale's bytes, decoded and held against its receipt."""
    told = receipt.scales[entry.name]
    told_of = (told.dtype, told.shape, told.source_bytes)
    if told_of != (entry.dtype, entry.shape, entry.nbytes) or len(entry.shape) != 2:
        expected = f"a matrix as in the header, {entry.dtype} {list(entry.shape)}"
        raise ContainerError(entry.name, found=f"{told.dtype} {list(told.shape)}", expected=expected)
    streams = {suffix: reader.read(f"{entry.name}.{suffix}") for suffix in (FIXED, EXCEPTIONS)}
    rows, columns = told.shape
    scales = csf.decode(streams, rows, columns, CODEC)
    digest = hashlib.sha256(scales.numpy().data).hexdigest()
    if digest != told.source_sha256:
        raise ContainerError(entry.name, found=f"sha256 {digest}", expected=told.source_sha256[:64])
    return scales
