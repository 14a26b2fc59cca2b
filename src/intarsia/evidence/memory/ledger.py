"""Who owns the memory: predicted from headers, and measured, at the peak of the load and in service."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from intarsia.core.config import CacheType, DataType
from intarsia.core.progress import SILENT, Progress
from intarsia.core.receipt import Memory
from intarsia.evidence.forms import Form
from intarsia.formats import Stored
from intarsia.loading.measure import Meter
from intarsia.loading.receipts import predicted as predicted_memory
from intarsia.loading.staging import Staging, pinned_bytes
from intarsia.loading.weights import Loader, Weight, prepared
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.models.glm5_next.state import State, StateSettings
from intarsia.planning.caches import PAGE, STEP_ROWS, cache_bytes, linear_heads
from intarsia.planning.plan import plan
from intarsia.planning.shares import role_of

ROLES = ("elements", "scales", "scalars")
_PLAIN = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


@dataclass(frozen=True, slots=True)
class Owner:
    """Bytes of one owner; None where one of the two cannot be known. `moment` is "service" or "load peak"."""

    moment: str
    owner: str
    predicted: int | None
    measured: int | None


@dataclass(frozen=True)
class MemoryLedger:
    """All owners, and what the process or the device counts beside them."""

    form: Form
    device: str
    streams: int
    context: int
    owners: tuple[Owner, ...]
    predicted: Memory
    measured: Memory
    not_measured: tuple[str, ...]

    def total(self, moment: str) -> tuple[int, int]:
        """Predicted and measured bytes of all owners at a moment, where both are known."""
        rows = [
            row
            for row in self.owners
            if row.moment == moment and row.predicted is not None and row.measured is not None
        ]
        return sum(row.predicted or 0 for row in rows), sum(row.measured or 0 for row in rows)

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "device": self.device,
            "streams": self.streams,
            "context": self.context,
            "owners": [asdict(owner) for owner in self.owners],
        }


def measure_memory(
    form: Form,
    *,
    device: str = "cpu",
    dtype: DataType = "float32",
    streams: int = 1,
    context: int = 4096,
    kv_cache_dtype: CacheType = "auto",
    progress: Progress = SILENT,
) -> MemoryLedger:
    """Load a form, allocate its caches, and set every owner's bytes against the plan's.

    Weights are counted tensor by tensor. Working memory is what conversion held at most, by its own count;
    the last row is what the process (or the device's allocator) grew by at its highest.
    """
    arranged = prepared(form.checkpoint, form.manifest)
    config = arranged.config
    weights: dict[str, Weight] = {}
    meter = Meter(torch.device(device))
    with (
        form.checkpoint.reader() as reader,
        progress.phase("reading weights", arranged.stored_bytes) as phase,
    ):
        loader = Loader(arranged, Staging(reader, torch.device(device)), phase)
        for item in arranged.weights:
            weights[item.module.name] = loader.load(item)
    measured = meter.read(sum(weight.nbytes for weight in weights.values()))
    settings = StateSettings(
        streams=streams,
        window=context,
        pages=streams * -(-context // PAGE),
        page=PAGE,
        step_rows=STEP_ROWS,
    )
    model = Glm5NextModel(config, weights, dtype=getattr(torch, dtype), device=device, latents=kv_cache_dtype)
    state = model.new_state(settings)
    element = getattr(torch, dtype).itemsize
    caches = cache_bytes(
        config,
        context=context,
        streams=streams,
        heads=linear_heads(config, 1, 0),
        element=element,
        latents=kv_cache_dtype,
    )
    predicted = plan(form.checkpoint, form.manifest, device=torch.device(device).type)
    rank = predicted.ranks[0]
    table = {
        (section, kind, role): getattr(parts, role)
        for (section, kind), parts in rank.table.items()
        for role in ROLES
    }
    counted = count_weights(weights)
    owners = [
        Owner("service", f"{section} weights, {kind} {role}", table.get(key, 0), counted.get(key, 0))
        for key in sorted(table.keys() | counted.keys())
        for section, kind, role in [key]
        if table.get(key, 0) or counted.get(key, 0)
    ]
    paged, fixed = state_bytes(state)
    owners += [
        Owner("service", "caches that grow with the context", caches.paged, paged),
        Owner("service", "caches of fixed size", caches.fixed, fixed),
        Owner("service", "scratch for compressed scales", rank.scratch, 0),
        Owner("load peak", "weights", rank.weights, sum(counted.values())),
        Owner("load peak", "conversion", rank.working, loader.most_working),
        Owner("load peak", "staging, in the host's memory", pinned_bytes(device), None),
        Owner("load peak", f"all of it, as the {measured.by} grew", rank.peak, measured.peak),
    ]
    notes = ["captured graphs: none are made"]
    if not meter.trusted:
        notes.append("the resident high-water mark could not be set back: the peak may be an earlier one")
    return MemoryLedger(
        form, device, streams, context, tuple(owners), predicted_memory(predicted), measured, tuple(notes)
    )


def count_weights(weights: Mapping[str, Weight]) -> dict[tuple[str, str, str], int]:
    """Bytes by section, format and role of weights in memory."""
    found: dict[tuple[str, str, str], int] = {}
    for name, weight in weights.items():
        section = "draft" if name.startswith("mtp.") else "main"
        stored = isinstance(weight, Stored)
        kind = weight.format if isinstance(weight, Stored) else _PLAIN.get(weight.dtype, "other")
        for suffix, tensor in weight.items() if isinstance(weight, Stored) else (("weight", weight),):
            role = ROLES[role_of(suffix, tuple(tensor.shape))] if stored else "elements"
            found[section, kind, role] = found.get((section, kind, role), 0) + tensor.nbytes
    return found


def state_bytes(state: State) -> tuple[int, int]:
    """Bytes of the paged caches, and of all others."""
    return state.paged_bytes, state.nbytes - state.paged_bytes
