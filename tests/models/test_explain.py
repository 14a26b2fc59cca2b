"""What is told of every weight's kernel is what the network asks for when it runs."""

import json

import pytest
import torch

import intarsia
from intarsia.checkpoint import open_checkpoint
from intarsia.cli.explain import folded, ranges
from intarsia.cli.main import main
from intarsia.kernels import choice
from intarsia.loading.weights import prepared
from intarsia.models.glm5_next import explain
from intarsia.models.glm5_next.explain import operation_of, weight_rows
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of


def converted(recipe):
    checkpoint = open_checkpoint("demo")
    return prepared(checkpoint, apply_recipe(recipe, source_of(checkpoint)))


def test_every_weight_has_a_row_and_a_reason():
    arrangement = converted("fp4-local")
    rows = weight_rows(arrangement, "cpu", "float32")
    assert [row.module for row in rows] == [weight.module.name for weight in arrangement.weights]
    assert all(row.stored and row.reason and row.kernel == "reference" for row in rows)
    experts = next(row for row in rows if row.module.endswith("mlp.experts.gate_up"))
    assert (experts.stored, experts.operation) == ("BF16", "experts")
    assert "NVFP4" in experts.run
    assert "triton: the device is cpu" in experts.reason
    assert "decoded to float32" in experts.reason


def test_a_gpu_gets_its_kernels_and_what_none_reads_says_so(monkeypatch):
    monkeypatch.setattr(choice, "no_triton", lambda device: "")
    monkeypatch.setattr(choice, "no_gluon", lambda device: "no Hopper")
    rows = {row.module: row for row in weight_rows(converted("fp4-local"), "cuda", "bfloat16")}
    assert rows["layers.0.self_attn.q_proj"].kernel == "triton"
    assert rows["layers.0.self_attn.q_proj"].reason == "gluon: no Hopper"
    assert rows["norm"].reason == "the fastest there is"
    assert rows["layers.3.mlp.experts.down"].kernel == "triton"
    assert rows["layers.3.mlp.experts.down"].reason == "gluon: no Hopper"
    half = {row.module: row for row in weight_rows(converted("fp4-local"), "cuda", "float16")}
    assert half["layers.0.self_attn.q_proj"].kernel == "reference"
    assert "rows of float16" in half["layers.0.self_attn.q_proj"].reason


def test_the_network_asks_for_what_was_told():
    with choice.asked() as cases:
        intarsia.load("demo").logits([1, 2, 3])
    asked = {(case.operation, case.formats, case.dtype, case.shape) for case in cases}
    arrangement = prepared("demo", None)
    forms = {weight.module.name: explain._form(weight) for weight in arrangement.weights}
    told = {
        (case.operation, case.formats, case.dtype, case.shape)
        for weight in arrangement.weights
        if not weight.module.name.startswith("mtp.")
        for case in [explain._case(arrangement.config, weight, forms, torch.device("cpu"), torch.float32)]
    }
    # Operations without weights of their own are not told; some others have one form and do not ask.
    both = {case[0] for case in asked} & {case[0] for case in told}
    assert both >= {"linear", "experts", "kda_step", "absorb_keys", "enter_rows", "router"}
    asked, told = ({case for case in cases if case[0] in both} for cases in (asked, told))
    assert told <= asked
    # The references of other operations use the norm inside.
    assert {case[0] for case in asked - told} <= {"norm"}


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("layers.3.mlp.gate", "router"),
        ("layers.3.mlp.shared_experts.gate_up", "linear"),
        ("layers.3.mlp.experts.gate_up", "experts"),
        ("layers.0.mlp.gate_up", "linear"),
        ("mtp.shared_head.norm", "norm"),
        ("layers.0.self_attn.o_norm", "kda_step"),
        ("layers.3.self_attn.indexer.k_norm.bias", "enter_rows"),
        ("layers.3.self_attn.kv_b_proj", "absorb_keys"),
        ("layers.3.self_attn.indexer.index_kpool_compress_gate", "linear"),
    ],
)
def test_operations(name, operation):
    assert operation_of(name) == operation


def test_layers_that_agree_share_a_line():
    assert [ranges(numbers) for numbers in ([], [3], [0, 1, 2], [0, 2, 3, 7])] == [
        "",
        "3",
        "{0-2}",
        "{0,2-3,7}",
    ]
    lines = folded(intarsia.explain("demo"))
    assert len(lines) < 80
    assert len([line for line in lines if line[0] == "layers.{0-2,4-6}.self_attn.q_proj"]) == 1


@pytest.mark.parametrize(
    "words", [["load", "demo"], ["generate", "demo", "Once"], ["serve", "demo", "--kv-cache-dtype", "fp8"]]
)
def test_the_commands(words, capsys):
    assert main([*words, "--explain"]) == 0
    told = capsys.readouterr().out
    assert "lm_head" in told
    assert "triton: the device is cpu" in told


def test_as_json(capsys):
    assert main(["load", "demo", "--explain", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["configurations"] == []
    assert "not cuda" in told["tuning"]
    assert "not cuda" in told["eager_because"]
    rows = told["weights"]
    assert set(rows[0]) == {"module", "stored", "run", "operation", "kernel", "reason"}
