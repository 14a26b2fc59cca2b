"""Rows of the embedding matrix."""

from intarsia.kernels.embedding.fed import feed
from intarsia.kernels.embedding.joint import join_norms
from intarsia.kernels.embedding.reference import embed

__all__ = ["embed", "feed", "join_norms"]
