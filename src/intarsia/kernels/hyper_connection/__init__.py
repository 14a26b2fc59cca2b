"""Manifold-constrained hyper-connections: several residual streams, mixed before and after every block."""

from intarsia.kernels.hyper_connection.reference import HyperMix, collect, merge, mix, update
from intarsia.kernels.hyper_connection.sites import Pending, Rule, Site, finish, site

__all__ = [
    "HyperMix",
    "Pending",
    "Rule",
    "Site",
    "collect",
    "finish",
    "merge",
    "mix",
    "site",
    "update",
]
