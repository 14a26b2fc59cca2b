"""intarsia report: one page from a folder of receipts."""

from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from intarsia.cli.output import emit_json, note
from intarsia.core.words import counted


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write `report.html` from the receipts of a folder: one file, with no script and nothing from elsewhere.

    Every figure leads to its line in a receipt; `intarsia receipt verify` checks the page, too. Exit code 1
    when a receipt was changed after it was written.
    """

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder with receipts."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from intarsia.evidence.report.folder import problems, read_folder, write_page

        page = write_page(self.folder)
        found, odd = read_folder(self.folder), problems(self.folder)
        if self.json:
            emit_json(
                {
                    "page": str(page),
                    "receipts": {name: receipt.id for name, receipt in found.items()},
                    "violations": [asdict(violation) for violation in odd],
                }
            )
        else:
            for violation in odd:
                note(str(violation))
            note(f"{page}: {counted(len(found), 'receipt')}")
        return 1 if any(violation.rule == "receipt-id" for violation in odd) else 0
