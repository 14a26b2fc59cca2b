"""The tokens that each row attends to: scores and selection together."""

from torch import Tensor

from intarsia.kernels.choice import TRITON, Case, choose
from intarsia.kernels.indexer import launch
from intarsia.kernels.indexer.scoring import score_pools
from intarsia.kernels.indexer.selection import select_tokens
from intarsia.kernels.rows import Rows


def choose_tokens(
    q: Tensor, weights: Tensor, cache: Tensor, rows: Rows, top_tokens: int, group: int
) -> Tensor:
    """Token positions int32 [R, S], as `select_tokens` of the scores that `score_pools` gives.

    q [R, H, D], weights float32 [R, H]; cache [pages + 1, page / group, D] of pooled keys, those of the
    step's own rows among them. Of padding rows the result says nothing of use.
    """
    heads, width = q.shape[1:]
    case = Case("choose_tokens", (), q.dtype, q.device, (heads, width, top_tokens // group, group))
    if choose(case) == TRITON:
        return launch.launch(q, weights, cache, rows, top_tokens, group)
    scores = score_pools(q, weights, cache, rows, group)
    return select_tokens(scores, rows.positions, top_tokens, group)
