"""What a request may ask of its reply: every rule holds the same with guesses and without, alone and beside
others."""

from dataclasses import replace

import pytest
import torch

from intarsia.core.config import SamplingSettings
from intarsia.core.errors import UsageError
from intarsia.engine.lanes.logprobs import token_logprob
from intarsia.engine.lanes.thinking import CYCLE_TOKENS, ThinkingState
from intarsia.engine.requests import Penalties, Thinking, choices
from tests.engine.hash_network import VOCAB, HashNetwork, logits_after
from tests.engine.serving import (
    SAMPLED,
    SMALL,
    assert_clean,
    engine_of,
    expected,
    prompt_of,
    request_of,
    serve,
    submit,
)


class Letters:
    """A tokenizer whose token t is the letter chr(97 + t % 26), and a lower half of a character for token
    60."""

    def token_bytes(self, token: int) -> bytes:
        return b"\xc3" if token == 60 else b"\xa9" if token == 59 else bytes([97 + token % 26])


def both_ways(request, **changes):
    """The outcome with guesses, beside other requests; checked against the one without, alone."""
    others = [request_of(f"o{index}", prompt_of(30 + index, 50), sampling=SAMPLED) for index in range(2)]
    many = engine_of(HashNetwork(), replace(SMALL, drafts=4), pieces=Letters(), **changes)
    outcome = serve(many, [others[0], request, others[1]])[1]
    alone = engine_of(HashNetwork(), replace(SMALL, drafts=0, copy_drafts=0), pieces=Letters(), **changes)
    (plain,) = serve(alone, [request])
    assert outcome.ids == plain.ids
    assert outcome.text == plain.text
    assert outcome.reason == plain.reason
    assert [entry for event in outcome.tokens for entry in event.logprobs] == [
        entry for event in plain.tokens for entry in event.logprobs
    ]
    assert outcome.prompt == plain.prompt
    assert_clean(many)
    return outcome


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


def reference_reply(request, adjust):
    """The reply drawn token by token from adjusted logits."""
    from intarsia.engine.sampling import draw

    reply = []
    while len(reply) < request.max_tokens:
        logits = adjust(logits_after(request.tokens, tuple(reply)).clone(), reply)
        position = torch.tensor([len(request.tokens) + len(reply)])
        reply.append(int(draw(logits[None], position, request.sampling)))
    return reply


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


OPEN, CLOSE = 58, 57
CLOSING = (10, CLOSE, 11, 11)


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


class Rising:
    """A grammar: every token is larger than the one before, and the reply ends at 40 or above."""

    def __init__(self, most: int = VOCAB) -> None:
        self.taken: list[int] = []
        self.most = most
        self.fills = 0

    def fill(self, words):
        self.fills += 1
        words.zero_()
        low = self.taken[-1] + 1 if self.taken else 0
        for token in range(low, self.most):
            bit = 1 << token % 32
            words[token // 32] |= bit if bit < 1 << 31 else bit - (1 << 32)

    def accept(self, token):
        if token >= self.most or (self.taken and token <= self.taken[-1]):
            return False
        self.taken.append(token)
        return True

    def rollback(self, count):
        del self.taken[len(self.taken) - count :]

    @property
    def finished(self):
        return bool(self.taken) and self.taken[-1] >= 40


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


class Broken(Rising):
    def accept(self, token):
        raise ValueError("no such rule")


class Blocked(Rising):
    def fill(self, words):
        words.zero_()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grammar": Broken()}, "no such rule"),
        ({"grammar": Blocked()}, "no allowed token"),
        ({"tokens": (*prompt_of(1, 60), 44)}, "NaN"),
    ],
)
def test_a_request_that_fails_takes_no_other_with_it(changes, message):
    network = HashNetwork()
    network.poison = 44
    without = [token for token in range(VOCAB) if token != 44]
    others = [request_of(f"o{i}", without[i : i + 40], logit_bias={44: -100.0}) for i in range(3)]
    engine = engine_of(network)
    bad = replace(request_of("bad", without[:50]), **changes)
    outcomes = serve(engine, [others[0], bad, *others[1:]])
    assert outcomes[1].reason == "error"
    assert message in outcomes[1].finished.error
    for other, outcome in zip(others, [outcomes[0], *outcomes[2:]], strict=True):
        assert (outcome.reason, outcome.ids) == ("length", expected(other))
    assert_clean(engine)


def test_a_failed_step_ends_the_stream_that_made_it_fail_and_no_other():
    network = HashNetwork()
    engine = engine_of(network)
    network.fail_on = 44
    without = [token for token in range(VOCAB) if token != 44]
    never = {44: -100.0}
    writing = [request_of(f"w{i}", without[i : i + 40], logit_bias=never, max_tokens=20) for i in range(2)]
    running = [submit(engine, request)[1] for request in writing]
    for _ in range(4):
        engine.step()
    assert all(outcome.ids for outcome in running)
    bad, after = serve(engine, [request_of("bad", [*without[:50], 44]), replace(writing[0], id="after")])
    assert (bad.reason, bad.ids) == ("error", [])
    assert "cannot bear token 44" in bad.finished.error
    for request, outcome in zip([*writing, writing[0]], [*running, after], strict=True):
        assert (outcome.reason, outcome.ids) == ("length", expected(request))
    assert_clean(engine, failed_steps=2)


def test_a_device_that_fails_always_ends_every_request_with_the_reason():
    network = HashNetwork()
    network.fail_on = 3
    outcomes = serve(engine_of(network), [request_of(f"r{i}", (3, 4 + i)) for i in range(6)])
    assert {outcome.reason for outcome in outcomes} == {"error"}


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
