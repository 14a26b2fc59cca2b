"""Is a checkpoint whole and consistent? Every violation at once."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from intarsia.checkpoint.checkpoint import Checkpoint, open_checkpoint
from intarsia.checkpoint.collector import collector_paused
from intarsia.checkpoint.completeness import Groups, Shapes, compare
from intarsia.checkpoint.experts import expert_sets
from intarsia.checkpoint.findings import Findings
from intarsia.checkpoint.module import Module
from intarsia.checkpoint.reader import Reader
from intarsia.checkpoint.resolution import resolve
from intarsia.checkpoint.values import ValueCheck, values_to_read
from intarsia.core.errors import Violation
from intarsia.core.progress import SILENT, Progress


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found. `notes` are legal but odd; they do not make a checkpoint unclean."""

    path: str
    violations: tuple[Violation, ...]
    notes: tuple[Violation, ...]
    shards: int
    tensors: int
    modules: dict[str, int]
    weight_bytes: int
    values_read: int
    complete: bool
    """Whether the tensors were held against an architecture's list."""

    @property
    def clean(self) -> bool:
        """Whether there is no violation."""
        return not self.violations


def audit(
    checkpoint: Checkpoint | str | os.PathLike[str],
    *,
    values: bool = False,
    expected: Shapes | None = None,
    optional: Groups | None = None,
    progress: Progress = SILENT,
) -> AuditReport:
    """Check a checkpoint and report everything that is wrong with it.

    Headers, index, metadata and module contracts always; with `values` also every scale and number on
    disk. `expected` maps tensor names of the unquantized architecture to shapes, and `optional` names groups
    of them that may be absent as a whole. Raises NotACheckpointError when there is nothing to audit; every
    other defect is in the report.
    """
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = open_checkpoint(checkpoint, strict=False)
    findings, notes = Findings(), Findings()
    resolution = resolve(checkpoint)
    with collector_paused():
        findings.extend(checkpoint.problems)
        findings.extend(resolution.violations)
        notes.extend(resolution.notes)
        _note_kv_cache(checkpoint, notes)
        if expected is not None:
            compare(resolution.modules, checkpoint.tensors, expected, optional or {}, findings, notes)
    read = 0
    if values:
        read = _check_values(checkpoint, resolution.modules, findings, notes, progress)
    formats = Counter(module.format or "plain" for module in resolution.modules.values())
    return AuditReport(
        path=str(checkpoint.path),
        violations=findings.all(),
        notes=notes.all(),
        shards=len(checkpoint.shards),
        tensors=len(checkpoint.tensors),
        modules=dict(sorted(formats.items())),
        weight_bytes=checkpoint.weight_bytes,
        values_read=read,
        complete=expected is not None,
    )


def _check_values(
    checkpoint: Checkpoint,
    modules: Mapping[str, Module],
    findings: Findings,
    notes: Findings,
    progress: Progress,
) -> int:
    total = sum(entry.nbytes for module in modules.values() for entry in values_to_read(module))
    with checkpoint.reader() as reader, progress.phase("checking values", total) as phase:
        check = ValueCheck(reader, findings, notes, phase)
        for module in sorted(modules.values(), key=_disk_order):
            check.module(module)
        _note_fused_globals(modules, reader, notes)
        _check_tied(checkpoint, reader, findings)
    return total


def _disk_order(module: Module) -> tuple[str, int]:
    first = next(iter(module.tensors.values()))
    return first.shard, first.begin


def _note_fused_globals(modules: Mapping[str, Module], reader: Reader, notes: Findings) -> None:
    """Gate and up are multiplied as one; their global scales may differ, which a loader has to know."""
    for container, experts in expert_sets(modules).items():
        different, widest = 0, 1.0
        for held in experts.values():
            pair = [
                held[part].tensors["weight_scale_2"]
                for part in ("gate_proj", "up_proj")
                if part in held and "weight_scale_2" in held[part].tensors
            ]
            if len(pair) != 2 or any(entry.nbytes != 4 or entry.dtype != "F32" for entry in pair):
                continue
            gate, up = (reader.read_entry(entry).item() for entry in pair)
            if gate != up:
                different += 1
                low, high = sorted((abs(gate), abs(up)))
                widest = max(widest, high / low if low > 0 else float("inf"))
        if different:
            notes.add(
                "fused-globals-differ",
                container,
                f"{different} of {len(experts)} experts whose gate and up have different weight_scale_2, "
                f"by up to a factor of {widest:.3g}",
                "equal ones from one calibration; a loader keeps one for each",
            )


def _check_tied(checkpoint: Checkpoint, reader: Reader, findings: Findings) -> None:
    """With tied embeddings a separate head must hold the same bytes."""
    text = checkpoint.config.get("text_config")
    configs = (checkpoint.config, text if isinstance(text, dict) else {})
    if not any(config.get("tie_word_embeddings") is True for config in configs):
        return
    head = checkpoint.tensors.get("lm_head.weight")
    tables = [entry for name, entry in checkpoint.tensors.items() if name.endswith("embed_tokens.weight")]
    if head is None or len(tables) != 1:
        return
    table = tables[0]
    if (head.dtype, head.shape) == (table.dtype, table.shape):
        step = 8 << 20
        for begin in range(0, head.nbytes, step):
            end = min(begin + step, head.nbytes)
            pieces = [bytearray(end - begin), bytearray(end - begin)]
            for entry, piece in zip((head, table), pieces, strict=True):
                reader.read_into(entry, piece, begin, end)
            if pieces[0] != pieces[1]:
                break
        else:
            return
    findings.add(
        "tied-weights-differ",
        head.name,
        f"{head.dtype} {list(head.shape)} that differs from {table.name} ({table.dtype} {list(table.shape)})",
        "the same weights, since tie_word_embeddings is true",
        "set tie_word_embeddings to false if both are meant",
    )


def _note_kv_cache(checkpoint: Checkpoint, notes: Findings) -> None:
    algo = checkpoint.quantization.kv_algo
    if algo is None:
        return
    if not any(name.endswith((".k_scale", ".v_scale")) for name in checkpoint.tensors):
        notes.add(
            "kv-scales-absent",
            "KV cache",
            f"{algo} declared and no k_scale or v_scale stored",
            "scales; without them they are 1.0",
        )
