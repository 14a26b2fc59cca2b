"""The page on kernels, steps and prompts: whole, linked to the receipts' lines, older receipts too."""

import json
import re
from dataclasses import fields, replace

import msgspec
import pytest

from intarsia.core import receipt as receipts
from intarsia.evidence.kernels.ahead import Compiled
from intarsia.evidence.receipts import kernels_receipt
from intarsia.evidence.report.page import page
from intarsia.evidence.speed.steps.decode import DecodeResult, DraftingCost
from intarsia.evidence.speed.steps.prompts import PromptResult
from tests.evidence.test_kernels_aims import planted
from tests.evidence.test_report import Reader

HOSTILE = "<script>alert(1)</script>"
OPERATIONS = [
    {"operation": "routed_experts", "calls": 9, "kernels": 54, "seconds": 0.002},
    {"operation": HOSTILE, "calls": 1, "kernels": 1, "seconds": 0.001},
]
DRAFTING = {
    "drafts": 3,
    "verify_seconds": 0.004,
    "chain_seconds": 0.0005,
    "floor_seconds": 0.003,
    "break_even": 1.51,
}
STEP = {
    "streams": 8,
    "seconds": 0.0031,
    "floor_seconds": 0.0021,
    "kernels_a_layer": 11.5,
    "boundary_seconds": 0.00018,
    "eager_because": "",
    "drafting": DRAFTING,
    "peak_bytes": 47_000_000_000,
    "operations": OPERATIONS,
}
EAGER = STEP | {"streams": 1, "eager_because": "the device is planted", "drafting": None, "operations": []}
PROMPT = {
    "tokens": 8192,
    "piece": 1024,
    "seconds": 0.2206,
    "rate": 3.2347e14,
    "share": 0.467,
    "operations": OPERATIONS,
}
RUN = {
    "label": "12 layers",
    "machine": {"gpu": {"name": "planted GPU", "kernels": "tuned 2026-11-30T08:00:00Z at 3 sites"}},
    "rates": {"bytes_a_second": 4.2e12, "operations_a_second": 6.9e14, "empty_kernel": 9e-7},
    "clocks_before": {},
    "clocks_after": {"clock_mhz": 1965, "temperature_c": 45},
    "decode": [],
    "prompts": [],
}


def receipt(kind: str, **results) -> receipts.Receipt:
    return receipts.make(kind, "2026-11-30T08:00:00Z", {}, results=RUN | results, not_run=["a note"])


@pytest.fixture(scope="module")
def made() -> dict[str, receipts.Receipt]:
    return {
        "decode.json": receipt("decode", decode=[STEP, EAGER]),
        "kernels.json": kernels_receipt(planted()),
        "prefill.json": receipt("prefill", prompts=[PROMPT]),
    }


def test_what_the_parts_show_is_what_runs_keep():
    for shown, kind in ((STEP, DecodeResult), (PROMPT, PromptResult), (DRAFTING, DraftingCost)):
        assert set(shown) <= {field.name for field in fields(kind)}


def test_the_page_has_a_part_for_each_and_loads_nothing(made):
    content = page(made).decode()
    reader = Reader(content)
    for part in ("Decode", "Prompts", "Kernels"):
        assert f"<h2>{part}</h2>" in content
    assert {link[1:] for link in reader.links} <= set(reader.anchors)
    assert len(reader.links) > 40
    assert "script" not in reader.names
    assert content.count("alert(1)") >= 4
    assert "prefers-color-scheme: dark" in content
    assert page(dict(reversed(made.items()))).decode() == content


@pytest.mark.parametrize(
    "shown",
    [
        "linear: KDA o MXFP8, 8 rows",
        "1.34 (11 us, aim 11.5)",
        "not met",
        "the device is planted",
        "3.1 ms (floor 2.1)",
        "67.7 %",
        "46.7 %",
        "37,135",
        "1965 MHz, 45 °C",
        "tuned 2026-11-30T08:00:00Z at 3 sites",
        "Steps that verify guesses",
        "1.51",
        "of 5 figures that have one",
    ],
)
def test_figures_are_shown(made, shown):
    text = re.sub(r"<[^>]+>", "", page(made).decode())
    assert shown in text


def test_what_is_beside_a_figure_is_wrapped(made):
    content = page({"kernels.json": made["kernels.json"]}).decode()
    assert '<th scope="col" class="words">beside, us</th>' in content
    assert re.search(r'<td class="words"><span class="series">cuBLAS on BF16 <a ', content)


def test_an_interrupted_run_says_so_and_how_long_it_compiled():
    run = replace(planted(), interrupted=True, ahead=Compiled(21.5, 16, 50, {}))
    shown = re.sub(r"<[^>]+>", "", page({"kernels.json": kernels_receipt(run)}).decode())
    assert "Before the first figure 16 processes compiled for 21.5 s. The run was interrupted." in shown


def test_figures_lead_to_their_lines(made):
    content = page({"kernels.json": made["kernels.json"]}).decode()
    lines = receipts.canonical(made["kernels.json"]).decode().splitlines()
    row = next(row for row in made["kernels.json"].results["rows"] if row["case"] == "NVFP4 [4096, 4096]")
    link = re.search(r"NVFP4 \[4096, 4096\]</th><td>4,096</td><td><a href=\"#r0-(\d+)\"", content)
    assert lines[int(link[1]) - 1].strip() == f'"us": {json.dumps(row["us"])}'


def test_receipts_of_before_spreads_and_named_aims_are_shown(made):
    old = made["kernels.json"]
    gone = {"low_us", "high_us", "clock_mhz", "temperature_c"}
    rows = [{k: v for k, v in row.items() if k not in gone} for row in old.results["rows"]]
    aims = [
        {k: v for k, v in aim.items() if k not in ("operation", "case", "of")} for aim in old.results["aims"]
    ]
    older = msgspec.structs.replace(old, results=old.results | {"rows": rows, "aims": aims})
    content = page({"older.json": older}).decode()
    assert "<h2>Kernels</h2>" in content
    assert "Times over their floors" not in content


def test_one_with_other_parts_is_shown_by_its_figures(made):
    broken = receipt("decode", decode=[{"streams": 1}], speed=12345)
    content = page({"broken.json": broken}).decode()
    assert "<h2>Decode</h2>" not in content
    assert "12,345" in content
