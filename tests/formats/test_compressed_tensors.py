"""Where compressed-tensors stores the same thing, its reading of our bytes is ours."""

import torch

from intarsia import formats
from intarsia.formats import codes
from tests.formats import oracles
from tests.formats.weights import decoded_e2m1, make


def test_packed_codes_read_the_same() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(16, 16)
    theirs = oracles.unpack_fp4_from_uint8(every, 16, 32, dtype=torch.float32)
    assert torch.equal(decoded_e2m1(every), theirs)
    assert torch.equal(oracles.pack_fp4_to_uint8(theirs), every)


def test_nvfp4_weights_read_the_same_under_the_inverse_global() -> None:
    """Its global scale divides. Under one that is a power of two both senses are exact, and so must
    the values be.
    """
    stored = formats.get("NVFP4").encode(make("heavy_tailed", torch.bfloat16), amax=2688 * 2.0**10)
    assert stored["weight_scale_2"] == 2.0**10
    elements = oracles.unpack_fp4_from_uint8(stored["weight"], 128, 256, dtype=torch.float32)
    step = stored["weight_scale"].float() / (1 / stored["weight_scale_2"])
    theirs = (elements.view(128, 16, 16) * step.unsqueeze(-1)).view(128, 256)
    assert torch.equal(formats.get("NVFP4").decode(stored), theirs)


def test_exponents_read_the_same() -> None:
    stored = formats.get("MXFP8").encode(make("heavy_tailed", torch.bfloat16))
    theirs = oracles.decompress_mx_scale(stored["weight_scale"]).float()
    assert torch.equal(codes.decode_e8m0(stored["weight_scale"]), theirs)
