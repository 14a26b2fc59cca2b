"""intarsia gate: prove that what ranks hold is what is in the file."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from intarsia.cli.options import CheckpointPath
from intarsia.cli.output import emit_json
from intarsia.cli.progress import terminal_progress
from intarsia.core.config import DataType, ScaleForm
from intarsia.core.errors import UsageError

if TYPE_CHECKING:
    from intarsia.gate.report import GateReport

MOST_RANKS = 64
SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Prove that what is on the device is what is in the file.

    Loads every rank's weights, packs them a second time by other code, and compares byte for byte and after
    decoding. Exit code 1 for any difference, any fault that was not seen, a kind of cut or a
    tensor of the files left out.
    """

    path: CheckpointPath
    """Folder of a checkpoint, or `demo`."""
    tp: Annotated[str, tyro.conf.arg(metavar="N,N")] = "1"
    """Numbers of ranks to check, such as 1,2,3."""
    layers: Annotated[str, tyro.conf.arg(metavar="N,N-N")] = ""
    """Only these layers, such as 0,3-5; the MTP layer is the one after the last."""
    formats: Annotated[str, tyro.conf.arg(metavar="NAME,NAME")] = ""
    """Only weights stored in these formats (or scale codecs)."""
    mutations: bool = False
    """Also put faults into correct weights and into the loader's cut, and fail unless each is seen."""
    device: str = "cpu"
    """Torch device the weights are loaded to."""
    dtype: DataType = "bfloat16"
    """Type of activations, which decides whether a GPU holds experts in tiles."""
    expert_scales: ScaleForm = "expanded"
    """Block scales of experts in tiles: expanded, or resident in a compressed form."""
    tiles: bool = False
    """Lay all experts that fit out in tiles too and compare them so, whatever the device."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        ranks = sorted(_numbers("tp", self.tp))
        if not ranks or ranks[0] < 1 or ranks[-1] > MOST_RANKS:
            raise UsageError("tp", found=self.tp, expected=f"numbers from 1 to {MOST_RANKS}, such as 2,3")
        layers = _numbers("layers", self.layers) if self.layers else None
        formats = frozenset(self.formats.split(",")) if self.formats else None

        from intarsia.evidence.loader_gate import run_gate

        report = run_gate(
            self.path,
            ranks,
            layers=layers,
            formats=formats,
            mutate=self.mutations,
            device=self.device,
            dtype=self.dtype,
            expert_scales=self.expert_scales,
            tiles=self.tiles,
            progress=terminal_progress(),
        )
        if self.json:
            emit_json(report.as_dict())
        else:
            for line in _lines(report):
                print(line)
        return 0 if report.ok else 1


def _numbers(field: str, text: str) -> frozenset[int]:
    """The numbers of `1,3-5`."""
    found: set[int] = set()
    for item in text.split(","):
        first, dash, last = item.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(item) > 12:
            raise UsageError(field, found=item, expected="numbers such as 2,3 or 0-5")
        found.update(range(int(first), min(int(last or first), int(first) + 10_000) + 1))
    return frozenset(found)


def _lines(report: "GateReport") -> Iterable[str]:
    forms = [cell.form for coverage in report.coverage.values() for cell in coverage.exist]
    width = max(map(len, forms), default=0)
    for ranks, coverage in report.coverage.items():
        yield f"{ranks} rank{'s' if ranks > 1 else ''}"
        for cell, count in sorted(coverage.exist.items(), key=lambda entry: str(entry[0])):
            compared = coverage.compared.get(cell, 0)
            how = (
                "whole"
                if cell.axis == "whole"
                else f"{cell.axis}, {'aligned' if cell.aligned else 'inside a block'}"
            )
            empty = "" if compared else "  EMPTY"
            yield f"  {cell.form:{width}}  {how:24} {compared} of {count} compared{empty}"
    differing = report.differing
    for finding in differing[:SHOWN]:
        yield f"{finding.name} on rank {finding.rank} of {finding.ranks}:"
        for item in finding.differences:
            at = f" at byte {item.offset}" if item.offset is not None else ""
            yield f"  {item.what}{at}: found {item.found}; expected {item.expected}"
    if len(differing) > SHOWN:
        yield f"and {len(differing) - SHOWN} more"
    for name in report.unread[:SHOWN]:
        yield f"IN NO WEIGHT: {name}"
    if len(report.unread) > SHOWN:
        yield f"and {len(report.unread) - SHOWN} more tensors in no weight"
    worst = max((check.share_of_bound for check in report.outputs), default=0.0)
    yield f"{len(report.findings)} weights compared, {len(differing)} differ"
    yield f"{len(report.outputs)} partial outputs, the worst at {worst:.2%} of its rounding bound"
    if report.seen:
        count = sum(report.seen.values())
        kinds = sum(1 for number in report.seen.values() if number)
        yield f"{count} faults of {kinds} kinds put in, {sum(map(len, report.missed.values()))} not seen"
        for name, places in report.missed.items():
            yield f"  NOT SEEN: {name}: {', '.join(places)}"
        absent = [name for name, number in report.seen.items() if not number and name not in report.missed]
        if absent:
            yield f"  nothing here can have: {', '.join(absent)}"
    yield "fine" if report.ok else "FAILED"
