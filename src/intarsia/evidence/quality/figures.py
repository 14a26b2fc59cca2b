"""From scores of positions to the figures of a comparison."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.evidence.bootstrap import interval_of_ratio
from intarsia.evidence.quality.kld import Numbers, WindowScores
from intarsia.evidence.quality.windows import Window

PARTS = 32
"""Most parts a window is divided into for figures by position."""
LOWEST, HIGHEST = -9, 2
"""Decades of the histogram; what is smaller, 0 included, and what is larger have bins of their own."""
PER_DECADE = 4
WORST = 20
MOST_DOCUMENTS = 1000


def figures(windows: Sequence[Window], scores: Sequence[WindowScores], seed: int) -> dict[str, Any]:
    """All figures of two models on the same windows, as JSON values.

    Divergences count every position, likelihoods every position whose successor is in its window. Intervals
    are bootstrap percentile intervals of 95 % over documents (and over windows, which share no context).
    """
    kld = np.concatenate([score.kld for score in scores])
    agree = np.concatenate([score.agree for score in scores])
    by_document = _by_document(windows, scores)
    by_window = [_sums(score, slice(None)) for score in scores]
    totals = _sums_of(by_window)
    nll_base = totals["nll_base"] / totals["targets"]
    nll_candidate = totals["nll_candidate"] / totals["targets"]
    return {
        "positions": len(kld),
        "targets": int(totals["targets"]),
        "kld": _distribution(kld) | _intervals(by_document, by_window, "kld", "positions", seed),
        "nll": {
            "base": nll_base,
            "candidate": nll_candidate,
            "difference": nll_candidate - nll_base,
            **_intervals(by_document, by_window, "nll_difference", "targets", seed + 1),
        },
        "perplexity": {
            "base": math.exp(nll_base),
            "candidate": math.exp(nll_candidate),
            "ratio": math.exp(nll_candidate - nll_base),
        },
        "top1": {
            "agreement": float(agree.mean()),
            "differing": int((~agree).sum()),
            **_intervals(by_document, by_window, "agree", "positions", seed + 2),
        },
        "histogram": histogram(kld),
        "by_position": by_position(scores),
        "documents": [
            {"document": document, **_means(sums)}
            for document, sums in list(by_document.items())[:MOST_DOCUMENTS]
        ],
        "documents_measured": len(by_document),
    }


def _distribution(values: Numbers) -> dict[str, float]:
    """Mean and quantiles (linear between order statistics)."""
    p50, p95, p99 = np.percentile(values, [50, 95, 99])
    return {
        "mean": float(values.mean()),
        "p50": float(p50),
        "p95": float(p95),
        "p99": float(p99),
        "max": float(values.max()),
        "min": float(values.min()),
    }


def histogram(values: Numbers) -> dict[str, Any]:
    """Counts over bins of equal width in log10. `edges` has one number more than `counts`."""
    exponents = np.arange(LOWEST * PER_DECADE, HIGHEST * PER_DECADE + 1) / PER_DECADE
    edges = 10.0**exponents
    counts, _ = np.histogram(values, bins=edges)
    return {
        "edges": [float(edge) for edge in edges],
        "counts": [int(count) for count in counts],
        "below": int((values < edges[0]).sum()),
        "above": int((values > edges[-1]).sum()),
    }


def by_position(scores: Sequence[WindowScores]) -> list[dict[str, Any]]:
    """Means over all windows of equal parts of a window."""
    length = min(len(score.kld) for score in scores)
    parts = min(PARTS, length)
    bounds = [length * part // parts for part in range(parts + 1)]
    rows = []
    for first, end in pairwise(bounds):
        sums = _sums_of([_sums(score, slice(first, end)) for score in scores])
        rows.append({"first": first, "last": end - 1, **_means(sums)})
    return rows


def worst_positions(
    windows: Sequence[Window], scores: Sequence[WindowScores]
) -> list[dict[str, int | float]]:
    """Positions of the largest KLD, worst first: where, the token read, and both first choices."""
    found = []
    for window, score in zip(windows, scores, strict=True):
        for position in np.argsort(-score.kld, kind="stable")[:WORST].tolist():
            found.append(
                {
                    "kld": float(score.kld[position]),
                    "window": window.index,
                    "position": position,
                    "document": window.documents[position],
                    "token": window.tokens[position],
                    "base": int(score.top_base[position]),
                    "candidate": int(score.top_candidate[position]),
                }
            )
    return sorted(found, key=lambda row: -row["kld"])[:WORST]


def _sums(score: WindowScores, rows: slice | NDArray[np.int64]) -> dict[str, float]:
    """Sums over some positions of a window; positions without a target count for divergence alone."""
    base, candidate = (
        _padded(values, len(score.kld))[rows] for values in (score.nll_base, score.nll_candidate)
    )
    known = np.ones(len(score.kld))
    known[-1] = 0
    return {
        "positions": float(len(score.kld[rows])),
        "targets": float(known[rows].sum()),
        "kld": float(score.kld[rows].sum()),
        "agree": float(score.agree[rows].sum()),
        "nll_base": float(base.sum()),
        "nll_candidate": float(candidate.sum()),
        "nll_difference": float((candidate - base).sum()),
    }


def _padded(values: Numbers, length: int) -> Numbers:
    return np.concatenate([values, np.zeros(length - len(values))])


def _sums_of(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: math.fsum(row[name] for row in rows) for name in rows[0]}


def _means(sums: Mapping[str, float]) -> dict[str, Any]:
    targets = sums["targets"]
    return {
        "positions": int(sums["positions"]),
        "kld": sums["kld"] / sums["positions"],
        "nll_base": sums["nll_base"] / targets if targets else None,
        "nll_candidate": sums["nll_candidate"] / targets if targets else None,
        "top1": sums["agree"] / sums["positions"],
    }


def _by_document(windows: Sequence[Window], scores: Sequence[WindowScores]) -> dict[int, dict[str, float]]:
    parts: dict[int, list[dict[str, float]]] = {}
    for window, score in zip(windows, scores, strict=True):
        owners = np.asarray(window.documents)
        for document in dict.fromkeys(window.documents):
            parts.setdefault(document, []).append(_sums(score, np.flatnonzero(owners == document)))
    return {document: _sums_of(found) for document, found in parts.items()}


def _intervals(
    by_document: Mapping[int, Mapping[str, float]],
    by_window: Sequence[Mapping[str, float]],
    value: str,
    weight: str,
    seed: int,
) -> dict[str, list[float]]:
    groups = {
        "interval_documents": [row for row in by_document.values() if row[weight]],
        "interval_windows": by_window,
    }
    return {
        name: list(interval_of_ratio([row[value] for row in rows], [row[weight] for row in rows], seed))
        for name, rows in groups.items()
    }
