"""Which shards a checkpoint has, and which tensor is in which.

`model.safetensors.index.json` says so; a folder without one is complete only when its file names prove it:
one file, or `<stem>-00001-of-0000N` to `<stem>-0000N-of-0000N` without a gap.
"""

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from intarsia.checkpoint.errors import CheckpointError
from intarsia.checkpoint.files import read_small
from intarsia.checkpoint.findings import Findings
from intarsia.checkpoint.paths import shard_problem
from intarsia.core.json import JsonError, parse_object, type_name

INDEX_NAME = "model.safetensors.index.json"
MAX_INDEX_BYTES = 256 << 20
NAMED = 5
MAX_DEPTH = 4
MAX_FOLDERS = 1000

_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


class Index(NamedTuple):
    """The shards to read, relative to the folder, and the weight map (None without an index)."""

    shards: tuple[str, ...]
    weight_map: dict[str, str] | None


def read_index(folder: Path, findings: Findings) -> Index:
    """The shards that make up the checkpoint in `folder`; what is wrong goes to `findings`."""
    if (folder / INDEX_NAME).exists() or (folder / INDEX_NAME).is_symlink():
        return _from_file(folder, findings)
    return _from_names(folder, findings)


def _from_file(folder: Path, findings: Findings) -> Index:
    problem = ""
    document: dict[str, Any] = {}
    try:
        data = read_small(folder / INDEX_NAME, INDEX_NAME, MAX_INDEX_BYTES)
        document = parse_object(data, INDEX_NAME, max_bytes=MAX_INDEX_BYTES)
    except (JsonError, CheckpointError) as error:
        problem = error.found
    if problem:
        findings.add("index-json", INDEX_NAME, problem, "strict JSON")
        return Index((), {})
    return parse_index(document, findings)


def parse_index(document: dict[str, Any], findings: Findings) -> Index:
    """Check an index document and list its shards in order of first mention."""
    mapping = document.get("weight_map")
    if not isinstance(mapping, dict):
        found = "no weight_map" if "weight_map" not in document else type_name(mapping)
        findings.add("index-weight-map", INDEX_NAME, found, "an object from tensor names to shard names")
        return Index((), {})
    if not mapping:
        findings.add("index-weight-map", INDEX_NAME, "an empty weight_map", "at least one tensor")
    bad = {name: file for name, file in mapping.items() if not isinstance(file, str)}
    for name, file in bad.items():
        findings.add("index-entry", f"{INDEX_NAME}: {name[:200]}", type_name(file), "a shard's name")
    weight_map = {name: file for name, file in mapping.items() if name not in bad} if bad else mapping
    shards = tuple(dict.fromkeys(weight_map.values()))
    refused = {shard: problem for shard in shards if (problem := shard_problem(shard))}
    if refused:
        _report_refused(refused, weight_map, findings)
        weight_map = {name: shard for name, shard in weight_map.items() if shard not in refused}
        shards = tuple(shard for shard in shards if shard not in refused)
    return Index(shards, weight_map)


def _report_refused(refused: dict[str, str], weight_map: dict[str, str], findings: Findings) -> None:
    example = {shard: name for name, shard in reversed(weight_map.items()) if shard in refused}
    for shard, problem in list(refused.items())[:NAMED]:
        findings.add(
            "index-path",
            f"{INDEX_NAME}: {example[shard][:200]}",
            f"{problem} in {shard[:200]!r}",
            "the relative path of a .safetensors file inside the folder",
            "do not use this checkpoint unless you know who wrote the index",
        )
    if len(refused) > NAMED:
        findings.add("index-path", INDEX_NAME, f"{len(refused) - NAMED} further bad shard names")


def shards_on_disk(folder: Path) -> list[str]:
    """Every `*.safetensors` name in the folder and below, sorted, relative to the folder.

    Linked folders are not entered, and the walk ends after a few levels and a bounded number of folders: a
    checkpoint may have been unpacked at the top of a disk.
    """
    found = []
    for visited, (directory, folders, files) in enumerate(os.walk(folder)):
        prefix = Path(directory).relative_to(folder)
        deep = len(prefix.parts) >= MAX_DEPTH or visited >= MAX_FOLDERS
        folders[:] = [] if deep else sorted(name for name in folders if not name.startswith("."))
        found += [(prefix / name).as_posix() for name in files if name.endswith(".safetensors")]
        if visited >= MAX_FOLDERS:
            break
    return sorted(found)


def _from_names(folder: Path, findings: Findings) -> Index:
    with os.scandir(folder) as listing:
        names = sorted(item.name for item in listing if item.name.endswith(".safetensors"))
    if not names:
        findings.add(
            "no-weights",
            str(folder),
            "no index and no .safetensors file",
            "safetensors weights",
            "check the path; .bin and .pt files are never read",
        )
    elif len(names) > 1 and not _complete_set(names):
        findings.add(
            "missing-index",
            str(folder),
            f"{len(names)} shards without {INDEX_NAME}, and names that do not prove a complete set",
            "an index, one shard, or shards numbered 00001-of-N to N-of-N",
            "download the index",
        )
    elif len(names) == 1 and (match := _NUMBERED.fullmatch(names[0])) and int(match[3]) != 1:
        findings.add("missing-index", str(folder), f"only {names[0]}", f"{int(match[3])} shards")
    return Index(tuple(names), None)


def _complete_set(names: list[str]) -> bool:
    matches = [_NUMBERED.fullmatch(name) for name in names]
    numbered = [(m[1], int(m[2]), int(m[3])) for m in matches if m]
    if len(numbered) != len(names) or len({(stem, count) for stem, _, count in numbered}) != 1:
        return False
    return sorted(number for _, number, _ in numbered) == list(range(1, numbered[0][2] + 1))
