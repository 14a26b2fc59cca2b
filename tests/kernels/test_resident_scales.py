"""Compressed scales of experts in tiles: exact whatever they are, and small where they are as published."""

import pytest
import torch

from intarsia.kernels.experts import packed
from intarsia.kernels.experts.resident import compress, expand


def scales(kind: str, shape=(3, 256, 32)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    if kind == "random":
        return torch.randint(0, 127, shape, generator=generator, dtype=torch.uint8)
    base = torch.randint(0, 112, (*shape[:2], 1), generator=generator, dtype=torch.uint8)
    found = base + torch.randint(0, 16, shape, generator=generator, dtype=torch.uint8)
    odd = torch.rand(shape, generator=generator) < {"none": 0.0, "few": 0.003, "many": 0.1}[kind]
    found = torch.where(odd, torch.randint(0, 127, shape, generator=generator, dtype=torch.uint8), found)
    return packed._to_tiles(found, False, packed._scales_to_tiles)


@pytest.mark.parametrize("kind", ["random", "none", "few", "many"])
def test_every_byte_comes_back(kind):
    plain = scales(kind)
    compressed = compress(plain)
    assert torch.equal(expand(compressed), plain)
    assert torch.equal(expand(compressed, slice(1, 2)), plain[1:2])


def test_extremes():
    plain = torch.zeros(1, 128, 8, dtype=torch.uint8)
    plain[0, ::2] = 126
    plain[0, 5, 3] = 126
    assert torch.equal(expand(compress(plain)), plain)


def test_bytes_saved():
    plain = scales("none", (4, 512, 256))
    compressed = compress(plain)
    assert compressed.records.shape[0] == 1
    assert compressed.nbytes / plain.nbytes == pytest.approx(0.5 + 1 / 32 + 1 / 256, abs=1e-4)
    few = compress(scales("few", (4, 512, 256)))
    assert few.nbytes / plain.nbytes == pytest.approx(0.56, abs=0.01)


def test_the_parts_mean_what_they_say():
    plain = scales("few")
    compressed = compress(plain)
    lanes = plain.view(3, 2, 4, 32, 4, 4, 2)
    for expert, tile, step, place, lane, quarter in [
        (0, 0, 0, 0, 0, 0),
        (1, 1, 3, 17, 2, 3),
        (2, 0, 2, 31, 3, 1),
    ]:
        mark = int(compressed.marks[expert, tile, step, place // 8])
        bit = 4 * (place % 8) + lane
        if mark >> bit & 1:
            number = (mark >> 32) + bin(mark & ((1 << bit) - 1)).count("1")
            pair = compressed.records[number].view(torch.uint8)[2 * quarter : 2 * quarter + 2]
        else:
            nibbles = int(compressed.nibbles[expert, tile, step, place, lane]) >> 8 * quarter & 0xFF
            base = int(compressed.bases[expert, tile, place]) >> 8 * quarter & 0xFF
            pair = torch.tensor([base + (nibbles & 15), base + (nibbles >> 4)])
        assert pair.tolist() == lanes[expert, tile, step, place, lane, quarter].tolist()
    marked = sum(bin(mark & 0xFFFFFFFF).count("1") for mark in compressed.marks.flatten().tolist())
    assert marked == compressed.records.shape[0] - 1 > 0
