"""Planned bytes are those that are allocated; whatever stands against a load is found, all of it."""

import pytest
import torch

from intarsia import formats
from intarsia.checkpoint import modules, open_checkpoint
from intarsia.core.errors import UsageError
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.split import shares, split_rule
from intarsia.formats import csf
from intarsia.loading.export import convert
from intarsia.loading.weights import load_weights
from intarsia.models.glm5_next.state import State, StateSettings
from intarsia.planning.caches import cache_bytes, linear_heads
from intarsia.planning.plan import plan
from intarsia.selection.manifest import Manifest, Section
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of
from tests.synthetic import tiny_config, write_source

L = "model.language_model.layers."
GIB = 1 << 30


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Wide enough for four ranks; norms and mixes in float32."""
    config = tiny_config(moe_intermediate_size=256, intermediate_size=512, vocab_size=320, v_head_dim=32)
    return write_source(tmp_path_factory.mktemp("plan") / "bf16", config)


@pytest.fixture(scope="module")
def converted(checkpoint):
    out = checkpoint.path.with_name("fp4-local")
    convert(checkpoint.path, out, recipe="fp4-local", csf="block")
    return open_checkpoint(out)


def rank_bytes(checkpoint, ranks):
    """Bytes of every rank's own copies of its cuts, made by the formats from the stored tensors."""
    config = Glm5NextConfig.from_checkpoint_config(checkpoint.config)
    totals = [0] * ranks
    with checkpoint.reader() as reader:
        for module in modules(checkpoint).values():
            if module.format is None:
                for entry in module.tensors.values():
                    for rank, cut in enumerate(
                        plain_cuts(config, reader.read_entry(entry), entry.name, ranks)
                    ):
                        totals[rank] += cut.clone().untyped_storage().nbytes()
                continue
            tensors = {s: reader.read_entry(e) for s, e in module.tensors.items()}
            if module.codec is not None:
                parts = {s.partition(".")[2]: tensors.pop(s) for s in list(tensors) if "." in s}
                rows, columns = module.shape
                scales = csf.decode(parts, rows, columns // 16, module.codec)
                tensors["weight_scale"] = scales.view(torch.float8_e4m3fn)
            kind = formats.get(module.format)
            whole = kind.stored(tensors)
            rule = split_rule(config, module.name)
            for rank in range(ranks):
                rows, columns = range(whole.rows), range(whole.columns)
                if rule.axis == 0:
                    rows = shares(rule, ranks)[rank]
                elif rule.axis == 1:
                    columns = shares(rule, ranks)[rank]
                owned = kind.cut(whole, rows, columns).clone()
                totals[rank] += sum(tensor.untyped_storage().nbytes() for tensor in owned.values())
    return totals


def plain_cuts(config, tensor, name, ranks):
    rule = split_rule(config, name)
    for rank in range(ranks):
        yield (
            tensor
            if rule.axis is None
            else tensor.narrow(rule.axis, shares(rule, ranks)[rank].start, len(shares(rule, ranks)[rank]))
        )


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_planned_bytes_equal_the_bytes_of_every_ranks_cuts(converted, ranks):
    result = plan(converted, ranks=ranks)
    assert result.violations == ()
    assert [rank.weights for rank in result.ranks] == rank_bytes(converted, ranks)


def test_planned_bytes_of_one_rank_are_what_loading_allocates(checkpoint, converted):
    for source in (checkpoint, converted):
        allocated = sum(weight.nbytes for weight in load_weights(source).values())
        assert plan(source).ranks[0].weights == allocated


def test_a_manifest_plans_what_its_conversion_stores(checkpoint, converted):
    result = plan(checkpoint, apply_recipe("fp4-local", source_of(checkpoint)), ranks=3)
    assert [rank.weights for rank in result.ranks] == [r.weights for r in plan(converted, ranks=3).ranks]
    assert result.exported_tensors == len(converted.tensors)
    exceptions = sum(e.nbytes for e in converted.tensors.values() if "csf_escape_" in e.name)
    exceptions -= sum(e.nbytes for e in converted.tensors.values() if "csf_escape_count" in e.name)
    assert exceptions > 0
    assert result.exported_bytes + exceptions == sum(e.nbytes for e in converted.tensors.values())


@pytest.mark.parametrize(("streams", "context", "latents"), [(1, 512, "auto"), (3, 1000, "fp8")])
def test_cache_bytes_are_what_the_network_allocates(checkpoint, streams, context, latents):
    config = Glm5NextConfig.from_checkpoint_config(checkpoint.config)
    pages = streams * -(-context // 512)
    settings = StateSettings(streams=streams, window=context, pages=pages, page=512, step_rows=4)
    state = State(config, settings, dtype=torch.bfloat16, device="meta", latents=latents)
    planned = plan(checkpoint, context=context, streams=streams, kv_cache_dtype=latents).ranks[0].caches
    assert planned.total == state.nbytes
    heads = [linear_heads(config, 3, rank) for rank in range(3)]
    assert sum(heads) == config.linear_num_heads
    first = cache_bytes(config, context=context, streams=streams, heads=heads[0], latents=latents)
    assert first.paged == planned.paged


def test_the_largest_window_is_a_page_short_of_too_much(real, spark):
    result = plan(real, spark, ranks=8, device_memory=139 * GIB, streams=16)
    assert result.violations == ()
    assert 0 < result.window < result.native_window
    config = Glm5NextConfig.from_checkpoint_config(real.config)
    rank = result.ranks[0]

    def total(context):
        heads = linear_heads(config, 8, 0)
        return rank.weights + cache_bytes(config, context=context, streams=16, heads=heads).total

    budget = result.device_memory - result.reserve
    assert total(result.window) <= budget < total(result.window + 512)


def test_weights_that_do_not_fit_are_named_with_the_peak(checkpoint):
    result = plan(checkpoint, device_memory=(4 << 30) + 1000, context=512)
    assert [violation.rule for violation in result.violations] == ["memory-load", "memory-context"]
    assert result.violations[0].where == "rank 0"
    assert "while loading mtp." in result.violations[0].found
    assert result.window == 0


def test_a_device_smaller_than_what_stays_free_holds_nothing(checkpoint):
    found = plan(checkpoint, device_memory=1_000_000, context=512).violations
    assert found[0].expected == "at most 0 of 1,000,000 bytes, so that the rest stays free"
    assert "in 0 bytes" in found[1].expected


def test_all_violations_come_together(checkpoint):
    wrong = Manifest(
        schema="intarsia.manifest/1",
        main=Section(
            targets={f"{L}0.self_attn.q_proj": "MXFP8", f"{L}3.mlp.gate": "MXFP8", "nothing": "FP8"}
        ),
    )
    result = plan(checkpoint, wrong, ranks=5, device_memory=5 * GIB, context=1 << 22)
    rules = {violation.rule for violation in result.violations}
    assert rules >= {"incomplete-group", "not-linear", "unresolved", "fewer-units", "context"}
    assert not result.ok
    assert result.as_dict()["violations"][0]["rule"]


def test_a_budget_that_no_step_fits_in_is_named(checkpoint):
    manifest = apply_recipe("spark", source_of(checkpoint))
    result = plan(checkpoint, manifest, budget=1000)
    assert [violation.rule for violation in result.violations] == ["budget"]
    assert "working memory" in result.violations[0].expected
    assert plan(checkpoint, manifest, budget=1 << 20).ok


def test_a_cut_through_a_scale_is_named(tmp_path):
    narrow = write_source(tmp_path / "narrow", tiny_config(v_head_dim=16))
    manifest = apply_recipe("spark", source_of(narrow))
    found = plan(narrow, manifest, ranks=4).violations
    outputs = {f"{L}{layer}.self_attn.o_proj" for layer in (3, 7, 8)}
    assert outputs <= {violation.where for violation in found if violation.rule == "split"}


def test_missing_and_left_over_tensors_are_violations(tmp_path):
    def spoil(tensors):
        del tensors[f"{L}0.self_attn.k_proj.weight"]
        tensors["model.language_model.rotary"] = torch.zeros(4)

    result = plan(write_source(tmp_path / "spoiled", change=spoil))
    assert {(v.rule, v.where) for v in result.violations} == {
        ("missing-tensor", f"{L}0.self_attn.k_proj.weight"),
        ("unexpected-tensor", "model.language_model.rotary"),
    }


def test_unequal_shares_are_told(tmp_path):
    source = write_source(tmp_path / "bf16", tiny_config(intermediate_size=256, vocab_size=320))
    result = plan(source, ranks=3)
    sizes = {(cut.reason, cut.axis, cut.unit): cut.sizes for cut in result.cuts}
    assert sizes["vocabulary", 0, 64] == (128, 128, 64)
    assert sizes["head", 0, 1] == (2, 1, 1)
    assert sizes["head", 0, 32] == (64, 32, 32)
    assert not any(cut.equal for cut in result.cuts if cut.reason == "head")
    assert result.as_dict()["cuts"][0]["sizes"] == list(result.cuts[0].sizes)
    assert plan(source, ranks=1).cuts == ()


def test_every_weight_has_its_share_in_the_plan(converted):
    result = plan(converted, ranks=3)
    table = {name: row for row in result.shares for name in row.names}
    loaded = {module for module in modules(converted) if modules(converted)[module].format is not None}
    assert loaded <= set(table)
    assert len(table) == sum(len(row.names) for row in result.shares)
    for rank, whole in enumerate(result.ranks):
        assert sum(row.nbytes[rank] * len(row.names) for row in result.shares) == whole.weights
    gate = table[L + "3.mlp.experts.0.gate_proj"]
    assert (gate.reason, gate.axis, gate.unit, gate.equal) == ("width", 0, 64, False)
    assert [len(part.entries) for part in gate.held] == [128, 64, 64]
    assert [dict(part.tensors)["weight_scale"] for part in gate.held] == [(128, 8), (64, 8), (64, 8)]
    norm = table[L + "1.input_layernorm.weight"]
    assert (norm.reason, norm.axis, norm.equal) == ("replicate", None, True)
    document = result.as_dict()["shares"]
    assert {name for row in document for name in row["weights"]} == set(table)
    assert all(len(row["ranks"]) == 3 for row in document)


def test_weights_that_cannot_be_cut_are_listed_with_the_reason(converted):
    result = plan(converted, ranks=5)
    refused = {name: row for row in result.shares if row.refused is not None for name in row.names}
    found = {violation.where for violation in result.violations if violation.rule == "fewer-units"}
    assert set(refused) == found
    assert {name for row in result.shares for name in row.names} == {
        name for row in plan(converted).shares for name in row.names
    }
    row = refused[L + "0.self_attn.A_log"]
    assert row.refused == "4 head units of 1; expected at least one for each of 5 ranks"
    assert (row.held, row.nbytes) == ((), ())
    held = [row for row in result.shares if row.refused is None]
    for rank, whole in enumerate(result.ranks):
        assert sum(row.nbytes[rank] * len(row.names) for row in held) == whole.weights
    document = result.as_dict()["shares"]
    assert all(bool(row["ranks"]) == (row["refused"] is None) for row in document)


def test_unequal_shares_of_the_real_geometry(real):
    rows = {row.pattern: row for row in plan(real, ranks=3).shares}
    experts = rows[L + "*.mlp.experts.*.down_proj.weight"]
    assert [len(part.entries) for part in experts.held] == [704, 704, 640]
    assert [dict(part.tensors)["weight"] for part in experts.held] == [(4096, 704), (4096, 704), (4096, 640)]
    head = rows["lm_head.weight"]
    assert [len(part.entries) for part in head.held] == [51648, 51648, 51584]
    heads = rows[L + "*.self_attn.A_log"]
    assert [len(part.entries) for part in heads.held] == [22, 21, 21]
    assert not any(row.equal for row in (experts, head, heads))


@pytest.mark.parametrize("count", ["ranks", "streams", "page", "step_rows", "context"])
@pytest.mark.parametrize("value", [0, -1])
def test_counts_that_cannot_be_meant_are_refused(converted, count, value):
    with pytest.raises(UsageError, match=f"^{count}: found {value}"):
        plan(converted, **{count: value})


def test_more_ranks_than_a_plan_counts_are_refused(converted):
    with pytest.raises(UsageError, match="from 1 to 1024"):
        plan(converted, ranks=10**9)
