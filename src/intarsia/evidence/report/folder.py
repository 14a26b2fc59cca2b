"""A folder of receipts and its page."""

import os
import re
from pathlib import Path

from intarsia.core import receipt as receipts
from intarsia.core.errors import Violation
from intarsia.core.receipt import Receipt, ReceiptError
from intarsia.evidence.errors import ReportError
from intarsia.evidence.report.page import page

PAGE = "report.html"


def read_folder(folder: str | os.PathLike[str]) -> dict[str, Receipt]:
    """The receipts of a folder by file name; other JSON files are left alone. Raises ReportError for none."""
    found = {}
    directory = Path(folder)
    for file in sorted(directory.glob("*.json")) if directory.is_dir() else ():
        try:
            found[file.name] = receipts.read(file)
        except ReceiptError:
            continue
    if not found:
        raise ReportError(
            str(folder),
            found="no receipt",
            expected="a folder with receipts (*.json)",
            action="measure first",
        )
    return found


def problems(folder: str | os.PathLike[str]) -> list[Violation]:
    """JSON files of a folder that are no receipt, and receipts that are not what they were when written."""
    found = []
    for file in sorted(Path(folder).glob("*.json")):
        try:
            receipt = receipts.read(file)
        except ReceiptError as error:
            found.append(Violation("not-a-receipt", file.name, error.found, error.expected, "it is left out"))
            continue
        made = receipts.identity(receipt)
        if receipt.id != made:
            action = "it was changed after it was written"
            found.append(Violation("receipt-id", file.name, receipt.id[:16], made[:16], action))
    return found


def write_page(folder: str | os.PathLike[str]) -> Path:
    """Write `report.html` from a folder's receipts, over an earlier one. Raises ReportError."""
    content = page(read_folder(folder))
    target = Path(folder) / PAGE
    partial = target.with_name(f".{PAGE}.partial-{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(target)
    return target


def keep_receipt(receipt: Receipt, name: str, folder: Path) -> tuple[Path, Path]:
    """Write a receipt under the first free name and the folder's page anew; both paths."""
    stem = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "receipt"
    number = 1
    while (folder / _file(stem, number)).exists():
        number += 1
    written = receipts.write(receipt, folder / _file(stem, number))
    return written, write_page(folder)


def _file(stem: str, number: int) -> str:
    return f"{stem}.json" if number == 1 else f"{stem}-{number}.json"
