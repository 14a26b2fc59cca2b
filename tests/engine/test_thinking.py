"""Blocks of thinking: budgets that close them, and the guard against going round in circles."""

import pytest

from intarsia.engine.lanes.thinking import CYCLE_TOKENS, ThinkingState
from intarsia.engine.requests import Thinking
from tests.engine.rules import CLOSE, CLOSING, OPEN, both_ways
from tests.engine.serving import (
    prompt_of,
    request_of,
)


@pytest.mark.parametrize("budget", [0, 1, 9])
def test_a_thinking_budget_closes_the_block(budget):
    thinking = Thinking(close_id=CLOSE, inside=True, budget=budget, forced_close=CLOSING)
    request = request_of(
        "r", prompt_of(1, 70), max_tokens=30, thinking=thinking, logit_bias={CLOSE: -100.0, OPEN: -100.0}
    )
    outcome = both_ways(request)
    assert outcome.ids[budget : budget + 4] == list(CLOSING)
    assert CLOSE not in outcome.ids[:budget]
    inside = [token for event in outcome.tokens if event.thinking for token in event.ids]
    assert inside == outcome.ids[: budget + 2]
    assert (CLOSE,) in [event.ids for event in outcome.tokens]
    assert outcome.usage.reasoning_tokens == budget + 2


def test_a_block_closed_in_time_is_left_alone():
    thinking = Thinking(close_id=CLOSE, inside=True, budget=20, forced_close=CLOSING)
    request = request_of("r", prompt_of(1, 70), max_tokens=9, thinking=thinking, logit_bias={CLOSE: 100.0})
    outcome = both_ways(request)
    assert outcome.ids == [CLOSE] * 9
    assert outcome.usage.reasoning_tokens == 1


def test_a_block_the_model_opens_itself():
    thinking = Thinking(close_id=CLOSE, open_id=OPEN, budget=3, forced_close=CLOSING)
    request = request_of("r", prompt_of(1, 70), max_tokens=12, thinking=thinking, logit_bias={OPEN: 100.0})
    outcome = both_ways(request)
    assert outcome.ids[0] == OPEN
    assert outcome.ids[4:8] == list(CLOSING)


def guarded(period: int) -> tuple[list[int], int]:
    """A thinking block of pairwise different tokens, then a cycle; the reply and where the closing begins."""
    state = ThinkingState.of(Thinking(CLOSE, inside=True, forced_close=CLOSING), guard=True)
    tokens = []
    for index in range(2000):
        if state.forced:
            return tokens, index
        token = 100 + index if index < 100 else index % period
        state.push(token, tokens)
        tokens.append(token)
    return tokens, 0


@pytest.mark.parametrize("period", [1, 2, 5, 8])
def test_the_guard_closes_an_exact_cycle(period):
    _, where = guarded(period)
    assert where == 100 + period + CYCLE_TOKENS


def test_the_guard_leaves_longer_cycles_and_acts_once():
    assert guarded(9)[1] == 0
    state = ThinkingState.of(Thinking(CLOSE, OPEN, True, None, CLOSING), guard=True)
    tokens: list[int] = []
    closings = 0
    for _ in range(1500):
        token = state.forced[0] if state.forced else OPEN if not state.inside else 5
        closings += token == CLOSE
        state.push(token, tokens)
        tokens.append(token)
    assert closings == 1


def test_the_guard_in_a_reply():
    thinking = Thinking(close_id=CLOSE, inside=True, forced_close=CLOSING)
    request = request_of(
        "r", prompt_of(1, 10), max_tokens=300, thinking=thinking, loop_guard=True, logit_bias={5: 100.0}
    )
    ids = both_ways(request).ids
    assert ids.index(10) == 1 + CYCLE_TOKENS
    assert ids[257:261] == list(CLOSING)
    assert ids[261:] == [5] * 39
