"""The comparison with transformers notices every constant and rule of the network.

Each sabotage changes one of them; the logits must then differ from transformers' by more than the parity
tests allow, on the same inputs on which the true network is well within that.
"""

import pytest

from tests.models.oracle import TOLERANCE, difference, runtime_weights
from tests.models.sabotage import Bench
from tests.models.sabotages_attention import INDEXER, INVISIBLE, KDA, MLA
from tests.models.sabotages_block import FEED_FORWARDS, HYPER_CONNECTIONS, NORMS, REST
from tests.models.variants import delta_rule, mixing, routing

SABOTAGES = FEED_FORWARDS | HYPER_CONNECTIONS | NORMS | KDA | MLA | INDEXER | REST


def _distance(sensitive, monkeypatch, sabotage=None):
    bench = Bench(
        sensitive.model.config, runtime_weights(sensitive.model.config, sensitive.tensors), monkeypatch
    )
    if sabotage is not None:
        sabotage(bench)
    return difference(bench.logits(sensitive.tokens[0]), sensitive.expected[0])


def test_the_true_network_agrees(sensitive, monkeypatch):
    assert _distance(sensitive, monkeypatch) < TOLERANCE / 5


@pytest.mark.parametrize(
    "formula", [mixing(), routing(), delta_rule()], ids=["mixing", "routing", "delta_rule"]
)
def test_the_formulas_that_sabotages_vary_are_true_as_they_stand(sensitive, monkeypatch, formula):
    assert _distance(sensitive, monkeypatch, formula) < TOLERANCE / 5


@pytest.mark.parametrize("sabotage", SABOTAGES.values(), ids=SABOTAGES)
def test_a_changed_constant_or_rule_is_noticed(sensitive, monkeypatch, sabotage):
    assert _distance(sensitive, monkeypatch, sabotage) > TOLERANCE


@pytest.mark.parametrize("sabotage", INVISIBLE.values(), ids=INVISIBLE)
def test_what_cannot_change_an_order_does_not(sensitive, monkeypatch, sabotage):
    assert _distance(sensitive, monkeypatch, sabotage) < TOLERANCE
