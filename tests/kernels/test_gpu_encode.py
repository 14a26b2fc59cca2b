"""The encoders on a GPU: every byte that of the formats on the CPU, and the same errors."""

import pytest
import torch

from intarsia import formats
from intarsia.formats.errors import UnencodableError
from intarsia.formats.sources import Deferred
from intarsia.kernels import choice
from intarsia.kernels.encode import encode, encode_into, encodes_into
from tests.kernels.encode_interpreted import NAMES, weights

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


def large() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(1000, 4096, generator=generator)
    return (values * 2.0 ** torch.randint(-30, 20, (1000, 1), generator=generator)).bfloat16()


@pytest.mark.parametrize("name", [*NAMES, "W4A16_NVFP4"])
@pytest.mark.parametrize("kind", [*weights(), "large"])
def test_bytes_are_those_of_the_cpu(name, kind):
    weight = large() if kind == "large" else weights()[kind]
    expected = formats.get(name).encode(weight)
    with choice.forced("triton"):
        stored = encode(name, weight.cuda())
    for suffix, tensor in expected.tensors.items():
        other = stored.tensors[suffix].cpu()
        assert other.dtype == tensor.dtype
        assert other.shape == tensor.shape
        assert torch.equal(other.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), suffix


@pytest.mark.parametrize("shape", [(), (3,), (3, 2)])
def test_a_given_amax_is_used_for_its_rows(shape):
    weight = torch.randn(3, 8, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    amax = torch.linspace(6.0, 9.0, max(1, torch.Size(shape).numel())).reshape(shape)
    expected = formats.get("NVFP4").encode(weight, amax=amax)
    stored = encode("NVFP4", weight.cuda(), amax=amax.cuda())
    for suffix, tensor in expected.tensors.items():
        other = stored.tensors[suffix].cpu()
        assert torch.equal(other.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), suffix


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_cannot_be_encoded_is_named_or_noted(name, bad):
    weight = torch.ones(300, 64, device="cuda", dtype=torch.bfloat16)
    weight[257, 33] = bad
    with pytest.raises(UnencodableError, match="row 257, column 33"):
        encode(name, weight)
    fault = torch.zeros((), dtype=torch.bool, device="cuda")
    with Deferred(fault):
        encode(name, weight)
    assert bool(fault)


def test_an_amax_below_the_weight_is_refused():
    weight = torch.ones(4, 64, device="cuda")
    with pytest.raises(UnencodableError, match="amax"):
        encode("NVFP4", weight, amax=0.5)


def stacked(name, stack, share, device):
    """A stack's tensors inside larger ones, whose ends must stay, and the fault."""
    layout = formats.get(name).layout(tuple(stack.shape))
    whole = {
        suffix: torch.full((len(stack) + 2, *spec.shape[1:]), 77.0, device=device).to(spec.dtype)
        for suffix, spec in layout.items()
    }
    fault = torch.zeros((), dtype=torch.bool, device=device)
    encode_into(name, stack, {suffix: one[1:-1] for suffix, one in whole.items()}, fault, share=share)
    return {suffix: one.cpu() for suffix, one in whole.items()}, bool(fault)


@pytest.mark.parametrize(("name", "share"), [("NVFP4", 1), ("NVFP4", 2), ("NVFP4", 3), ("MXFP8", 1)])
@pytest.mark.parametrize("shape", [(6, 8, 64), (6, 130, 96), (6, 512, 2048)])
def test_a_stack_is_encoded_in_its_place(name, share, shape):
    generator = torch.Generator().manual_seed(5)
    scale = 2.0 ** torch.randint(-20, 20, (6, 1, 1), generator=generator)
    stack = (torch.randn(shape, generator=generator) * scale).bfloat16()
    assert encodes_into(name, stack.dtype, torch.device("cuda"), shape[1:])
    expected, _ = stacked(name, stack, share, "cpu")
    found, fault = stacked(name, stack.cuda(), share, "cuda")
    assert not fault
    for suffix, tensor in expected.items():
        assert torch.equal(tensor.view(torch.uint8), found[suffix].view(torch.uint8)), suffix


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at", [0, 5])
def test_a_stack_with_a_value_that_is_not_finite_is_noted(name, at):
    stack = torch.ones(6, 128, 128, device="cuda", dtype=torch.bfloat16)
    stack[at, 100, 127] = torch.nan
    _, fault = stacked(name, stack, 2 if name == "NVFP4" else 1, "cuda")
    assert fault
