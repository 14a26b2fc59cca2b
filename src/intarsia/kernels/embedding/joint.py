"""What the MTP layer takes for a row: a token's embedding and a hidden row side by side, each normed."""

import torch
from torch import Tensor

from intarsia.formats.stored import Stored
from intarsia.kernels.choice import TRITON, Case, choose
from intarsia.kernels.device import on_device_of, power_of_two
from intarsia.kernels.embedding.reference import embed
from intarsia.kernels.norm import launch, rms_norm
from intarsia.kernels.weights import Weight


def join_norms(
    tokens: Tensor,
    positions: Tensor,
    table: Weight,
    hidden: Tensor,
    weights: tuple[Tensor, Tensor],
    eps: float,
) -> Tensor:
    """[R, 2 D] in the dtype of `hidden` [R, D]: the norm of each token's row of `table` [V, D], taken as
    zero at position 0, beside that of the hidden row; a weight [D] for each.
    """
    plain = table.tensors["weight"] if isinstance(table, Stored) and "weight" in table.tensors else table
    case = Case("norm", (), hidden.dtype, hidden.device, (hidden.shape[-1],))
    if choose(case) == TRITON and isinstance(plain, Tensor) and plain.dtype == hidden.dtype:
        return _launch(tokens, positions, plain, hidden, weights, eps)
    embedded = embed(tokens, table, hidden.dtype).masked_fill((positions == 0).unsqueeze(1), 0)
    return torch.cat([rms_norm(x, w, eps) for x, w in zip((embedded, hidden), weights, strict=True)], -1)


def _launch(
    tokens: Tensor,
    positions: Tensor,
    table: Tensor,
    hidden: Tensor,
    weights: tuple[Tensor, Tensor],
    eps: float,
) -> Tensor:
    from intarsia.kernels.embedding import triton_joint as kernels

    rows, width = hidden.shape
    out = hidden.new_empty(rows, 2 * width)
    with on_device_of(hidden):
        kernels.join_rows[(rows, 2)](
            tokens,
            positions,
            table,
            table.stride(0),
            hidden,
            hidden.stride(0),
            *weights,
            out,
            float(eps),
            WIDTH=width,
            SIZE=power_of_two(width),
            num_warps=launch.warps_for(width),
        )
    return out
