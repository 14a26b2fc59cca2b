"""Which experts a row goes to, and with what weight."""

from intarsia.kernels.router.reference import Routing, route

__all__ = ["Routing", "route"]
