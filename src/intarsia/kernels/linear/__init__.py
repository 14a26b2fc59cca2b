"""Matrix products of rows with weights in any stored format: one, several of the same rows, several apart."""

from intarsia.kernels.linear.groups import linear_stack, linears, linears_apart
from intarsia.kernels.linear.product import linear
from intarsia.kernels.linear.swiglu import linear_swiglu

__all__ = ["linear", "linear_stack", "linear_swiglu", "linears", "linears_apart"]
