"""Runs the loader gate: every rank's weights as the loader makes them, handed to the second packer."""

import os
from collections.abc import Collection, Sequence

import torch

from intarsia.checkpoint import Checkpoint, open_checkpoint
from intarsia.core.config import DataType, ScaleForm
from intarsia.core.errors import UsageError
from intarsia.core.progress import SILENT, Phase, Progress
from intarsia.evidence.gate_faults import FaultRun
from intarsia.families.glm5_next.runtime import RuntimeModule
from intarsia.formats.stored import Stored
from intarsia.gate.compare import Cell, Finding, cell_of, compare
from intarsia.gate.outputs import OutputCheck, check_output
from intarsia.gate.packer import Packed, Packer
from intarsia.gate.reader import RawReader
from intarsia.gate.report import Coverage, GateReport
from intarsia.gate.shares import COLUMNS
from intarsia.gate.tiles import compare_tiles
from intarsia.kernels.experts import ExpertStack, PackedExperts, compressed, pack, prepare
from intarsia.kernels.experts.packed import refusal
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
    dtype: DataType = "bfloat16",
    expert_scales: ScaleForm = "expanded",
    tiles: bool = False,
    progress: Progress = SILENT,
) -> GateReport:
    """Compare what every rank would hold, for each number of ranks, with a second packing of the files.

    `layers` (the MTP layer counts as the one after the last) and `formats` keep only some weights. With
    `mutate` faults are put into correct weights and into the loader's cut, in one weight of every kind of
    cut, and must be seen.

    Experts that a network with activations in `dtype` and `expert_scales` on `device` holds in tiles are
    compared in tiles as well; with `tiles` all that fit into tiles are, whatever the device.

    Raises what `arrange` and `share_of` raise, and KernelError for scales that cannot be kept compressed.
    """
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    plan = arrange(checkpoint)
    held = _HeldExperts(torch.device(device), getattr(torch, dtype), expert_scales == "resident", tiles)
    work = _Gate(plan, layers, formats, mutate, held)
    total = plan.stored_bytes * sum(ranks)
    with progress.phase("comparing", total) as phase:
        for count in ranks:
            for rank in range(count):
                work.rank(rank, count, phase)
    if not work.findings:
        raise UsageError("gate", found="no weight of those layers and formats", expected="at least one")
    filtered = layers is not None or formats is not None
    unread = () if filtered else tuple(work.packer.unread())
    return GateReport(
        path=str(checkpoint.path),
        findings=work.findings,
        outputs=work.outputs,
        coverage=work.coverage,
        seen=work.faults.seen,
        missed=work.faults.missed,
        filtered=filtered,
        unread=unread,
    )


