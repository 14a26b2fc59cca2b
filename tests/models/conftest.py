"""Networks that several modules run; transformers runs each of them once a session."""

import pytest

from intarsia.families.glm5_next.config import Glm5NextConfig
from tests.models.cases import (
    POOLS_OF_2,
    POOLS_OF_4,
    POOLS_OF_8,
    SENSITIVE,
    Case,
    build,
    random_case,
    sensitive_tensors,
)

# Seeds for which no two pools or experts score so alike that rounding could swap them at the cut.
RANDOM = {"pools_of_4": (POOLS_OF_4, 10), "pools_of_2": (POOLS_OF_2, 1), "pools_of_8": (POOLS_OF_8, 5)}


@pytest.fixture(scope="session", params=RANDOM)
def case(request, tmp_path_factory) -> Case:
    config, seed = RANDOM[request.param]
    return random_case(config, seed, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def sensitive(tmp_path_factory) -> Case:
    tensors = sensitive_tensors(Glm5NextConfig.from_checkpoint_config(SENSITIVE), seed=22)
    return build(SENSITIVE, tensors, tmp_path_factory.mktemp("sensitive"), seed=22)
