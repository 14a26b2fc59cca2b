"""Runs the loader gate: every rank's weights as the loader makes them, handed to the second packer."""

import os
from collections.abc import Collection, Sequence

import torch

from intarsia.checkpoint import Checkpoint, open_checkpoint
from intarsia.core.errors import UsageError
from intarsia.core.progress import SILENT, Phase, Progress
from intarsia.families.glm5_next.runtime import RuntimeModule
from intarsia.gate.compare import Cell, Finding, cell_of, compare
from intarsia.gate.mutations import altered, mutations
from intarsia.gate.outputs import OutputCheck, check_output
from intarsia.gate.packer import Packed, Packer
from intarsia.gate.reader import RawReader
from intarsia.gate.report import Coverage, GateReport
from intarsia.gate.shares import COLUMNS
from intarsia.kernels.weights import Weight
from intarsia.loading.arrange import arrange
from intarsia.loading.layout import Arrangement
from intarsia.loading.shares import share_of
from intarsia.loading.staging import Staging
from intarsia.loading.weights import Loader


def run_gate(
    source: Checkpoint | str | os.PathLike[str],
    ranks: Sequence[int],
    *,
    layers: Collection[int] | None = None,
    formats: Collection[str] | None = None,
    mutate: bool = False,
    device: torch.device | str = "cpu",
    progress: Progress = SILENT,
) -> GateReport:
    """Compare what every rank would hold, for each number of ranks, with a second packing of the files.

    `layers` (the MTP layer counts as the one after the last) and `formats` keep only some weights. With
    `mutate` faults are put into correct weights, one of every kind of cut, and must be seen.

    Raises what `arrange` and `share_of` raise.
    """
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    plan = arrange(checkpoint)
    work = _Gate(plan, layers, formats, mutate, torch.device(device))
    total = plan.stored_bytes * sum(ranks)
    with progress.phase("comparing", total) as phase:
        for count in ranks:
            for rank in range(count):
                work.rank(rank, count, phase)
    if not work.findings:
        raise UsageError("gate", found="no weight of those layers and formats", expected="at least one")
    filtered = layers is not None or formats is not None
    return GateReport(
        str(checkpoint.path), work.findings, work.outputs, work.coverage, work.seen, work.missed, filtered
    )


class _Gate:
    def __init__(
        self,
        plan: Arrangement,
        layers: Collection[int] | None,
        formats: Collection[str] | None,
        mutate: bool,
        device: torch.device,
    ) -> None:
        self.plan = plan
        self.layers = layers
        self.formats = formats
        self.mutations = mutations() if mutate else ()
        self.device = device
        checkpoint = plan.checkpoint
        self.packer = Packer(RawReader(shard.path for shard in checkpoint.shards), checkpoint.config)
        self.findings: list[Finding] = []
        self.outputs: list[OutputCheck] = []
        self.coverage: dict[int, Coverage] = {}
        self.seen = {mutation.name: 0 for mutation in self.mutations}
        if mutate:
            self.seen["another rank's share"] = 0
        self.missed: dict[str, list[str]] = {}
        self._mutated: set[tuple[str, Cell, int]] = set()

    def rank(self, rank: int, ranks: int, phase: Phase) -> None:
        """Everything one rank holds."""
        coverage = self.coverage.setdefault(ranks, Coverage())
        share = share_of(self.plan, rank, ranks)
        with share.checkpoint.reader() as reader:
            loader = Loader(share, Staging(reader, self.device), phase)
            for arranged in share.weights:
                module = arranged.module
                cell = cell_of(self.packer.form(module), self.packer.part(module, rank, ranks))
                coverage.exist[cell] = coverage.exist.get(cell, 0) + 1
                if not self._wanted(module, cell):
                    continue
                coverage.compared[cell] = coverage.compared.get(cell, 0) + 1
                held, packed = loader.load(arranged), self.packer.pack(module, rank, ranks)
                finding = compare(module.name, held, packed, rank, ranks)
                self.findings.append(finding)
                if packed.part.axis == COLUMNS and packed.shape[0] == 1:
                    self.outputs.append(check_output(module.name, held, packed, rank, ranks))
                if self.mutations and not finding.differences:
                    self._mutate(module, held, packed, finding)

    def _wanted(self, module: RuntimeModule, cell: Cell) -> bool:
        if self.layers is not None and _layer(module.name, self.plan) not in self.layers:
            return False
        return self.formats is None or bool({cell.form, *cell.form.split(" + ")} & set(self.formats))

    def _mutate(self, module: RuntimeModule, held: Weight, packed: Packed, finding: Finding) -> None:
        for mutation in self.mutations:
            key = (mutation.name, finding.cell, finding.ranks)
            if key in self._mutated:
                continue
            changed = mutation.change(held)
            if changed is None or not altered(held, changed):
                continue
            self._mutated.add(key)
            self._judge(mutation.name, compare(module.name, changed, packed, finding.rank, finding.ranks))
        key = ("another rank's share", finding.cell, finding.ranks)
        if finding.part.axis is not None and finding.ranks > 1 and key not in self._mutated:
            self._mutated.add(key)
            other = self.packer.pack(module, (finding.rank + 1) % finding.ranks, finding.ranks)
            self._judge(key[0], compare(module.name, held, other, finding.rank, finding.ranks))

    def _judge(self, name: str, result: Finding) -> None:
        if result.differences:
            self.seen[name] += 1
        else:
            self.missed.setdefault(name, []).append(f"{result.name} on rank {result.rank} of {result.ranks}")


def _layer(name: str, plan: Arrangement) -> int | None:
    """The layer a weight belongs to; None for embedding, head and final norm."""
    if name.startswith("mtp."):
        return plan.config.num_hidden_layers
    return int(name.split(".")[1]) if name.startswith("layers.") else None
