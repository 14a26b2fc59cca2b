"""Converting while loading gives the bytes of an export that is loaded, whatever it is cut into."""

import gc
import weakref

import pytest
import torch

from intarsia import formats
from intarsia.checkpoint import Reader, modules, open_checkpoint
from intarsia.formats import Stored
from intarsia.loading.converter import Converter
from intarsia.loading.errors import ConvertError
from intarsia.loading.export import convert, with_csf
from intarsia.loading.sources import MatrixSource
from intarsia.loading.staging import Staging
from intarsia.loading.weights import Loader, load_weights, prepared
from intarsia.planning import working
from intarsia.planning.errors import BudgetError
from intarsia.planning.plan import plan
from intarsia.selection.errors import SelectionError
from intarsia.selection.manifest import Manifest, Section
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of

L = "model.language_model.layers."


def raw(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8)


def tensors_of(weights):
    return {
        f"{name}/{suffix}": tensor
        for name, weight in weights.items()
        for suffix, tensor in (weight.items() if isinstance(weight, Stored) else [("", weight)])
    }


def assert_same(a, b):
    left, right = tensors_of(a), tensors_of(b)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype
        assert tensor.shape == right[name].shape
        assert torch.equal(raw(tensor), raw(right[name])), name


@pytest.mark.parametrize("recipe", ["spark", "fp4-local", "nvfp4-experts"])
def test_loading_converts_to_the_bytes_of_an_export(source, tmp_path, recipe):
    exported = load_weights(convert(source.path, tmp_path / "out", recipe=recipe))
    manifest = apply_recipe(recipe, source_of(source))
    assert_same(load_weights(source, manifest=manifest), exported)


@pytest.mark.parametrize("elements", [1 << 10, 1 << 14, 1 << 30])
@pytest.mark.parametrize("hold", [0, 1 << 30])
def test_how_the_work_is_cut_changes_no_byte(source, monkeypatch, elements, hold):
    manifest = apply_recipe("fp4-local", source_of(source))
    whole = load_weights(source, manifest=manifest)
    monkeypatch.setattr(working, "HOLD_BYTES", hold)
    monkeypatch.setattr(working, "_CORE_ELEMENTS", elements)
    assert_same(load_weights(source, manifest=manifest), whole)


def test_a_group_with_one_global_scale_is_spread_over_several_weights(small):
    source = small()
    group = [f"{L}0.self_attn.{name}_proj" for name in ("q", "k", "v", "b", "f_a")]
    manifest = Manifest(
        schema="intarsia.manifest/1", main=Section(targets=dict.fromkeys(group, "W4A16_NVFP4"))
    )
    weights = load_weights(source, manifest=manifest)
    names = [name.removeprefix("model.language_model.") for name in group]
    with source.reader() as reader:
        originals = [reader.read(f"{name}.weight") for name in group]
    amax = max(float(weight.abs().amax()) for weight in originals)
    for name, original in zip(names, originals, strict=True):
        expected = formats.get("W4A16_NVFP4").encode(original, amax=amax)
        for suffix, tensor in expected.items():
            assert torch.equal(raw(weights[name][suffix]), raw(tensor))


def test_the_draft_section_converts_only_the_draft(source):
    manifest = apply_recipe("spark", source_of(source))
    none = Section(strict=False)
    only = Manifest(schema="intarsia.manifest/1", main=none, draft=manifest.draft)
    weights = load_weights(source, manifest=only)
    assert weights["mtp.mlp.experts.gate_up"].format == "W4A16_NVFP4"
    assert weights["mtp.self_attn.o_proj"].format == "MXFP8"
    plain = {
        weight.format for name, weight in weights.items() if isinstance(weight, Stored) and "mtp" not in name
    }
    assert plain == {"BF16"}
    gate_up = weights["mtp.mlp.experts.gate_up"]["weight_scale_2"]
    assert torch.equal(gate_up[:, 0], gate_up[:, 1])


def test_replaced_weights_are_dead_before_the_next_are_read(source, monkeypatch):
    """When a unit begins, nothing of what was read for the ones before is left."""
    alive: list[weakref.ref] = []
    counts = []
    original_read, original_unit = MatrixSource.read, Converter._unit

    def read(self, rows):
        part = original_read(self, rows)
        alive.append(weakref.ref(part))
        return part

    def unit(self, key, jobs):
        counts.append((len(alive), sum(reference() is not None for reference in alive)))
        original_unit(self, key, jobs)

    monkeypatch.setattr(MatrixSource, "read", read)
    monkeypatch.setattr(Converter, "_unit", unit)
    gc.disable()  # references must end by themselves, not at the collector's leisure
    try:
        load_weights(source, manifest=apply_recipe("spark", source_of(source)))
    finally:
        gc.enable()
    assert counts[-1][0] > 50
    assert {living for _, living in counts} == {0}


