"""Launch of the draw among candidates of several shards."""

import torch
from torch import Tensor

from intarsia.kernels.device import interpreting, on_device_of, power_of_two
from intarsia.kernels.draw.search import Cuts


def pick_candidates(
    keys: Tensor,
    floors: Tensor,
    masses: Tensor,
    peaks: Tensor,
    cuts: Cuts,
    tables: tuple[Tensor, Tensor],
    *,
    cut: bool,
    certain_k: int,
    uncertain: int,
) -> Tensor:
    """The token int64 [R] of each row among candidates `keys` int64 [R, K], the likelier first.

    `floors`, `masses` int64 [R] are those of `sampling.Candidates`, peaks float32 [R], `tables` as
    `fixedpoint.tables`. -1 where nothing may be drawn; `uncertain` where the candidates do not settle it,
    rows of a larger top k than `certain_k` among them. Without `cut` every candidate is allowed.
    """
    from intarsia.kernels.draw import triton_pick as kernels

    rows, count = keys.shape
    out = torch.empty(rows, dtype=torch.int64, device=keys.device)
    overlap = {"OVERLAP": False} if interpreting() else {"OVERLAP": True, "launch_pdl": True}
    with on_device_of(keys):
        kernels.pick_of_rows[(rows,)](
            keys,
            floors,
            masses,
            peaks,
            cuts.scales,
            cuts.top_k,
            cuts.top_p,
            cuts.farthest,
            cuts.positions,
            *cuts.seeds,
            *tables,
            out,
            count,
            certain_k,
            UNCERTAIN=uncertain,
            COUNT=power_of_two(count),
            CUT=cut,
            num_warps=4,
            enable_fp_fusion=False,
            **overlap,
        )
    return out
