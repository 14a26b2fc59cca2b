"""What a request may ask of its reply: every rule holds the same with guesses and without, alone and beside
others."""

from dataclasses import replace

import pytest
import torch

from intarsia.core.config import SamplingSettings
from intarsia.core.errors import UsageError
from intarsia.engine.lanes.logprobs import token_logprob
from intarsia.engine.requests import Penalties, Thinking, choices
from tests.engine.hash_network import logits_after
from tests.engine.rules import Letters, Rising, both_ways, reference_reply
from tests.engine.serving import (
    SAMPLED,
    SMALL,
    engine_of,
    expected,
    prompt_of,
    request_of,
    serve,
)


def test_a_stop_id_ends_the_reply_and_is_counted_but_not_shown():
    request = request_of("r", prompt_of(1, 70), max_tokens=40)
    truth = expected(request)
    stop = truth[9]
    first = truth.index(stop)
    outcome = both_ways(replace(request, stop_ids=(stop,)))
    assert outcome.ids == truth[: first + 1]
    assert (outcome.reason, outcome.finished.matched) == ("stop", stop)
    assert len(outcome.text) == first
    shown = both_ways(replace(request, stop_ids=(stop,), include_stop=True))
    assert shown.text == outcome.text + Letters().token_bytes(stop).decode()


def test_the_models_own_end_ends_the_reply_unless_it_is_to_be_ignored():
    request = request_of("r", prompt_of(1, 70), max_tokens=40)
    truth = expected(request)
    assert both_ways(request, end_ids=[truth[5]]).ids == truth[: truth.index(truth[5]) + 1]
    ignoring = both_ways(replace(request, ignore_eos=True), end_ids=[truth[5]])
    assert (ignoring.ids, ignoring.reason) == (truth, "length")


@pytest.mark.parametrize("begin", [0, 7, 20])
def test_a_stop_string_ends_the_text_before_it(begin):
    request = request_of("r", prompt_of(1, 70), max_tokens=40, logit_bias={59: -100, 60: -100})
    text = both_ways(request).text
    assert len(text) == 40
    stop = text[begin : begin + 3]
    where = text.find(stop)
    outcome = both_ways(replace(request, stop=(stop,)))
    assert outcome.text == text[:where]
    assert (outcome.reason, outcome.finished.matched) == ("stop", stop)
    assert len(outcome.ids) == where + 3
    assert both_ways(replace(request, stop=(stop,), include_stop=True)).text == text[: where + 3]


def test_half_a_character_at_the_end_comes_out_as_such():
    outcome = both_ways(request_of("r", prompt_of(1, 30), max_tokens=3, logit_bias={60: 100}))
    assert outcome.ids == [60] * 3
    assert outcome.text == "\ufffd" * 3


@pytest.mark.parametrize("sampling", [SamplingSettings(), SAMPLED])
def test_penalties_and_bias(sampling):
    penalties = Penalties(repetition=1.3, presence=0.4, frequency=0.7)
    request = request_of(
        "r",
        prompt_of(1, 20),
        max_tokens=40,
        sampling=sampling,
        penalties=penalties,
        logit_bias={3: 4.0, 7: -100.0},
    )

    def adjust(logits, reply):
        for token in set(request.tokens) | set(reply):
            logits[token] = logits[token] / 1.3 if logits[token] > 0 else logits[token] * 1.3
        for token in reply:
            logits[token] -= 0.7
        for token in set(reply):
            logits[token] -= 0.4
        logits[3] += 4.0
        logits[7] -= 100.0
        return logits

    outcome = both_ways(request)
    assert outcome.ids == reference_reply(request, adjust)
    assert outcome.ids != expected(request)


def test_penalties_count_guesses_that_stand_before_a_row():
    """Three favoured tokens take turns as each is penalized; every guess is right, so whole windows are
    kept."""
    request = request_of(
        "r",
        prompt_of(1, 20),
        max_tokens=30,
        penalties=Penalties(frequency=2.0),
        logit_bias={5: 30.0, 6: 30.0, 7: 30.0},
    )
    (plain,) = serve(engine_of(settings=replace(SMALL, drafts=0, copy_drafts=0)), [request])
    assert len(set(plain.ids)) == 3

    def script(lane, most):
        return plain.ids[len(lane.reply.tokens) :][:most]

    (guessed,) = serve(engine_of(settings=replace(SMALL, drafts=5), source=script), [request])
    assert guessed.ids == plain.ids
    assert guessed.usage.accepted == guessed.usage.drafted


def test_logprobs_are_the_networks_own():
    request = request_of(
        "r", prompt_of(1, 70), max_tokens=12, sampling=SAMPLED, logprobs=4, logit_bias={3: 9.0}
    )
    outcome = both_ways(request)
    entries = [entry for event in outcome.tokens for entry in event.logprobs]
    assert [entry.id for entry in entries] == outcome.ids
    for index, entry in enumerate(entries):
        logits = logits_after(request.tokens, tuple(outcome.ids[:index])).double()
        truth = logits.log_softmax(0)
        assert entry.logprob == pytest.approx(float(truth[entry.id]), abs=1e-9)
        order = truth.sort(descending=True, stable=True).indices.tolist()
        assert [token for token, _ in entry.top] == order[:4]
        assert entry.rank == order.index(entry.id) + 1


def test_equal_logprobs_are_listed_by_their_ids():
    entry = token_logprob(torch.tensor([1.0, 2.0, 2.0, 1.0, 2.0]), 4, 4)
    assert [token for token, _ in entry.top] == [1, 2, 4, 0]
    assert entry.rank == 3


@pytest.mark.parametrize("rows", [64, 192])
def test_prompt_logprobs_cover_the_whole_prompt_whatever_its_pieces(rows):
    request = request_of("r", prompt_of(1, 200), max_tokens=2, prompt_logprobs=2)
    engine = engine_of(settings=replace(SMALL, prompt_rows=rows, chunk=64))
    serve(engine, [replace(request, prompt_logprobs=None)])
    (outcome,) = serve(engine, [request])
    assert outcome.ids == expected(request)
    entries = outcome.prompt.entries
    assert entries[0] is None
    assert [entry.id for entry in entries[1:]] == list(request.tokens[1:])
    for index in (1, 63, 64, 65, 128, 199):
        assert entries[index] == token_logprob(
            logits_after(request.tokens[:index], ()), request.tokens[index], 2
        )


def test_a_prompt_alone():
    request = request_of("r", prompt_of(1, 100), max_tokens=0, prompt_logprobs=0)
    (outcome,) = serve(engine_of(), [request])
    assert (outcome.ids, outcome.reason) == ([], "length")
    assert len(outcome.prompt.entries) == 100


def test_requests_are_checked():
    for changes in (
        {"tokens": ()},
        {"stop": ("",)},
        {"logprobs": 21},
        {"max_tokens": -1},
        {"logit_bias": {1: 101.0}},
    ):
        with pytest.raises(UsageError):
            replace(request_of("r", prompt_of(1, 5)), **changes)
    with pytest.raises(UsageError, match="repetition_penalty"):
        Penalties(repetition=0.0)
    with pytest.raises(UsageError, match="thinking_budget"):
        Thinking(close_id=1, budget=3)
    with pytest.raises(UsageError, match="forced_close"):
        Thinking(close_id=1, forced_close=(2,))
    with pytest.raises(UsageError, match="grammar"):
        choices(request_of("r", prompt_of(1, 5), grammar=Rising()), 2)
    seeds = [choice.sampling.seed for choice in choices(request_of("r", (1,), sampling=SAMPLED), 3)]
    assert seeds == [11, 12, 13]
