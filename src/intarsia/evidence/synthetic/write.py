"""Writing a synthetic checkpoint module by module."""

import math
import os
from collections.abc import Iterator
from typing import Any

import torch

from intarsia import formats
from intarsia.checkpoint import Checkpoint, write_checkpoint
from intarsia.checkpoint.write import DEFAULT_SHARD_BYTES, json_bytes
from intarsia.core.progress import SILENT, Progress
from intarsia.evidence.synthetic.chosen import Chosen, choose_formats
from intarsia.evidence.synthetic.values import random_plain, random_stored
from intarsia.families.glm5_next.inventory import TensorSpec
from intarsia.formats import csf
from intarsia.loading.metadata import carriers, quantized_layers
from intarsia.selection.resolve import Target


def synthesize(
    out: str | os.PathLike[str],
    config: dict[str, Any],
    *,
    recipe: str,
    seed: int = 0,
    device: str | torch.device = "cpu",
    shard_size: int = DEFAULT_SHARD_BYTES,
    progress: Progress = SILENT,
) -> Checkpoint:
    """Write random weights for `config` (see `geometry`) in the formats of a recipe, and return them opened.

    Numbers are drawn on `device`; the same seed and device type give the same bytes. One shard is in memory
    at a time. Raises what selection and `write_checkpoint` raise.
    """
    chosen = choose_formats(config, recipe)
    layers = quantized_layers(chosen.targets.values())
    extra: dict[str, Any] = {}
    config = dict(config)
    if layers:
        nested, config["quantization_config"] = carriers(layers)
        extra["hf_quant_config.json"] = json_bytes(nested)
    generator = torch.Generator(device=device).manual_seed(seed)
    total = sum(_bytes(name, chosen) for name in chosen.specs)
    with progress.phase("writing", total) as phase:

        def tensors() -> Iterator[tuple[str, torch.Tensor]]:
            for name, spec in chosen.specs.items():
                target = chosen.targets.get(name.removesuffix(".weight"))
                for made, tensor in _tensors(name, spec, chosen.dtype(name), target, generator):
                    phase.advance(tensor.numel() * tensor.element_size())
                    yield made, tensor.cpu()

        return write_checkpoint(
            out, tensors(), config=config, shard_size=shard_size, shard_name=_shard_name, extra_files=extra
        )


def _tensors(
    name: str, spec: TensorSpec, dtype: torch.dtype, target: Target | None, generator: torch.Generator
) -> Iterator[tuple[str, torch.Tensor]]:
    if target is None:
        yield name, random_plain(name, spec, dtype, generator)
        return
    stored = random_stored(target.format, spec.shape[0], spec.shape[1], generator)
    for suffix, tensor in stored.tensors.items():
        if suffix == "weight_scale" and target.codec is not None:
            for component, part in csf.encode(tensor, target.codec).items():
                yield f"{target.module}.{suffix}.{component}", part
        else:
            yield f"{target.module}.{suffix}", tensor


def _bytes(name: str, chosen: Chosen) -> int:
    """Bytes of a tensor's or a module's stored form; of compressed scales, before that."""
    shape, target = chosen.specs[name].shape, chosen.targets.get(name.removesuffix(".weight"))
    if target is None:
        return math.prod(shape) * chosen.dtype(name).itemsize
    layout = formats.get(target.format).layout(shape)
    return sum(math.prod(part.shape) * part.dtype.itemsize for part in layout.values())


def _shard_name(index: int, count: int) -> str:
    return f"tensors/model-{index:05d}-of-{count:05d}.safetensors"
