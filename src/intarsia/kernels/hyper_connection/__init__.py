"""Manifold-constrained hyper-connections: several residual streams, mixed before and after every block."""

from intarsia.kernels.hyper_connection.reference import HyperMix, collect, merge, mix, update

__all__ = ["HyperMix", "collect", "merge", "mix", "update"]
