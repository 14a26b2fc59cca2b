"""The draw: probabilities, cuts, ties, and that neither batch, order, tiling nor shards change a token."""

import itertools
import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.core.errors import UsageError
from intarsia.engine import sampling
from intarsia.engine.sampling import SamplingSettings, draw
from intarsia.engine.sampling import candidates as candidates_module
from intarsia.engine.sampling.candidates import Candidates

draw_module = sys.modules["intarsia.engine.sampling.draw"]  # the package exports the function of that name


def one_row(values):
    return torch.tensor([values], dtype=torch.float32)


def draws(values, choice, count=20_000):
    """Tokens drawn from one row of logits at positions 0 .. count - 1."""
    logits = one_row(values).expand(count, -1)
    return draw(logits, torch.arange(count), choice)


def reference_allowed(logits, choice):
    """The allowed set by sorting and summing in float64, written apart from the fixed-point code."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if choice.top_k:
        order = order[: choice.top_k]
    weights = [math.exp((logits[i] - logits[order[0]]) / choice.temperature) for i in order]
    total, running, kept = sum(weights), 0.0, []
    for token, weight in zip(order, weights, strict=True):
        if choice.top_p < 1 and running >= choice.top_p * total:
            break
        running += weight
        if weight >= choice.min_p * weights[0]:
            kept.append(token)
    return kept


class TestDraw:
    def test_greedy_takes_the_lowest_of_equal_ids(self):
        logits = torch.tensor([[0.0, 2.0, 2.0], [-0.0, 0.0, -1.0], [0.0, -0.0, -1.0]])
        assert draw(logits, torch.arange(3), SamplingSettings()).tolist() == [1, 0, 0]

    def test_frequencies_match_probabilities(self):
        logits = [2.0, 1.0, 0.5, 0.0, -1.0, -2.0, 1.0, -math.inf]
        temperature = 0.8
        drawn = draws(logits, SamplingSettings(temperature=temperature, seed=11))
        observed = torch.bincount(drawn, minlength=8).double()
        expected = torch.softmax(torch.tensor(logits, dtype=torch.float64) / temperature, 0) * len(drawn)
        assert observed[7] == 0
        chi_square = ((observed - expected)[:7] ** 2 / expected[:7]).sum().item()
        assert chi_square < 22.5  # 99.9 % quantile of chi-square with 6 degrees of freedom

    def test_pairs_of_positions_are_independent(self):
        drawn = draws([0.0, 0.0], SamplingSettings(temperature=1.0, seed=5))
        pairs = torch.bincount(drawn[::2] * 2 + drawn[1::2], minlength=4).double()
        assert (
            (pairs - 2500) ** 2 / 2500 * (10_000 / len(drawn[::2]))
        ).sum().item() < 16.3  # 3 degrees, 99.9 %

    def test_seed_position_and_token_each_matter(self):
        flat = [0.0] * 512
        base = draws(flat, SamplingSettings(temperature=1.0, seed=1), 200)
        assert (base == draws(flat, SamplingSettings(temperature=1.0, seed=1 << 32), 200)).sum() < 10
        assert (base == draws(flat, SamplingSettings(temperature=1.0, seed=2), 200)).sum() < 10
        assert len(set(base.tolist())) > 150
        far = draw(one_row(flat), torch.tensor([1 << 32]), SamplingSettings(temperature=1.0, seed=1))
        assert far.item() != base[0].item()

    def test_pinned_draws(self):
        """The draw is a contract: these tokens may only change with a stated reason."""
        logits = ((torch.arange(6 * 97) * 37) % 101).float().view(6, 97) / 16
        choice = [
            SamplingSettings(temperature=1.0, seed=2**64 - 1),
            SamplingSettings(temperature=0.6, top_p=0.95, seed=7),
            SamplingSettings(temperature=1.5, top_k=5, seed=7),
            SamplingSettings(temperature=1.0, min_p=0.1, seed=7),
            SamplingSettings(temperature=1.0, top_k=20, top_p=0.5, min_p=0.05, seed=0),
            SamplingSettings(),
        ]
        assert draw(logits, torch.arange(100, 106), choice).tolist() == PINNED

    @pytest.mark.parametrize("top_k", [0, 1, 3, 50])
    @pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 1e-9])
    @pytest.mark.parametrize("min_p", [0.0, 0.2, 1.0])
    def test_allowed_sets(self, top_k, top_p, min_p):
        choice = SamplingSettings(temperature=1.3, top_k=top_k, top_p=top_p, min_p=min_p, seed=3)
        generator = torch.Generator().manual_seed(top_k)
        values = (torch.randn(20, generator=generator) * 2).tolist()
        values[4] = values[11] = max(values) + 0.25
        kept = set(reference_allowed(one_row(values)[0].tolist(), choice))
        drawn = set(draws(values, choice, 4000).tolist())
        assert drawn <= kept
        weights = torch.softmax(torch.tensor(values, dtype=torch.float64)[sorted(kept)] / 1.3, 0)
        likely = {token for token, weight in zip(sorted(kept), weights, strict=True) if weight > 0.01}
        assert likely <= drawn

    def test_a_token_on_the_edge_of_the_nucleus(self):
        """Four equal tokens and top_p 0.5: exactly two are kept, the lowest ids, whatever the rounding."""
        assert set(draws([0.0] * 4, SamplingSettings(temperature=1.0, top_p=0.5, seed=0), 500).tolist()) == {
            0,
            1,
        }
        assert set(draws([0.0] * 4, SamplingSettings(temperature=1.0, top_p=0.51, seed=0), 500).tolist()) == {
            0,
            1,
            2,
        }

    def test_a_nucleus_wider_than_the_first_look(self):
        choice = SamplingSettings(temperature=1.0, top_p=0.9, seed=4)
        logits = torch.zeros(300, 3000)
        drawn = draw(logits, torch.arange(300), choice)
        assert int(drawn.max()) in range(1100, 2700)

    def test_a_row_without_an_allowed_token_or_with_nan_gives_minus_one(self):
        rows = torch.zeros(4, 5)
        rows[0] = -math.inf
        rows[1, 3] = math.nan
        rows[2, 3] = math.inf
        choices = (
            SamplingSettings(),
            SamplingSettings(temperature=1.0, seed=1),
            SamplingSettings(temperature=1.0, seed=1, top_p=0.5),
        )
        for choice in choices:
            drawn = draw(rows, torch.arange(4), choice)
            assert drawn[:3].tolist() == [-1, -1, -1]
            assert drawn[3] >= 0

    def test_equal_sums_go_to_the_lowest_id(self, monkeypatch):
        """Equal logits with equal noise, also where tiles of the vocabulary meet."""
        for module in (candidates_module, draw_module):
            monkeypatch.setattr(
                module, "noise", lambda ids, rows: torch.zeros(len(rows.positions), ids.shape[1]).long()
            )
        monkeypatch.setattr(candidates_module, "_TILE", 8)
        logits = torch.zeros(1, 30)
        logits[0, [0, 1, 2]] = -1.0
        for choice in (
            SamplingSettings(temperature=1.0, seed=1),
            SamplingSettings(temperature=1.0, seed=1, top_k=20),
            SamplingSettings(temperature=1.0, seed=1, top_p=0.9),
        ):
            assert draw(logits, torch.arange(1), choice).item() == 3

    def test_small_and_large_temperatures(self):
        assert set(draws([0.0, 1.0], SamplingSettings(temperature=1e-4, seed=1), 300).tolist()) == {1}
        ones = draws([0.0, 1.0], SamplingSettings(temperature=100.0, seed=1), 4000).float().mean().item()
        assert abs(ones - 1 / (1 + math.exp(-0.01))) < 0.03


CHOICES = (
    SamplingSettings(),
    SamplingSettings(temperature=1.0, seed=9),
    SamplingSettings(temperature=0.7, top_k=40, seed=9),
    SamplingSettings(temperature=1.0, top_p=0.9, seed=9),
    SamplingSettings(temperature=1.2, top_k=30, top_p=0.8, min_p=0.02, seed=9),
    SamplingSettings(temperature=1.0, min_p=0.01, seed=9),
)


class TestInvariance:
    def logits(self, rows, vocabulary, seed=0):
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(rows, vocabulary, generator=generator) * 3
        values[:, ::7] = values[:, 3:4]  # many equal values
        return values

    def test_batch_and_row_order_do_not_matter(self):
        logits, positions = self.logits(18, 1500), torch.arange(50, 68)
        choices = [CHOICES[i % len(CHOICES)] for i in range(18)]
        together = draw(logits, positions, choices).tolist()
        alone = [draw(logits[i : i + 1], positions[i : i + 1], choices[i]).item() for i in range(18)]
        assert together == alone
        order = torch.randperm(18, generator=torch.Generator().manual_seed(1))
        shuffled = draw(logits[order], positions[order], [choices[i] for i in order])
        assert shuffled.tolist() == [together[i] for i in order]

    def test_tiles_of_a_wide_vocabulary_do_not_matter(self):
        logits, positions = self.logits(1, 70_001), torch.tensor([12])
        choice = SamplingSettings(temperature=2.0, seed=9)
        one = draw(logits, positions, choice)
        many = draw(logits.expand(64, -1), positions.expand(64), choice)
        assert set(many.tolist()) == {one.item()}

    @pytest.mark.parametrize("choice", CHOICES, ids=str)
    @pytest.mark.parametrize("cuts", [(700, 1400), (1, 1999), (512,), (3, 9, 1024, 1500)])
    def test_shards_of_the_vocabulary_draw_what_the_whole_draws(self, choice, cuts):
        logits, positions = self.logits(12, 2000), torch.arange(12)
        edges = list(itertools.pairwise((0, *cuts, 2000)))
        shards = [(logits[:, a:b].clone(), a) for a, b in edges]
        peak = torch.stack([sampling.peaks(part) for part, _ in shards]).amax(0)
        rows = sampling.Rows.of([choice] * 12, positions)
        if choice.greedy or choice.cut:
            width = 64
            while True:
                offers = [sampling.likeliest(part, rows, peak, width, first_id=a) for part, a in shards]
                merged = Candidates.merged(offers)
                kept, certain = sampling.allowed(merged, rows, peak)
                if bool(certain.all()):
                    break
                width *= 4
                assert width < 100_000
            got = sampling.pick(merged, rows, peak, kept)
        else:
            offers = [sampling.best_noisy(part, rows, peak, first_id=a) for part, a in shards]
            got = sampling.pick(Candidates.merged(offers), rows, peak)
        assert torch.equal(got, draw(logits, positions, choice))

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 2**32), st.integers(2, 40), st.sampled_from([0.05, 0.3, 0.5, 0.77, 0.95, 0.999]))
    def test_uncertain_offers_are_never_called_certain(self, seed, width, top_p):
        """Whenever a narrow offer claims to be enough it keeps what the whole row keeps."""
        logits = self.logits(2, 60, seed)
        rows = sampling.Rows.of([SamplingSettings(temperature=3.0, top_p=top_p, seed=0)] * 2, torch.arange(2))
        peak = sampling.peaks(logits)
        narrow = Candidates.merged(
            [sampling.likeliest(logits[:, a : a + 20], rows, peak, width, first_id=a) for a in (0, 20, 40)]
        )
        whole = sampling.likeliest(logits, rows, peak, 60)
        kept, certain = sampling.allowed(narrow, rows, peak)
        all_kept, all_certain = sampling.allowed(whole, rows, peak)
        assert bool(all_certain.all())
        for row in range(2):
            if certain[row]:
                assert narrow.keys[row][kept[row]].tolist() == whole.keys[row][all_kept[row]].tolist()


class TestSettings:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf),
            ("temperature", True), ("temperature", "1"), ("temperature", 1e-5),
            ("temperature", 101), ("temperature", 10**400), ("temperature", None),
            ("top_k", -1), ("top_k", 1.0), ("top_k", True), ("top_k", None),
            ("top_p", 0.0), ("top_p", 1.01), ("top_p", math.nan), ("top_p", False), ("top_p", "0.9"),
            ("min_p", -0.01), ("min_p", 1.5), ("min_p", math.nan), ("min_p", True),
            ("seed", -1), ("seed", 2**64), ("seed", 1.5), ("seed", True), ("seed", "7"),
        ],
    )  # fmt: skip
    def test_bad_values_name_the_field(self, field, value):
        with pytest.raises(UsageError) as caught:
            SamplingSettings(**{field: value})
        assert caught.value.where == field
        assert str(value).strip("'") in str(caught.value)

    def test_bad_shapes_are_refused(self):
        greedy = SamplingSettings()
        with pytest.raises(UsageError, match="logits"):
            draw(torch.zeros(3), torch.arange(3), greedy)
        with pytest.raises(UsageError, match="logits"):
            draw(torch.zeros(3, 4, dtype=torch.float64), torch.arange(3), greedy)
        with pytest.raises(UsageError, match="positions"):
            draw(torch.zeros(3, 4), torch.arange(2), greedy)
        with pytest.raises(UsageError, match="positions"):
            draw(torch.zeros(3, 4), torch.arange(3), [greedy])
        with pytest.raises(UsageError, match="seed"):
            draw(torch.zeros(3, 4), torch.arange(3), SamplingSettings(temperature=1.0))

    def test_a_seed_follows_from_the_prompt(self):
        assert sampling.seed_from([1, 2, 3]) == sampling.seed_from((1, 2, 3))
        assert sampling.seed_from([1, 2, 3]) != sampling.seed_from([1, 2, 4])
        assert 0 <= sampling.seed_from([]) < 2**64


PINNED = [79, 64, 27, 72, 65, 50]