class _HeldExperts:
    """Experts as a network holds them: both stacks of a layer go in, and come out in their kernel's order."""

    def __init__(self, device: torch.device, dtype: torch.dtype, resident: bool, tiles: bool) -> None:
        self.device = device
        self._dtype = dtype
        self._resident = resident
        self._tiles = tiles
        self._waiting: dict[str, tuple[RuntimeModule, Weight, Packed]] = {}

    def take(
        self, module: RuntimeModule, held: Weight, packed: Packed
    ) -> list[tuple[RuntimeModule, PackedExperts, Packed]]:
        """What is in tiles once a layer's second stack is here; the stacks that were given are spent then."""
        if module.stack != "experts":
            return []
        layer, _, role = module.name.rpartition(".")
        if layer not in self._waiting:
            self._waiting[layer] = module, held, packed
            return []
        both = {role: (module, held, packed)}
        other = self._waiting.pop(layer)
        both[other[0].name.rpartition(".")[2]] = other
        stacks = self._prepared(both["gate_up"][1], both["down"][1])
        pairs = zip((both["gate_up"], both["down"]), stacks, strict=True)
        return [(one[0], stack, one[2]) for one, stack in pairs if isinstance(stack, PackedExperts)]

    def _prepared(self, gate_up: Weight, down: Weight) -> tuple[ExpertStack, ExpertStack]:
        if not self._tiles:
            return prepare(gate_up, down, self._dtype, self.device, resident=self._resident)
        if not (isinstance(gate_up, Stored) and isinstance(down, Stored)):
            return gate_up, down
        experts, rows, columns = gate_up.shape
        if refusal(gate_up.format, (experts, rows // 2, columns)) or refusal(down.format, down.shape):
            return gate_up, down
        if self.device.type == "cpu":  # compressing gives memory back, and numpy has looked at this
            gate_up, down = gate_up.map(torch.clone), down.map(torch.clone)
        packed = pack(gate_up, gated=True), pack(down, gated=False)
        return (compressed(packed[0]), compressed(packed[1])) if self._resident else packed


class _Gate:
    def __init__(
        self,
        plan: Arrangement,
        layers: Collection[int] | None,
        formats: Collection[str] | None,
        mutate: bool,
        experts: _HeldExperts,
    ) -> None:
        self.plan = plan
        self.layers = layers
        self.formats = formats
        self.experts = experts
        checkpoint = plan.checkpoint
        self.packer = Packer(RawReader(shard.path for shard in checkpoint.shards), checkpoint.config)
        self.faults = FaultRun(self.packer, mutate)
        self.findings: list[Finding] = []
        self.outputs: list[OutputCheck] = []
        self.coverage: dict[int, Coverage] = {}

    def rank(self, rank: int, ranks: int, phase: Phase) -> None:
        """Everything one rank holds."""
        coverage = self.coverage.setdefault(ranks, Coverage())
        share = share_of(self.plan, rank, ranks)
        with share.checkpoint.reader() as reader:
            staging = Staging(reader, self.experts.device)
            loader, again = Loader(share, staging, phase), Loader(share, staging, _Uncounted())
            for arranged in share.weights:
                module = arranged.module
                cell = cell_of(self.packer.form(module), self.packer.part(module, rank, ranks))
                coverage.exist[cell] = coverage.exist.get(cell, 0) + 1
                if not self._wanted(module, cell):
                    continue
                held, packed = loader.load(arranged), self.packer.pack(module, rank, ranks)
                finding = self._compared(compare(module.name, held, packed, rank, ranks))
                if packed.part.axis == COLUMNS and packed.shape[0] == 1:
                    self.outputs.append(check_output(module.name, held, packed, rank, ranks))
                if not finding.differences:
                    self.faults.into_weight(module, held, packed, finding)
                    self.faults.into_loader(again, arranged, held, packed, finding)
                for one, stack, expected in self.experts.take(module, held, packed):
                    in_tiles = compare_tiles(one.name, stack, expected, rank, ranks)
                    coverage.exist[in_tiles.cell] = coverage.exist.get(in_tiles.cell, 0) + 1
                    self._compared(in_tiles)
                    if not in_tiles.differences:
                        self.faults.into_tiles(stack, expected, in_tiles)

    def _compared(self, finding: Finding) -> Finding:
        self.findings.append(finding)
        compared = self.coverage[finding.ranks].compared
        compared[finding.cell] = compared.get(finding.cell, 0) + 1
        return finding

    def _wanted(self, module: RuntimeModule, cell: Cell) -> bool:
        if self.layers is not None and _layer(module.name, self.plan) not in self.layers:
            return False
        return self.formats is None or bool({cell.form, *cell.form.split(" + ")} & set(self.formats))


class _Uncounted:
    def advance(self, count: int) -> None:
        """Loading again is no progress."""


def _layer(name: str, plan: Arrangement) -> int | None:
    """The layer a weight belongs to; None for embedding, head and final norm."""
    if name.startswith("mtp."):
        return plan.config.num_hidden_layers
    return int(name.split(".")[1]) if name.startswith("layers.") else None
