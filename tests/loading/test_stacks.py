"""Many matrices encoded in one go: the bytes of one by one, within the planned memory, and faults named."""

import pytest
import torch

from intarsia.checkpoint.errors import RangeError
from intarsia.core.progress import SILENT
from intarsia.loading import ring, stacks, staging
from intarsia.loading.asks import Ask
from intarsia.loading.errors import ConvertError
from intarsia.loading.staging import Staging
from intarsia.loading.weights import Loader, load_weights, prepared
from intarsia.planning import working
from intarsia.planning.plan import plan as planned
from intarsia.selection.manifest import Manifest, Section
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of
from tests.loading.test_streaming import L, assert_same

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, params=["scattered", "copied"])
def as_on_a_gpu(request, monkeypatch):
    """What kernels encode there goes in stacks, here encoded by the formats, out of small blocks."""
    if request.param == "copied":
        monkeypatch.setattr(staging, "LONG", 1)
    monkeypatch.setattr(stacks, "encodes_into", lambda name, *case: name not in ("FP8", "MXFP4"))
    monkeypatch.setattr(ring, "BLOCK_BYTES", 1 << 14)


class Count:
    total = 0

    def advance(self, count):
        self.total += count


def loaded(plan, budget=None, **options):
    """The weights, the loader, what is left in its ring, and the bytes that were told of."""
    count = Count()
    with plan.checkpoint.reader() as reader, Staging(reader, CPU) as held:
        loader = Loader(plan, held, count, budget, **options)
        held.read_ahead(loader.asks(), threads=2)
        weights = {arranged.module.name: loader.load(arranged) for arranged in plan.weights}
        loader.settle()
        return weights, loader, held.ahead.left(), count.total


@pytest.mark.parametrize("recipe", ["spark", "fp4-local"])
@pytest.mark.parametrize("elements", [1 << 10, 1 << 14, 1 << 22])
def test_in_stacks_every_byte_is_the_same(source, monkeypatch, recipe, elements):
    manifest = apply_recipe(recipe, source_of(source))
    expected = load_weights(source, manifest=manifest)
    monkeypatch.setattr(working, "_CORE_ELEMENTS", elements)
    plan = prepared(source, manifest)
    weights, loader, left, told = loaded(plan, later=True)
    assert left == 0
    assert told == plan.stored_bytes
    assert_same(weights, expected)
    made = {one.module.name: loader._converter.stacks.of(one) for one in plan.weights if one.conversions}
    others = {
        one.conversions[0].target.format: one.slots["weight"].shape
        for one in plan.weights
        if one.conversions and not made[one.module.name]
    }
    assert others.keys() <= {"FP8_PB_WO"}
    assert all(shape[0] % 128 for shape in others.values())
    sizes = {stack.shape[0] for some in made.values() for stack in some}
    assert max(sizes) > 2 or elements < 1 << 22
    assert max(len(some) for some in made.values()) > 1 or elements > 1 << 10


@pytest.mark.parametrize("elements", [1 << 12, 1 << 22])
@pytest.mark.parametrize("budget", [None, 1 << 20])
def test_stacks_take_no_more_than_was_planned(source, monkeypatch, elements, budget):
    monkeypatch.setattr(working, "_CORE_ELEMENTS", elements)
    manifest = apply_recipe("spark", source_of(source))
    rank = planned(source, manifest, device="cpu", budget=budget).ranks[0]
    _, loader, _, _ = loaded(prepared(source, manifest), budget)
    assert 0 < loader.most_working <= rank.working
    assert budget is None or loader.most_working <= budget


def test_what_cannot_be_a_stack_goes_matrix_by_matrix(source, monkeypatch):
    manifest = apply_recipe("spark", source_of(source))
    expected = load_weights(source, manifest=manifest)
    monkeypatch.setattr(working, "HOLD_BYTES", 0)
    plan = prepared(source, manifest)
    weights, loader, left, _ = loaded(plan)
    assert left == 0
    assert_same(weights, expected)
    made = {
        one.conversions[0].target.format: loader._converter.stacks.of(one)
        for one in plan.weights
        if one.conversions
    }
    assert made["MXFP8"]
    assert not made["W4A16_NVFP4"]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("value", ["inf", "nan"])
@pytest.mark.parametrize("module", ["1.mlp.experts.5.up_proj", "0.self_attn.o_proj"])
def test_the_element_that_is_not_finite_is_named(small, module, value, later):
    def spoil(tensors):
        tensors[f"{L}{module}.weight"][37, 11] = float(value)

    source = small(change=spoil)
    targets = {f"{L}0.self_attn.o_proj": "MXFP8", f"{L}1.mlp.experts": "W4A16_NVFP4"}
    manifest = Manifest(schema="intarsia.manifest/1", main=Section(targets=targets))
    with pytest.raises(ConvertError, match=f"{value} at row 37, column 11") as refusal:
        loaded(prepared(source, manifest), later=later)
    assert refusal.value.where == f"{L}{module}"


def test_without_a_ring_a_stack_has_one_of_its_own(source):
    manifest = apply_recipe("spark", source_of(source))
    plan = prepared(source, manifest)
    with source.reader() as reader, SILENT.phase("", 0) as phase:
        loader = Loader(plan, Staging(reader, CPU), phase)
        weights = {one.module.name: loader.load(one) for one in plan.weights}
    assert_same(weights, load_weights(source, manifest=manifest))


def test_a_stack_of_another_size_than_its_bytes_is_refused(source):
    entry = max(source.tensors.values(), key=lambda entry: entry.nbytes)
    with source.reader() as reader, Staging(reader, CPU) as held, pytest.raises(RangeError, match=entry.name):
        held.bring(Ask([entry], [0], [entry.nbytes], together=True), torch.empty(entry.nbytes - 1).byte())