class Count:
    def phase(self, name, total):
        self.total, self.done = total, 0
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def advance(self, count):
        self.done += count


def test_progress_reports_every_byte_once(source):
    count = Count()
    load_weights(source, manifest=apply_recipe("fp4-local", source_of(source)), progress=count)
    assert count.done == count.total == sum(entry.nbytes for entry in source.tensors.values())


def test_a_budget_is_kept_or_refused(source):
    manifest = apply_recipe("fp4-local", source_of(source))
    whole = load_weights(source, manifest=manifest)
    budget = 128 * 256 * (working.TEMPORARY["FP8_PB_WO"] + 2)  # one row of blocks of the widest matrix
    assert plan(source, manifest, budget=budget).ok
    assert_same(load_weights(source, manifest=manifest, budget=budget), whole)
    with pytest.raises(BudgetError, match="working memory") as refusal:
        load_weights(source, manifest=manifest, budget=budget // 8)
    assert refusal.value.where
    assert [v.rule for v in plan(source, manifest, budget=budget // 8).violations] == ["budget"]


def test_the_planned_working_memory_is_what_the_loader_holds(source):
    manifest = apply_recipe("fp4-local", source_of(source))
    arrangement = prepared(source, manifest)
    count = Count()
    with source.reader() as reader, count.phase("", 0):
        loader = Loader(arrangement, Staging(reader, torch.device("cpu")), count)
        for arranged in arrangement.weights:
            loader.load(arranged)
    assert loader.most_working == plan(source, manifest).ranks[0].working > 0


def test_a_wrong_manifest_is_answered_before_a_weight_is_read(source, monkeypatch):
    monkeypatch.setattr(Reader, "read_into", lambda *_: pytest.fail("read a weight"))
    wrong = Manifest(
        schema="intarsia.manifest/1",
        main=Section(targets={"nothing": "MXFP8", f"{L}0.self_attn.q_proj": "MXFP8", "lm_head": "BF16"}),
    )
    with pytest.raises(SelectionError) as refusal:
        load_weights(source, manifest=wrong)
    rules = {violation.rule for violation in refusal.value.violations}
    assert rules == {"unresolved", "incomplete-group", "plain-target"}


@pytest.mark.parametrize("deferring", [False, True])
@pytest.mark.parametrize("hold", [0, 1 << 30])
@pytest.mark.parametrize("value", ["inf", "nan"])
@pytest.mark.parametrize("module", ["1.mlp.experts.5.up_proj", "0.self_attn.o_proj", "1.self_attn.kv_b_proj"])
def test_the_element_that_is_not_finite_is_named(small, monkeypatch, module, value, hold, deferring):
    def spoil(tensors):
        tensors[f"{L}{module}.weight"][37, 11] = float(value)

    def deferred(self, *arguments, **options):
        begin(self, *arguments, **options)
        self.deferring = deferring

    begin = Converter.__init__
    monkeypatch.setattr(Converter, "__init__", deferred)
    monkeypatch.setattr(working, "HOLD_BYTES", hold)

    source = small(change=spoil)
    targets = {f"{L}0.self_attn.o_proj": "MXFP8", f"{L}1.mlp.experts": "W4A16_NVFP4"}
    manifest = Manifest(
        schema="intarsia.manifest/1", main=Section(targets=targets | {f"{L}1.self_attn.kv_b_proj": "FP8"})
    )
    with pytest.raises(ConvertError, match=f"{value} at row 37, column 11") as refusal:
        load_weights(source, manifest=manifest)
    assert refusal.value.where == f"{L}{module}"


def test_compressed_scales_are_expanded_on_load(source, tmp_path):
    manifest = with_csf(apply_recipe("fp4-local", source_of(source)), "slab")
    out = open_checkpoint(convert(source.path, tmp_path / "out", manifest=manifest).path)
    assert any(module.codec == "nvfp4_slab" for module in modules(out).values())
    assert_same(load_weights(source, manifest=manifest), load_weights(out))
