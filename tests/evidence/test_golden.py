"""The demo writes what it wrote when the golden outputs were kept, under every built-in manifest."""

import copy
import json
from pathlib import Path

import pytest
import torch

from intarsia.evidence.forms import open_form
from intarsia.evidence.golden import compare_golden, golden
from intarsia.selection.recipes import RECIPES

FOLDER = Path(__file__).parents[1] / "data" / "golden"


def kept(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


@pytest.mark.parametrize("name", RECIPES)
def test_outputs_are_the_ones_that_were_kept(name):
    assert compare_golden(kept(name), golden(open_form("demo", name))) == []


def test_forms_differ_by_more_than_their_margins():
    found = compare_golden(
        kept("bf16") | {"manifest_sha256": kept("spark")["manifest_sha256"]}, kept("spark")
    )
    assert {violation.rule for violation in found} == {"golden-logprob"}


def test_gaps_are_wide_enough_to_ask_for_equal_ids():
    for name in RECIPES:
        document = kept(name)
        assert min(gap for case in document["cases"] for gap in case["gaps"]) > 2 * document["margin"]


def test_differences_are_named():
    before = kept("spark")
    after = copy.deepcopy(before)
    after["cases"][1]["reply_ids"][3] += 1
    after["cases"][0]["logprobs"][2] += 2 * before["margin"]
    after["cases"][2]["logprobs"][-1] = float("nan")
    found = compare_golden(before, after)
    assert [violation.rule for violation in found] == ["golden-logprob", "golden-id", "golden-logprob"]
    assert "token 3" in found[1].where
    assert "position 3" in found[0].where


def test_a_reply_may_part_where_rounding_decides():
    before = kept("spark")
    before["cases"][1]["gaps"][3] = before["margin"]
    after = copy.deepcopy(before)
    after["cases"][1]["reply_ids"][3] += 1
    after["cases"][1]["logprobs"][-1] -= 5
    assert compare_golden(before, after) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", RECIPES)
def test_a_gpu_gives_the_same_outputs(name):
    assert compare_golden(kept(name), golden(open_form("demo", name), "cuda")) == []
