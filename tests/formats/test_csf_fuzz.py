"""Thousands of damaged streams: each is refused by a CsfError, or decodes to what a plain reference
reads from it.
"""

import random

import pytest
import torch

from intarsia.formats import CsfError, csf
from tests.formats import csf_reference

CASES = 2500
ROWS, COLUMNS = 64, 6


def original(codec: str, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    scales = (torch.randn(ROWS, COLUMNS) * 2 + 60).round()
    scales[torch.rand(ROWS, COLUMNS) < 0.05] = 3
    return csf.encode(scales.to(torch.uint8), codec)


def damage(components: dict[str, torch.Tensor], rng: random.Random) -> None:
    """One to three changes of bytes, lengths, dtypes, shapes or names."""
    for _ in range(rng.randint(1, 3)):
        if not components:
            return
        name = rng.choice(sorted(components))
        tensor = components[name]
        kind = rng.randrange(8)
        if kind < 4 and tensor.numel():
            bytes_ = tensor.contiguous().view(-1).view(torch.uint8).clone()
            bytes_[rng.randrange(bytes_.numel())] = rng.choice(
                [0, 1, 63, 64, 127, 128, 240, 241, 255, rng.randrange(256)]
            )
            components[name] = bytes_.view(tensor.dtype).view(tensor.shape)
        elif kind == 4:
            components[name] = tensor.reshape(-1)[: rng.randrange(tensor.numel() + 1)]
        elif kind == 5:
            extra = torch.zeros(rng.randint(1, 9), dtype=torch.uint8)
            components[name] = (
                torch.cat([tensor.reshape(-1).view(torch.uint8), extra]) if tensor.numel() else extra
            )
        elif kind == 6:
            components[rng.choice(["csf_base", "csf_codes", "nvfp4_csf_fixed", "other"])] = components.pop(
                name
            )
        else:
            size = rng.choice([(), (0,), (1,), (2, ROWS // 32, 3), tensor.shape[::-1]])
            fitting = tensor.reshape(-1)[: torch.Size(size).numel()]
            components[name] = (
                fitting.reshape(size) if fitting.numel() == torch.Size(size).numel() else fitting
            )


def reference(components: dict[str, torch.Tensor], codec: str) -> list[list[int]]:
    if codec == "csf_32x2_v1":
        values = {name: tensor.reshape(-1).tolist() for name, tensor in components.items()}
        out = [[0] * COLUMNS for _ in range(ROWS)]
        escape = 0
        for block, base in enumerate(values["csf_base"]):
            top, left = block // (COLUMNS // 2) * 32, block % (COLUMNS // 2) * 2
            for at in range(64):
                code = values["csf_codes"][block * 32 + at // 2] >> (at % 2 * 4) & 15
                out[top + at // 2][left + at % 2] = base + code
            for _ in range(values["csf_escape_count"][block]):
                at = values["csf_escape_position"][escape]
                out[top + at // 2][left + at % 2] = values["csf_escape_value"][escape]
                escape += 1
        return out
    fixed, exceptions = (components[name].reshape(-1).tolist() for name in csf.components(codec))
    return csf_reference.decode_slab(fixed, exceptions, ROWS, COLUMNS, 4 if codec == "nvfp4_slab" else 1)


@pytest.mark.parametrize("codec", csf.CODECS)
def test_damage_is_refused_or_harmless(codec: str) -> None:
    rng = random.Random(11)
    intact = [original(codec, seed) for seed in range(8)]
    accepted = 0
    for _ in range(CASES):
        components = dict(rng.choice(intact))
        damage(components, rng)
        try:
            decoded = csf.decode(components, ROWS, COLUMNS, codec)
        except CsfError:
            assert csf.check(components, ROWS, COLUMNS, codec)
            continue
        accepted += 1
        assert decoded.tolist() == reference(components, codec)
    assert CASES // 20 < accepted < CASES // 2
