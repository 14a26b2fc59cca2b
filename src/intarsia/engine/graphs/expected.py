"""Whether steps of written tokens will be captured, told from headers and the table of kernels alone."""

from collections.abc import Iterable

import torch

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels.choice import REFERENCE, Case, explain
from intarsia.models.glm5_next.explain import WeightRow

LOOKING = frozenset(["attend", "choose_tokens", "enter_rows", "experts", "kda_step"])
"""Operations whose reference looks at values on the host."""


def expected_reason(
    config: Glm5NextConfig, weights: Iterable[WeightRow], device: torch.device, dtype: torch.dtype
) -> str:
    """Why such steps will run eagerly, or the empty string; `weights` are told for the same device and dtype.

    What runs is decided by the same table once the network is there; ranks may have further reasons.
    """
    if device.type != "cuda":
        return f"the device is {device.type}, not cuda"
    held = {(row.operation, row.kernel, row.reason): None for row in weights}
    shape = (config.index_n_heads, config.index_head_dim, config.index_topk // config.index_kpool)
    latents = {torch.bfloat16: "BF16", torch.float32: "F32"}.get(dtype, str(dtype))
    for case in (
        Case("choose_tokens", (), dtype, device, (*shape, config.index_kpool)),
        Case("attend", (latents,), dtype, device, (config.kv_lora_rank,)),
    ):
        rows = explain(case)
        refusals = "; ".join(f"{row.candidate}: {row.refusal}" for row in rows if row.refusal)
        held[case.operation, next(row.candidate for row in rows if row.chosen), refusals] = None
    found = [
        f"{operation} runs the reference, which looks at values ({reason})"
        for operation, kernel, reason in held
        if operation in LOOKING and kernel == REFERENCE
    ]
    return "; ".join(found)
