"""RMS norm and layer norm."""

from intarsia.kernels.norm.reference import layer_norm, rms_norm

__all__ = ["layer_norm", "rms_norm"]
