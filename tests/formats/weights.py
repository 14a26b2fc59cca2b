"""Weights on which encoders tend to differ. Every one is deterministic."""

from collections.abc import Callable

import torch

from intarsia.formats import codes

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def normal() -> torch.Tensor:
    return torch.randn(128, 256) * 0.02


def heavy_tailed() -> torch.Tensor:
    return (
        torch.randn(128, 256) / torch.rand(128, 256).clamp(min=1e-3) * torch.logspace(-4, 0, 128).unsqueeze(1)
    )


def zero_blocks() -> torch.Tensor:
    weight = torch.randn(128, 256)
    weight[:, 64:128] = 0
    weight[5] = -0.0
    weight[7, 3:] = 0
    return weight


def ties() -> torch.Tensor:
    """Quarters of E2M1's range and halves of E4M3's steps, in blocks whose scale comes out as one."""
    weight = torch.randint(-24, 25, (128, 256)) / 4.0
    weight[:, ::16] = 6.0
    weight[0, 0] = 2688.0
    return weight


def e4m3_ties() -> torch.Tensor:
    weight = torch.randint(-448 * 8, 448 * 8 + 1, (128, 256)) / torch.tensor([8.0, 64.0]).repeat(128)
    weight[:, ::32] = 448.0
    return weight


def tiny_beside_outlier() -> torch.Tensor:
    weight = torch.randn(128, 256) * 1e-6
    weight[3, 5] = 100.0
    weight[9, 17] = -3.0
    return weight


def one_value() -> torch.Tensor:
    weight = torch.zeros(128, 256)
    weight[77, 201] = -0.37
    return weight


def powers_of_two() -> torch.Tensor:
    return (
        torch.exp2(torch.randint(-14, 15, (128, 256)).float())
        * torch.randint(0, 2, (128, 256)).sub(0.5).sign()
    )


def just_above_448() -> torch.Tensor:
    """Block maxima a few float32 steps around 448 * 2^k and 6 * 2^k, where rounding log2 loses an exponent
    step.
    """
    weight = torch.randn(128, 256) * 1e-3
    k = torch.arange(-20, 20).repeat(26)[: 128 * 8].view(128, 8)
    steps = torch.arange(128 * 8).view(128, 8) % 23 - 6
    for base, column in ((448.0, 0), (6.0, 128)):
        bits = (base * torch.exp2(k[:, :4].float())).view(torch.int32) + steps[:, :4].int()
        weight[:, column : column + 128 : 32] = bits.view(torch.float32)
    return weight


MAKERS: dict[str, Callable[[], torch.Tensor]] = {
    maker.__name__: maker
    for maker in (
        normal,
        heavy_tailed,
        zero_blocks,
        ties,
        e4m3_ties,
        tiny_beside_outlier,
        one_value,
        powers_of_two,
        just_above_448,
    )
}


def make(name: str, dtype: torch.dtype) -> torch.Tensor:
    """One of the weights, in a dtype that can hold it."""
    torch.manual_seed(7)
    weight = MAKERS[name]()
    return weight.clamp(-60000, 60000).to(dtype) if dtype == torch.float16 else weight.to(dtype)


def decoded_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """Float32 values [..., 2n] of packed codes [..., n]."""
    out = torch.empty(*packed.shape[:-1], 2 * packed.shape[-1], device=packed.device)
    codes.decode_e2m1_into(packed, out)
    return out
