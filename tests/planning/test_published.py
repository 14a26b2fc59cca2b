"""The planner against published figures of the real checkpoints."""

import msgspec
import pytest

from intarsia.planning.plan import plan
from intarsia.selection.manifest import ScalePolicy
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of
from tests.data import load_json
from tests.sparse import bf16_headers, write_sparse

MTP_EXPERTS_BF16 = 7_247_757_312
MTP_EXPERTS_NVFP4 = 2_038_431_744
EXPANDED_SCALES = 226_492_416
SAVED = 7_080_435_712


@pytest.fixture(scope="module")
def as_stored(real):
    return plan(real, ranks=2)


@pytest.fixture(scope="module")
def converted(real, spark):
    return plan(real, spark, ranks=2)


def test_the_bf16_checkpoint_has_its_published_size(as_stored):
    routed = 37_152 * 2048 * 4096 * 2
    assert as_stored.violations == ()
    assert as_stored.exported_bytes == as_stored.source_bytes == 19_339_524_984 + routed
    assert as_stored.exported_tensors == 38_770


def test_the_draft_experts_at_two_ranks(as_stored, converted):
    for before, after in zip(as_stored.ranks, converted.ranks, strict=True):
        packed = after.part("draft", "W4A16_NVFP4")
        assert packed.elements + packed.scales == MTP_EXPERTS_NVFP4
        assert packed.scales == EXPANDED_SCALES
        assert packed.scalars == 288 * 3 * 4
        # what left BF16: the experts, and the eleven projections
        eleven = after.part("draft", "MXFP8").elements * 2
        left = before.part("draft", "BF16").elements - after.part("draft", "BF16").elements
        assert left - eleven == MTP_EXPERTS_BF16


def test_the_520_projections_save_what_was_published(as_stored, converted):
    def main(result):
        return sum(
            parts.total
            for rank in result.ranks
            for (section, _), parts in rank.table.items()
            if section == "main"
        )

    assert main(as_stored) - main(converted) == SAVED


def test_targets_and_fused_modules(converted):
    assert converted.targets == {"main": 520, "draft": 11, "draft expert matrices": 864}
    assert converted.modules == {"main": 331, "draft": 9, "draft experts": 1}
    assert converted.unused == ("vision tower (347 tensors)",)


def test_the_peak_is_the_weights_and_at_most_two_experts(converted):
    for rank in converted.ranks:
        assert rank.peak_at.startswith("mtp.mlp.experts.")
        assert rank.peak - rank.weights <= rank.working
        assert rank.working <= 2 * 3 * 2048 * 4096 * 2


@pytest.fixture(scope="module")
def fp4_local(real_config, tmp_path_factory):
    """Plans FP4-Local's selection with the codec of its main scales and the policy of the draft's."""
    headers = bf16_headers(real_config)
    wider = ("post_attention_layernorm.weight", "language_model.norm.weight", "conv1d.weight")
    headers |= {name: ("F32", shape) for name, (_, shape) in headers.items() if name.endswith(wider)}
    checkpoint = write_sparse(tmp_path_factory.mktemp("local") / "bf16", real_config, headers)
    recipe = apply_recipe("fp4-local", source_of(checkpoint))

    def planned(codec, draft="native", **options):
        main = msgspec.structs.replace(recipe.main, scales=ScalePolicy("csf", codec))
        other = msgspec.structs.replace(recipe.draft, scales=ScalePolicy(draft))
        return plan(checkpoint, msgspec.structs.replace(recipe, main=main, draft=other), **options)

    return planned


def test_fp4_local_at_two_ranks_with_scales_kept_compressed(fp4_local):
    """177.48 GB with slab scales, 495 MB more with block scales, both before exceptions. One scratch serves
    main and draft."""
    block = fp4_local("csf_32x2_v1", "inherit", ranks=2, compressed_scales=True)
    assert [rank.scratch for rank in block.ranks] == [EXPANDED_SCALES, EXPANDED_SCALES]
    for rank in block.ranks:
        assert rank.part("main", "W4A16_NVFP4").scales * 64 == 42 * EXPANDED_SCALES * 34
        assert rank.part("draft", "W4A16_NVFP4").scales * 64 == EXPANDED_SCALES * 34
    slab = fp4_local("nvfp4_slab")
    assert slab.exported_bytes == 177_478_463_480
    draft = EXPANDED_SCALES * 2 - block.ranks[0].part("draft", "W4A16_NVFP4").scales * 2
    assert block.exported_bytes + draft == slab.exported_bytes + 42 * 288 * 40_960 == 177_973_915_640


def test_the_nvfp4_checkpoint_has_its_published_size(tmp_path):
    config = load_json("nvidia_GLM-5.3-Flash-NVFP4.config.json")
    headers = load_json("derived_headers_nvidia_nvfp4.json.gz")
    checkpoint = write_sparse(
        tmp_path / "nvfp4", config, {name: (dtype, tuple(shape)) for name, (dtype, shape) in headers.items()}
    )
    result = plan(checkpoint)
    assert result.violations == ()
    assert result.exported_bytes == 204_419_115_456
    assert result.exported_tensors == 147_661
    assert result.ranks[0].part("main", "NVFP4").total == 171_483_360_840
