"""Loading again into weights that are in use: same places in memory, and all of the new or all of the old."""

import os
from collections.abc import Mapping

import torch

from intarsia.checkpoint import Checkpoint
from intarsia.core.errors import Violation
from intarsia.core.progress import SILENT, Progress
from intarsia.formats import Stored
from intarsia.kernels.experts.packed import is_relaid
from intarsia.loading.errors import LoadError
from intarsia.loading.layout import Arranged, Arrangement
from intarsia.loading.staging import Staging
from intarsia.loading.weights import Loader, Weight, prepared
from intarsia.selection.manifest import Manifest


def reload_weights(
    weights: Mapping[str, Weight],
    source: Arrangement | Checkpoint | str | os.PathLike[str],
    *,
    manifest: Manifest | None = None,
    budget: int | None = None,
    progress: Progress = SILENT,
) -> tuple[str, ...]:
    """Makes `weights` hold what a fresh load of `source` would; returns the names that changed.

    Tensors keep their storage, so whatever points to them (captured graphs, views) sees the new values. New
    weights that differ are held beside the old ones, on the same device, until all of them are read and
    encoded; then they are copied in. So a failure leaves the old weights, and the extra memory is that of the
    weights that differ. The caller sees to it that nothing computes with them meanwhile.

    Raises LoadError when names, formats or shapes differ from the live ones, or a network has laid experts
    out in another order, before a weight is read, and
    what `load_weights` raises.
    """
    plan = prepared(source, manifest)
    live = {name: _tensors(weight) for name, weight in weights.items()}
    _require_same(plan, weights, live)
    device = next(iter(next(iter(live.values())).values())).device
    changed: list[tuple[torch.Tensor, torch.Tensor]] = []
    names = []
    with (
        plan.checkpoint.reader() as reader,
        progress.phase("reading weights", plan.stored_bytes) as phase,
        Staging(reader, device) as staging,
    ):
        loader = Loader(plan, staging, phase, budget, apart=True)
        loader.read_ahead()
        for arranged in plan.weights:
            name = arranged.module.name
            fresh = _tensors(loader.load(arranged))
            pairs = [(live[name][suffix], tensor) for suffix, tensor in fresh.items()]
            different = [pair for pair in pairs if not _same_bytes(*pair)]
            changed += different
            if different:
                names.append(name)
    for old, new in changed:
        old.copy_(new)
    return tuple(names)


def _tensors(weight: Weight) -> Mapping[str, torch.Tensor]:
    return weight.tensors if isinstance(weight, Stored) else {"weight": weight}


def _require_same(
    plan: Arrangement, weights: Mapping[str, Weight], live: Mapping[str, Mapping[str, torch.Tensor]]
) -> None:
    found = []
    new = {arranged.module.name: arranged for arranged in plan.weights}
    for name in weights.keys() - new.keys():
        found.append(Violation("missing-weight", name, "no such weight in the source", "it: it is live"))
    for name, arranged in new.items():
        if name not in live:
            found.append(Violation("new-weight", name, "a weight that is not live", "the same weights"))
            continue
        weight = weights[name]
        if isinstance(weight, Stored) and is_relaid(weight):
            found.append(
                Violation(
                    "relaid-weight",
                    name,
                    "experts that a network on a GPU has laid out in tiles, in their own memory",
                    "weights as they were loaded",
                    "load a network freshly instead",
                )
            )
            continue
        before, after = _form(weight, live[name]), _new_form(arranged)
        if before != after:
            found.append(Violation("other-form", name, after, before, "load it freshly instead"))
    if found:
        raise LoadError(str(plan.checkpoint.path), found)


def _form(weight: Weight, tensors: Mapping[str, torch.Tensor]) -> str:
    kind = weight.format if isinstance(weight, Stored) else "plain"
    return _described(kind, {suffix: (t.dtype, tuple(t.shape)) for suffix, t in tensors.items()})


def _new_form(arranged: Arranged) -> str:
    slots = {suffix: (slot.dtype, tuple(slot.shape)) for suffix, slot in arranged.slots.items()}
    return _described(arranged.format or "plain", slots)


def _described(kind: str, tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> str:
    parts = [f"{suffix} {str(dtype)[6:]} {list(shape)}" for suffix, (dtype, shape) in sorted(tensors.items())]
    return f"{kind}: " + ", ".join(parts)


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
