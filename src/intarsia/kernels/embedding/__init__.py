"""Rows of the embedding matrix."""

from intarsia.kernels.embedding.joint import join_norms
from intarsia.kernels.embedding.reference import embed

__all__ = ["embed", "join_norms"]
