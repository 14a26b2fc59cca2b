"""The delta rule over the rows of a step: recurrent segments one row at a time, prompt segments in chunks.

S = diag(exp(g)) S;  d = beta (v - S^T k);  S = S + k d^T;  o = S^T q        S float32 [K, V] per head

A stream has several copies of its state. A recurrent segment leaves the state after its row j in copy j, so
that a verified draft is taken back by naming an earlier copy; a prompt segment leaves its last state in copy
0. Which copy is current is the caller's to say (`current` is read here, and set when rows are committed).
"""

import torch
from torch import Tensor

from intarsia.kernels.kda.chunk import CHUNK, chunk_terms, run_chunk
from intarsia.kernels.rows import Rows, Segment


def scan(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, memory: Tensor, current: Tensor, rows: Rows
) -> Tensor:
    """What every row reads, float32 [R, H, V]; `memory` [streams, copies, H, K, V] is advanced.

    q, k, g float32 [R, H, K], q and k of unit length and q already scaled; v [R, H, V]; beta [R, H];
    current int32 [streams].
    """
    out = torch.zeros_like(v)
    for segment in rows.segments():
        part = segment.rows
        columns = (q[part], k[part], v[part], g[part], beta[part])
        state = memory[segment.stream, int(current[segment.stream])].clone()
        if segment.recurrent:
            out[part] = _recurrent(*columns, state, memory[segment.stream])
        else:
            out[part] = _in_chunks(*columns, state, memory[segment.stream], segment)
    return out


def _recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, copies: Tensor
) -> Tensor:
    out = []
    for row in range(q.shape[0]):
        state = state * g[row].exp().unsqueeze(-1)
        read = torch.bmm(k[row].unsqueeze(1), state)
        change = beta[row].view(-1, 1, 1) * (v[row].unsqueeze(1) - read)
        state = state + k[row].unsqueeze(-1) * change
        out.append(torch.bmm(q[row].unsqueeze(1), state).squeeze(1))
        copies[row] = state
    return torch.stack(out)


def _in_chunks(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, copies: Tensor, segment: Segment
) -> Tensor:
    """Chunks on absolute multiples of 64 tokens; a segment may start or end inside one."""
    out = torch.empty_like(v)
    begin = 0
    while begin < segment.count:
        end = min(segment.count, begin + CHUNK - (segment.position + begin) % CHUNK)
        part = slice(begin, end)
        terms = chunk_terms(q[part], k[part], v[part], g[part], beta[part])
        read, state = run_chunk(terms, state)
        out[part] = read[: end - begin]
        begin = end
    copies[0] = state
    return out
