"""Compressed scales expanded on a GPU."""

import pytest
import torch

from tests.kernels.csf_interpreted import CODECS, SHAPES, broken, right

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("shape", [*SHAPES, (2048, 256), (4096, 128)], ids=str)
def test_scales_are_those_that_were_compressed(codec, shape):
    assert right(codec, *shape, device="cuda")


def test_what_breaks_a_rule_is_noted():
    assert [case for case, noted in broken("cuda") if not noted] == []
