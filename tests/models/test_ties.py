"""Pools that score exactly alike: with two index heads many score zero, and the cut falls among them.

transformers leaves the choice to `topk`, which promises nothing. Here the lowest pool wins, on every path.
"""

import pytest
import torch

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels.indexer import select_tokens
from tests.models.cases import random_case
from tests.models.oracle import TOLERANCE, difference, runtime_weights, tiny_config, transformers_logits
from tests.models.sabotage import CHOOSING, Bench, swap
from tests.models.streams import Streams

CONFIG = tiny_config("kmkm", dense=1, index_n_heads=2, index_topk=24)


def naive(scores, position, top, group, *, lowest=True):
    """Positions one row attends to, from plain numbers; of equal scores the lowest pool or the highest."""
    seen = [float(score) for score in scores[: (position + 1) // group]]
    best = sorted(range(len(seen)), key=lambda pool: (-seen[pool], pool if lowest else -pool))[: top // group]
    tail = range((position + 1) // group * group, position + 1)
    return sorted(pool * group + j for pool in best for j in range(group)) + list(tail)


def select_naively(scores, positions, top, group, *, lowest):
    width = top + group - 1
    chosen = [
        naive(row, position, top, group, lowest=lowest)
        for row, position in zip(scores, positions.tolist(), strict=True)
    ]
    return torch.tensor([row + [-1] * (width - len(row)) for row in chosen], dtype=torch.int32)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return random_case(CONFIG, 2, tmp_path_factory.mktemp("ties"))


@pytest.fixture(scope="module")
def expected(case):
    """transformers' logits with its `topk` replaced by one that keeps the order of equal values."""

    def topk(values, count, dim=-1):
        order = torch.sort(values, dim=dim, descending=True, stable=True)
        return torch.return_types.topk((order.values[..., :count], order.indices[..., :count]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "topk", topk)
        return transformers_logits(case.oracle, case.tokens[:1])[0]


def test_the_selection_of_a_run_is_the_naive_one(case, monkeypatch):
    seen = []

    def spy(scores, positions, top, group):
        result = select_tokens(scores, positions, top, group)
        seen.append((scores, positions, result))
        return result

    monkeypatch.setattr(f"{CHOOSING}.select_tokens", spy)
    case.model.logits(case.tokens[0])
    config, ties = case.model.config, 0
    assert len(seen) == 2
    for scores, positions, result in seen:
        for row in range(len(case.tokens[0])):
            arguments = scores[row], int(positions[row]), config.index_topk, config.index_kpool
            chosen = result[row][result[row] >= 0].tolist()
            assert chosen == naive(*arguments)
            ties += chosen != naive(*arguments, lowest=False)
    assert ties > 50


def test_logits_with_ties_are_those_of_a_stable_order(case, expected):
    assert difference(case.model.logits(case.tokens[0]), expected) < TOLERANCE
    token_by_token = Streams(case.model).run(case.tokens[0], (1,), recurrent=True)
    assert difference(token_by_token, expected) < TOLERANCE


@pytest.mark.parametrize(("lowest", "agrees"), [(True, True), (False, False)])
def test_the_other_rule_for_ties_is_noticed(case, expected, monkeypatch, lowest, agrees):
    config = Glm5NextConfig.from_checkpoint_config(CONFIG)
    bench = Bench(config, runtime_weights(config, case.tensors), monkeypatch)
    swap(f"{CHOOSING}.select_tokens", lambda _: lambda *a: select_naively(*a, lowest=lowest))(bench)
    assert (difference(bench.logits(case.tokens[0]), expected) < TOLERANCE) == agrees
