"""Probabilities as integers, and keys that pack them."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from intarsia.engine.sampling.candidates import PADDING, pack, unpack
from intarsia.engine.sampling.fixedpoint import FRACTION_BITS, MASS_BITS, distances, gumbel, masses, scale
from tests.engine.test_sampling import one_row


class TestFixedPoint:
    def test_masses_are_powers_of_two_to_six_digits(self):
        bits = torch.arange(0.0, 39.0, 0.0137, dtype=torch.float64)
        mass = masses((bits * 2.0**FRACTION_BITS).long()).double() * 2.0**-MASS_BITS
        exact = torch.pow(2.0, -bits)
        # the distance is cut at 2**-20 bits, the table's entries at 2**-23, the mass itself at 2**-40
        assert torch.all((mass - exact).abs() <= exact * (2.0**-20 * math.log(2) + 2.0**-23) + 2.0**-40)

    def test_masses_end_and_peak(self):
        assert masses(torch.tensor([0])).item() == 1 << MASS_BITS
        assert masses(torch.tensor([41 << FRACTION_BITS, 1 << 52])).tolist() == [0, 0]

    def test_masses_never_rise_with_distance(self):
        fine = torch.arange(0, 3 << 20) << (FRACTION_BITS - 20)
        assert torch.all(masses(fine).diff() <= 0)

    def test_noise_is_the_gumbel_transform(self):
        words = torch.tensor([0, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 12345, 0xFFFFFFFF])
        low = torch.tensor([0, 0xFFFFFFFF, 0, 0xFFFFFFFF, 678 << 12, 0])
        uniform = ((words * 2**20 + low // 4096).double() + 0.5) / 2**52
        exact = [
            -math.log2(-math.log2(u)) if u < 0.9 else -math.log2(-math.log1p(u - 1) / math.log(2))
            for u in uniform
        ]
        got = gumbel(words, low).double() * 2.0**-FRACTION_BITS
        assert torch.allclose(got, torch.tensor(exact, dtype=torch.float64), rtol=0, atol=2.0**-31)

    def test_distance_of_minus_infinity_is_bounded(self):
        rows = torch.tensor([scale(1e-4)], dtype=torch.float64)
        got = distances(one_row([1.0, -math.inf, -3e38]), torch.tensor([1.0]), rows)
        assert got.tolist() == [[0, 1 << 52, 1 << 52]]

    def test_arithmetic_does_not_depend_on_the_place_in_a_vector(self):
        generator = torch.Generator().manual_seed(3)
        values = torch.randn(1, 103, generator=generator)
        peak, rows = values.amax(1), torch.tensor([scale(0.7)], dtype=torch.float64)
        whole = masses(distances(values, peak, rows))
        single = [masses(distances(values[:, i : i + 1].clone(), peak, rows)).item() for i in range(103)]
        assert whole[0].tolist() == single


class TestPacking:
    @given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=30))
    def test_order_is_value_down_then_id_up(self, values):
        keys = pack(one_row(values), torch.arange(len(values))[None])
        logits, ids = unpack(keys.sort(dim=1, descending=True).values)
        expected = sorted(range(len(values)), key=lambda i: (-np.float32(values[i]), i))
        assert ids[0].tolist() == expected
        assert logits[0].tolist() == [values[i] for i in expected]

    def test_padding(self):
        logits, ids = unpack(torch.tensor([[PADDING]]))
        assert logits.item() == -math.inf
        assert ids.item() == -1
