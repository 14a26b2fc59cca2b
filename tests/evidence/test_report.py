"""Pages: complete, escaped, and exactly what their receipts give; receipts that were changed are found."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from intarsia.checkpoint.paths import DEMO
from intarsia.core import receipt as receipts
from intarsia.evidence.errors import ReportError
from intarsia.evidence.forms import open_form
from intarsia.evidence.memory.ledger import measure_memory
from intarsia.evidence.quality.measure import HELD_OUT, measure_quality
from intarsia.evidence.quality.settings import QualitySettings
from intarsia.evidence.receipts import memory_receipt, quality_receipt, run_of, speed_receipt
from intarsia.evidence.report.folder import keep_receipt, read_folder, write_page
from intarsia.evidence.report.lines import Source
from intarsia.evidence.report.markup import Markup, tag, text
from intarsia.evidence.report.page import page
from intarsia.evidence.report.svg import Axis, round_steps, short
from intarsia.evidence.rerun import rerun
from intarsia.evidence.speed.compare import compare_runs
from intarsia.evidence.speed.run import measure_speed
from intarsia.evidence.speed.settings import SpeedSettings
from intarsia.evidence.verify import changes, verify_page, verify_receipt

SETTINGS = QualitySettings(tokens="1x48", repeat_windows=1)


@pytest.fixture(scope="module")
def copy_of_demo(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("copy") / "demo"
    shutil.copytree(DEMO, folder)
    return folder


@pytest.fixture(scope="module")
def made(copy_of_demo, demo):
    """A receipt of every kind."""
    found = measure_quality(open_form(copy_of_demo), open_form("demo", "spark"), HELD_OUT, SETTINGS)
    speed = SpeedSettings(prompts=(64,), streams=(1,), decode_tokens=3, rounds=2, drafts=1, warm_ups=0)
    a, b = measure_speed([demo, open_form("demo", "spark")], speed)
    return {
        "quality.json": quality_receipt(found),
        "speed-a.json": speed_receipt(a),
        "speed-b.json": speed_receipt(b),
        "memory.json": memory_receipt(measure_memory(demo, context=600)),
    }


@pytest.fixture
def folder(made, tmp_path) -> Path:
    for name, receipt in made.items():
        receipts.write(receipt, tmp_path / name)
    write_page(tmp_path)
    return tmp_path


class Reader(HTMLParser):
    """Checks nesting; collects links, anchors and names of elements."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open, self.links, self.anchors, self.names = [], [], [], set()
        self.feed(content)
        assert self.open == []

    def handle_starttag(self, name, attributes):
        given = dict(attributes)
        self.names.add(name)
        self.anchors += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if name == "a" else []
        if name not in ("meta", "br"):
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name


def test_receipts_of_all_kinds_verify(folder):
    for file in folder.glob("*.json"):
        receipt, found, _ = verify_receipt(file)
        assert found == [], file
        assert receipt.not_run
    assert verify_page(folder / "report.html") == []


def test_the_page_is_whole_and_loads_nothing(folder):
    content = (folder / "report.html").read_text()
    reader = Reader(content)
    assert len(reader.anchors) == len(set(reader.anchors))
    assert len(reader.links) > 60
    assert {link[1:] for link in reader.links} <= set(reader.anchors)
    assert all(link.startswith("#r") for link in reader.links)
    assert reader.names.isdisjoint({"script", "img", "link", "iframe", "object"})
    assert not re.search(r"(src|href)=\"(?!#)", content)
    assert not re.search(r"url\(|@import", content)
    assert "prefers-color-scheme: dark" in content
    assert "@media print" in content


def test_links_lead_to_the_line_of_the_figure(made):
    receipt = made["quality.json"]
    source = Source("quality.json", receipt, 0)
    lines = receipts.canonical(receipt).decode().splitlines()
    for path in (
        ("results", "figures", "kld", "mean"),
        ("results", "figures", "documents", 0, "kld"),
        ("results", "layers", "worst", 2, "error"),
        ("settings", "tokens"),
        ("id",),
    ):
        link = str(source.link("x", *path))
        line = lines[int(re.search(r"#r0-(\d+)", link)[1]) - 1]
        value = source.value(*path)
        assert line.strip().rstrip(",") == f'"{path[-1]}": {json.dumps(value)}'
    assert source.link("x", "results", "nothing") == "x"


