"""Every operation that is timed, with its measure, and the sizes of all of them."""

from collections.abc import Callable, Mapping

from intarsia.evidence.kernels import attention, encode, experts, head, hyper, kda, linear, small, storing
from intarsia.evidence.kernels.bench import Bench
from intarsia.evidence.kernels.settings import Operation
from intarsia.evidence.synthetic import geometry
from intarsia.families.glm5_next.config import Glm5NextConfig

GEOMETRY = "glm-5.3-flash"
MEASURES: Mapping[Operation, Callable[[Bench], None]] = {
    "linear": linear.measure,
    "experts": experts.measure,
    "kda": kda.measure,
    "attention": attention.measure,
    "hyper": hyper.measure,
    "head": head.measure,
    "small": small.measure,
    "encode": encode.measure,
    "storing": storing.measure,
}


PEER_MODULES = (*kda.PEER_MODULES, *encode.PEER_MODULES)
"""What peers are, where they are installed."""


def config_of_geometry() -> Glm5NextConfig:
    """The sizes."""
    return Glm5NextConfig.from_checkpoint_config(geometry(GEOMETRY))
