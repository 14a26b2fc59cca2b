"""Planning a load: bytes a rank, the peak and where it is, and every violation, from headers alone."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from intarsia.checkpoint import Checkpoint, Resolution, open_checkpoint, resolve
from intarsia.checkpoint.completeness import compare
from intarsia.checkpoint.findings import Findings
from intarsia.core.config import CacheType, check_integer
from intarsia.core.errors import Violation
from intarsia.families.errors import UnknownTensorError
from intarsia.families.glm5_next.split import REPLICATE, SplitRule, split_rule
from intarsia.families.glm5_next.split import shares as split_shares
from intarsia.families.registry import Family
from intarsia.planning.caches import (
    PAGE,
    STEP_ROWS,
    CacheBytes,
    cache_bytes,
    linear_heads,
    prompt_bytes,
)
from intarsia.planning.counts import count_modules, count_targets
from intarsia.planning.items import Item, items
from intarsia.planning.memory import Need, fitting_window, memory_violations, reserve_of
from intarsia.planning.order import Loading
from intarsia.planning.report import Cut, Plan, RankPlan
from intarsia.planning.scratch import Scratch
from intarsia.planning.shares import Parts, on_ranks
from intarsia.planning.table import ShareTable
from intarsia.planning.wire import PROMPT_TOKENS, wire
from intarsia.planning.working import Working
from intarsia.selection.errors import SelectionError
from intarsia.selection.manifest import Manifest, manifest_hash
from intarsia.selection.resolve import Selection
from intarsia.selection.resolve import resolve as resolve_manifest
from intarsia.selection.source import Source, describe_source

MAX_RANKS = 1024


def plan(
    checkpoint: Checkpoint | str | os.PathLike[str],
    manifest: Manifest | None = None,
    *,
    ranks: int = 1,
    device_memory: int | None = None,
    context: int | None = None,
    streams: int = 1,
    page: int = PAGE,
    step_rows: int = STEP_ROWS,
    compressed_scales: bool = False,
    device: str = "cpu",
    budget: int | None = None,
    kv_cache_dtype: CacheType = "auto",
    ring: bool = False,
) -> Plan:
    """What loading `checkpoint` takes on each of `ranks` ranks, converted as `manifest` says.

    `context` tokens for each of `streams` streams are counted as caches, latents as BF16 unless
    `kv_cache_dtype` is "fp8"; with `device_memory` (bytes a rank) the largest window that fits is found.
    `compressed_scales` counts scales that the selection compresses as kept so, with scratch to expand them
    into. `device` ("cpu" or "cuda") and `budget` are those of the load. What ranks send each other is counted
    for links between all of them, or for a `ring`.

    Nothing but headers is read, and a folder's shards may end behind theirs. All violations are in the
    result; raises NotACheckpointError and ConfigError when there is nothing to plan with, and UsageError for
    counts that cannot be meant.
    """
    check_integer("ranks", ranks, 1, MAX_RANKS)
    counts = {"streams": streams, "page": page, "step_rows": step_rows, "context": context}
    for name, count in counts.items():
        if count is not None:
            check_integer(name, count, 1)
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = open_checkpoint(checkpoint, strict=False, data_required=False)
    resolution = resolve(checkpoint)
    source = _source(checkpoint, resolution)
    work = _Planner(checkpoint, resolution, source, ranks, Working(device, budget), compressed_scales)
    selection = work.select(manifest)
    work.count(selection)
    room = _Room(device_memory, context, streams, page, step_rows, kv_cache_dtype)
    result = work.result(manifest, selection, room)
    config = source.family.glm5_next
    if ranks == 1 or config is None or result.violations:
        return result
    tokens = context or min(PROMPT_TOKENS, config.max_position_embeddings)
    traffic = wire(config, ranks, streams=streams, prompt_tokens=tokens, ring=ring, device=device)
    return replace(result, wire=traffic)


def _source(checkpoint: Checkpoint, resolution: Resolution) -> Source:
    headers = {name: (entry.dtype, entry.shape) for name, entry in checkpoint.tensors.items()}
    stored = {
        module.name: module.format for module in resolution.modules.values() if module.format is not None
    }
    return describe_source(checkpoint.config, headers, stored)


@dataclass(frozen=True, slots=True)
class _Room:
    """What is to fit: a device's bytes, and the streams whose caches are counted."""

    device_memory: int | None
    context: int | None
    streams: int
    page: int
    step_rows: int
    latents: CacheType


