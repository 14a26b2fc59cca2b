"""Replies under a grammar: every row is masked, guessed or not."""

from dataclasses import replace

import pytest
import torch

from intarsia.core.config import SamplingSettings
from intarsia.engine.requests import Thinking
from tests.engine.hash_network import VOCAB
from tests.engine.rules import CLOSE, CLOSING, Rising, reference_reply
from tests.engine.serving import (
    SAMPLED,
    SMALL,
    assert_clean,
    engine_of,
    prompt_of,
    request_of,
    serve,
)


@pytest.mark.parametrize("sampling", [SamplingSettings(), SAMPLED])
def test_a_grammar_masks_every_row_guessed_or_not(sampling):
    request = request_of("r", prompt_of(1, 70), max_tokens=40, sampling=sampling)

    def adjust(logits, reply):
        if reply:
            logits[: reply[-1] + 1] = -torch.inf
        return logits

    truth = reference_reply(replace(request, max_tokens=3), adjust)
    outcomes = []
    for drafts in (0, 5):
        engine = engine_of(settings=replace(SMALL, drafts=drafts))
        grammar = Rising()
        (outcome,) = serve(engine, [replace(request, grammar=grammar)])
        assert outcome.ids == grammar.taken == sorted(set(outcome.ids))
        assert (outcome.reason, outcome.ids[-1] >= 40) == ("stop", True)
        outcomes.append(outcome)
        assert_clean(engine)
    assert outcomes[0].ids == outcomes[1].ids
    assert outcomes[0].ids[:3] == truth[: len(outcomes[0].ids)]


class Sevens(Rising):
    """A grammar: twenty tokens, all multiples of seven."""

    def fill(self, words):
        words.zero_()
        for token in range(0, VOCAB, 7):
            bit = 1 << token % 32
            words[token // 32] |= bit if bit < 1 << 31 else bit - (1 << 32)

    def accept(self, token):
        if token % 7:
            return False
        self.taken.append(token)
        return True

    @property
    def finished(self):
        return len(self.taken) >= 20


def test_guesses_are_made_under_the_grammar():
    """The network's own choice is hardly ever allowed: guesses that do not know the grammar never land."""
    request = request_of("r", prompt_of(1, 70), max_tokens=40)
    (outcome,) = serve(engine_of(), [replace(request, grammar=Sevens())])
    assert len(outcome.ids) == 20
    assert outcome.usage.drafted[0] >= 6
    assert outcome.usage.accepted[0] >= 4


class Failing(Rising):
    """A grammar that fails when it is asked for the token after three."""

    def fill(self, words):
        if len(self.taken) == 3:
            raise RuntimeError("too much")
        super().fill(words)


def test_a_grammar_that_fails_ahead_ends_its_own_reply_where_it_fails():
    engine = engine_of()
    grammar, plain = request_of("g", prompt_of(1, 70), max_tokens=40), request_of("p", prompt_of(2, 70))
    failed, other = serve(engine, [replace(grammar, grammar=Failing()), plain])
    assert failed.reason == "error"
    assert other.ids == reference_reply(plain, lambda logits, reply: logits)
    assert_clean(engine)


def test_a_grammar_begins_where_thinking_ends():
    thinking = Thinking(close_id=CLOSE, inside=True, budget=6, forced_close=CLOSING)
    request = request_of("r", prompt_of(1, 70), max_tokens=40, thinking=thinking)
    outcomes = []
    for drafts in (0, 5):
        grammar = Rising()
        engine = engine_of(settings=replace(SMALL, drafts=drafts))
        (outcome,) = serve(engine, [replace(request, grammar=grammar)])
        assert outcome.ids[6:10] == list(CLOSING)
        assert outcome.ids[10:] == grammar.taken
        outcomes.append(outcome.ids)
    assert outcomes[0] == outcomes[1]
