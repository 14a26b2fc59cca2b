"""Receipts of an earlier version, kept as they were written: they are read, checked, shown and compared."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from intarsia.cli.main import main
from intarsia.core import receipt as receipts
from intarsia.core.receipt import ReceiptError
from intarsia.evidence.quality.settings import QualitySettings
from intarsia.evidence.receipts import run_of
from intarsia.evidence.report.folder import read_folder
from intarsia.evidence.report.page import PARTS, page
from intarsia.evidence.settings import read_kept
from intarsia.evidence.speed.compare import compare_runs
from intarsia.evidence.verify import verify_receipt

OLD = Path(__file__).parents[1] / "data" / "receipts"
FILES = sorted(OLD.glob("*.json"))


def test_there_is_one_of_every_kind_of_that_version():
    kinds = {receipts.read(file).kind for file in FILES}
    assert kinds == {"memory", "quality", "speed"}  # those of GPUs came later
    assert kinds < set(PARTS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_fits_its_id_and_its_totals(file, capsys):
    receipt, found, notes = verify_receipt(file)
    assert found == []
    assert any("is not there" in note for note in notes)  # made elsewhere
    assert "ranks" not in receipt.results  # from before there were any
    assert main(["receipt", "show", str(file)]) == 0
    assert receipt.kind in capsys.readouterr().out
    assert main(["receipt", "verify", str(file)]) == 0
    assert "code whose sources the receipt does not name" in capsys.readouterr().out


def test_they_make_a_page_with_every_part():
    found = read_folder(OLD)
    content = page(found).decode()
    for title in ("Quality", "Speed", "Memory"):
        assert f"<h2>{title}</h2>" in content
    # A part that misses something would fall back to a bare list of figures under the file's name.
    assert not re.search(r"<h2>(quality|speed|memory): ", content)


def test_settings_that_came_later_have_their_defaults():
    receipt = receipts.read(OLD / "quality.json")
    assert "tp" not in receipt.settings
    assert read_kept(receipt.settings, QualitySettings) == QualitySettings(
        tokens="2x32", repeat_windows=1, threads=1
    )


def test_two_of_them_compare():
    runs = [run_of(receipts.read(OLD / f"speed-{letter}.json")) for letter in "ab"]
    assert [row.cell for row in compare_runs(*runs)] == [
        "prompt of 64 tokens",
        "decode, 1 stream",
        "decode, 1 stream, 3 drafts",
    ]
    assert runs[0]["settings"]["beyond_window"] is False


def test_another_schema_is_refused_by_name(tmp_path, capsys):
    document = json.loads((OLD / "memory.json").read_text()) | {"schema": "intarsia.receipt/9"}
    file = tmp_path / "newer.json"
    file.write_text(json.dumps(document))
    with pytest.raises(ReceiptError, match=r"intarsia\.receipt/2 or /1"):
        receipts.read(file)
    assert main(["receipt", "verify", str(file)]) == 1
    assert "intarsia.receipt/9" in capsys.readouterr().err


def test_canonical_bytes_have_not_changed():
    """Ids of old receipts fit only as long as their canonical form stays."""
    for file in FILES:
        receipt = receipts.read(file)
        assert receipts.canonical(receipt) == file.read_bytes()
        assert receipts.identity(msgspec.structs.replace(receipt, id="")) == receipt.id
