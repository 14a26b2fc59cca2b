"""Bootstrap intervals of means, repeatable on every machine."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
LEVEL = 0.95
_CHUNK = 1 << 22


def interval_of_ratio(
    sums: Sequence[float] | NDArray[np.float64],
    counts: Sequence[float] | NDArray[np.float64],
    seed: int,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> tuple[float, float]:
    """The percentile interval of sum(sums) / sum(counts) when whole groups are drawn with replacement.

    Each group (a document) has a sum and a count. Groups are drawn from PCG64's raw stream, which numpy keeps
    the same in every version. One group gives an interval without width, no group NaN.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), 13.3.
    """
    totals, weights = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    groups = len(totals)
    if groups == 0:
        return float("nan"), float("nan")
    stream = np.random.PCG64(seed)
    step = max(1, _CHUNK // groups)
    ratios = []
    for begin in range(0, resamples, step):
        count = min(step, resamples - begin)
        drawn = (
            (stream.random_raw(count * groups) % np.uint64(groups)).reshape(count, groups).astype(np.int64)
        )
        ratios.append(totals[drawn].sum(1) / weights[drawn].sum(1))
    tail = 50 * (1 - level)
    low, high = np.percentile(np.concatenate(ratios), [tail, 100 - tail])
    return float(low), float(high)


def interval_of_mean(values: Sequence[float], seed: int, **options: float) -> tuple[float, float]:
    """The percentile interval of a mean of single values."""
    return interval_of_ratio(values, [1.0] * len(values), seed, **options)  # type: ignore[arg-type]
