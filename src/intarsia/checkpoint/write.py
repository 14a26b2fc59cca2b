"""Writing a checkpoint folder: all of it, or nothing.

Everything goes to a hidden folder beside the target, is flushed to the disk, and is renamed in one step. A
crash leaves at most that hidden folder, which the next reader does not take for a checkpoint.
"""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from intarsia.checkpoint.checkpoint import CONFIG_NAME, Checkpoint, open_checkpoint
from intarsia.checkpoint.dtypes import STORED
from intarsia.checkpoint.entry import MAX_RANK, MAX_TENSOR_NAME
from intarsia.checkpoint.errors import DiskSpaceError, DtypeError, TargetExistsError, WriteError
from intarsia.checkpoint.header import LENGTH_BYTES, METADATA
from intarsia.checkpoint.index import INDEX_NAME
from intarsia.checkpoint.paths import lexical_problem, shard_problem

DEFAULT_SHARD_BYTES = 4 << 30
ALIGNMENT = 64
HEADROOM = 16 << 20  # for indexes, configuration and the file system's own blocks

ShardName = Callable[[int, int], str]
Named = tuple[str, torch.Tensor]


def numbered(index: int, count: int) -> str:
    """The usual name of shard `index` (from 1) of `count`."""
    return "model.safetensors" if count == 1 else f"model-{index:05d}-of-{count:05d}.safetensors"


