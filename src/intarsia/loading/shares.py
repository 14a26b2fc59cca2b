"""A rank's share of every run-time weight: which part of each stored tensor it reads, and what it becomes.

A share is cut by the formats' own cuts on tensors without memory, whose views say where the share lies in the
stored tensor. So a share is the stored bytes of its part and nothing is encoded again. Both halves of a
stacked gate and up are cut alike, each by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from intarsia import formats
from intarsia.core.errors import IntarsiaError, UsageError, Violation
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.split import SplitRule, shares, split_rule
from intarsia.formats import Stored
from intarsia.loading.errors import LoadError
from intarsia.loading.layout import Arranged, Arrangement, Region, Slot


def share_of(plan: Arrangement, rank: int, ranks: int) -> Arrangement:
    """The arrangement of what `rank` of `ranks` holds; the whole arrangement for one rank.

    Raises LoadError with every weight that cannot be cut for one of the ranks: a share that would split a
    stored entry, or that would be empty. All ranks raise the same.
    """
    if not 0 <= rank < ranks:
        raise UsageError("rank", found=f"{rank} of {ranks}", expected=f"0 to {ranks - 1}")
    if ranks == 1:
        return plan
    config = plan.config
    violations: list[Violation] = []
    weights = tuple(_cut(config, arranged, rank, ranks, violations) for arranged in plan.weights)
    if violations:
        raise LoadError(str(plan.checkpoint.path), violations)
    return replace(plan, weights=weights)


@dataclass(frozen=True, slots=True)
class _Part:
    """One source's part: the region of each of its tensors, and where it begins inside its blocks."""

    regions: Mapping[str, Region]
    origin: tuple[int, int]


def _cut(
    config: Glm5NextConfig, arranged: Arranged, rank: int, ranks: int, violations: list[Violation]
) -> Arranged:
    source = arranged.module.sources[0]
    rule = split_rule(config, source)
    if rule.axis is None:
        return arranged
    parts = shares(rule, ranks)
    if not len(parts[-1]):
        found = f"{rule.units} {rule.reason} units of {rule.unit}"
        violations.append(
            Violation("fewer-units", source, found, f"one for each of {ranks} ranks", "use fewer ranks")
        )
        return arranged
    cuts = [_part(arranged, rule, part, source, index, violations) for index, part in enumerate(parts)]
    own = cuts[rank]
    if own is None:
        return arranged
    slots = {suffix: _slot(arranged, slot, own.regions[suffix]) for suffix, slot in arranged.slots.items()}
    return replace(
        arranged,
        slots=slots,
        regions=own.regions,
        origin=own.origin,
        row_parts=_row_parts(arranged, rule, len(parts[rank]), own.origin),
    )


def _row_parts(arranged: Arranged, rule: SplitRule, size: int, origin: tuple[int, int]) -> int:
    """How many row parts have blocks of their own in the share."""
    if arranged.format is None or arranged.module.parts == 1:
        return 1
    rows = size if rule.axis == 0 else arranged.module.shape[-2] // arranged.module.parts
    return formats.get(arranged.format).row_parts([rows] * arranged.module.parts, origin[0])


def _part(
    arranged: Arranged, rule: SplitRule, part: range, source: str, rank: int, violations: list[Violation]
) -> _Part | None:
    wholes = {suffix: _of_one_source(arranged, slot) for suffix, slot in arranged.slots.items()}
    if arranged.format is None:
        shape = wholes["weight"].shape
        starts = tuple(part.start if axis == rule.axis else 0 for axis in range(len(shape)))
        counts = tuple(len(part) if axis == rule.axis else size for axis, size in enumerate(shape))
        return _Part({"weight": Region(starts, counts, tuple(shape))}, (0, 0))
    problem: IntarsiaError | None = None
    try:
        cut = _cut_whole(arranged.format, wholes, rule, part)
    except IntarsiaError as error:
        problem = error
    if problem is not None:
        found = f"rank {rank}'s share {part.start}:{part.stop} of units of {rule.unit}: {problem.found}"
        violations.append(Violation("split", source, found, problem.expected, "use another number of ranks"))
        return None
    regions = {suffix: _region(wholes[suffix], cut[suffix]) for suffix in wholes}
    return _Part(regions, cut.origin)


def _cut_whole(format_name: str, wholes: Mapping[str, torch.Tensor], rule: SplitRule, part: range) -> Stored:
    kind = formats.get(format_name)
    whole = kind.stored(wholes)
    rows = part if rule.axis == 0 else range(whole.rows)
    columns = part if rule.axis == 1 else range(whole.columns)
    return kind.cut(whole, rows, columns)


def _of_one_source(arranged: Arranged, slot: Slot) -> torch.Tensor:
    """A tensor of one source, without memory."""
    stack, parts = arranged.module.stack, arranged.module.parts
    shape = slot.shape
    if stack != "none" and slot.scalar:
        shape = ()
    elif stack == "experts":
        shape = (shape[1] // parts, *shape[2:])
    elif stack == "rows":
        shape = (shape[0] // parts, *shape[1:])
    return torch.empty(shape, dtype=slot.dtype, device="meta")


def _region(whole: torch.Tensor, view: torch.Tensor) -> Region:
    """Where a view lies in the contiguous tensor it was cut from."""
    starts, left = [], int(view.storage_offset())
    for stride in whole.stride():
        start, left = divmod(left, stride)
        starts.append(start)
    return Region(tuple(starts), tuple(view.shape), tuple(whole.shape))


def _slot(arranged: Arranged, slot: Slot, region: Region) -> Slot:
    stack, parts = arranged.module.stack, arranged.module.parts
    if stack == "none":
        return replace(slot, shape=region.counts)
    if slot.scalar:
        return slot
    experts = (slot.shape[0],) if stack == "experts" else ()
    return replace(slot, shape=(*experts, parts * region.counts[0], *region.counts[1:]))
