"""intarsia receipt verify: is a receipt, or a page, what it was when it was written?"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from intarsia.cli.output import emit_json, printable, require_files
from intarsia.cli.progress import terminal_progress
from intarsia.core.words import counted

if TYPE_CHECKING:
    from intarsia.core.errors import Violation
    from intarsia.core.receipt import Receipt


@dataclass(frozen=True, kw_only=True)
class ReceiptVerify:
    """Check receipts and pages made of them. Exit code 1 when one is not what it was when it was written.

    Of a receipt: its hash, the hashes of the files it speaks of that are still there, and totals that follow
    from its parts. Of a page: its receipts, and every figure, by making the page again.
    """

    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """Receipts, and pages (.html)."""
    rerun: bool = False
    """Measure quality or memory again from the same files, and compare every figure."""
    text: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """The text that was read, for --rerun; the demo brings its own."""
    json: bool = False
    """Print one JSON document: an object for one file, a list for several."""

    def run(self) -> int:
        require_files("receipt verify", self.files)
        documents = [self._check(file) for file in self.files]
        if self.json:
            emit_json(documents[0] if len(documents) == 1 else documents)
        return 1 if any(document["violations"] for document in documents) else 0

    def _check(self, file: str) -> dict[str, Any]:
        from intarsia.evidence.rerun import rerun
        from intarsia.evidence.verify import verify_page, verify_receipt

        if Path(file).suffix == ".html":
            found = verify_page(file)
            document = self._document(file, "page", "", found, [])
            self._tell(document, f"{file}: page", found)
            return document
        receipt, found, notes = verify_receipt(file)
        if self.rerun and not found:
            found = rerun(receipt, self.text, terminal_progress())
        document = self._document(file, receipt.kind, receipt.id, found, notes)
        document["code"] = code_of(receipt)
        self._tell(document, f"{file}: {receipt.kind} of {receipt.created}, id {receipt.id[:16]}", found)
        return document

    def _document(
        self, file: str, kind: str, identity: str, found: "list[Violation]", notes: list[str]
    ) -> dict[str, Any]:
        violations = [asdict(violation) for violation in found]
        return {"file": file, "kind": kind, "id": identity, "violations": violations, "unchecked": notes}

    def _tell(self, document: dict[str, Any], what: str, found: "list[Violation]") -> None:
        if self.json:
            return
        for violation in found:
            print(printable(str(violation)))
        for line in document["unchecked"]:
            print(printable(f"not checked: {line}"))
        if "code" in document:
            print(f"made by {document['code']}")
        print(printable(f"{what}: {counted(len(found), 'violation') if found else 'fits'}"))


def code_of(receipt: "Receipt") -> str:
    """Whether the code that wrote a receipt is the one that runs here, in words."""
    from intarsia.core.provenance import sources_sha256

    sources = receipt.code.sources_sha256
    if sources is None:
        return "code whose sources the receipt does not name"
    return f"{'this' if sources == sources_sha256() else 'other'} code (sources {sources[:16]})"
