"""Receipts of what the evidence layer measures."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from intarsia.core import receipt as receipts
from intarsia.core.receipt import Receipt
from intarsia.evidence.forms import Form, tokenizer_sha256
from intarsia.evidence.kernels.run import KernelsRun
from intarsia.evidence.loads.run import LoadsRun
from intarsia.evidence.machine import machine
from intarsia.evidence.memory.ledger import MemoryLedger
from intarsia.evidence.quality.measure import Quality
from intarsia.evidence.quality.settings import QualitySettings
from intarsia.evidence.settings import kept, read_kept
from intarsia.evidence.speed.compare import drafting
from intarsia.evidence.speed.run import SpeedRun
from intarsia.evidence.speed.settings import SpeedSettings
from intarsia.evidence.speed.steps.run import StepsRun
from intarsia.loading.receipts import now, source_identity

DRAFT = "the draft layer takes no part in likelihoods; its weights are in the layer errors alone"
ONE_RANK = "one rank; several were not run"
ON_CPU = "no GPU was used"
OWN_PLACE = frozenset(["rank", "master", "master_port"])


def form_identity(form: Form, *, hash_files: bool = True) -> dict[str, Any]:
    """A form as JSON values: files with their hashes, the manifest's hash, the tokenizer's."""
    source = source_identity(form.checkpoint, _model_type(form), hash_files=hash_files)
    return {
        "label": form.label,
        "source": msgspec.to_builtins(source),
        "manifest_sha256": form.manifest_sha256,
        "recipe": form.manifest.recipe if form.manifest is not None else None,
        "tokenizer_sha256": tokenizer_sha256(form),
        "weight_bytes": form.checkpoint.weight_bytes,
    }


def quality_receipt(quality: Quality) -> Receipt:
    """Everything of a quality run; both checkpoints are hashed."""
    notes = [DRAFT, *([ONE_RANK] if quality.settings.tp == 1 else [])]
    if quality.layers is None:
        notes.append("the weights were not compared")
    return _made(
        "quality",
        quality.base,
        _quality_settings(quality.settings),
        {
            "base": form_identity(quality.base),
            "candidate": form_identity(quality.candidate),
            "machine": machine(quality.settings.device),
            "ranks": quality.ranks,
            "candidate_repeat": asdict(quality.candidate_repeat) if quality.candidate_repeat else None,
            **quality_results(quality),
        },
        quality.settings.device,
        notes,
    )


def quality_results(quality: Quality) -> dict[str, Any]:
    """What a quality run gives again each time."""
    return {
        "text": quality.text,
        "repeat": asdict(quality.repeat),
        "figures": quality.figures,
        "worst": quality.worst,
        "layers": quality.layers.as_dict() if quality.layers is not None else None,
    }


def speed_receipt(run: SpeedRun) -> Receipt:
    """One run with all its samples."""
    document = run.as_dict()
    notes = [*document.pop("not_run"), ONE_RANK]
    settings = document.pop("settings")
    results = document | {
        "subject": form_identity(run.form),
        "clocks_before": run.clocks_before,
        "clocks_after": run.clocks_after,
        "drafting": [asdict(row) | {"acceptance": row.acceptance} for row in drafting(run.as_dict())],
    }
    return _made("speed", run.form, settings, results, run.settings.device, notes)


def memory_receipt(ledger: MemoryLedger) -> Receipt:
    """The ledger with the plan's peak and the measured one."""
    results = ledger.as_dict() | {
        "subject": form_identity(ledger.form),
        "machine": machine(ledger.device),
        "totals": {
            moment.replace(" ", "_"): dict(zip(("predicted", "measured"), ledger.total(moment), strict=True))
            for moment in ("service", "load peak")
        },
    }
    made = _made(
        "memory", ledger.form, ledger.settings, results, ledger.device, [*ledger.not_measured, ONE_RANK]
    )
    whole = msgspec.structs.replace(made, predicted=ledger.predicted, measured=ledger.measured)
    return msgspec.structs.replace(whole, id=receipts.identity(whole))


def loads_receipt(run: LoadsRun) -> Receipt:
    """All samples of the loads of one checkpoint."""
    document = run.as_dict()
    notes = document.pop("not_run")
    settings = document.pop("settings")
    subjects = [form_identity(form, hash_files=False) for form in run.forms]
    made = document | {"subjects": subjects}
    return _made("loads", run.forms[-1], settings, made, run.settings.device, [*notes, ONE_RANK])


def steps_receipt(run: StepsRun) -> Receipt:
    """Timed steps or prompts of a checkpoint, or of a network with random weights."""
    document = run.as_dict()
    notes, settings = [*document.pop("not_run"), ONE_RANK], document.pop("settings")
    if run.form is None:
        return receipts.make(run.kind, now(), settings, results=document, not_run=notes)
    results = document | {"subject": form_identity(run.form)}
    return _made(run.kind, run.form, settings, results, str(run.settings.device), notes)


def kernels_receipt(run: KernelsRun) -> Receipt:
    """Timed operations with random weights."""
    document = run.as_dict()
    notes, settings = document.pop("not_run"), document.pop("settings")
    return receipts.make("kernels", now(), settings, results=document, not_run=notes)


def run_of(receipt: Receipt) -> dict[str, Any]:
    """A speed receipt as the run that `compare_runs` takes."""
    return {**receipt.results, "settings": kept(read_kept(receipt.settings, SpeedSettings), SpeedSettings)}


def _made(
    kind: str,
    form: Form,
    settings: Mapping[str, Any],
    results: Mapping[str, Any],
    device: str,
    notes: list[str],
) -> Receipt:
    return receipts.make(
        kind,
        now(),
        settings,
        source=source_identity(form.checkpoint, _model_type(form), hash_files=True),
        manifest_sha256=form.manifest_sha256,
        results=dict(results),
        not_run=[*notes, *([ON_CPU] if device == "cpu" else [])],
    )


def _model_type(form: Form) -> str:
    return str(form.checkpoint.config.get("model_type", ""))


def _quality_settings(settings: QualitySettings) -> dict[str, Any]:
    """Without this rank's own place, which is among the results."""
    found = kept(settings, QualitySettings)
    return {name: value for name, value in found.items() if name not in OWN_PLACE}
