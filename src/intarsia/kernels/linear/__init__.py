"""Matrix product of rows with a weight in any stored format."""

from intarsia.kernels.linear.reference import linear

__all__ = ["linear"]
