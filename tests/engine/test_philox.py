"""Philox against Random123's published known-answer tests and against arithmetic on Python integers."""

import pytest
import torch

from intarsia.engine.sampling.philox import philox4x32

# Random123, file tests/kat_vectors, lines "philox4x32 10": counter, key, output.
KNOWN_ANSWERS = [
    ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def words(values):
    return tuple(torch.tensor([value]) for value in values)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter, key, answer):
    assert tuple(int(word) for word in philox4x32(words(counter), words(key))) == answer


def test_a_block_does_not_depend_on_its_neighbours():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 2**32, (3, 1001), generator=generator)
    positions = torch.randint(0, 2**32, (3, 1), generator=generator)
    zero = torch.zeros(3, 1, dtype=torch.int64)
    whole = philox4x32((ids, positions, zero, zero), (positions, zero))
    column = ids[:, 700:701].clone()
    part = philox4x32((column, positions, zero, zero), (positions, zero))
    for a, b in zip(whole, part, strict=True):
        assert torch.equal(a[:, 700:701], b)
        assert int(a.min()) >= 0
        assert int(a.max()) < 2**32
