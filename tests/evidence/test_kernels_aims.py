"""Aims and receipts of timed operations, from planted rows."""

import json

import pytest

from intarsia.core import receipt as receipts
from intarsia.evidence.kernels import encode, experts, kda, linear
from intarsia.evidence.kernels.aims import AIMS, reached
from intarsia.evidence.kernels.bench import NOT_ASKED
from intarsia.evidence.kernels.run import GEOMETRY, KernelsRun
from intarsia.evidence.kernels.settings import KernelsSettings
from intarsia.evidence.kernels.table import Row
from intarsia.evidence.receipts import kernels_receipt
from intarsia.evidence.report.folder import keep_receipt
from intarsia.evidence.synthetic import geometry
from intarsia.families.glm5_next.config import Glm5NextConfig
from tests.evidence.test_kernels_bench import RATES


@pytest.fixture(scope="module")
def published() -> Glm5NextConfig:
    return Glm5NextConfig.from_checkpoint_config(geometry(GEOMETRY))


def planted(**changes) -> KernelsRun:
    rows = (
        Row("linear", "KDA o MXFP8", 8, 11.0, 8.2, {linear.CUBLAS: 23.0}),
        Row("linear", "KDA o MXFP8", 2048, 200.0, 174.0, {linear.CUBLAS: 180.0}),
        Row("experts", experts.CASE, 8, 220.0, 190.0, {experts.COMPRESSED: 225.0}),
        Row("kda", kda.PROMPT, 2048, 500.0, 100.0, {kda.FLA: 480.0}),
        Row("encode", "NVFP4 [4096, 4096]", 4096, 27.0, 18.0),
        Row("encode", "NVFP4 [4096, 4096], amax given", 4096, 20.0, 10.0),
    )
    fields = {
        "settings": KernelsSettings(only=("linear", "experts", "kda", "encode")),
        "machine": {"gpu": {"name": "planted"}},
        "rates": RATES,
        "clocks_before": {},
        "clocks_after": {},
        "rows": rows,
        "skipped": {kda.FLA: NOT_ASKED},
        "failed": {},
    }
    return KernelsRun(**(fields | changes))


def test_aims_are_held_against_the_rows_that_they_speak_of():
    lines = {(line.work, line.rows): line for line in reached(planted().rows)}
    assert {place: line.met for place, line in lines.items()} == {
        ("expert layer (w13 + w2)", 8): False,
        ("the same with CSF scales read inside", 8): True,
        ("MXFP8 linear, KDA o", 8): True,
        ("MXFP8 linear, KDA o", 2048): False,
        ("KDA prompt", 2048): False,
        ("NVFP4 encode", 4096): True,
    }
    assert lines["MXFP8 linear, KDA o", 2048].aim_us == pytest.approx(1.08 * 180)
    assert lines["the same with CSF scales read inside", 8].us == 225.0
    assert lines["KDA prompt", 2048].aim == f"as fast as {kda.FLA}"


def test_every_aim_speaks_of_a_row_that_a_run_takes(published):
    counts = {
        "linear": linear.ROWS,
        "experts": experts.ROWS,
        "kda": (*kda.DECODED, *kda.PROMPTS),
        "encode": (encode.SIDE,),
    }
    names = {f"{work.name} {work.form}" for work in linear.works(published)}
    names |= {experts.CASE, kda.DECODE, kda.PROMPT, *(one.name for one in encode.encodings())}
    assert all(aim.case in names and aim.rows in counts[aim.operation] for aim in AIMS)
    assert len({(aim.work, aim.rows) for aim in AIMS}) == len(AIMS)


def test_a_receipt_keeps_rows_aims_and_what_was_not_timed(tmp_path):
    run = planted(failed={"encode": "MemoryError: full"})
    receipt = kernels_receipt(run)
    written, page = keep_receipt(receipt, "kernels", tmp_path)
    kept = receipts.read(written)
    assert kept.id == receipts.identity(kept)
    assert kept.results["rows"] == json.loads(json.dumps([row.as_dict() for row in run.rows]))
    assert kept.settings["only"] == ["linear", "experts", "kda", "encode"]
    said = "\n".join(kept.not_run)
    for part in (f"{kda.FLA} was not timed: {NOT_ASKED}", "attention was not timed", "MemoryError: full"):
        assert part in said
    assert "kernels" in page.read_text()
