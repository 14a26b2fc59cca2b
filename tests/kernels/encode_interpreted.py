"""The Triton encoders in Triton's interpreter against `formats`: run by `interpreting`.

Prints one JSON object: case -> what differs, the empty string when every byte is equal.
"""

import json

import torch
from torch import Tensor

from intarsia import formats
from intarsia.kernels.encode import launch

NAMES = ("MXFP8", "NVFP4", "FP8_PB_WO")


def weights() -> dict[str, Tensor]:
    """Matrices whose groups cover scales, ties, subnormal and zero blocks."""
    g = torch.Generator().manual_seed(1)
    normal = torch.randn(24, 96, generator=g)
    exponents = torch.randint(-40, 20, (24, 6, 1), generator=g)
    spread = (torch.randn(24, 6, 16, generator=g) * 2.0**exponents).view(24, 96)
    bits = torch.randint(0, 0x7F80, (32, 64), generator=g).to(torch.int16).view(torch.bfloat16)
    quarters = torch.randint(-24, 25, (16, 32), generator=g) / 4.0
    sparse = torch.where(torch.rand(16, 64, generator=g) < 0.9, 0.0, torch.randn(16, 64, generator=g))
    sparse[3] = -0.0
    return {
        "normal": normal,
        "bfloat16": normal.bfloat16(),
        "float16": normal.half(),
        "spread": spread,
        "any finite bits": bits,
        "ties": quarters,
        "zeros": torch.zeros(4, 32),
        "tiny": normal * 1e-30,
        "sparse": sparse,
        "stack": torch.randn(3, 8, 64, generator=g).bfloat16(),
    }


def difference(name: str, weight: Tensor, amax: Tensor | float | None = None) -> str:
    """Which tensors of the two encoders differ."""
    fault = torch.zeros((), dtype=torch.bool)
    stored = launch.launch(name, weight, amax, fault)
    expected = formats.get(name).encode(weight, amax=amax)
    wrong = ["fault"] if bool(fault) else []
    for suffix, tensor in expected.tensors.items():
        other = stored.tensors[suffix]
        if tensor.shape != other.shape or tensor.dtype != other.dtype:
            wrong.append(f"{suffix}: {other.dtype} {list(other.shape)}")
        elif not torch.equal(_raw(tensor), _raw(other)):
            wrong.append(suffix)
    return ", ".join(wrong)


def into(name: str, share: int) -> str:
    """Which tensors of a stack differ that is written to places inside others."""
    stack = weights()["stack"].repeat(2, 1, 1) * torch.arange(1.0, 7.0)[:, None, None].bfloat16()
    whole = {
        suffix: torch.full((8, *spec.shape[1:]), 77.0, dtype=torch.float32).to(spec.dtype)
        for suffix, spec in formats.get(name).layout(tuple(stack.shape)).items()
    }
    before = {suffix: _raw(tensor).clone() for suffix, tensor in whole.items()}
    fault = torch.zeros((), dtype=torch.bool)
    places = {suffix: tensor[1:7] for suffix, tensor in whole.items()}
    launch.launch_into(name, stack, places, fault, share)
    wrong = ["fault"] if bool(fault) else []
    for first in range(0, 6, share):
        amax = stack[first : first + share].abs().amax().float()
        for index in range(first, first + share):
            for suffix, tensor in formats.get(name).encode(stack[index], amax=amax).tensors.items():
                before[suffix][1 + index] = _raw(tensor)
    return ", ".join([*wrong, *(suffix for suffix in whole if not _same(whole[suffix], before[suffix]))])


def _same(tensor: Tensor, raw: Tensor) -> bool:
    return torch.equal(_raw(tensor), raw)


def _raw(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor.view(torch.int32)


def noted(name: str, weight: Tensor, amax: float | None = None) -> str:
    fault = torch.zeros((), dtype=torch.bool)
    launch.launch(name, weight, amax, fault)
    return "" if bool(fault) else "not noted"


def faults() -> dict[str, str]:
    """What must be noted: values that are not finite, and an amax that does not cover the weight."""
    found = {}
    for bad in (torch.nan, torch.inf, -torch.inf):
        weight = torch.ones(4, 64)
        weight[2, 33] = bad
        for name in NAMES:
            found[f"{name} {bad}"] = noted(name, weight)
    for amax in (0.5, torch.nan, torch.inf, -1.0):
        found[f"amax {amax}"] = noted("NVFP4", torch.ones(4, 64), amax)
    return found


def main() -> None:
    torch.set_num_threads(1)
    found = {
        f"{name} {kind}": difference(name, weight) for name in NAMES for kind, weight in weights().items()
    }
    for shape in ((300, 130), (2, 129, 257)):
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(2)).bfloat16()
        found[f"FP8_PB_WO {list(shape)}"] = difference("FP8_PB_WO", weight)
    normal, stack = weights()["bfloat16"], weights()["stack"]
    found["NVFP4 given amax"] = difference("NVFP4", normal, 7.25)
    found["NVFP4 amax an expert"] = difference("NVFP4", stack, torch.tensor([6.0, 7.0, 8.0]))
    found["NVFP4 amax a part"] = difference("NVFP4", stack, torch.tensor([[6.0, 7.0]] * 3))
    for name in NAMES:
        for share in (1, 2, 3) if name == "NVFP4" else (1,):
            found[f"{name} into a stack, {share} share a scale"] = into(name, share)
    print(json.dumps(found | faults()))


if __name__ == "__main__":
    main()
