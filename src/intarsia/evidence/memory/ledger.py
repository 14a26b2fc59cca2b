"""Who owns the memory: predicted from headers, and measured, at the peak of the load and in service."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from intarsia.core.config import CacheType, DataType
from intarsia.core.progress import SILENT, Progress
from intarsia.core.receipt import Memory
from intarsia.engine.devices import usable_device
from intarsia.engine.graphs.capture import Captures
from intarsia.engine.graphs.main_step import MainOutput, MainSteps
from intarsia.evidence.forms import Form
from intarsia.evidence.quality.capture import run_window
from intarsia.formats import Stored
from intarsia.kernels.rows import Piece
from intarsia.loading.layout import Arrangement
from intarsia.loading.measure import Meter
from intarsia.loading.receipts import predicted as predicted_memory
from intarsia.loading.staging import Staging, pinned_bytes
from intarsia.loading.weights import Loader, Weight, prepared
from intarsia.models.glm5_next.model import PROMPT_ROWS, Glm5NextModel
from intarsia.models.glm5_next.state import State, StateSettings
from intarsia.planning.caches import PAGE, STEP_ROWS, cache_bytes, linear_heads
from intarsia.planning.plan import plan
from intarsia.planning.report import Table
from intarsia.planning.shares import role_of

SETTINGS = ("device", "dtype", "streams", "context", "kv_cache_dtype")
"""What a ledger is made with, in the order of `measure_memory`."""
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
    settings: Mapping[str, Any]
    owners: tuple[Owner, ...]
    predicted: Memory
    measured: Memory
    not_measured: tuple[str, ...]

    @property
    def device(self) -> str:
        """Where the weights were placed."""
        return str(self.settings["device"])

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
            "streams": self.settings["streams"],
            "context": self.settings["context"],
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
    place = usable_device(device)
    arranged = prepared(form.checkpoint, form.manifest)
    weights, load = _load(arranged, place, progress)
    model = Glm5NextModel(
        arranged.config, weights, dtype=getattr(torch, dtype), device=device, latents=kv_cache_dtype
    )
    state = model.new_state(_state_settings(streams, context))
    predicted = plan(form.checkpoint, form.manifest, device=place.type)
    rank = predicted.ranks[0]
    caches = cache_bytes(
        arranged.config,
        context=context,
        streams=streams,
        heads=linear_heads(arranged.config, 1, 0),
        element=getattr(torch, dtype).itemsize,
        latents=kv_cache_dtype,
    )
    paged, fixed = state_bytes(state)
    owners = [
        *_weight_owners(rank.table, weights),
        Owner("service", "caches that grow with the context", caches.paged, paged),
        Owner("service", "caches of fixed size", caches.fixed, fixed),
        Owner("service", "scratch for compressed scales", rank.scratch, 0),
        Owner("service", "what a piece of a prompt works in", rank.prompts, _unless_gpu(place)),
        _graphs(model, state),
        *_activations(model, min(context, PROMPT_ROWS)),
        Owner("load peak", "weights", rank.weights, sum(weight.nbytes for weight in weights.values())),
        Owner("load peak", "conversion", rank.working, load.working),
        Owner("load peak", "staging, in the host's memory", pinned_bytes(device), load.staged),
        Owner("load peak", f"all of it, as the {load.memory.by} grew", rank.peak, load.memory.peak),
    ]
    notes = [
        "activations and captured graphs are in no plan; a GPU's allocator counts them",
    ]
    if not load.trusted:
        notes.append("the resident high-water mark could not be set back: the peak may be an earlier one")
    settings = dict(zip(SETTINGS, (device, dtype, streams, context, kv_cache_dtype), strict=True))
    return MemoryLedger(form, settings, tuple(owners), predicted_memory(predicted), load.memory, tuple(notes))


def _unless_gpu(place: torch.device) -> int | None:
    """Nothing on a CPU; what kernels allocate for a while on a GPU is not known here."""
    return 0 if place.type == "cpu" else None


@dataclass(frozen=True, slots=True)
class _Load:
    """What a load took at its most: as the process or the device counts, by staging, and by conversion."""

    memory: Memory
    trusted: bool
    staged: int
    working: int


def _load(arranged: Arrangement, device: torch.device, progress: Progress) -> tuple[dict[str, Weight], _Load]:
    """The weights as `load_weights` loads them, with every part counted."""
    weights: dict[str, Weight] = {}
    meter = Meter(device)
    with (
        arranged.checkpoint.reader() as reader,
        progress.phase("reading weights", arranged.stored_bytes) as phase,
        Staging(reader, device) as staging,
    ):
        loader = Loader(arranged, staging, phase)
        loader.read_ahead()
        for item in arranged.weights:
            weights[item.module.name] = loader.load(item)
        staged = staging.nbytes
    measured = meter.read(sum(weight.nbytes for weight in weights.values()))
    return weights, _Load(measured, meter.trusted, staged, loader.most_working)


def _state_settings(streams: int, context: int) -> StateSettings:
    pages = -(-context // PAGE)
    return StateSettings(
        streams=streams, window=context, pages=streams * pages, page=PAGE, step_rows=STEP_ROWS
    )


def _activations(model: Glm5NextModel, rows: int) -> Iterator[Owner]:
    """What a piece of a prompt takes at its most beside its caches, where an allocator counts it."""
    if model.device.type != "cuda":
        return  # memory that is freed stays with the process and is taken again: its size says nothing
    pages = -(-rows // PAGE)
    caches = model.new_state(StateSettings(streams=1, window=pages * PAGE, pages=pages)).nbytes
    meter = Meter(model.device)
    run_window(model, [0] * rows)
    yield Owner("service", f"activations of {rows:,} prompt rows", None, max(0, meter.read(0).peak - caches))


def _graphs(model: Glm5NextModel, state: State) -> Owner:
    """What capturing the step of one row for each stream takes, if steps are captured at all."""
    captures: Captures[MainOutput] = Captures.on(model.device)
    streams = range(state.settings.streams)
    if captures.bucket(len(streams)) is None:
        return Owner("service", "captured graphs", 0, 0)
    steps = MainSteps(model, state, captures)
    torch.cuda.synchronize(model.device)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(model.device)
    output = steps.run([Piece(stream, 0, [0], recurrent=True) for stream in streams])
    torch.cuda.synchronize(model.device)
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved(model.device) - before
    rows = output.hidden.shape[0] if output is not None else 0
    return Owner("service", f"captured graphs, a step of {rows} rows", None, max(0, held))


def _weight_owners(table: Table, weights: Mapping[str, Weight]) -> Iterator[Owner]:
    planned = {
        (section, kind, role): getattr(parts, role)
        for (section, kind), parts in table.items()
        for role in ROLES
    }
    counted = count_weights(weights)
    for section, kind, role in sorted(planned.keys() | counted.keys()):
        pair = tuple(found.get((section, kind, role), 0) for found in (planned, counted))
        if any(pair):
            yield Owner("service", f"{section} weights, {kind} {role}", *pair)


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
