"""Drawing tokens: one keyed draw, the same alone, drafted, batched or over shards of the vocabulary."""

from intarsia.core.config import SamplingSettings
from intarsia.engine.sampling.candidates import Candidates, best_noisy, likeliest, peaks
from intarsia.engine.sampling.draw import NOTHING_ALLOWED, allowed, draw, pick, seed_from
from intarsia.engine.sampling.rows import Rows

__all__ = [
    "NOTHING_ALLOWED",
    "Candidates",
    "Rows",
    "SamplingSettings",
    "allowed",
    "best_noisy",
    "draw",
    "likeliest",
    "peaks",
    "pick",
    "seed_from",
]
