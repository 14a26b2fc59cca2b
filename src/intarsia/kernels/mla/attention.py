"""Latent attention between its projections: each operation by the kernel that takes its case."""

from torch import Tensor

from intarsia.kernels.choice import REFERENCE, TRITON, Case, choose
from intarsia.kernels.linear.launch import format_of
from intarsia.kernels.mla import launch, launch_few, products, reference
from intarsia.kernels.rows import Rows
from intarsia.kernels.weights import Weight


def absorb_keys(
    q: Tensor, kv_b: Weight, key_width: int, value_width: int, *, settled: bool = False
) -> Tensor:
    """Queries [R, H, K] carried into latent space, [R, H, L].

    `settled`: at least one operation was launched between what wrote `q` and this, which may then begin
    before that operation ends.
    """
    if choose(_product("absorb_keys", q, kv_b, key_width, value_width)) == TRITON:
        return products.absorb(q, kv_b, key_width, value_width, settled=settled)
    return reference.absorb_keys(q, kv_b, key_width, value_width)


def expand_values(latents: Tensor, kv_b: Weight, key_width: int, value_width: int) -> Tensor:
    """Attended latents [R, H, L] turned into head outputs [R, H * V]."""
    if choose(_product("expand_values", latents, kv_b, key_width, value_width)) == TRITON:
        return products.expand(latents, kv_b, key_width, value_width)
    return reference.expand_values(latents, kv_b, key_width, value_width)


def attend(
    q: Tensor,
    cache: Tensor,
    selected: Tensor,
    rows: Rows,
    scale: float,
    latent_scales: Tensor | None = None,
    *,
    early: bool = True,
) -> Tensor:
    """Softmax attention of absorbed queries [R, H, L] over the latents each row has selected; [R, H, L].

    cache [pages + 1, page, L], its rows times `latent_scales` [pages + 1, page] if given; selected int32 [R,
    S], token positions of the row's own stream in any order, -1 where there is none. Scores, softmax and sums
    are float32. S is the same for every row and context length, so a row's bits do not depend on its
    neighbours; they may depend on its form, recurrent or prompt. Padding rows get zeros, whatever `selected`
    says of them.

    `early`: all but `q` was written before the last operation, so that this may begin before that one ends.
    """
    name = _kernels_of(q, cache, latent_scales)
    if name != REFERENCE:
        return launch.attend(q, cache, selected, rows, scale, latent_scales, name, early=early)
    return reference.attend(q, cache, selected, rows, scale, latent_scales)


def attend_values(
    q: Tensor,
    cache: Tensor,
    selected: Tensor,
    rows: Rows,
    scale: float,
    kv_b: Weight,
    key_width: int,
    value_width: int,
    latent_scales: Tensor | None = None,
    *,
    early: bool = True,
) -> Tensor:
    """`expand_values` of what `attend` gives, [R, H * V]; the same bits in one launch less for few rows."""
    name = _kernels_of(q, cache, latent_scales)
    expanded = choose(_product("expand_values", q, kv_b, key_width, value_width)) == TRITON
    if expanded and launch_few.apart(name, q, rows) and products.weights_first(kv_b, q.dtype, q.shape[0]):
        ranges = launch_few.attend_apart(q, cache, selected, rows, scale, early=early)
        return products.expand_ranges(ranges, q.dtype, kv_b, key_width, value_width)
    attended = attend(q, cache, selected, rows, scale, latent_scales, early=early)
    return expand_values(attended, kv_b, key_width, value_width)


def _kernels_of(q: Tensor, cache: Tensor, latent_scales: Tensor | None) -> str:
    stored = "FP8" if latent_scales is not None else format_of(cache)
    return choose(Case("attend", (stored,), q.dtype, q.device, (q.shape[-1],)))


def _product(operation: str, x: Tensor, kv_b: Weight, key: int, value: int) -> Case:
    return Case(operation, (format_of(kv_b),), x.dtype, x.device, (key, value, kv_b.shape[-1]))