def write_checkpoint(
    out: str | os.PathLike[str],
    tensors: Iterable[Named],
    *,
    config: Mapping[str, Any] | None = None,
    shard_size: int = DEFAULT_SHARD_BYTES,
    shard_name: ShardName = numbered,
    extra_files: Mapping[str, bytes | Path] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Checkpoint:
    """Write tensors in the order given, a new shard whenever `shard_size` bytes would be exceeded.

    Holds the tensors of one shard in memory, not more. `shard_name(index, count)` names shards from 1; it
    may name folders. `extra_files` maps relative names to bytes or to a file to copy. Returns the opened
    checkpoint. Raises TargetExistsError, DiskSpaceError, DtypeError, WriteError; on any failure nothing
    is left at `out`.
    """
    target = Path(out)
    refuse_existing(target)
    with staging(target) as folder:
        pieces, weight_map = _write_pieces(folder, tensors, shard_size, dict(metadata or {"format": "pt"}))
        names = _final_names(len(pieces), shard_name)
        for piece, name in zip(pieces, names, strict=True):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            piece.rename(folder / name)
        index = {
            "metadata": {"total_size": sum(size for _, size in weight_map.values())},
            "weight_map": {tensor: names[piece] for tensor, (piece, _) in weight_map.items()},
        }
        if names != ["model.safetensors"]:
            write_file(folder, INDEX_NAME, json_bytes(index))
        if config is not None:
            write_file(folder, CONFIG_NAME, json_bytes(config))
        for name, content in (extra_files or {}).items():
            _write_extra(folder, name, content)
        flush_folders(folder)
        refuse_existing(target)
        folder.rename(target)
        _flush_folder(target.parent)
    return open_checkpoint(target)


def json_bytes(document: Mapping[str, Any]) -> bytes:
    """A document as the Hugging Face tools write it: indented, keys in the order given."""
    return (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def refuse_existing(target: Path) -> None:
    """Raises TargetExistsError when there is anything at the path, a dangling link too."""
    if os.path.lexists(target):
        raise TargetExistsError(
            str(target),
            found="something already there",
            expected="a path that does not exist",
            action="choose another path, or remove it yourself",
        )


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """A folder beside `target` that is removed unless it was renamed; OSErrors become WriteErrors."""
    reason = ""
    folder: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
        folder.chmod(0o755)
        yield folder
    except OSError as error:
        reason = error.strerror or str(error)
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    if reason:
        raise WriteError(str(target), found=reason, expected="a folder that can be written")


def _write_pieces(
    folder: Path, tensors: Iterable[Named], shard_size: int, metadata: dict[str, str]
) -> tuple[list[Path], dict[str, tuple[int, int]]]:
    """Write shards under temporary names; returns them and tensor -> (shard, bytes)."""
    pieces: list[Path] = []
    weight_map: dict[str, tuple[int, int]] = {}
    pending: list[Named] = []
    pending_bytes = 0

    def flush() -> None:
        nonlocal pending_bytes
        path = folder / f".piece-{len(pieces):05d}"
        write_shard(path, pending, metadata)
        pieces.append(path)
        pending.clear()
        pending_bytes = 0

    for name, tensor in tensors:
        if name in weight_map:
            raise WriteError(name, found="the tensor twice", expected="each tensor once")
        if pending and pending_bytes + tensor.nbytes > shard_size:
            flush()
        weight_map[name] = (len(pieces), tensor.nbytes)
        pending.append((name, tensor))
        pending_bytes += tensor.nbytes
    if not weight_map:
        raise WriteError(str(folder), found="no tensors", expected="at least one")
    flush()
    return pieces, weight_map


def _final_names(count: int, shard_name: ShardName) -> list[str]:
    names = [shard_name(index, count) for index in range(1, count + 1)]
    for name in names:
        if problem := shard_problem(name):
            raise WriteError(name, found=problem, expected="the relative path of a .safetensors file")
    if len(set(names)) != count:
        raise WriteError(names[0], found="one name for several shards", expected="a name for each shard")
    return names


def write_shard(path: Path, tensors: list[Named], metadata: Mapping[str, str]) -> None:
    """Write one safetensors file and flush it to the disk.

    Wider types come first and the data begins at a multiple of 64 bytes, so every tensor lies aligned for its
    type and large ones for vector copies: the kernel copies from odd offsets at about half the speed.
    """
    ordered = sorted(tensors, key=lambda item: -item[1].element_size())
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    position = 0
    for name, tensor in ordered:
        _check_writable(name, tensor)
        header[name] = {
            "dtype": STORED[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, position + tensor.nbytes],
        }
        position += tensor.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % ALIGNMENT)
    require_space(path.parent, len(text) + position)
    with open(path, "xb") as file:
        file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        for _, tensor in ordered:
            file.write(_tensor_bytes(tensor))
        file.flush()
        os.fsync(file.fileno())


def _check_writable(name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype not in STORED:
        raise DtypeError(name, found=str(tensor.dtype), expected="one of " + ", ".join(map(str, STORED)))
    if not name or name == METADATA or len(name) > MAX_TENSOR_NAME or not name.isprintable():
        raise WriteError(f"{name[:200]!r}", found="a name that no reader accepts", expected="a tensor's name")
    if tensor.dim() > MAX_RANK:
        raise WriteError(name, found=f"rank {tensor.dim()}", expected=f"at most {MAX_RANK}")


def _tensor_bytes(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def require_space(folder: Path, needed: int) -> None:
    """Raises DiskSpaceError unless the disk has `needed` bytes and some to spare."""
    free = shutil.disk_usage(folder).free
    if free < needed + HEADROOM:
        raise DiskSpaceError(
            str(folder),
            found=f"{free / 2**30:.2f} GiB free",
            expected=f"{math.ceil((needed + HEADROOM) / 2**20) / 2**10:.2f} GiB for the next shard",
            action="free some space or choose another disk; nothing was kept",
        )


def write_file(folder: Path, name: str, content: bytes) -> None:
    """Write a new file at a relative name inside the folder, and flush it to the disk."""
    if problem := lexical_problem(name):
        raise WriteError(name, found=problem, expected="a relative path inside the checkpoint")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _write_extra(folder: Path, name: str, content: bytes | Path) -> None:
    write_file(folder, name, content if isinstance(content, bytes) else content.read_bytes())


def flush_folders(folder: Path) -> None:
    """Make the names in a folder and those below it durable."""
    for directory, _, _ in os.walk(folder):
        _flush_folder(Path(directory))


def _flush_folder(folder: Path) -> None:
    """Make renames in a folder durable; some file systems cannot, which is not an error."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
