"""Measuring again what a receipt says, and comparing every figure."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intarsia.checkpoint import Checkpoint
from intarsia.core.errors import Violation
from intarsia.core.progress import SILENT, Progress
from intarsia.core.receipt import Receipt
from intarsia.evidence.errors import ReportError
from intarsia.evidence.forms import Form, open_form
from intarsia.evidence.memory.ledger import SETTINGS, measure_memory
from intarsia.evidence.quality.measure import HELD_OUT, measure_quality
from intarsia.evidence.quality.settings import QualitySettings
from intarsia.evidence.receipts import OWN_PLACE, quality_results
from intarsia.evidence.settings import kept, read_kept
from intarsia.evidence.verify import changes
from intarsia.loading.receipts import source_identity

Pair = tuple[str, Any, Any]
DEMO_LABEL = "demo "
PARTS = frozenset(["text", "repeat", "figures", "worst", "layers"])
"""Of a quality receipt's results: what must come out again."""


def rerun(
    receipt: Receipt, text: str | os.PathLike[str] | None = None, progress: Progress = SILENT
) -> list[Violation]:
    """Measure again what a receipt says, from the files it names, and compare every figure.

    Of a quality receipt everything, `text` being the file that was read if it was not the demo's held-out
    text; of a memory receipt every owner's bytes in service. Figures are equal on the machine that wrote the
    receipt. Raises ReportError for other kinds, and for manifests that are no built-in recipe.
    """
    if receipt.kind == "quality":
        pairs = _quality(receipt, text, progress)
    elif receipt.kind == "memory":
        pairs = _memory(receipt, progress)
    else:
        expected = "a quality or memory receipt; time is never the same twice"
        raise ReportError("rerun", found=f"a {receipt.kind} receipt", expected=expected)
    return [
        Violation("rerun", name, str(theirs)[:60], str(ours)[:60])
        for part, before, again in pairs
        for name, ours, theirs in changes(before, again, part)
    ]


def _quality(receipt: Receipt, text: str | os.PathLike[str] | None, progress: Progress) -> list[Pair]:
    settings = read_kept(receipt.settings, QualitySettings)
    base = _form(receipt.results["base"])
    candidate = _form(receipt.results["candidate"]).with_latents(settings.kv_cache_dtype)
    layers = receipt.results["layers"] is not None
    read = text if text is not None else HELD_OUT
    if settings.tp > 1:
        again = _on_ranks(receipt.results, settings, str(read), layers)
    else:
        found = measure_quality(base, candidate, read, settings, layers=layers, progress=progress)
        again = quality_results(found)
    return [(part, receipt.results[part], again[part]) for part in sorted(PARTS)]


def _on_ranks(
    results: Mapping[str, Any], settings: QualitySettings, text: str, layers: bool
) -> dict[str, Any]:
    """The results of the command that runs on as many ranks, in processes of its own."""
    words = [_path(results["base"]), _path(results["candidate"]), "--text", text, "--json"]
    for option, side in (("--base-manifest", "base"), ("--manifest", "candidate")):
        words += [option, results[side]["recipe"]] if results[side]["recipe"] is not None else []
    for name, value in kept(settings, QualitySettings).items():
        if value is not None and name not in OWN_PLACE:
            words += [f"--{name.replace('_', '-')}", str(value)]
    words += [] if layers else ["--no-layers"]
    command = [sys.executable, "-m", "intarsia", "quality", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        found = {}
    if PARTS - found.keys():
        told = done.stderr.strip().splitlines()[-1:] or ["nothing told"]
        raise ReportError("rerun", found=told[0], expected=f"a comparison on {settings.tp} ranks")
    return found


def _memory(receipt: Receipt, progress: Progress) -> list[Pair]:
    settings = {name: receipt.settings[name] for name in SETTINGS if name in receipt.settings}
    again = measure_memory(_form(receipt.results["subject"]), **settings, progress=progress).as_dict()
    return [("owners", _in_service(receipt.results), _in_service(again))]


def _in_service(results: Mapping[str, Any]) -> dict[str, Any]:
    return {
        row["owner"]: {"predicted": row["predicted"], "measured": row["measured"]}
        for row in results["owners"]
        if row["moment"] == "service" and row["predicted"] is not None
    }


def _form(described: Mapping[str, Any]) -> Form:
    """The form a receipt speaks of."""
    recipe, label = described["recipe"], described["label"]
    if described["manifest_sha256"] is not None and recipe is None:
        found, expected = "a manifest of its own", "a built-in recipe"
        raise ReportError(label, found=found, expected=expected, action="run it by hand")
    form = open_form(_path(described), recipe)
    _require(label, "tensors", _inventory(form.checkpoint), described["source"]["inventory_sha256"])
    _require(label, "manifest", form.manifest_sha256, described["manifest_sha256"])
    return form


def _path(described: Mapping[str, Any]) -> str:
    """Where it is. The demo is in every installation, wherever the receipt's own was."""
    path = str(described["source"]["path"])
    return "demo" if described["label"].startswith(DEMO_LABEL) and not Path(path).exists() else path


def _inventory(checkpoint: Checkpoint) -> str:
    return source_identity(checkpoint, "").inventory_sha256


def _require(label: str, what: str, found: str | None, expected: str | None) -> None:
    if found != expected:
        raise ReportError(label, found=f"other {what}, {found}", expected=f"{expected}, as in the receipt")
