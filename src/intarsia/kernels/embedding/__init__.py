"""Rows of the embedding matrix."""

from intarsia.kernels.embedding.reference import embed

__all__ = ["embed"]
