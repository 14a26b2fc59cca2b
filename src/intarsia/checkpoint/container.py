"""CSF containers: a checkpoint whose shards were rewritten with compressed scales.

    tensors/<shards>   metadata/<config, tokenizer>   manifest.json   build-contract.json   receipts/

There is no index; `build-contract.json` maps the *original* tensor names to shards, and a scale is found
under its name plus a component suffix. Manifest and contract must agree with each other and with the files.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from intarsia.checkpoint.entry import TensorEntry
from intarsia.checkpoint.errors import CheckpointError
from intarsia.checkpoint.files import read_small
from intarsia.checkpoint.findings import Findings
from intarsia.checkpoint.paths import shard_problem
from intarsia.core.json import JsonError, parse_object
from intarsia.formats import csf

MANIFEST, CONTRACT = "manifest.json", "build-contract.json"
TENSORS, METADATA = "tensors", "metadata"
MAX_BYTES = 256 << 20

# schema -> (codec string, codec of the formats layer)
SCHEMAS = {
    "lil-nvfp4-csf-checkpoint/1": ("byte-window4-fixed-stream-u24-exceptions/1", "nvfp4_slab"),
    "lil-mxfp4-csf-checkpoint/1": ("row-base-offset1-u24-exceptions/1", "mxfp4_slab"),
}
FAMILIES = frozenset(
    (
        "glm53_nvfp4",
        "qwen38_flash_next_nvfp4",
        "glm53_744b_nvfp4",
        "deepseek_v41",
        "deepseek_v4_flash",
        "kimi_k3",
        "mimo_v26_pro_mxfp4",
    )
)


class Container(NamedTuple):
    """What manifest and contract say: shard file names with sizes, and original tensor name -> file."""

    codec: str
    sizes: dict[str, int]
    source_names: dict[str, str]

    @property
    def shards(self) -> tuple[str, ...]:
        """Shard names relative to the checkpoint."""
        return tuple(f"{TENSORS}/{name}" for name in self.sizes)


def is_container(folder: Path) -> bool:
    """Whether the folder is laid out as a container."""
    return (folder / MANIFEST).exists() and (folder / CONTRACT).exists()


def read_container(folder: Path, findings: Findings) -> Container:
    """Read and check manifest and contract; what is wrong goes to `findings`."""
    manifest = _document(folder, MANIFEST, findings)
    contract = _document(folder, CONTRACT, findings)
    codec = _identity(manifest, contract, findings)
    sizes = _sizes(manifest, findings)
    raw = contract.get("source_names")
    names = raw if isinstance(raw, dict) else {}
    if not names or not all(isinstance(file, str) for file in names.values()):
        findings.add("container-names", CONTRACT, "no usable source_names", "tensor names to shard files")
        names = {}
    if names and set(names.values()) != sizes.keys():
        odd = sorted(set(names.values()) ^ sizes.keys())
        findings.add(
            "container-names",
            CONTRACT,
            f"shard files in one of the two documents only: {', '.join(odd[:5])[:300]}",
            f"the files of {MANIFEST}",
        )
        names = {name: file for name, file in names.items() if file in sizes}
    return Container(codec, sizes, names)


def _document(folder: Path, name: str, findings: Findings) -> dict[str, Any]:
    problem = ""
    try:
        return parse_object(read_small(folder / name, name, MAX_BYTES), name, max_bytes=MAX_BYTES)
    except (CheckpointError, JsonError) as error:
        problem = error.found
    findings.add("container-json", name, problem, "strict JSON")
    return {}


def _identity(manifest: Mapping[str, Any], contract: Mapping[str, Any], findings: Findings) -> str:
    """Schema, codec and family, equal in both documents and known; returns our codec's name."""
    for key in ("schema", "codec", "family"):
        if manifest.get(key) != contract.get(key):
            found = f"{manifest.get(key)!r:.80} and {contract.get(key)!r:.80}"
            findings.add("container-identity", f"{MANIFEST} and {CONTRACT}: {key}", found, "one value")
    schema = manifest.get("schema")
    known = SCHEMAS.get(schema) if isinstance(schema, str) else None
    if known is None:
        expected = "one of " + ", ".join(SCHEMAS)
        action = "containers of older names must be migrated by the tool that wrote them"
        findings.add("container-identity", f"{MANIFEST}: schema", f"{schema!r:.80}", expected, action)
        return "nvfp4_slab"
    if manifest.get("codec") != known[0]:
        findings.add("container-identity", f"{MANIFEST}: codec", f"{manifest.get('codec')!r:.80}", known[0])
    family = manifest.get("family")
    if not isinstance(family, str) or family not in FAMILIES:
        expected = "one of " + ", ".join(sorted(FAMILIES))
        findings.add("container-identity", f"{MANIFEST}: family", f"{family!r:.80}", expected)
    return known[1]


def _sizes(manifest: Mapping[str, Any], findings: Findings) -> dict[str, int]:
    rows = manifest.get("shards")
    sizes: dict[str, int] = {}
    for row in rows if isinstance(rows, list) else []:
        name = row.get("file") if isinstance(row, dict) else None
        size = row.get("target_file_bytes") if isinstance(row, dict) else None
        if not isinstance(name, str) or "/" in name or shard_problem(name) or type(size) is not int:
            findings.add(
                "container-shard", f"{MANIFEST}: shards", f"{row!r:.120}", "a file name and its size"
            )
        else:
            sizes[name] = size
    if not sizes:
        findings.add("container-shard", f"{MANIFEST}: shards", "no shards", "at least one")
    return sizes


def compare(
    container: Container, entries: Mapping[str, TensorEntry], sizes: Mapping[str, int], findings: Findings
) -> None:
    """Hold the shards' headers and file sizes against the container's documents."""
    for name, size in container.sizes.items():
        actual = sizes.get(f"{TENSORS}/{name}", size)
        if actual != size:
            findings.add("container-size", f"{TENSORS}/{name}", f"{actual:,} bytes", f"{size:,}")
    parts = csf.components(container.codec)
    expected: set[str] = set()
    for name, file in container.source_names.items():
        streams = [f"{name}.{part}" for part in parts]
        held = [name] if name in entries else [stream for stream in streams if stream in entries]
        if held != [name] and len(held) != len(streams):
            found = f"only {held[0]}" if held else "neither it nor its compressed form"
            findings.add("missing-tensor", name[:200], found, f"it in {file}", "download the shard again")
        expected.update(held)
        for tensor in held:
            if entries[tensor].shard != f"{TENSORS}/{file}":
                findings.add(
                    "wrong-shard", tensor, f"it in {entries[tensor].shard}", f"it in {TENSORS}/{file}"
                )
    for tensor in entries.keys() - expected:
        findings.add("tensor-outside-index", tensor, f"it in {entries[tensor].shard}", f"it in {CONTRACT}")
