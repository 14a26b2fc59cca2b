"""How every weight is stored, how it runs, with which kernel and why: from headers and a device alone.

A weight's kernel is the one that its operation would choose; the table below says which operation that is.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from intarsia import formats
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels.choice import REFERENCE, Case, explain
from intarsia.loading.layout import Arranged, Arrangement

# The first pattern that the end of a weight's name fits says what it is used in.
_USES = (
    (r"embed_tokens", "embedding"),
    (r"(q_a_layernorm|kv_a_layernorm|k_norm(\.bias)?|index_kpool_compress_ape)", "enter_rows"),
    (r"(^|\.)(norm|\w*layernorm|enorm|hnorm)", "norm"),
    (r"self_attn\.(conv1d|A_log|dt_bias|o_norm)", "kda_step"),
    (r"hc_(attn|ffn)_(fn|base|scale)", "hyper_site"),
    (r"kv_b_proj", "absorb_keys"),
    (r"mlp\.gate(\.e_score_correction_bias)?", "router"),
    (r"experts\.(gate_up|down)", "experts"),
    (r"", "linear"),
)
_SHARED = ".shared_experts."
_PLAIN = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@dataclass(frozen=True, slots=True)
class WeightRow:
    """How one weight is stored and how it runs."""

    module: str
    stored: str
    """Its form in the checkpoint, with a scale codec where scales are compressed."""
    run: str
    """Its form in memory."""
    operation: str
    """What it is used in."""
    kernel: str
    reason: str
    """Why this kernel, and not a faster one."""


def weight_rows(arrangement: Arrangement, device: torch.device | str, dtype: str) -> tuple[WeightRow, ...]:
    """One row a run-time weight, in the network's order; of a rank's share, its own."""
    forms = {weight.module.name: _form(weight) for weight in arrangement.weights}
    return tuple(_rows(arrangement, forms, torch.device(device), getattr(torch, dtype)))


def forms_of(arrangement: Arrangement) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The form of every run-time weight in memory, and its shape; of a rank's share, its own."""
    return {weight.module.name: (_form(weight), shape_of(weight)) for weight in arrangement.weights}


def shape_of(weight: Arranged) -> tuple[int, ...]:
    """The shape of a run-time weight as it is held: of a rank's share, the share's."""
    whole = tuple(weight.module.shape)
    slot = weight.slots.get("weight") or next(iter(weight.slots.values()))
    if weight.format is None or len(whole) < 2:
        return tuple(slot.shape)
    stored = formats.get(weight.format).layout((whole[-2], whole[-1]))["weight"].shape
    return (*whole[:-2], slot.shape[-2], slot.shape[-1] * (whole[-1] // stored[-1]))


def operation_of(name: str) -> str:
    """The operation that a run-time weight takes part in."""
    if _SHARED in name:
        return "linear"
    return next(operation for ending, operation in _USES if re.search(ending + "$", name))


def _rows(
    arrangement: Arrangement, forms: Mapping[str, str], device: torch.device, dtype: torch.dtype
) -> Iterator[WeightRow]:
    for weight in arrangement.weights:
        name = weight.module.name
        case = _case(arrangement.config, weight, forms, device, dtype)
        kernel, reason = _choice(case)
        stored = " + ".join(sorted(_sources(arrangement, weight)))
        yield WeightRow(name, stored, forms[name], case.operation, kernel, reason)


def _case(
    config: Glm5NextConfig,
    weight: Arranged,
    forms: Mapping[str, str],
    device: torch.device,
    dtype: torch.dtype,
) -> Case:
    """The case its operation asks the table of kernels about."""
    name = weight.module.name
    operation = operation_of(name)
    formats: tuple[str, ...] = ()
    shape = shape_of(weight)
    if operation == "experts":
        stem = name.rpartition(".")[0]
        formats = (forms[f"{stem}.gate_up"], forms[f"{stem}.down"])
        count, rows, columns = shape
        shape = (count, columns, rows) if name.endswith(".down") else (count, rows // 2, columns)
    elif operation == "router":
        formats = (forms[name.removesuffix(".e_score_correction_bias")],)
        shape = (config.n_routed_experts, config.hidden_size)
    elif operation == "kda_step":
        shape = (config.linear_num_heads, config.linear_head_dim, config.linear_conv_kernel_dim)
    elif operation == "enter_rows":
        shape = (config.kv_lora_rank, config.index_head_dim, config.index_kpool)
    elif operation == "absorb_keys":
        formats = (forms[name],)
        shape = (config.qk_nope_head_dim, config.v_head_dim, config.kv_lora_rank)
    elif operation == "hyper_site":
        shape = (config.hc_mult, config.hidden_size)
    elif operation != "norm":
        formats = (forms[name],)
    return Case(operation, formats, dtype, device, shape)


def _choice(case: Case) -> tuple[str, str]:
    """The kernel's name, and what the ones before it refused with."""
    try:
        rows = explain(case)
    except KeyError:  # no kernel was ever offered beside the reference
        return REFERENCE, "the only one there is"
    chosen = next(row for row in rows if row.chosen)
    better = rows[: rows.index(chosen)]
    if better:
        reason = "; ".join(f"{row.candidate}: {row.refusal}" for row in better)
    else:
        reason = "the fastest there is"
    if case.formats and chosen.candidate == REFERENCE and case.formats[0] not in _PLAIN.values():
        reason += f"; decoded to {chosen.dtype} inside the operation"
    return chosen.candidate, reason


def _form(weight: Arranged) -> str:
    """The form a weight is kept in while it runs."""
    if weight.format is not None:
        return weight.format
    slot = next(iter(weight.slots.values()))
    return _PLAIN.get(slot.dtype, str(slot.dtype))


def _sources(arrangement: Arrangement, weight: Arranged) -> set[str]:
    """The forms its parts have in the checkpoint."""
    if not weight.module.matrix:
        return {entry.dtype for piece in weight.pieces for entry in piece.entries}
    modules = [arrangement.modules[name] for name in weight.module.sources]
    return {
        (module.format or module.tensors["weight"].dtype) + (f" ({module.codec})" if module.codec else "")
        for module in modules
    }
