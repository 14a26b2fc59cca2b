"""Puts faults into what the loader gate has just found to be right; the gate has to see each."""

from intarsia.core.errors import IntarsiaError
from intarsia.evidence.loader_faults import loader_faults
from intarsia.families.glm5_next.runtime import RuntimeModule
from intarsia.gate.compare import Cell, Finding, compare, raw
from intarsia.gate.mutations import altered, mutations
from intarsia.gate.packer import Packed, Packer
from intarsia.gate.tile_mutations import tile_mutations
from intarsia.gate.tiles import compare_tiles, held_scales
from intarsia.kernels.experts import PackedExperts
from intarsia.kernels.weights import Weight
from intarsia.loading.layout import Arranged
from intarsia.loading.weights import Loader

ANOTHER_RANK = "another rank's share"


class FaultRun:
    """One fault of each kind in one weight of every kind of cut at every number of ranks.

    `seen` counts faults that were seen by name, `missed` says where one was not. A fault that leaves every
    byte as it was (neighbours can be equal) is tried in the next weight.
    """

    def __init__(self, packer: Packer, on: bool) -> None:
        self._packer = packer
        self._weights = mutations() if on else ()
        self._loader = loader_faults() if on else ()
        self._tiles = tile_mutations() if on else {}
        names = [*(m.name for m in self._weights), *(f.name for f in self._loader), *self._tiles]
        self.seen = dict.fromkeys([*names, ANOTHER_RANK] if on else [], 0)
        self.missed: dict[str, list[str]] = {}
        self._done: set[tuple[str, Cell, int]] = set()

    def into_weight(self, module: RuntimeModule, held: Weight, packed: Packed, finding: Finding) -> None:
        """Change what the rank holds, or what it should hold."""
        for mutation in self._weights:
            if self._was(mutation.name, finding):
                continue
            changed = mutation.change(held)
            if changed is None or not altered(held, changed):
                continue
            self._judge(mutation.name, finding, _again(changed, packed, finding))
        if not self._weights or finding.part.axis is None or finding.ranks == 1:
            return
        if not self._was(ANOTHER_RANK, finding):
            other = self._packer.pack(module, (finding.rank + 1) % finding.ranks, finding.ranks)
            self._judge(ANOTHER_RANK, finding, _again(held, other, finding))

    def into_loader(
        self, loader: Loader, arranged: Arranged, held: Weight, packed: Packed, finding: Finding
    ) -> None:
        """Load the weight again with what the loader is told changed."""
        for fault in self._loader:
            if self._was(fault.name, finding):
                continue
            faulty = fault.change(arranged)
            if faulty == arranged:
                continue
            changed: Weight | None = None
            try:
                changed = loader.load(faulty)
            except IntarsiaError:
                self._judge(fault.name, finding, None)
            if changed is not None and altered(held, changed):
                self._judge(fault.name, finding, _again(changed, packed, finding))

    def into_tiles(self, held: PackedExperts, packed: Packed, finding: Finding) -> None:
        """Change experts in tiles."""
        before = _content(held)
        for name, change in self._tiles.items():
            if self._was(name, finding):
                continue
            changed = change(held)
            if changed is None or _content(changed) == before:
                continue
            result = compare_tiles(finding.name, changed, packed, finding.rank, finding.ranks)
            self._judge(name, finding, result)

    def _was(self, name: str, finding: Finding) -> bool:
        return (name, finding.cell, finding.ranks) in self._done

    def _judge(self, name: str, finding: Finding, result: Finding | None) -> None:
        """`result` None: the loader refused."""
        self._done.add((name, finding.cell, finding.ranks))
        if result is None or result.differences:
            self.seen[name] += 1
        else:
            self.missed.setdefault(name, []).append(
                f"{finding.name} on rank {finding.rank} of {finding.ranks}"
            )


def _again(held: Weight, packed: Packed, finding: Finding) -> Finding:
    return compare(finding.name, held, packed, finding.rank, finding.ranks)


def _content(held: PackedExperts) -> tuple[bytes, bytes, bytes]:
    """What decides an expert's values."""
    return raw(held.codes).tobytes(), held_scales(held).tobytes(), raw(held.global_scales).tobytes()
