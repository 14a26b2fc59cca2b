"""Loading a checkpoint's weights as they are stored, straight into their final place.

The peak is the weights themselves and one weight more (on a device: one weight on the host).
"""

import os
from pathlib import Path

import torch

from intarsia import formats
from intarsia.checkpoint import Checkpoint, Reader, open_checkpoint
from intarsia.core.progress import SILENT, Phase, Progress
from intarsia.formats import Stored, csf
from intarsia.loading.arrange import Arranged, Arrangement, Piece, Slot, arrange

Weight = Stored | torch.Tensor


def load_weights(
    source: Arrangement | Checkpoint | str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    progress: Progress = SILENT,
) -> dict[str, Weight]:
    """Run-time name -> weight of a glm5_next checkpoint, as stored; names are `families.glm5_next.runtime`'s.

    Matrices are Stored (unquantized ones too), everything else plain tensors. gate and up rows are stacked in
    that order, experts in one tensor; compressed scales are expanded. Nothing is cast or encoded.

    Raises what `arrange` raises, before a weight is read, and the checkpoint layer's reading errors.
    """
    if isinstance(source, str | Path | os.PathLike):
        source = open_checkpoint(source)
    plan = source if isinstance(source, Arrangement) else arrange(source)
    weights: dict[str, Weight] = {}
    with plan.checkpoint.reader() as reader, progress.phase("reading weights", plan.stored_bytes) as phase:
        for arranged in plan.weights:
            weights[arranged.module.name] = load_weight(arranged, reader, phase, device)
    return weights


def load_weight(arranged: Arranged, reader: Reader, phase: Phase, device: torch.device | str) -> Weight:
    """One weight, filled piece by piece on the host and then moved if `device` is another."""
    tensors = {suffix: torch.empty(slot.shape, dtype=slot.dtype) for suffix, slot in arranged.slots.items()}
    for piece in arranged.pieces:
        target = _place(tensors[piece.suffix], arranged, arranged.slots[piece.suffix], piece)
        if piece.codec is None:
            reader.read_into(piece.entries[0], target)
        else:
            components = {entry.name.rpartition(".")[2]: reader.read_entry(entry) for entry in piece.entries}
            csf.decode_into(components, target, piece.codec)
        phase.advance(sum(entry.nbytes for entry in piece.entries))
    if arranged.format is None:
        return tensors["weight"].to(device)
    return formats.get(arranged.format).stored(tensors).to(device)


def _place(tensor: torch.Tensor, arranged: Arranged, slot: Slot, piece: Piece) -> torch.Tensor:
    """The part of a stacked tensor that one source fills, as a contiguous view."""
    module = arranged.module
    if module.stack == "none":
        return tensor
    if module.stack == "experts":
        tensor = tensor[piece.expert]
    if module.parts == 1:
        return tensor
    if slot.scalar:
        return tensor[piece.part]
    rows = tensor.shape[0] // module.parts
    return tensor[piece.part * rows : (piece.part + 1) * rows]
