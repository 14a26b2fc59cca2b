"""Opening a checkpoint: headers, index and configuration, but no tensor data."""

import difflib
import heapq
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from intarsia.checkpoint.collector import collector_paused
from intarsia.checkpoint.container import METADATA, compare, is_container, read_container
from intarsia.checkpoint.entry import TensorEntry
from intarsia.checkpoint.errors import (
    CheckpointError,
    InvalidCheckpointError,
    NotACheckpointError,
    TensorMissingError,
)
from intarsia.checkpoint.files import read_small
from intarsia.checkpoint.findings import Findings
from intarsia.checkpoint.header import Header, read_header
from intarsia.checkpoint.index import INDEX_NAME, Index, read_index, shards_on_disk
from intarsia.checkpoint.merge import merge
from intarsia.checkpoint.metadata import HF_QUANT_CONFIG, parse_carriers
from intarsia.checkpoint.paths import locate, open_regular
from intarsia.checkpoint.recipes import Quantization
from intarsia.core.errors import Violation
from intarsia.core.json import JsonError, parse_object

if TYPE_CHECKING:
    from intarsia.checkpoint.reader import Reader

CONFIG_NAME = "config.json"
DEFAULT_BUFFER = 16 << 20
MAX_CONFIG_BYTES = 64 << 20
MAX_TENSORS = 3_000_000
NEAREST_POOL = 400


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of tensors. `stamp` identifies the file whose header was read."""

    name: str
    path: Path
    size: int
    header_size: int
    tensor_count: int
    metadata: Mapping[str, str]
    stamp: tuple[int, int, int, int]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a folder's headers and configuration say. No tensor data is held or mapped."""

    path: Path
    tensors: Mapping[str, TensorEntry]
    shards: tuple[Shard, ...]
    config: dict[str, Any]
    quantization: Quantization = field(default_factory=Quantization)
    problems: tuple[Violation, ...] = ()
    _by_name: dict[str, Shard] = field(default_factory=dict, repr=False)
    _known: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was worked out of it and need not be again."""

    @property
    def weight_bytes(self) -> int:
        """Sizes of the shard files, each counted once, those in folders too."""
        return sum(shard.size for shard in self.shards)

    def shard(self, name: str) -> Shard:
        """The shard an entry's `shard` names."""
        return self._by_name[name]

    def entry(self, name: str) -> TensorEntry:
        """The entry of a tensor; raises TensorMissingError with the nearest names."""
        found = self.tensors.get(name)
        if found is None:
            near = nearest(name, self.tensors)
            raise TensorMissingError(
                name,
                found="no such tensor",
                expected=f"one of the {len(self.tensors):,} tensors of {self.path.name}",
                action=f"nearest: {', '.join(near)}" if near else "",
            )
        return found

    def once(self, what: str, work: Callable[["Checkpoint"], T]) -> T:
        """What `work` makes of the checkpoint, done once: planning and loading ask the same."""
        if what not in self._known:
            self._known[what] = work(self)
        found: T = self._known[what]
        return found

    def reader(self, buffer_bytes: int = DEFAULT_BUFFER) -> "Reader":
        """A context manager that reads tensors and ranges of them."""
        from intarsia.checkpoint.reader import Reader  # the reader needs this module's types

        return Reader(self, buffer_bytes)


def open_checkpoint(
    path: str | os.PathLike[str], *, strict: bool = True, data_required: bool = True
) -> Checkpoint:
    """Read the headers, index and configuration of a checkpoint folder, or of the word `demo`.

    Raises InvalidCheckpointError with every violation found. With `strict=False` the violations are
    returned in `.problems` and what could be read is kept, for reports about damaged checkpoints.
    With `data_required=False` shards may end anywhere behind their headers, which is enough for manifests
    and plans; reading a tensor that is not there raises TruncatedError.
    """
    folder = locate(path)
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing there"
        raise NotACheckpointError(
            str(folder), found=found, expected="the folder of a checkpoint", action="check the path"
        )
    with collector_paused():
        return _open(folder, strict, data_required)


def _open(folder: Path, strict: bool, data_required: bool) -> Checkpoint:
    findings = Findings()
    if is_container(folder):
        container = read_container(folder, findings)
        shards, entries = _read_shards(folder, container.shards, findings, data_required)
        compare(container, entries, {shard.name: shard.size for shard in shards}, findings)
        config, quantization = _read_metadata(folder / METADATA, findings, implied_csf=True)
    else:
        index = read_index(folder, findings)
        shards, entries = _read_shards(folder, index.shards, findings, data_required)
        if index.weight_map is not None:
            _compare_with_index(index.weight_map, entries, shards, findings)
            _report_unindexed(folder, index, findings)
        config, quantization = _read_metadata(folder, findings)
    problems = findings.all()
    if strict and problems:
        raise InvalidCheckpointError(str(folder), problems)
    return Checkpoint(
        path=folder,
        tensors=entries,
        shards=tuple(shards),
        config=config,
        quantization=quantization,
        problems=problems,
        _by_name={shard.name: shard for shard in shards},
    )


