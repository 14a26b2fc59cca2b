"""Checking receipts and pages: hashes, files, and totals that follow from each other."""

import html
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from intarsia.checkpoint.files import read_small
from intarsia.core import receipt as receipts
from intarsia.core.errors import Violation
from intarsia.core.json import JsonError, parse_object
from intarsia.core.receipt import Receipt, SourceIdentity
from intarsia.evidence.errors import ReportError
from intarsia.evidence.receipts import run_of
from intarsia.evidence.report.page import page
from intarsia.evidence.speed.compare import drafting

_DETAILS = re.compile(r'<details id="r\d+" data-receipt="([^"]*)">.*?<pre class="receipt">(.*?)</pre>', re.S)
_TAG = re.compile(r"<[^>]*>")
RELATIVE = 1e-9
"""What sums of float64 in another order may differ by."""


def verify_receipt(path: str | os.PathLike[str]) -> tuple[Receipt, list[Violation], list[str]]:
    """A receipt, what does not fit, and what could not be checked.

    The id, the form and the base's files by `core.receipt`; here the files of every other form it speaks of,
    and the totals that follow from its own parts. Raises ReceiptError.
    """
    receipt, found = receipts.verify(path)
    notes = receipts.unchecked(receipt)
    if any(violation.rule == "receipt-id" for violation in found):
        return receipt, found, [*notes, "its parts: they are not the ones that were written"]
    problem = ""
    try:
        for form in _forms(receipt):
            held, missing = _files(receipt, form)
            found += held
            notes += missing
        found += list(_totals(receipt))
    except (KeyError, TypeError, ValueError) as error:  # a ValidationError of msgspec is a ValueError
        problem = f"{type(error).__name__}: {error}"
    if problem:
        found.append(Violation("receipt-parts", str(path), problem, f"the parts of a {receipt.kind} receipt"))
    return receipt, found, notes


def verify_page(path: str | os.PathLike[str]) -> list[Violation]:
    """A page against the receipts inside it: each must fit its id, and the page made again must be equal.

    Raises ReportError when it holds none.
    """
    content = read_small(Path(path), str(path), receipts.MAX_BYTES)
    inside: dict[str, Receipt] = {}
    found: list[Violation] = []
    for name, receipt, problem in _receipts_of(content.decode(errors="replace")):
        if receipt is None:
            found.append(Violation("page-receipt", name, problem, "a receipt", "make the page again"))
        elif receipt.id != receipts.identity(receipt):
            found.append(Violation("receipt-id", name, receipt.id[:16], receipts.identity(receipt)[:16]))
        if receipt is not None:
            inside[name] = receipt
    if not inside and not found:
        raise ReportError(str(path), found="no receipt inside", expected="a page that intarsia made")
    again = page(inside)
    if not found and again != content:
        place = next(
            (at for at, pair in enumerate(zip(again, content, strict=False)) if pair[0] != pair[1]),
            min(len(again), len(content)),
        )
        shown = content[max(0, place - 30) : place + 30].decode(errors="replace")
        found.append(
            Violation(
                "page-figure", f"byte {place:,}", repr(shown), "what its receipts give", "make it again"
            )
        )
    return found


def changes(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every value in which two documents differ: its path and both values, None where one has none."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for key in sorted(ours.keys() | theirs.keys()):
            yield from changes(ours.get(key), theirs.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from changes(*pair, f"{path}[{index}]")
    elif ours != theirs:
        yield path, ours, theirs


def _receipts_of(text: str) -> Iterator[tuple[str, Receipt | None, str]]:
    for match in _DETAILS.finditer(text):
        name = html.unescape(match[1])
        data = html.unescape(_TAG.sub("", match[2])).encode()
        try:
            yield name, msgspec.convert(parse_object(data, name), Receipt, strict=True), ""
        except JsonError as error:
            yield name, None, error.found
        except msgspec.ValidationError as error:
            yield name, None, str(error)


def _forms(receipt: Receipt) -> list[Mapping[str, Any]]:
    found = [receipt.results.get(name) for name in ("base", "candidate", "subject")]
    return [form for form in found if isinstance(form, Mapping) and isinstance(form.get("source"), Mapping)]


def _files(receipt: Receipt, form: Mapping[str, Any]) -> tuple[list[Violation], list[str]]:
    """Files of one form, unless they are the receipt's own source, which is checked already."""
    source = msgspec.convert(form["source"], SourceIdentity)
    if source == receipt.source:
        return [], []
    other = msgspec.structs.replace(receipt, source=source)
    return receipts.verify_files(other), [
        note for note in receipts.unchecked(other) if "tensor hashes" not in note
    ]


def _totals(receipt: Receipt) -> Iterator[Violation]:
    results = receipt.results
    pairs: list[tuple[str, float, float]] = []
    if receipt.kind == "quality":
        pairs = list(_quality_totals(results))
    elif receipt.kind == "speed":
        for told, row in zip(results["drafting"], drafting(run_of(receipt)), strict=True):
            for name in ("drafted", "accepted", "acceptance", "tokens_per_step", "break_even"):
                pairs.append((f"{name} of {row.cell}", told[name], getattr(row, name)))
    elif receipt.kind == "memory":
        for moment, total in results["totals"].items():
            known = [
                owner
                for owner in results["owners"]
                if owner["moment"] == moment.replace("_", " ")
                and owner["predicted"] is not None
                and owner["measured"] is not None
            ]
            for side in ("predicted", "measured"):
                pairs.append((f"{moment} {side}", total[side], sum(owner[side] for owner in known)))
    for name, kept, again in pairs:
        if not math.isclose(kept, again, rel_tol=RELATIVE, abs_tol=1e-12):
            yield Violation("total", name, f"{kept:.10g}", f"{again:.10g}, from the receipt's own parts")


def _quality_totals(results: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    figures = results["figures"]
    documents = figures["documents"]
    bins = figures["histogram"]
    yield "histogram", sum(bins["counts"]) + bins["below"] + bins["above"], figures["positions"]
    for side in ("base", "candidate"):
        yield f"perplexity of the {side}", figures["perplexity"][side], math.exp(figures["nll"][side])
    yield "NLL difference", figures["nll"]["difference"], figures["nll"]["candidate"] - figures["nll"]["base"]
    disagreeing = figures["top1"]["differing"] / figures["positions"]
    yield "same first choice", figures["top1"]["agreement"], 1 - disagreeing
    if len(documents) == figures["documents_measured"]:
        kld = math.fsum(row["kld"] * row["positions"] for row in documents) / figures["positions"]
        yield "mean KLD", figures["kld"]["mean"], kld
        yield "positions", figures["positions"], sum(row["positions"] for row in documents)
