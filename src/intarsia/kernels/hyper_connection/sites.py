"""One site of the hyper-connections from end to end.

What the block before gave goes into the streams, the site's coefficients are formed, and the next block's
normed input is collected.
"""

from dataclasses import dataclass

from torch import Tensor

from intarsia.kernels.choice import TRITON, Case, choose
from intarsia.kernels.exchange import Exchange
from intarsia.kernels.hyper_connection import launch
from intarsia.kernels.hyper_connection.reference import HyperMix, collect, merge, mix, update
from intarsia.kernels.norm import rms_norm


@dataclass(frozen=True, slots=True)
class Site:
    """A site's weights: `fn` [N*(N+2), N*D], `base` [N*(N+2)], `scale` [3], and the norm [D] after it."""

    fn: Tensor
    base: Tensor
    scale: Tensor
    norm: Tensor


@dataclass(frozen=True, slots=True)
class Rule:
    """The constants of all sites: `norm_eps` of both norms, `eps` and column passes of Sinkhorn."""

    norm_eps: float
    eps: float
    iterations: int


@dataclass(frozen=True, slots=True)
class Pending:
    """A block's output `y` [R, D] that is not in the streams yet, and its site's coefficients.

    With `sums` it is this rank's part of the output, float32, which is still to be summed over ranks.
    """

    y: Tensor
    coefficients: HyperMix
    sums: Exchange | None = None

    def summed(self) -> Tensor:
        """The whole output."""
        return self.y if self.sums is None else self.sums.sum_in_rank_order(self.y)


def site(
    streams: Tensor, pending: Pending | None, weights: Site, rule: Rule
) -> tuple[Tensor, Tensor, HyperMix]:
    """The streams [R, N, D] with what was pending, the next block's normed input [R, D] in their dtype, and
    the site's coefficients.
    """
    case = Case("hyper_site", (), streams.dtype, streams.device, tuple(streams.shape[1:]))
    if choose(case) == TRITON:
        return launch.site(streams, pending, weights, rule)
    if pending is not None:
        streams = update(streams, pending.summed(), pending.coefficients)
    coefficients = mix(
        streams,
        weights.fn,
        weights.base,
        weights.scale,
        norm_eps=rule.norm_eps,
        eps=rule.eps,
        iterations=rule.iterations,
    )
    x = rms_norm(collect(streams, coefficients.pre), weights.norm, rule.norm_eps)
    return streams, x, coefficients


def finish(streams: Tensor, pending: Pending, norm: Tensor, norm_eps: float) -> tuple[Tensor, Tensor]:
    """The streams [R, N, D] with what was pending, and the norm of their mean [R, D]."""
    case = Case("hyper_site", (), streams.dtype, streams.device, tuple(streams.shape[1:]))
    if choose(case) == TRITON:
        return launch.finish(streams, pending, norm, norm_eps)
    streams = update(streams, pending.summed(), pending.coefficients)
    return streams, rms_norm(merge(streams), norm, norm_eps)
