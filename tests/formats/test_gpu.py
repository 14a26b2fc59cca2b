"""A GPU encodes to the CPU's bytes and decodes to its values, for every format, dtype and adversarial
weight.
"""

import pytest
import torch

from intarsia import formats
from intarsia.formats import codes, csf
from tests.formats.weights import DTYPES, MAKERS, decoded_e2m1, make

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    pair = [each.cpu().contiguous().view(-1).view(torch.uint8) for each in (left, right)]
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(*pair)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("name", formats.names())
def test_the_same_bytes_and_values(name: str, maker: str, dtype: torch.dtype) -> None:
    number, weight = formats.get(name), make(maker, dtype)
    here, there = number.encode(weight), number.encode(weight.cuda())
    for suffix, tensor in here.items():
        assert same(tensor, there[suffix]), suffix
    for target in DTYPES:
        assert same(number.decode(here, target), number.decode(there, target))
    stack = torch.stack([weight, weight * 0.3])
    amax = stack.abs().amax(dim=(1, 2)).float() * 1.1
    for suffix, tensor in number.encode(stack, amax=amax).items():
        assert same(tensor, number.encode(stack.cuda(), amax=amax.cuda())[suffix]), suffix


@pytest.mark.parametrize("name", formats.names())
def test_the_same_cuts(name: str) -> None:
    number, weight = formats.get(name), make("heavy_tailed", torch.bfloat16)
    rows, columns = range(30, 101), range(32, 224)
    here = number.decode(number.cut(number.encode(weight), rows, columns))
    there = number.decode(number.cut(number.encode(weight.cuda()), rows, columns))
    assert same(here, there)


def test_every_e4m3_and_e2m1_byte() -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.uint8)
    for decode in (codes.decode_e4m3, decoded_e2m1):
        assert same(decode(every), decode(every.cuda()))
    values = torch.randn(1 << 20) * torch.exp2(torch.randint(-140, 120, (1 << 20,)).float())
    assert same(codes.ceil_log2_byte(values.abs()), codes.ceil_log2_byte(values.abs().cuda()))
    assert same(codes.encode_e4m3(values), codes.encode_e4m3(values.cuda()))


@pytest.mark.parametrize("codec", csf.CODECS)
def test_the_same_compressed_scales(codec: str) -> None:
    torch.manual_seed(0)
    scales = (torch.randn(256, 64) * 4 + 90).round()
    scales[torch.rand(256, 64) < 0.03] = 7
    matrix = scales.to(torch.uint8)
    here, there = csf.encode(matrix, codec), csf.encode(matrix.cuda(), codec)
    for name, tensor in here.items():
        assert same(tensor, there[name]), name
    assert same(csf.decode(there, 256, 64, codec), matrix)
    part = csf.cut(there, (256, 64), range(64, 192), range(16, 48), codec)
    assert same(csf.decode(part, 128, 32, codec), matrix[64:192, 16:48])
