"""Checkpoints of a real geometry with random weights: valid in every format, and usable."""

from intarsia.evidence.synthetic.geometry import geometry
from intarsia.evidence.synthetic.memory import network, weights
from intarsia.evidence.synthetic.write import synthesize

__all__ = ["geometry", "network", "synthesize", "weights"]
