"""intarsia report: one page from a folder of receipts."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from intarsia.cli.output import emit_json, note


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write `report.html` from the receipts of a folder: one file, with no script and nothing from elsewhere.

    Every figure leads to its line in a receipt; `intarsia receipt verify` checks the page, too.
    """

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder with receipts."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from intarsia.evidence.report.folder import read_folder, write_page

        page = write_page(self.folder)
        found = read_folder(self.folder)
        if self.json:
            emit_json({"page": str(page), "receipts": {name: receipt.id for name, receipt in found.items()}})
        else:
            note(f"{page}: {len(found)} receipts")
        return 0
