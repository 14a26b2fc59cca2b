"""Loading a checkpoint's weights straight into their final place, as stored or encoded on the way.

The peak is the weights themselves and the working memory of one step: some rows of one matrix, the matrices
of one expert that share a global scale, or as many bytes of several.
"""

import os
from collections.abc import Callable

import torch

from intarsia.checkpoint import Checkpoint, open_checkpoint
from intarsia.core.progress import SILENT, Progress
from intarsia.core.receipt import refuse_existing as refuse_receipt
from intarsia.core.receipt import write as write_receipt
from intarsia.loading.arrange import arrange
from intarsia.loading.calibration import LayerMax
from intarsia.loading.calibration import layer_max_input_scale as calibrated
from intarsia.loading.layout import Arrangement
from intarsia.loading.loader import Loader, Weight
from intarsia.loading.maxima import Largest
from intarsia.loading.measure import Meter, Stopwatch
from intarsia.loading.receipts import run_receipt, weight_hashes
from intarsia.loading.shares import share_of
from intarsia.loading.staging import Staging
from intarsia.selection.manifest import Manifest
from intarsia.selection.resolve import resolve
from intarsia.selection.source import source_of

__all__ = ["Loader", "Weight", "load_weights", "prepared"]


def load_weights(
    source: Arrangement | Checkpoint | str | os.PathLike[str],
    *,
    manifest: Manifest | None = None,
    device: torch.device | str = "cpu",
    budget: int | None = None,
    layer_max_input_scale: LayerMax = "off",
    receipt: str | os.PathLike[str] | None = None,
    rank: int = 0,
    ranks: int = 1,
    largest: Largest | None = None,
    progress: Progress = SILENT,
    on_weight: Callable[[str], None] | None = None,
) -> dict[str, Weight]:
    """Run-time name -> weight of a checkpoint; what `manifest` names is encoded while it is read.

    Names of a glm5_next checkpoint are `families.glm5_next.runtime`'s: gate and up rows are stacked in that
    order, experts in one tensor. Any other architecture keeps its modules' names. Matrices are Stored
    (unquantized ones too), everything else plain tensors; compressed scales are expanded. Without a manifest
    nothing is cast or encoded; with one the bytes are those that `convert` writes.

    `budget` is the most working memory in bytes on `device`, beside the weights themselves.
    `layer_max_input_scale` gives the experts of a layer one activation scale (see `calibration`). `receipt`
    names a file for the hashes of all tensors, the seconds of each phase, and predicted and measured memory.

    With `ranks` above one only the share of `rank` is read and kept: the bytes of that part of the whole
    (see `shares`). Of what is encoded on the way a rank encodes its own blocks (see `window`), and reads no
    more rows than those: where a scale belongs to a whole matrix, `largest` compares the ranks' largest
    magnitudes (see `maxima`); without it a rank reads such matrices whole. What cannot be encoded in another
    rank's share is refused by all ranks that compare, else by that rank. `on_weight` is told every weight's
    name before it is loaded.

    Raises what `arrange` and `share_of` raise and SelectionError before a weight is read; BudgetError;
    ConvertError for a weight that cannot be encoded; ReceiptError; and the checkpoint layer's reading errors.
    """
    if receipt is not None:
        refuse_receipt(receipt)
    watch = Stopwatch()
    with watch.phase("headers"):
        plan = share_of(prepared(source, manifest), rank, ranks)
    place = torch.device(device)
    meter = Meter(place) if receipt is not None else None
    weights: dict[str, Weight] = {}
    with (
        watch.phase("read and encode", plan.stored_bytes),
        plan.checkpoint.reader() as reader,
        progress.phase("reading weights", plan.stored_bytes) as phase,
        Staging(reader, place) as staging,
    ):
        loader = Loader(plan, staging, phase, budget, ranks=ranks, largest=largest, later=True)
        loader.read_ahead()
        for arranged in plan.weights:
            if on_weight is not None:
                on_weight(arranged.module.name)
            weights[arranged.module.name] = loader.load(arranged)
        loader.settle()
    weights = calibrated(weights, layer_max_input_scale)
    if receipt is not None and meter is not None:
        measured = meter.read(sum(weight.nbytes for weight in weights.values()))
        with watch.phase("hash"):
            hashes = weight_hashes(weights)
        settings = {"layer_max_input_scale": layer_max_input_scale}
        chosen = plan.selection.manifest if plan.selection is not None else None
        write_receipt(
            run_receipt(
                "load", plan.checkpoint, chosen, place, settings, watch, measured, hashes,
                trusted=meter.trusted, budget=budget,
            ),
            receipt,
        )  # fmt: skip
    return weights


def prepared(
    source: Arrangement | Checkpoint | str | os.PathLike[str], manifest: Manifest | None = None
) -> Arrangement:
    """The arrangement of a source under a manifest; an Arrangement already has its selection."""
    if isinstance(source, Arrangement):
        return source
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    selection = resolve(manifest, source_of(checkpoint)) if manifest is not None else None
    return arrange(checkpoint, selection)