def _read_metadata(
    folder: Path, findings: Findings, *, implied_csf: bool = False
) -> tuple[dict[str, Any], Quantization]:
    """config.json and the merged quantization metadata; what is wrong goes to `findings`."""
    config = _read_object(folder, CONFIG_NAME, findings) or {}
    legacy = _read_object(folder, HF_QUANT_CONFIG, findings)
    carriers = parse_carriers(config, legacy, findings)
    if implied_csf:
        carriers = [replace(carrier, implied_csf=True) for carrier in carriers]
    return config, merge(carriers, findings)


def _read_object(folder: Path, name: str, findings: Findings) -> dict[str, Any] | None:
    """The JSON object in a configuration file; None when there is no file."""
    if not os.path.lexists(folder / name):
        return None
    problem = ""
    try:
        return parse_object(read_small(folder / name, name, MAX_CONFIG_BYTES), name)
    except (JsonError, CheckpointError) as error:
        problem = error.found
    findings.add("config-json", name, problem, "strict JSON")
    return None


def _read_shards(
    folder: Path, names: Iterable[str], findings: Findings, data_required: bool
) -> tuple[list[Shard], dict[str, TensorEntry]]:
    shards: list[Shard] = []
    entries: dict[str, TensorEntry] = {}
    for name in names:
        opened = _read_shard(folder, name, findings, data_required)
        if opened is None:
            continue
        shard, header = opened
        shards.append(shard)
        twice = entries.keys() & header.entries.keys()
        for tensor in sorted(twice):
            findings.add(
                "duplicate-tensor",
                tensor,
                f"in {entries[tensor].shard} and in {name}",
                "each tensor once",
                "remove the shard that the index does not need",
            )
        entries.update(header.entries)
        if len(entries) > MAX_TENSORS:
            findings.add("too-many-tensors", name, f"more than {MAX_TENSORS:,} tensors up to this shard")
            break
    return shards, entries


def _read_shard(
    folder: Path, name: str, findings: Findings, data_required: bool
) -> tuple[Shard, Header] | None:
    path = folder / name
    failure: CheckpointError | None = None
    try:
        descriptor = open_regular(path, name)
    except CheckpointError as error:
        failure = error
    if failure is not None:
        missing = not os.path.lexists(path)
        findings.add(
            "missing-shard" if missing else "shard-unreadable",
            name,
            "no such file" if missing else failure.found,
            failure.expected,
            "download the shard" if missing else failure.action,
        )
        return None
    try:
        status = os.fstat(descriptor)
        header = read_header(descriptor, status.st_size, name, findings, data_required=data_required)
    finally:
        os.close(descriptor)
    if header is None:
        return None
    shard = Shard(
        name=name,
        path=path,
        size=status.st_size,
        header_size=header.size,
        tensor_count=len(header.entries),
        metadata=header.metadata,
        stamp=stamp(status),
    )
    return shard, header


def stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    """What identifies a file's content without reading it: device, inode, size, modification time."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _compare_with_index(
    weight_map: dict[str, str], entries: dict[str, TensorEntry], shards: list[Shard], findings: Findings
) -> None:
    """Every indexed tensor must be in its shard, and every tensor of a shard must be indexed."""
    readable = {shard.name for shard in shards}
    for tensor, shard in weight_map.items():
        entry = entries.get(tensor)
        if entry is None:
            if shard in readable:
                findings.add(
                    "missing-tensor",
                    tensor[:200],
                    f"no such tensor in {shard}",
                    "the tensor that the index promises",
                    "download the shard and the index of one revision",
                )
        elif entry.shard != shard:
            findings.add("wrong-shard", tensor, f"it in {entry.shard}", f"it in {shard}")
    for tensor in entries.keys() - weight_map.keys():
        findings.add(
            "tensor-outside-index",
            tensor,
            f"it in {entries[tensor].shard} but not in the index",
            "every stored tensor in the index",
            "download the index and the shards of one revision",
        )


def _report_unindexed(folder: Path, index: Index, findings: Findings) -> None:
    extra = sorted(set(shards_on_disk(folder)) - set(index.shards))
    for name in extra:
        findings.add(
            "shard-outside-index",
            name,
            f"a shard that {INDEX_NAME} does not name",
            "no other shards in the folder",
            "remove it, or download the index of its revision",
        )


def nearest(name: str, candidates: Mapping[str, object] | set[str], count: int = 3) -> list[str]:
    """Up to `count` candidates most like `name`; the search is bounded for large sets."""
    tail = ".".join(name.rsplit(".", 2)[-2:])
    pool = [other for other in candidates if other.endswith(tail) or name in other or other in name]
    if not pool:
        pool = [other for other in candidates if abs(len(other) - len(name)) <= 4]
    if len(pool) > NEAREST_POOL:
        pool = heapq.nsmallest(NEAREST_POOL, pool, key=lambda other: (abs(len(other) - len(name)), other))
    return difflib.get_close_matches(name, pool, n=count, cutoff=0.6)
