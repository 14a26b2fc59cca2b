"""Receipts of loads and conversions."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import torch

from intarsia.checkpoint import Checkpoint
from intarsia.checkpoint.streamed import tensor_bytes
from intarsia.core import receipt as receipts
from intarsia.core.receipt import Memory, Receipt, SourceFile, SourceIdentity
from intarsia.formats import Stored
from intarsia.loading.extras import file_sha256
from intarsia.loading.measure import Meter, Stopwatch
from intarsia.planning.plan import plan
from intarsia.planning.report import Plan
from intarsia.selection.manifest import Manifest, inventory_hash, manifest_hash

NOT_RUN = "the network was not run: no output, quality or speed of inference is claimed"


def source_identity(checkpoint: Checkpoint, model_type: str, *, hash_files: bool = False) -> SourceIdentity:
    """The source by its files. Hashing reads all of it, so it is only done when asked."""
    files = [
        SourceFile(shard.name, shard.size, file_sha256(shard.path) if hash_files else None)
        for shard in checkpoint.shards
    ]
    tensors = {name: (entry.dtype, entry.shape) for name, entry in checkpoint.tensors.items()}
    return SourceIdentity(str(checkpoint.path.resolve()), model_type, inventory_hash(tensors), files)


def weight_hashes(weights: Mapping[str, Stored | torch.Tensor]) -> dict[str, str]:
    """sha256 of every tensor's stored bytes: `name` for plain ones, `name/suffix` for those of a format."""
    hashes = {}
    for name, weight in weights.items():
        parts = weight.tensors if isinstance(weight, Stored) else {"": weight}
        for suffix, tensor in parts.items():
            digest = hashlib.sha256(tensor_bytes(tensor)).hexdigest()
            hashes[f"{name}/{suffix}" if suffix else name] = digest
    return hashes


def plan_receipt(result: Plan, settings: Mapping[str, Any], checkpoint: Checkpoint) -> Receipt:
    """The receipt of a plan: nothing but headers was read."""
    return receipts.make(
        "plan",
        now(),
        settings,
        source=source_identity(checkpoint, result.model_type),
        manifest_sha256=result.manifest_sha256,
        predicted=predicted(result),
        results=result.as_dict(),
        not_run=["no weight was read", "source files are named by size; their content was not hashed"],
    )


def predicted(result: Plan) -> Memory:
    """The plan of the rank that takes most."""
    rank = max(result.ranks, key=lambda item: item.peak)
    return Memory("plan", rank.weights, rank.working, rank.peak, rank.peak_at)


def run_receipt(
    kind: str,
    checkpoint: Checkpoint,
    manifest: Manifest | None,
    device: torch.device,
    settings: Mapping[str, Any],
    watch: Stopwatch,
    measured: Memory,
    tensors: Mapping[str, str],
    *,
    trusted: bool = True,
    hash_files: bool = False,
    budget: int | None = None,
) -> Receipt:
    """The receipt of a load or conversion that has been carried out."""
    result = plan(checkpoint, manifest, device=device.type, budget=budget)
    notes = [NOT_RUN]
    if not hash_files:
        notes.append("source files are named by size; their content was not hashed")
    if not trusted:
        notes.append("the resident high-water mark could not be set back, so the peak may be an earlier one")
    return receipts.make(
        kind,
        now(),
        {**settings, "device": str(device), "budget": budget},
        source=source_identity(checkpoint, result.model_type, hash_files=hash_files),
        manifest_sha256=manifest_hash(manifest) if manifest is not None else None,
        predicted=predicted(result),
        measured=measured,
        phases=list(watch.phases),
        tensors=dict(sorted(tensors.items())),
        not_run=notes,
    )


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


__all__ = [
    "Meter",
    "Stopwatch",
    "plan_receipt",
    "predicted",
    "run_receipt",
    "source_identity",
    "weight_hashes",
]