def test_text_is_escaped(made):
    hostile = '"><script>alert(1)</script>&<b>'
    results = dict(made["quality.json"].results)
    results["candidate"] = {**results["candidate"], "label": hostile}
    results["worst"] = [{**row, "token_text": hostile} for row in results["worst"]]
    changed = msgspec.structs.replace(made["quality.json"], results=results, not_run=[hostile])
    content = page({f"{hostile}.json": changed}).decode()
    reader = Reader(content)
    assert "script" not in reader.names
    assert content.count("alert(1)") > 3
    assert tag("a", hostile, title=hostile).count("<") == 2
    assert text(Markup("<b>")) == "<b>"


def test_an_unknown_kind_of_receipt_is_shown_by_its_figures(tmp_path, made):
    other = receipts.make(
        "audit", "2026-01-01T00:00:00Z", {}, results={"tensors": 12345, "parts": {"a": 1.5}}
    )
    content = page({"other.json": other}).decode()
    assert "12,345" in content
    assert "parts a" in content


def test_a_receipt_with_other_parts_is_shown_by_its_figures(tmp_path, made):
    older = msgspec.structs.replace(made["quality.json"], results={"figures": {"kld": {"mean": 0.1234567}}})
    content = page({"older.json": msgspec.structs.replace(older, id=receipts.identity(older))}).decode()
    assert "results figures kld mean" in content
    assert "0.123457" in content


def test_the_same_receipts_give_the_same_page(made):
    assert page(made) == page(dict(reversed(made.items())))


@pytest.mark.parametrize("name", ["quality.json", "speed-a.json", "memory.json"])
def test_a_changed_byte_of_a_receipt_is_found(folder, name):
    file = folder / name
    data = file.read_bytes()
    for place in (data.index(b'"results"') + 200, data.index(b'"created"') + 15):
        digit = next(at for at in range(place, len(data)) if data[at : at + 1].isdigit())
        file.write_bytes(
            data[:digit] + (b"1" if data[digit : digit + 1] != b"1" else b"2") + data[digit + 1 :]
        )
        _, found, _ = verify_receipt(file)
        assert "receipt-id" in {violation.rule for violation in found}
    file.write_bytes(data.replace(b'"kind"', b' "kind"'))
    assert [violation.rule for violation in verify_receipt(file)[1]] == ["receipt-form"]


def test_a_figure_changed_with_its_id_does_not_add_up(folder):
    receipt = receipts.read(folder / "quality.json")
    figures = dict(receipt.results["figures"])
    figures["kld"] = {**figures["kld"], "mean": figures["kld"]["mean"] * 0.5}
    forged = msgspec.structs.replace(receipt, results={**receipt.results, "figures": figures})
    forged = msgspec.structs.replace(forged, id=receipts.identity(forged))
    receipts.write(forged, folder / "forged.json")
    _, found, _ = verify_receipt(folder / "forged.json")
    assert [(violation.rule, violation.where) for violation in found] == [("total", "mean KLD")]


def test_a_receipt_without_its_parts_is_a_violation(folder):
    bare = msgspec.structs.replace(receipts.read(folder / "quality.json"), results={"figures": {}})
    receipts.write(msgspec.structs.replace(bare, id=receipts.identity(bare)), folder / "bare.json")
    assert [violation.rule for violation in verify_receipt(folder / "bare.json")[1]] == ["receipt-parts"]


def test_a_changed_byte_of_a_checkpoint_is_found(folder, copy_of_demo):
    shard = sorted(copy_of_demo.rglob("*.safetensors"))[0]
    data = bytearray(shard.read_bytes())
    data[-7] ^= 1
    shard.write_bytes(data)
    _, found, _ = verify_receipt(folder / "quality.json")
    data[-7] ^= 1
    shard.write_bytes(data)
    assert [(violation.rule, violation.where) for violation in found] == [("source-hash", shard.name)]
    assert verify_receipt(folder / "quality.json")[1] == []