class _Planner:
    def __init__(
        self,
        checkpoint: Checkpoint,
        resolution: Resolution,
        source: Source,
        ranks: int,
        working: Working,
        compressed: bool,
    ) -> None:
        self.checkpoint = checkpoint
        self.modules = resolution.modules
        self.source = source
        self.family: Family = source.family
        self.ranks = ranks
        self.device = working.device
        self.found = Findings()
        self.found.extend(checkpoint.problems)
        self.found.extend(resolution.violations)
        self.unused: list[str] = []
        self.tables: list[dict[tuple[str, str], Parts]] = [{} for _ in range(ranks)]
        self.cuts: dict[SplitRule, int] = {}
        self.exported: dict[str, int] = {}
        self.exported_tensors = 0
        self.loading = Loading(self.family, ranks, working)
        self.scratch = Scratch(ranks) if compressed else None
        self.shares = ShareTable(ranks)

    def select(self, manifest: Manifest | None) -> Selection | None:
        """The resolved manifest; its violations are noted and planning goes on as stored."""
        if self.family.tensors is not None:
            self._compare()
        if manifest is None:
            self.found.extend(self.source.violations)
            return None
        try:
            return resolve_manifest(manifest, self.source)
        except SelectionError as error:
            self.found.extend(error.violations)
            return None

    def _compare(self) -> None:
        tensors = self.family.tensors or {}
        parts: dict[str, list[str]] = {"MTP layer": [], "vision tower": []}
        for name, spec in tensors.items():
            if spec.part != "main":
                parts["MTP layer" if spec.part == "mtp" else "vision tower"].append(name)
        notes = Findings()
        expected = {name: spec.shape for name, spec in tensors.items()}
        compare(self.modules, self.checkpoint.tensors, expected, parts, self.found, notes)
        if any(name in self.checkpoint.tensors for name in parts["vision tower"]):
            self.unused.append(f"vision tower ({len(parts['vision tower'])} tensors)")

    def count(self, selection: Selection | None) -> None:
        """Add up every weight on every rank."""
        for item in items(self.checkpoint, self.modules, self.source, selection):
            self.exported[item.kind] = self.exported.get(item.kind, 0) + item.exported
            self.exported_tensors += item.tensors
            if not item.used:
                continue
            rule = self._rule(item)
            if rule is not None and rule.axis is not None and self.ranks > 1:
                self.cuts[rule] = self.cuts.get(rule, 0) + 1
            shares = on_ranks(item.form, rule, self.ranks)
            if isinstance(shares, Violation):
                self.found.add(shares.rule, item.name, shares.found, shares.expected, shares.action)
                self.shares.add(item, rule, shares)
                continue
            if self.scratch is not None and item.codec is not None:
                shares = self.scratch.compressed(item, rule, shares)
            for rank, parts in enumerate(shares):
                row = self.tables[rank].get((item.section, item.kind), Parts(0, 0, 0))
                self.tables[rank][item.section, item.kind] = Parts(
                    *(a + b for a, b in zip(row, parts, strict=True))
                )
            self.loading.add(item, shares, selection)
            self.shares.add(item, rule, shares)

    def _rule(self, item: Item) -> SplitRule | None:
        config = self.family.glm5_next
        if config is None:
            if self.ranks > 1 and not self.found.has("no-split-rules"):
                self.found.add(
                    "no-split-rules",
                    self.family.name,
                    f"{self.ranks} ranks",
                    "one: nothing says how to cut it",
                )
            return None
        try:
            return split_rule(config, item.name)
        except UnknownTensorError:
            return REPLICATE  # already reported as a tensor the architecture does not have

    def result(self, manifest: Manifest | None, selection: Selection | None, room: _Room) -> Plan:
        """Everything together."""
        ranks, config = self._ranks(room), self.family.glm5_next
        native = config.max_position_embeddings if config is not None else None
        memory = room.device_memory
        window = self._window(ranks, room, memory, native or 0) if memory is not None else None
        return Plan(
            path=str(self.checkpoint.path),
            model_type=self.family.name,
            manifest_sha256=manifest_hash(manifest) if manifest is not None else None,
            ranks=ranks,
            targets=count_targets(selection),
            modules=count_modules(selection),
            exported=dict(sorted(self.exported.items())),
            exported_tensors=self.exported_tensors,
            source_bytes=sum(entry.nbytes for entry in self.checkpoint.tensors.values()),
            context=room.context,
            streams=room.streams,
            native_window=native,
            window=window,
            device_memory=memory,
            reserve=reserve_of(memory) if memory is not None else None,
            unused=tuple(self.unused),
            violations=self.found.all(),
            cuts=tuple(_cut(rule, self.ranks, count) for rule, count in self.cuts.items()),
            shares=tuple(self.shares.rows()),
        )

    def _ranks(self, room: _Room) -> tuple[RankPlan, ...]:
        """Bytes on each rank; what stands against loading them is noted."""
        peaks, config = self.loading.peaks(self.found), self.family.glm5_next
        scratch = self.scratch.bytes() if self.scratch is not None else [0] * self.ranks
        with_prompts = config if self.device != "cpu" else None
        return tuple(
            RankPlan(
                rank,
                dict(sorted(self.tables[rank].items())),
                self._caches(room, rank, room.context or 0),
                scratch[rank],
                peaks[rank].working,
                peaks[rank].nbytes,
                peaks[rank].at,
                prompts=prompt_bytes(with_prompts, self.ranks, rank) if with_prompts is not None else 0,
            )
            for rank in range(self.ranks)
        )

    def _caches(self, room: _Room, rank: int, tokens: int) -> CacheBytes:
        """Of so many tokens of each stream."""
        config = self.family.glm5_next
        if config is None or not tokens:
            return CacheBytes(0, 0)
        return cache_bytes(
            config,
            context=tokens,
            streams=room.streams,
            heads=linear_heads(config, self.ranks, rank),
            page=room.page,
            step_rows=room.step_rows,
            latents=room.latents,
        )

    def _window(self, ranks: Sequence[RankPlan], room: _Room, memory: int, native: int) -> int:
        """The largest that fits into a device; what does not fit is noted."""
        needs = [Need(rank.weights + rank.scratch + rank.prompts, rank.peak, rank.peak_at) for rank in ranks]
        budget = memory - reserve_of(memory)
        window = fitting_window(native, room.page, budget, needs, lambda r, n: self._caches(room, r, n).total)
        self.found.extend(tuple(memory_violations(memory, needs, room.context, window, native)))
        return window


def _cut(rule: SplitRule, ranks: int, weights: int) -> Cut:
    sizes = tuple(len(part) for part in split_shares(rule, ranks))
    return Cut(rule.reason, rule.axis or 0, rule.unit, sizes, weights)
