"""The two carriers are what ModelOpt itself would write."""

import pytest

from intarsia.loading.metadata import carriers, quantized_layers
from intarsia.selection.resolve import Target


def test_the_flat_carrier_is_modelopts_conversion_of_the_nested_one():
    module = pytest.importorskip("modelopt.torch.export.convert_hf_config")
    targets = [
        Target(f"model.layers.{index}.proj", name, "main", "")
        for index, name in enumerate(
            [
                "NVFP4",
                "W4A16_NVFP4",
                "MXFP8",
                "FP8",
                "FP8_PB_WO",
                "FP8_PER_CHANNEL_PER_TOKEN",
                "MXFP4",
                "MXFP8",
            ]
        )
    ]
    targets.append(Target("model.layers.9.mlp.experts.0.up_proj", "W4A16_NVFP4", "main", ""))
    nested, flat = carriers(quantized_layers(targets))
    assert flat == module.convert_hf_quant_config_format(nested)


def test_compressed_scales_do_not_split_a_group():
    targets = [
        Target("a.experts.0.up_proj", "W4A16_NVFP4", "main", "", codec="csf_32x2_v1"),
        Target("a.experts.1.up_proj", "W4A16_NVFP4", "main", "", codec="csf_32x2_v1"),
        Target("b.experts.0.up_proj", "W4A16_NVFP4", "draft", ""),
    ]
    layers = quantized_layers(targets)
    assert layers["a.experts"]["weight_scale_encoding"] == "csf_32x2_v1"
    assert "weight_scale_encoding" not in layers["b.experts"]
    _, flat = carriers(layers)
    (group,) = flat["config_groups"].values()
    assert group["targets"] == ["a.experts", "b.experts"]
