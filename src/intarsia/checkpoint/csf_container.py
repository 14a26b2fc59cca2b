"""Writing a CSF container from an NVFP4 checkpoint: the experts' scales compressed, all else byte for byte.

    tensors/<shards>   metadata/<config, tokenizer, index>   manifest.json   build-contract.json
    verification.json  receipts/<shard>.json

A receipt holds what is needed to make the source shard again (csf_restore.py). Where the public description
of the layout gives no key names (a receipt's `scales`, `source_path`; verification.json), they are this
project's own.
"""

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from intarsia.checkpoint import Checkpoint, Shard, TensorEntry, open_checkpoint
from intarsia.checkpoint.container import CONTRACT, MANIFEST, METADATA, SCHEMAS, TENSORS
from intarsia.checkpoint.csf_family import GEOMETRIES, ExpertGeometry, check_experts
from intarsia.checkpoint.errors import ContainerError, InvalidCheckpointError
from intarsia.checkpoint.files import read_small
from intarsia.checkpoint.findings import Findings
from intarsia.checkpoint.header import LENGTH_BYTES
from intarsia.checkpoint.header import METADATA as HEADER_METADATA
from intarsia.checkpoint.reader import Reader
from intarsia.checkpoint.write import (
    flush_folders,
    json_bytes,
    refuse_existing,
    require_space,
    staging,
    write_file,
)
from intarsia.core.progress import SILENT, Phase, Progress
from intarsia.formats import csf

SCHEMA = "lil-nvfp4-csf-checkpoint/1"
CODEC_STRING, CODEC = SCHEMAS[SCHEMA]
FIXED, EXCEPTIONS = csf.components(CODEC)
VERIFICATION, RECEIPTS = "verification.json", "receipts"
COPY_BYTES = 16 << 20
MAX_SMALL_FILE = 256 << 20
_SUFFIXES = (".json", ".txt", ".md", ".jinja", ".model")
_STEMS = ("LICENSE", "NOTICE", "README")


def write_container(
    checkpoint: Checkpoint,
    out: str | os.PathLike[str],
    *,
    family: str,
    geometry: ExpertGeometry | None = None,
    progress: Progress = SILENT,
) -> Checkpoint:
    """Write a container of an NVFP4 checkpoint; returns it opened, which also validates it.

    `family` names the geometry that its experts must have exactly; `geometry` replaces it, for models that no
    other reader knows. Holds the compressed scales of one shard in memory. Every scale is decoded again and
    compared before it is kept. Raises InvalidCheckpointError with everything a reader would refuse,
    ContainerError, TargetExistsError, DiskSpaceError, WriteError; on any failure nothing is left at `out`.
    """
    chosen = _geometry(family, geometry)
    target = Path(out)
    refuse_existing(target)
    names = _bare_names(checkpoint)
    with checkpoint.reader() as reader:
        findings = Findings()
        check_experts(checkpoint, chosen, reader, findings)
        if problems := findings.all():
            raise InvalidCheckpointError(str(checkpoint.path), problems)
        scales = {f"{module}.weight_scale" for module, _, _ in chosen.modules()}
        identity = {"schema": SCHEMA, "codec": CODEC_STRING, "family": family}
        with staging(target) as folder, progress.phase("compressing", checkpoint.weight_bytes) as phase:
            require_space(folder, checkpoint.weight_bytes)
            (folder / TENSORS).mkdir()
            receipts = [
                _write_shard(checkpoint, shard, names[shard.name], scales, reader, folder, phase)
                for shard in checkpoint.shards
            ]
            hashes = _copy_metadata(checkpoint.path, folder)
            for name, document in _documents(checkpoint, names, identity, receipts, hashes).items():
                write_file(folder, name, json_bytes(document))
            flush_folders(folder)
            refuse_existing(target)
            folder.rename(target)
    return open_checkpoint(target)


def serving_configuration(container: Path, quantization: Mapping[str, Any]) -> dict[str, Any]:
    """The `quantization_config` under which a server reads a container at this path.

    `quantization` is the source's own, which is kept unchanged inside.
    """
    return {
        "quant_method": "nvfp4_csf",
        "format_version": 1,
        "checkpoint_root": str(container.resolve()),
        "source_quantization_config": dict(quantization),
    }


def _geometry(family: str, geometry: ExpertGeometry | None) -> ExpertGeometry:
    if geometry is not None:
        return geometry
    if family not in GEOMETRIES:
        raise ContainerError(
            "container family", found=repr(family), expected="one of " + ", ".join(GEOMETRIES)
        )
    return GEOMETRIES[family]


def _bare_names(checkpoint: Checkpoint) -> dict[str, str]:
    """Shard -> its file name; a container has no folders below tensors/."""
    names = {shard.name: Path(shard.name).name for shard in checkpoint.shards}
    if len(set(names.values())) != len(names):
        twice = sorted(name for name in names.values() if list(names.values()).count(name) > 1)
        raise ContainerError(
            str(checkpoint.path), found=f"two shards named {twice[0]}", expected="different names"
        )
    return names


