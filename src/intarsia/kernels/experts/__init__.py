"""Feed-forward blocks: one SwiGLU for all rows, or many behind a router."""

from intarsia.kernels.experts.reference import routed_experts, swiglu

__all__ = ["routed_experts", "swiglu"]
