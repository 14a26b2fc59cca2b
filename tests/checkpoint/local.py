"""A small checkpoint in the FP4-Local layout, with every format of the real one."""

import json
from pathlib import Path

import torch

from intarsia.checkpoint import write_checkpoint
from tests.checkpoint.build import SOURCE, Tensors, compressed, encoded, flat, plain

TEXT = "model.language_model."
ENCODINGS = {"nvfp4_slab": "csf", "csf_32x2_v1": "csf_32x2_v1"}


def fp4_local(folder: Path, codec: str | None = "csf_32x2_v1", experts: int = 3) -> Path:
    """KDA layer 0 and dense MLP in MXFP8, MLA layer 1 with block FP8 and NVFP4 experts, MTP layer 2."""
    modules: dict[str, Tensors] = {
        "lm_head": encoded("MXFP8", 96, 128),
        TEXT + "embed_tokens": plain(96, 128),
        TEXT + "norm": {"weight": torch.linspace(0.5, 1.5, 128)},
    }
    layers = {"lm_head": {"quant_algo": "MXFP8", "group_size": 32}}
    for layer in range(3):
        prefix = f"{TEXT}layers.{layer}."
        modules[prefix + "post_attention_layernorm"] = {"weight": torch.linspace(0.9, 1.1, 128)}
        matrices = {"self_attn.q_proj": (256, 128), "self_attn.o_proj": (128, 256)}
        algo = "FP8_PB_WO" if layer == 1 else "MXFP8"
        for number, (name, shape) in enumerate(matrices.items()):
            modules[prefix + name] = encoded(algo, *shape, seed=10 * layer + number)
            layers[prefix + name] = {"quant_algo": algo} | ({"group_size": 32} if algo == "MXFP8" else {})
        if layer:
            modules[prefix + "mlp.gate"] = plain(experts, 128)
            modules |= expert_modules(prefix, layer, experts, codec)
            entry = {"quant_algo": "NVFP4" if layer == 1 else "W4A16_NVFP4", "group_size": 16}
            if layer == 1 and codec is not None:
                entry["weight_scale_encoding"] = ENCODINGS[codec]
            layers[prefix + "mlp.experts"] = entry
    quantization = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None, "quantized_layers": layers}
    legacy = {"producer": SOURCE, "quantization": quantization}
    method = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "ignore": [], "producer": SOURCE}
    write_checkpoint(
        folder,
        flat(modules).items(),
        config={"num_hidden_layers": 2, "quantization_config": method | {"quantized_layers": layers}},
        extra_files={"hf_quant_config.json": json.dumps(legacy).encode()},
        shard_size=160_000,
        shard_name=lambda index, count: f"tensors/model-{index:05d}-of-{count:05d}.safetensors",
    )
    return folder


def expert_modules(prefix: str, layer: int, experts: int, codec: str | None) -> dict[str, Tensors]:
    modules = {}
    for expert in range(experts):
        for number, part in enumerate(("gate_proj", "up_proj", "down_proj")):
            tensors = encoded("NVFP4", 64, 128, seed=100 * layer + 3 * expert + number)
            if layer == 1:
                tensors["input_scale"] = torch.tensor(0.01)
                tensors = compressed(tensors, codec) if codec is not None else tensors
            modules[f"{prefix}mlp.experts.{expert}.{part}"] = tensors
    return modules
