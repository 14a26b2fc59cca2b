"""The ledger: every owner's bytes as predicted from headers."""

import pytest
import torch

from intarsia.evidence.forms import open_form
from intarsia.evidence.memory.ledger import count_weights, measure_memory
from intarsia.loading.weights import load_weights


@pytest.mark.parametrize("recipe", ["bf16", "fp4-local"])
def test_weights_and_caches_are_as_predicted(recipe):
    ledger = measure_memory(open_form("demo", recipe), streams=2, context=1000)
    service = [row for row in ledger.owners if row.moment == "service"]
    assert [row for row in service if row.predicted != row.measured] == []
    assert any("activations" in note for note in ledger.not_measured)  # a CPU cannot count them
    assert any("growing" in row.owner or "grow" in row.owner for row in service)
    predicted, measured = ledger.total("service")
    assert predicted == measured > 5_000_000
    peak = {row.owner: row for row in ledger.owners if row.moment == "load peak"}
    assert {"weights", "conversion", "staging, in the host's memory"} < peak.keys()
    assert all(row.measured is not None for row in ledger.owners)
    assert peak["weights"].predicted == peak["weights"].measured
    assert peak["conversion"].measured <= peak["conversion"].predicted
    assert (peak["conversion"].measured > 0) == (recipe != "bf16")


def test_a_weight_too_many_shows(demo):
    weights = load_weights("demo")
    before = count_weights(weights)
    after = count_weights(weights | {"mtp.extra": torch.zeros(3, 5)})
    assert {key for key in after if after[key] != before.get(key)} == {("draft", "F32", "elements")}
    assert after["draft", "F32", "elements"] - before["draft", "F32", "elements"] == 60
