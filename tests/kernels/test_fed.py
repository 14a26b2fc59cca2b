"""Tokens that lie on the device: the torch form, and what the kernel compiles to."""

import importlib.util

import pytest
import torch

from intarsia.kernels.embedding import feed

TOKENS = torch.tensor([5, 6, 7, 8])
PLACES = torch.tensor([-1, 2, 0, 1], dtype=torch.int32)
SOURCE = torch.tensor([11, -1, 13])


def assembly(kernel, kinds, constants, warps=1):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource

    source = ASTSource(kernel, kinds | dict.fromkeys(constants, "constexpr"), constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}).asm["ptx"]


def test_tokens_are_taken_from_where_their_places_say():
    assert feed(TOKENS, PLACES, SOURCE).tolist() == [5, 13, 11, 0]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_the_kernel_compiles_for_hopper():
    from intarsia.kernels.embedding.triton_fed import feed_rows

    pointers = {"tokens": "*i64", "places": "*i32", "source": "*i64", "out": "*i64", "rows": "i32"}
    assert assembly(feed_rows, pointers, {"SIZE": 64})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("rows", [1, 3, 17, 256])
def test_a_gpu_takes_the_same_tokens(rows):
    generator = torch.Generator().manual_seed(rows)
    tokens = torch.randint(0, 1000, (rows,), generator=generator)
    places = torch.randint(-2, 40, (rows,), generator=generator, dtype=torch.int32)
    source = torch.randint(-2, 1000, (40,), generator=generator)
    assert torch.equal(feed(tokens.cuda(), places.cuda(), source.cuda()).cpu(), feed(tokens, places, source))
