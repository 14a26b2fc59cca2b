"""What a rank holds is the stored bytes of its part: cut from the whole, joined again, converted or not."""

import msgspec
import pytest
import torch

from intarsia import formats
from intarsia.checkpoint import modules, open_checkpoint
from intarsia.core.errors import UsageError
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.runtime import runtime_modules
from intarsia.families.glm5_next.split import shares, split_rule
from intarsia.formats import Stored
from intarsia.loading.arrange import arrange
from intarsia.loading.errors import LoadError
from intarsia.loading.export import convert
from intarsia.loading.shares import share_of
from intarsia.loading.staging import Staging
from intarsia.loading.weights import Loader, load_weights
from intarsia.planning.plan import plan
from intarsia.selection.manifest import Manifest, ScalePolicy, Section
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.resolve import resolve
from intarsia.selection.source import source_of
from tests.synthetic import tiny_config, write_source

# Four heads and widths of three units: every count of ranks up to three has unequal or unaligned shares.
SIZES = {"moe_intermediate_size": 192, "intermediate_size": 192, "vocab_size": 320}
SIZES |= {"num_attention_heads": 3, "num_key_value_heads": 3, "v_head_dim": 64}
SIZES |= {"qk_nope_head_dim": 32, "qk_head_dim": 32}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("narrow") / "bf16", tiny_config(**SIZES))


@pytest.fixture(scope="module", params=["block", "slab", "none"])
def mixed(narrow, request, tmp_path_factory):
    out = tmp_path_factory.mktemp("mixed") / request.param
    convert(narrow.path, out, recipe="fp4-local", csf=request.param)
    return open_checkpoint(out)


def values(weight):
    if isinstance(weight, Stored):
        return formats.get(weight.format).decode(weight)
    return weight


def joined(module, rule, parts):
    """The whole weight from the values that the ranks hold."""
    if rule.axis == 1:
        return torch.cat(parts, dim=-1)
    axis = 1 if module.stack == "experts" else 0
    halves = [part.chunk(module.parts, axis) for part in parts]
    return torch.cat([torch.cat(half, axis) for half in zip(*halves, strict=True)], axis)


@pytest.mark.parametrize("ranks", [2, 3])
def test_shares_put_together_are_the_whole(mixed, ranks):
    config = Glm5NextConfig.from_checkpoint_config(mixed.config)
    whole = load_weights(mixed)
    held = [load_weights(mixed, rank=rank, ranks=ranks) for rank in range(ranks)]
    for module in runtime_modules(config):
        rule = split_rule(config, module.sources[0])
        parts = [values(weights[module.name]) for weights in held]
        if rule.axis is None:
            assert all(torch.equal(part, values(whole[module.name])) for part in parts), module.name
            continue
        sizes = [len(part) for part in shares(rule, ranks)]
        stack = 1 if rule.axis == 1 else module.parts
        assert [part.shape[-1 if rule.axis else -2 if part.ndim > 1 else 0] for part in parts] == [
            size * (stack if module.matrix else module.parts) for size in sizes
        ]
        assert torch.equal(joined(module, rule, parts), values(whole[module.name])), module.name


def test_a_share_keeps_the_bytes_of_the_formats_own_cut(mixed):
    name = "model.language_model.layers.3.mlp.shared_experts.down_proj"
    entries = modules(mixed)[name].tensors
    with mixed.reader() as reader:
        kind = formats.get("FP8_PB_WO")
        whole = kind.stored({suffix: reader.read_entry(entry) for suffix, entry in entries.items()})
    cut = kind.cut(whole, range(whole.rows), range(64, 128)).clone()
    share = load_weights(mixed, rank=1, ranks=3)["layers.3.mlp.shared_experts.down"]
    assert share.origin == cut.origin == (0, 64)
    for suffix, tensor in cut.items():
        assert torch.equal(share[suffix].view(torch.uint8), tensor.view(torch.uint8))


def test_halves_of_a_stack_begin_inside_a_block_each(mixed):
    share = load_weights(mixed, rank=1, ranks=3)["layers.3.mlp.shared_experts.gate_up"]
    assert (share.format, share.origin, share.row_parts) == ("FP8_PB_WO", (64, 0), 2)
    assert tuple(share["weight_scale"].shape) == (2, 1, 1, 1)


@pytest.mark.parametrize("ranks", [2, 3])
def test_converting_while_loading_gives_the_bytes_of_a_converted_checkpoint(narrow, mixed, ranks):
    manifest = apply_recipe("fp4-local", source_of(narrow))
    for rank in range(ranks):
        stored = load_weights(mixed, rank=rank, ranks=ranks)
        for name, weight in load_weights(narrow, manifest=manifest, rank=rank, ranks=ranks).items():
            if isinstance(weight, Stored):
                assert (weight.origin, weight.row_parts) == (stored[name].origin, stored[name].row_parts)
            for suffix, tensor in weight.items() if isinstance(weight, Stored) else [("", weight)]:
                other = stored[name][suffix] if suffix else stored[name]
                same = tensor.contiguous().view(-1).view(torch.uint8), other.view(-1).view(torch.uint8)
                assert torch.equal(*same), f"{name} {suffix}"


