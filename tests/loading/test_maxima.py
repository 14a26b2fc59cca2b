"""Ranks that compare largest magnitudes read their own shares, and hold the bytes of a cut of the whole."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from intarsia.checkpoint import open_checkpoint
from intarsia.core.errors import IntarsiaError
from intarsia.loading.arrange import arrange
from intarsia.loading.errors import ConvertError
from intarsia.loading.export import convert
from intarsia.loading.maxima import Batch, batches, magnitude
from intarsia.loading.shares import share_of
from intarsia.loading.staging import Staging
from intarsia.loading.weights import Loader, load_weights
from intarsia.planning.working import HOLD_BYTES
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.resolve import resolve
from intarsia.selection.source import source_of
from tests.groups.threads import on_ranks
from tests.loading.test_shares import SIZES, assert_same_bytes, in_one_format
from tests.synthetic import tiny_config, write_source

EXPERT = "model.language_model.layers.3.mlp.experts.1.gate_proj.weight"


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("maxima") / "bf16", tiny_config(**SIZES))


def manifest_of(source, name):
    return apply_recipe(name, source_of(source)) if name == "fp4-local" else in_one_format(source, name)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", ["fp4-local", "W4A16_NVFP4", "FP8"])
def test_shares_are_cuts_of_the_whole_with_and_without_a_budget(narrow, tmp_path, name, ranks):
    manifest = manifest_of(narrow, name)
    converted = open_checkpoint(convert(narrow.path, tmp_path / "out", manifest=manifest).path)
    expected = [load_weights(converted, rank=rank, ranks=ranks) for rank in range(ranks)]
    for budget in (None, 1 << 19):

        def work(group, budget=budget):
            return load_weights(
                narrow, manifest=manifest, rank=group.rank, ranks=ranks, budget=budget, largest=group.largest
            )

        for held, stored in zip(on_ranks(ranks, work), expected, strict=True):
            for key, weight in held.items():
                assert_same_bytes(key, weight, stored[key])


def test_matrices_too_large_to_hold_are_read_twice_each_rank_its_own_part(narrow, tmp_path, monkeypatch):
    monkeypatch.setattr("intarsia.loading.maxima.HOLD_BYTES", 1)
    manifest = in_one_format(narrow, "W4A16_NVFP4")
    converted = open_checkpoint(convert(narrow.path, tmp_path / "out", manifest=manifest).path)

    def work(group):
        return load_weights(narrow, manifest=manifest, rank=group.rank, ranks=2, largest=group.largest)

    for rank, held in enumerate(on_ranks(2, work)):
        stored = load_weights(converted, rank=rank, ranks=2)
        for key, weight in held.items():
            assert_same_bytes(key, weight, stored[key])


def asked(source, manifest, rank, ranks, largest):
    """Bytes that a rank asks for, by tensor."""
    share = share_of(arrange(source, resolve(manifest, source_of(source))), rank, ranks)
    found = {}
    with source.reader() as reader:
        loader = Loader(
            share, Staging(reader, torch.device("cpu")), Uncounted(), ranks=ranks, largest=largest
        )
        for ask in loader.asks():
            for span in ask.spans:
                found[span.entry.name] = found.get(span.entry.name, 0) + span.end - span.begin
    return found


class Uncounted:
    def advance(self, count):
        pass


def test_a_rank_asks_for_its_own_rows_once(narrow):
    manifest = in_one_format(narrow, "W4A16_NVFP4")
    whole = narrow.tensors[EXPERT].nbytes
    alone = [asked(narrow, manifest, rank, 3, None)[EXPERT] for rank in range(3)]
    together = [asked(narrow, manifest, rank, 3, lambda numbers: numbers)[EXPERT] for rank in range(3)]
    assert alone == [whole] * 3
    assert together == [whole // 3] * 3
    # columns lie in every row
    down = EXPERT.replace("gate", "down")
    assert asked(narrow, manifest, 1, 3, lambda numbers: numbers)[down] == narrow.tensors[down].nbytes


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_what_cannot_be_encoded_is_refused_by_all_ranks_and_placed_by_its_own(narrow, tmp_path, value):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in narrow.path.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    shard = broken / narrow.tensors[EXPERT].shard
    tensors = load_file(shard)
    tensors[EXPERT][70, 5] = value  # rows 64 to 127 are rank 1's
    save_file(tensors, shard, metadata={"format": "pt"})
    source = open_checkpoint(broken)
    manifest = apply_recipe("fp4-local", source_of(source))
    told = [None] * 3

    def work(group):
        try:
            load_weights(source, manifest=manifest, rank=group.rank, ranks=3, largest=group.largest)
        except IntarsiaError as error:
            told[group.rank] = error

    on_ranks(3, work)
    assert all(type(error) is ConvertError for error in told)
    module = EXPERT.removesuffix(".weight")
    assert (told[1].where, told[1].found) == (module, f"{value} at row 70, column 5")
    for rank in (0, 2):
        assert told[rank].where == module
        assert "another rank's share" in told[rank].found


def test_groups_are_put_together_alike_on_all_ranks():
    sizes = {"a": 10, "b": 10, "c": HOLD_BYTES, "d": 10, "e": 4 * HOLD_BYTES, "f": 10, "g": 10}
    units = dict.fromkeys(sizes, ())
    found = list(batches(units, lambda key: key != "f", sizes.__getitem__, 2, False))
    assert found == [
        Batch(["a", "b"], True, True), Batch(["c"], True, True), Batch(["d"], True, True),
        Batch(["e"], True, False), Batch(["f"]), Batch(["g"], True, True),
    ]  # fmt: skip
    alone = list(batches(units, lambda key: True, sizes.__getitem__, 2, True))
    assert [batch.keys for batch in alone] == [[key] for key in sizes]


def test_a_magnitude_is_exact_and_lets_nan_through():
    assert float(magnitude(torch.tensor([[-3.0, 2.0]], dtype=torch.bfloat16))) == 3.0
    assert bool(magnitude(torch.tensor([[1.0, torch.nan]])).isnan())
