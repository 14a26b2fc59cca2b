"""Kimi delta attention: a gated delta rule with a decay per key channel, after a short causal convolution."""

from intarsia.kernels.kda.arguments import Cache, Parameters, Projected
from intarsia.kernels.kda.convolution import convolve
from intarsia.kernels.kda.gates import log_decay, unit_heads
from intarsia.kernels.kda.low_rank import Matrices, beta_decay_gate, decay_and_gate, fits_beside
from intarsia.kernels.kda.output import gated_norm
from intarsia.kernels.kda.scan import scan
from intarsia.kernels.kda.step import attention_step

__all__ = [
    "Cache",
    "Matrices",
    "Parameters",
    "Projected",
    "attention_step",
    "beta_decay_gate",
    "convolve",
    "decay_and_gate",
    "fits_beside",
    "gated_norm",
    "log_decay",
    "scan",
    "unit_heads",
]
