"""The longer formulas of the network, written anew with switches: as they stand they are true."""

from collections.abc import Callable

import torch
from torch import Tensor

from intarsia.kernels.hyper_connection import HyperMix
from intarsia.kernels.router import Routing
from tests.models.sabotage import FEED_FORWARD, HYPER_SITE, KDA_STEP, Sabotage, swap


def mixing(
    *,
    norm_eps: float | None = None,
    pre_eps: float | None = None,
    softmax_eps: float | None = None,
    sinkhorn_eps: float | None = None,
    norm: str = "flat",
    order: tuple[int, int, int] = (0, 1, 2),
    scales: tuple[int, int, int] = (0, 1, 2),
    softmax_dim: int = -1,
    rows_first: bool = False,
) -> Sabotage:
    """The coefficients of hyper-connections with one rule changed; without arguments the true formula."""

    def mix(streams, fn, base, scale, *, norm_eps_=norm_eps, **settings):
        eps, count = settings["eps"], streams.shape[1]
        wide = streams.float()
        flat = wide.flatten(1)
        if norm == "flat":
            norm_by = settings["norm_eps"] if norm_eps_ is None else norm_eps_
            flat = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_by)
        elif norm == "stream":
            flat = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + settings["norm_eps"])).flatten(
                1
            )
        parts = [
            part * scale[by] + shift
            for part, shift, by in zip(
                (flat @ fn.T).split([count, count, count * count], -1),
                base.split([count, count, count * count]),
                scales,
                strict=True,
            )
        ]
        pre, post = parts[order[0]], parts[order[1]]
        matrix = torch.softmax(parts[2].view(-1, count, count), softmax_dim)
        matrix = matrix + (eps if softmax_eps is None else softmax_eps)
        by = eps if sinkhorn_eps is None else sinkhorn_eps
        sides = (-1, -2) if rows_first else (-2, -1)
        matrix = matrix / (matrix.sum(sides[0], keepdim=True) + by)
        for _ in range(settings["iterations"] - 1):
            matrix = matrix / (matrix.sum(sides[1], keepdim=True) + by)
            matrix = matrix / (matrix.sum(sides[0], keepdim=True) + by)
        return HyperMix(
            torch.sigmoid(pre) + (eps if pre_eps is None else pre_eps), 2 * torch.sigmoid(post), matrix
        )

    return swap(f"{HYPER_SITE}.mix", lambda _: mix)


def routing(
    *,
    score: Callable[[Tensor], Tensor] = torch.sigmoid,
    bias_chooses: bool = True,
    bias_weighs: bool = False,
    normalised: bool = True,
) -> Sabotage:
    """The router with one rule changed; without arguments the true formula."""

    def route(x, weight, bias, rows, *, top, scaling, arrange=False):
        scores = score(x.float() @ weight.T)
        chosen = (scores + bias * bias_chooses).topk(top, -1).indices
        shares = (scores + bias * bias_weighs).gather(1, chosen)
        if normalised:
            shares = shares / shares.sum(-1, keepdim=True)
        return Routing(chosen.to(torch.int32).masked_fill(rows.padding.unsqueeze(1), -1), shares * scaling)

    return swap(f"{FEED_FORWARD}.route", lambda _: route)


def delta_rule(
    *, decay_late: bool = False, read_early: bool = False, corrected: bool = True, decay_values: bool = False
) -> Sabotage:
    """The recurrence of KDA with one rule changed, for a single prompt; without arguments the true one."""

    def scan(q, k, v, g, beta, memory, current, rows):
        out = torch.zeros_like(v)
        state = torch.zeros(q.shape[1], q.shape[2], v.shape[2])
        for row in range(int(rows.starts[-1])):
            decay = g[row].exp().unsqueeze(1 if decay_values else 2)
            if not decay_late:
                state = state * decay
            known = torch.einsum("hkv,hk->hv", state, k[row]) if corrected else 0
            if read_early:
                out[row] = torch.einsum("hkv,hk->hv", state, q[row])
            state = state + torch.einsum("hk,hv->hkv", k[row], beta[row].unsqueeze(-1) * (v[row] - known))
            if decay_late:
                state = state * decay
            if not read_early:
                out[row] = torch.einsum("hkv,hk->hv", state, q[row])
        return out

    return swap(f"{KDA_STEP}.scan", lambda _: scan)
