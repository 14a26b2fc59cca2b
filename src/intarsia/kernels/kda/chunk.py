"""One chunk of up to 64 tokens of the delta rule as matrix products.

With G the running sum of the log decay inside the chunk (a vector over key channels) and S0 the state before
it:

    A[t, s] = beta_t sum_c k_t[c] k_s[c] exp(G_t[c] - G_s[c])     for s < t, else 0
    R = (I + A)^-1;  U = R diag(beta) V;  W = R diag(beta) (K exp(G));  V' = U - W S0
    o_t = (q_t exp(G_t)) S0 + sum over s <= t of (sum_c q_t[c] k_s[c] exp(G_t[c] - G_s[c])) V'_s
    S1 = diag(exp(G_last)) S0 + sum_s (k_s exp(G_last - G_s)) V'_s^T

G may fall to -320 in 64 tokens, so exp(G_t) exp(-G_s) would overflow. Only differences that are at most zero
are exponentiated: blocks of 16 rows take the G before the block as reference against all earlier blocks, and
the block itself is formed channel by channel.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 64
BLOCK = 16


@dataclass(frozen=True, slots=True)
class ChunkTerms:
    """What a chunk contributes whatever the state before it, float32, heads first; missing rows are zero."""

    u: Tensor  # [H, 64, V]
    w: Tensor  # [H, 64, K]
    q_decayed: Tensor  # [H, 64, K], q exp(G)
    q_k: Tensor  # [H, 64, 64], lower triangular with its diagonal
    k_rest: Tensor  # [H, 64, K], k exp(G_last - G)
    decay: Tensor  # [H, K], exp(G_last)


def chunk_terms(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> ChunkTerms:
    """Terms of up to 64 rows: q, k, g [T, H, K], v [T, H, V], beta [T, H].

    Missing rows are filled with zeros (k = 0, beta = 0, g = 0), which changes nothing, so that a row's bits
    do not depend on how many rows follow it in its chunk.
    """
    q, k, v, g, beta = (_heads_first(x) for x in (q, k, v, g, beta.unsqueeze(-1)))
    total = g.cumsum(1)
    grown = total.exp()
    k_k, q_k = _decayed_products(k, k, total), _decayed_products(q, k, total)
    lower = torch.tril(beta * k_k, -1)
    unit = torch.eye(CHUNK, dtype=lower.dtype, device=lower.device)
    right = torch.cat([beta * v, beta * k * grown], -1)
    solved = torch.linalg.solve_triangular(unit + lower, right, upper=False, unitriangular=True)
    last = total[:, -1:]
    return ChunkTerms(
        u=solved[..., : v.shape[-1]],
        w=solved[..., v.shape[-1] :],
        q_decayed=q * grown,
        q_k=torch.tril(q_k),
        k_rest=k * (last - total).exp(),
        decay=last.squeeze(1).exp(),
    )


def run_chunk(terms: ChunkTerms, state: Tensor) -> tuple[Tensor, Tensor]:
    """What the chunk's rows read, [64, H, V], and the state [H, K, V] after it."""
    change = terms.u - torch.bmm(terms.w, state)
    read = torch.bmm(terms.q_decayed, state) + torch.bmm(terms.q_k, change)
    after = terms.decay.unsqueeze(-1) * state + torch.bmm(terms.k_rest.transpose(1, 2), change)
    return read.transpose(0, 1), after


def _heads_first(x: Tensor) -> Tensor:
    padded = x.new_zeros(CHUNK, *x.shape[1:])
    padded[: x.shape[0]] = x
    return padded.transpose(0, 1).contiguous()


def _decayed_products(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """sum_c a_t[c] b_s[c] exp(G_t[c] - G_s[c]) for s <= t, [H, 64, 64]; other entries are not meaningful."""
    out = a.new_zeros(a.shape[0], CHUNK, CHUNK)
    for begin in range(0, CHUNK, BLOCK):
        block = slice(begin, begin + BLOCK)
        inside = total[:, block]
        if begin:
            reference = total[:, begin - 1 : begin]
            row_side = a[:, block] * (inside - reference).exp()
            column_side = b[:, :begin] * (reference - total[:, :begin]).exp()
            out[:, block, :begin] = torch.bmm(row_side, column_side.transpose(1, 2))
        differences = (inside.unsqueeze(2) - inside.unsqueeze(1)).clamp(max=0).exp()
        out[:, block, block] = (a[:, block].unsqueeze(2) * b[:, block].unsqueeze(1) * differences).sum(-1)
    return out