def _write_shard(
    checkpoint: Checkpoint,
    shard: Shard,
    file: str,
    scales: set[str],
    reader: Reader,
    folder: Path,
    phase: Phase,
) -> dict[str, Any]:
    """Write one shard with its scales compressed; returns its receipt."""
    entries = sorted(
        (entry for entry in checkpoint.tensors.values() if entry.shard == shard.name),
        key=lambda entry: entry.begin,
    )
    head = _head(shard)
    streams = {entry.name: _compress(entry, reader) for entry in entries if entry.name in scales}
    source, target, size = hashlib.sha256(head), hashlib.sha256(), 0
    with open(folder / TENSORS / file, "xb") as out:
        for piece, original in _pieces(entries, streams, shard, reader):
            source.update(original)
            target.update(piece)
            size += out.write(piece)
            phase.advance(len(original))
        out.flush()
        os.fsync(out.fileno())
    phase.advance(len(head))
    return {
        "file": file,
        "source_path": shard.name,
        "source_file_bytes": shard.size,
        "source_sha256": source.hexdigest(),
        "target_file_bytes": size,
        "target_sha256": target.hexdigest(),
        "source_header_base64": base64.b64encode(head).decode(),
        "scales": {name: receipt for name, (_, receipt) in streams.items()},
    }


def _head(shard: Shard) -> bytes:
    """The length and header of a shard, as they are in the file."""
    with open(shard.path, "rb") as file:
        head = file.read(shard.header_size)
    if len(head) != shard.header_size:
        raise ContainerError(
            shard.name, found="a file that became shorter", expected="files that stay as they are"
        )
    return head


def _compress(entry: TensorEntry, reader: Reader) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The streams of one scale matrix, proven to give it back, and its receipt."""
    scales = reader.read_entry(entry).view(torch.uint8)
    streams = csf.encode(scales, CODEC)
    rows, columns = scales.shape
    if not torch.equal(csf.decode(streams, rows, columns, CODEC), scales):
        raise ContainerError(
            entry.name, found="streams that decode to other bytes", expected="the scale itself"
        )
    return streams, {
        "dtype": entry.dtype,
        "shape": list(entry.shape),
        "fixed_bytes": streams[FIXED].nbytes,
        "exception_bytes": streams[EXCEPTIONS].nbytes,
        "source_bytes": entry.nbytes,
        "source_sha256": hashlib.sha256(scales.numpy().data).hexdigest(),
    }


def _pieces(
    entries: list[TensorEntry],
    streams: Mapping[str, tuple[dict[str, torch.Tensor], dict[str, Any]]],
    shard: Shard,
    reader: Reader,
) -> Iterator[tuple[memoryview, memoryview]]:
    """Bytes to write, and the source's bytes that they stand for, in the order of the source's file."""
    yield memoryview(_header(entries, streams)), memoryview(b"")
    buffer = torch.empty(COPY_BYTES, dtype=torch.uint8)
    for entry in entries:
        for begin in range(0, entry.nbytes, COPY_BYTES):
            end = min(begin + COPY_BYTES, entry.nbytes)
            part = buffer[: end - begin]
            reader.read_into(entry, part, begin, end)
            kept = part.numpy().data
            yield (memoryview(b"") if entry.name in streams else kept), kept
        if entry.name in streams:
            for component in streams[entry.name][0].values():
                yield component.reshape(-1).view(torch.uint8).numpy().data, memoryview(b"")


def _header(
    entries: list[TensorEntry], streams: Mapping[str, tuple[dict[str, torch.Tensor], dict[str, Any]]]
) -> bytes:
    """Length and JSON of the target's header, padded to a multiple of 8 as the safetensors library does."""
    header: dict[str, Any] = {HEADER_METADATA: {"format": "pt", "schema": SCHEMA, "codec": CODEC_STRING}}
    position = 0
    for entry in entries:
        if entry.name in streams:
            parts = [
                (f"{entry.name}.{suffix}", dtype, list(tensor.shape), tensor.nbytes)
                for (suffix, tensor), dtype in zip(streams[entry.name][0].items(), ("U8", "U32"), strict=True)
            ]
        else:
            parts = [(entry.name, entry.dtype, list(entry.shape), entry.nbytes)]
        for name, dtype, shape, nbytes in parts:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + nbytes]}
            position += nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _copy_metadata(source: Path, folder: Path) -> dict[str, str]:
    """Copy configuration, tokenizer, index and licence; returns name -> sha256."""
    hashes = {}
    for path in sorted(source.iterdir()):
        known = path.suffix in _SUFFIXES or path.name.split(".")[0] in _STEMS
        if not known or path.name.startswith(".") or not path.is_file():
            continue
        content = read_small(path, path.name, MAX_SMALL_FILE)
        write_file(folder, f"{METADATA}/{path.name}", content)
        hashes[path.name] = hashlib.sha256(content).hexdigest()
        if path.name == "LICENSE":
            write_file(folder, path.name, content)
    return hashes


def _documents(
    checkpoint: Checkpoint,
    names: Mapping[str, str],
    identity: Mapping[str, str],
    receipts: list[dict[str, Any]],
    hashes: Mapping[str, str],
) -> dict[str, dict[str, Any]]:
    """Every JSON document of the container, by its path."""
    rows = [{key: receipt[key] for key in receipt if key not in _ONLY_IN_RECEIPTS} for receipt in receipts]
    scales = [scale for receipt in receipts for scale in receipt["scales"].values()]
    totals = {
        "compressed_scale_count": len(scales),
        "compressed_scale_bytes": sum(scale["fixed_bytes"] + scale["exception_bytes"] for scale in scales),
        "original_scale_bytes": sum(scale["source_bytes"] for scale in scales),
    }
    source_names = {entry.name: names[entry.shard] for entry in checkpoint.tensors.values()}
    return {
        MANIFEST: {**identity, "shards": rows, "metadata_sha256": dict(hashes), **totals},
        CONTRACT: {**identity, "source_names": source_names},
        VERIFICATION: {**identity, "status": "every scale decoded to its source bytes", **totals},
        **{f"{RECEIPTS}/{receipt['file']}.json": {**identity, **receipt} for receipt in receipts},
    }


_ONLY_IN_RECEIPTS = frozenset({"source_path", "source_header_base64", "scales"})
