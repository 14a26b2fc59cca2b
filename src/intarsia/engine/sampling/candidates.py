"""The part of a vocabulary, or of a rank's shard of it, from which a token can still be drawn.

A candidate is one int64: the logit's bits in the order of their values above, the complement of the token id
below. Larger means likelier, and among equal logits the lowest id, so that sorting and merging plain integers
gives the order every rank agrees on; an exchange between ranks sends nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.engine.sampling.fixedpoint import distances, gumbel, masses, tables
from intarsia.engine.sampling.philox import philox4x32
from intarsia.engine.sampling.rows import Rows
from intarsia.kernels.draw import noisy_best, takes, total_mass

PADDING = -(2**63)
_ID_MASK = 0xFFFFFFFF
# Elements worked on at once on a CPU: eight int64 temporaries of this size stay in the second-level cache.
_TILE = 1 << 15


def pack(logits: Tensor, ids: Tensor) -> Tensor:
    """Candidates of float32 logits and int64 ids (broadcast against each other)."""
    bits = (logits + 0.0).view(torch.int32).long()  # -0.0 + 0.0 is +0.0: equal values get equal bits
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered << 32) | (_ID_MASK - ids)


def unpack(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and ids of candidates; padding gives minus infinity and -1."""
    ordered = keys >> 32
    logits = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).int().view(torch.float32)
    padding = keys == PADDING
    return logits.masked_fill(padding, -torch.inf), (_ID_MASK - (keys & _ID_MASK)).masked_fill(padding, -1)


@dataclass(frozen=True)
class Candidates:
    """What a shard offers: its best entries, and the mass of all its entries."""

    keys: Tensor
    """int64 [R, K], largest first, padded with `PADDING`."""
    floor: Tensor
    """int64 [R], the least candidate above which none is missing; `PADDING` when none is missing at all."""
    mass: Tensor
    """int64 [R], sum over the whole shard, in units of 2**-40 of the peak's; 0 where no nucleus is cut."""

    @staticmethod
    def merged(parts: Sequence["Candidates"]) -> "Candidates":
        """The candidates of several shards as those of their union; its floor is the highest of theirs."""
        keys = torch.cat([part.keys for part in parts], dim=1).sort(dim=1, descending=True).values
        floor = torch.stack([part.floor for part in parts]).amax(0)
        return Candidates(keys, floor, torch.stack([part.mass for part in parts]).sum(0))


def noise(ids: Tensor, rows: Rows) -> Tensor:
    """The noise of each token id, in 2**-32 bits: a function of seed, position and id alone.

    ids [R, K] or [1, K] int64; returns int64 [R, K]. Philox counter: (id, low half of the position, high half
    of it, 0); key: the low and high half of the seed; the first two words of the block are used.
    """
    position = rows.positions[:, None]
    counter = (ids, position & _ID_MASK, position >> 32, torch.zeros_like(position))
    high, low, _, _ = philox4x32(counter, (rows.seed_low[:, None], rows.seed_high[:, None]))
    return gumbel(high, low)


def peaks(logits: Tensor) -> Tensor:
    """The largest logit of each row (float32 [R]); of shards take `torch.maximum`, which lets NaN through."""
    return logits.amax(dim=1)


def best_noisy(logits: Tensor, rows: Rows, peak: Tensor, *, first_id: int = 0) -> Candidates:
    """The one entry of each row that wins among all entries of the shard once noise is added.

    For rows without cuts: the winner of the whole is the winner of the shards' winners.
    """
    if takes(logits):
        seeds = rows.seed_low, rows.seed_high
        index = noisy_best(logits, peak, rows.scales, rows.positions, seeds, first_id=first_id)[:, None]
        value = logits.gather(1, index)
        keys = pack(value, index + first_id).masked_fill(value == -torch.inf, PADDING)
        return Candidates(keys, torch.full_like(keys[:, 0], PADDING), torch.zeros_like(keys[:, 0]))
    width = max(1, _TILE // max(1, len(logits))) if logits.device.type == "cpu" else logits.shape[1]
    best = torch.full((len(logits),), PADDING, dtype=torch.int64, device=logits.device)
    chosen = best
    for start in range(0, logits.shape[1], width):
        part = logits[:, start : start + width]
        ids = torch.arange(first_id + start, first_id + start + part.shape[1], device=logits.device)[None]
        value = noise(ids, rows) - distances(part, peak, rows.scales)
        value = value.masked_fill(part == -torch.inf, PADDING)
        # argmax names the first of equal values, which has the lowest id
        index = value.argmax(dim=1, keepdim=True)
        top = value.gather(1, index)[:, 0]
        better = top > best
        best = torch.where(better, top, best)
        candidate = pack(part.gather(1, index), ids.expand(len(part), -1).gather(1, index))[:, 0]
        chosen = torch.where(better, candidate, chosen)
    return Candidates(chosen[:, None], torch.full_like(chosen, PADDING), torch.zeros_like(chosen))


def likeliest(
    logits: Tensor,
    rows: Rows,
    peak: Tensor,
    width: int,
    *,
    first_id: int = 0,
    nucleus: bool | None = None,
) -> Candidates:
    """The `width` likeliest entries of each row, for rows with cuts; a narrower shard pads.

    logits [R, n] float32 of the ids from `first_id` on; peak [R] of the whole vocabulary's row. `nucleus`
    says whether a row may have one without top_k, by default by the rows' settings.
    """
    if nucleus is None:
        nucleus = any(entry.top_p < 1 and entry.top_k == 0 for entry in rows.settings)
    count = logits.shape[1]
    ids = torch.arange(first_id, first_id + count, device=logits.device)[None]
    keys = pack(logits, ids).topk(min(width, count), dim=1).values
    if count <= width:
        keys = torch.nn.functional.pad(keys, (0, width - count), value=PADDING)
        floor = torch.full_like(keys[:, 0], PADDING)
    else:
        floor = keys[:, -1]
    if nucleus and takes(logits):
        mass = total_mass(logits, peak, rows.scales, tables(logits.device))
    elif nucleus:
        mass = masses(distances(logits, peak, rows.scales)).sum(dim=1)
    else:
        mass = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    return Candidates(keys, floor, mass)
