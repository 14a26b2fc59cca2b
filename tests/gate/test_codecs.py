"""The gate's own tables and scale codecs, against what others say of the same bytes."""

import numpy as np
import pytest
import torch

from intarsia.formats import csf
from intarsia.gate import codecs
from intarsia.gate.shares import COLUMNS, ROWS, part_of


def test_tables_are_torchs():
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(np.nan_to_num(codecs.E4M3, nan=-1.0), np.nan_to_num(expected, nan=-1.0))
    powers = codes[:255].view(torch.float8_e8m0fnu).float().numpy()
    assert np.array_equal(codecs.E8M0[:255], powers)
    assert codecs.E2M1.tolist()[:8] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert (codecs.E2M1[8:] == -codecs.E2M1[:8]).all()


@pytest.mark.parametrize("codec", ["nvfp4_slab", "csf_32x2_v1"])
def test_scales_come_back_from_both_codecs(codec):
    generator = torch.Generator().manual_seed(3)
    scales = torch.randint(90, 110, (64, 6), generator=generator, dtype=torch.uint8)
    scales[5, 3], scales[40, 0], scales[63, 5] = 3, 250, 17
    parts = [
        tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for tensor in csf.encode(scales, codec).values()
    ]
    decode = codecs.slab_scales if codec == "nvfp4_slab" else codecs.block_scales
    assert bytes(decode(*parts, 64, 6)) == scales.numpy().tobytes()


REAL = {
    "num_attention_heads": 64, "qk_nope_head_dim": 256, "v_head_dim": 256, "vocab_size": 154_880,
    "moe_intermediate_size": 2048, "n_shared_experts": 1, "intermediate_size": 12_288,
    "linear_attn_config": {"num_heads": 64, "head_dim": 128},
}  # fmt: skip
LAYERS = {0: "linear_attention", 3: "deepseek_sparse_attention"}
L = "model.language_model.layers."


@pytest.mark.parametrize(
    ("name", "axis", "sizes"),
    [
        (f"{L}3.mlp.experts.7.up_proj", ROWS, [704, 704, 640]),
        (f"{L}3.mlp.shared_experts.down_proj", COLUMNS, [704, 704, 640]),
        (f"{L}0.mlp.gate_proj", ROWS, [4096] * 3),
        (f"{L}0.self_attn.A_log", ROWS, [22, 21, 21]),
        (f"{L}0.self_attn.o_proj", COLUMNS, [2816, 2688, 2688]),
        (f"{L}3.self_attn.o_proj", COLUMNS, [5632, 5376, 5376]),
        ("lm_head", ROWS, [51_648, 51_648, 51_584]),
    ],
)
def test_three_ranks_hold_the_published_sizes(name, axis, sizes):
    parts = [part_of(name, REAL, LAYERS, rank, 3) for rank in range(3)]
    assert [part.axis for part in parts] == [axis] * 3
    assert [part.stop - part.start for part in parts] == sizes
    assert [part.start for part in parts] == [0, sizes[0], sizes[0] + sizes[1]]


def test_a_name_that_the_table_does_not_have_is_refused():
    with pytest.raises(KeyError, match="mystery"):
        part_of(f"{L}0.mystery", REAL, LAYERS, 0, 2)