def in_one_format(source, name):
    """The recipe's targets, all in one format."""
    manifest = apply_recipe("fp4-local", source_of(source))

    def changed(section):
        targets = dict.fromkeys(section.targets, name)
        return msgspec.structs.replace(section, targets=targets, scales=ScalePolicy())

    return msgspec.structs.replace(manifest, main=changed(manifest.main), draft=changed(manifest.draft))


FORMATS = ["MXFP8", "MXFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "W4A16_NVFP4"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_encoded_in_windows_as_in_the_whole(narrow, tmp_path, name):
    manifest = in_one_format(narrow, name)
    converted = open_checkpoint(convert(narrow.path, tmp_path / "out", manifest=manifest).path)
    for rank in (1, 2):
        stored = load_weights(converted, rank=rank, ranks=3)
        for budget in (None, 1 << 19):  # some rows at a time as well
            for key, weight in load_weights(
                narrow, manifest=manifest, rank=rank, ranks=3, budget=budget
            ).items():
                assert_same_bytes(key, weight, stored[key])


def assert_same_bytes(name, weight, other):
    for suffix, tensor in weight.items() if isinstance(weight, Stored) else [("", weight)]:
        held = other[suffix] if suffix else other
        same = tensor.contiguous().view(-1).view(torch.uint8), held.contiguous().view(-1).view(torch.uint8)
        assert torch.equal(*same), f"{name} {suffix}"


def test_a_source_in_blocks_is_decoded_and_encoded_in_windows(mixed, tmp_path):
    name = "model.language_model.layers.3.mlp.shared_experts"
    targets = {f"{name}.{part}_proj": "MXFP8" for part in ("gate", "up", "down")}
    main = Section(targets=targets, requantize=list(targets))
    manifest = Manifest(schema="intarsia.manifest/1", main=main)
    out = convert(mixed.path, tmp_path / "out", manifest=manifest)
    for rank in range(3):
        stored = load_weights(out, rank=rank, ranks=3)
        held = load_weights(mixed, manifest=manifest, rank=rank, ranks=3)
        for key in ("layers.3.mlp.shared_experts.gate_up", "layers.3.mlp.shared_experts.down"):
            assert held[key].format == "MXFP8"
            assert_same_bytes(key, held[key], stored[key])


def test_a_rank_asks_for_the_rows_of_its_own_blocks(narrow):
    plan = arrange(narrow, resolve(in_one_format(narrow, "FP8_PB_WO"), source_of(narrow)))
    name = "model.language_model.layers.3.mlp.shared_experts.gate_proj.weight"
    asked = []
    for rank in range(3):
        share = share_of(plan, rank, 3)
        with narrow.reader() as reader:
            loader = Loader(share, Staging(reader, torch.device("cpu")), Uncounted())
            row = narrow.tensors[name].nbytes // 192
            spans = [span for ask in loader.asks() for span in ask.spans if span.entry.name == name]
            asked += [(span.begin // row, span.end // row) for span in spans]
    # 64 rows each, and the whole blocks of 128 that they lie in
    assert asked == [(0, 128), (0, 128), (128, 192)]


class Uncounted:
    def advance(self, count):
        pass


def test_every_weight_that_cannot_be_cut_is_named(mixed):
    arranged = arrange(mixed)
    with pytest.raises(LoadError) as refusal:
        share_of(arranged, 0, 4)
    assert {item.rule for item in refusal.value.violations} == {"fewer-units"}
    shortage = {item.where: item.found for item in refusal.value.violations}
    assert shortage["model.language_model.layers.3.self_attn.o_proj"].startswith("3 head units")
    with pytest.raises(LoadError) as again:
        share_of(arranged, 3, 4)
    assert again.value.violations == refusal.value.violations


def test_a_share_that_would_split_a_stored_entry_is_refused(tmp_path):
    source = write_source(tmp_path / "bf16", tiny_config(moe_intermediate_size=256))
    out = convert(source.path, tmp_path / "out", recipe="fp4-local")
    with pytest.raises(LoadError) as refusal:
        load_weights(out, rank=0, ranks=4)
    item = next(item for item in refusal.value.violations if item.where.endswith("layers.8.self_attn.o_proj"))
    assert item.rule == "split"
    assert item.found == "rank 0's share 0:16 of units of 16: columns 0:16"
    assert item.expected == "multiples of 32 columns, which share one scale"


def test_a_rank_that_does_not_exist_is_refused(mixed):
    with pytest.raises(UsageError, match="0 to 1"):
        load_weights(mixed, rank=2, ranks=2)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_hold_as_many_bytes_as_planned(mixed, ranks):
    planned = plan(mixed, ranks=ranks)
    for rank in range(ranks):
        weights = load_weights(mixed, rank=rank, ranks=ranks)
        assert sum(weight.nbytes for weight in weights.values()) == planned.ranks[rank].weights