def test_a_changed_figure_of_a_page_is_found(folder):
    file = folder / "report.html"
    content = file.read_text()
    figure = re.search(r'class="figure">([0-9.]+)</a>', content)
    for changed in (
        content[: figure.start(1)] + "7" + content[figure.start(1) + 1 :],
        content.replace('class="fill0"', 'class="fill1"', 1),
        content + " ",
        content.replace("&quot;positions&quot;: 48", "&quot;positions&quot;: 49", 1),
    ):
        assert changed != content
        file.write_text(changed)
        assert verify_page(file) != []
    file.write_text("<html></html>")
    with pytest.raises(ReportError, match="no receipt inside"):
        verify_page(file)


def test_a_run_repeats(folder):
    receipt = receipts.read(folder / "quality.json")
    assert rerun(receipt) == []
    figures = {**receipt.results["figures"], "positions": 47}
    changed = msgspec.structs.replace(receipt, results={**receipt.results, "figures": figures})
    assert [violation.where for violation in rerun(changed)] == ["figures.positions"]


def test_bytes_are_counted_again(folder):
    receipt = receipts.read(folder / "memory.json")
    assert rerun(receipt) == []
    owners = [dict(row) for row in receipt.results["owners"]]
    owners[0]["measured"] += 1
    changed = msgspec.structs.replace(receipt, results={**receipt.results, "owners": owners})
    (violation,) = rerun(changed)
    assert violation.where == f"owners.{owners[0]['owner']}.measured"


def test_what_cannot_run_again_is_said(folder):
    with pytest.raises(ReportError, match="time is never the same twice"):
        rerun(receipts.read(folder / "speed-a.json"))
    receipt = receipts.read(folder / "quality.json")
    described = {**receipt.results["base"]["source"], "inventory_sha256": "0" * 64}
    base = {**receipt.results["base"], "source": described}
    with pytest.raises(ReportError, match="other tensors"):
        rerun(msgspec.structs.replace(receipt, results={**receipt.results, "base": base}))


def test_the_demo_runs_again_wherever_its_receipt_was_made(made):
    receipt = made["memory.json"]
    subject = receipt.results["subject"]
    moved = {**subject, "source": {**subject["source"], "path": "/no/such/folder"}}
    results = {**receipt.results, "subject": moved}
    assert rerun(msgspec.structs.replace(receipt, results=results)) == []


def test_speed_receipts_compare(made):
    rows = compare_runs(run_of(made["speed-a.json"]), run_of(made["speed-b.json"]))
    assert [row.cell for row in rows] == [
        "prompt of 64 tokens",
        "decode, 1 stream",
        "decode, 1 stream, 1 drafts",
    ]


def test_receipts_get_names_that_are_free(made, tmp_path):
    first, page_file = keep_receipt(made["memory.json"], "Memory: demo as stored", tmp_path)
    second, _ = keep_receipt(made["memory.json"], "Memory: demo as stored", tmp_path)
    assert (first.name, second.name) == ("memory-demo-as-stored.json", "memory-demo-as-stored-2.json")
    assert page_file == tmp_path / "report.html"
    (tmp_path / "other.json").write_text("{}")
    assert sorted(read_folder(tmp_path)) == [second.name, first.name]


def test_a_folder_without_receipts_is_refused(tmp_path):
    with pytest.raises(ReportError, match="no receipt"):
        write_page(tmp_path)


def test_changes_are_told_by_path():
    found = list(changes({"a": [1, {"b": 2}], "c": 3}, {"a": [1, {"b": 5}], "d": 4}))
    assert found == [("a[1].b", 2, 5), ("c", 3, None), ("d", None, 4)]


def test_axes_have_round_ticks_and_clip():
    assert round_steps(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert [short(value) for value in (0, 0.00012, 0.25, 1500, 2e7)] == ["0", "1.2e-4", "0.25", "1.5k", "2e7"]
    log = Axis(1e-3, 10, "x", log=True)
    assert [log.place(value) for value in (0.0, 1e-3, 0.1, 10, 99)] == pytest.approx([0, 0, 0.5, 1, 1])
    assert log.ticks() == pytest.approx([1e-3, 1e-2, 1e-1, 1, 10])
