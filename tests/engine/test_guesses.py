"""How many guesses are made and where copied ones come from."""

from array import array

import pytest

from intarsia.engine.lanes.acceptance import Acceptance
from intarsia.engine.lanes.choice import Prospect, choose
from intarsia.engine.lanes.copying import CopyIndex
from intarsia.engine.lanes.costs import MeasuredCosts


class Line:
    """Costs of a straight line."""

    def __init__(self, row: float, absorb: float = 0.0, chain: float = 0.0) -> None:
        self._row, self._absorb, self._chain = row, absorb, chain

    def step(self, rows: int) -> float:
        return 1.0 + self._row * rows

    def absorb(self, rows: int) -> float:
        return self._absorb

    def chain(self, streams: int) -> float:
        return self._chain


def test_guesses_stop_where_a_row_costs_more_than_it_brings():
    good, bad = Prospect((0.9, 0.9, 0.9)), Prospect((0.2, 0.2, 0.2))
    assert choose([good], Line(0.01)) == [3]
    assert choose([bad], Line(0.01)) == [2]
    assert choose([bad], Line(1.0)) == [0]
    assert choose([good, bad], Line(0.3)) == [3, 0]


def test_a_chain_that_costs_too_much_is_not_begun_or_cut_short():
    good = Prospect((0.9, 0.9, 0.9))
    assert choose([good], Line(0.01, absorb=3.0)) == [0]
    assert choose([good], Line(0.0, absorb=0.1, chain=1.5)) == [1]
    assert choose([Prospect((0.9,) * 3, copied=True)], Line(0.01, absorb=50.0)) == [3]
    assert choose([Prospect(())], Line(0.01)) == [0]


def test_acceptance_is_conditional_and_recent():
    acceptance = Acceptance()
    for _ in range(100):
        acceptance.record(3, 1, copied=False)
    assert acceptance.drafted == [100, 100, 100]
    assert acceptance.accepted == [100, 0, 0]
    first, second, third = acceptance.rates(3, [0.5, 0.5, 0.5])
    assert first > 0.9
    assert second < 0.1
    assert third == 0.5  # never reached: nothing is known of it
    for _ in range(40):
        acceptance.record(1, 0, copied=False)
    assert acceptance.rates(1, [0.5])[0] < 0.4
    acceptance.record(4, 2, copied=True)
    assert (acceptance.copied, acceptance.copied_accepted) == (4, 2)


def test_measured_costs_follow_the_fastest_and_ignore_a_slow_moment():
    costs = MeasuredCosts()
    for round_number in range(8):
        for rows in (1, 4, 8):
            costs.steps.record(rows, 100.0 if round_number == 0 else 10.0 + rows)
            costs.absorbs.record(rows, 2.0)
            costs.chains.record(rows, 90.0 if round_number == 3 else rows)
    assert costs.step(8) == pytest.approx(18.0)
    assert costs.step(100) == pytest.approx(110.0)
    assert costs.absorb(5) == pytest.approx(2.0)
    assert costs.chain(6) == pytest.approx(6.0)


def test_costs_never_fall_with_the_rows():
    costs = MeasuredCosts()
    for rows, seconds in ((1, 5.0), (8, 3.0)) * 8:
        costs.steps.record(rows, seconds)
    assert costs.step(8) == costs.step(1) == 4.0


def test_one_row_count_tells_what_a_step_costs_and_little_of_a_row():
    costs = MeasuredCosts()
    for _ in range(6):
        costs.steps.record(8, 4.0)
    assert costs.step(8) == pytest.approx(4.0)
    assert 4.0 < costs.step(16) < 5.0
    for _ in range(5):
        costs.absorbs.record(8, 90.0)
    assert costs.absorb(8) == pytest.approx(0.6), "a few slow first passes say nothing"


def test_copies_follow_the_latest_run_of_the_prompt():
    words = list(range(10, 18))
    index = CopyIndex(array("q", [*words, 1, 2, 3, 4, *words, 5, 6, 7, 8]))
    for token in words[:-1]:
        index.push(token)
    assert index.propose(3) == []
    index.push(words[-1])
    assert index.propose(3) == [5, 6, 7]
    assert index.propose(0) == []
    index.push(99)
    assert index.propose(3) == []


def test_copies_from_the_reply_need_sixteen_tokens_and_go_on_repeating():
    index = CopyIndex(array("q", [50, 51]))
    for _ in range(16):
        index.push(7)
    assert index.propose(2) == []
    index.push(7)
    assert index.propose(3) == [7, 7, 7]
    index = CopyIndex(array("q", [50]))
    for token in (*range(20), *range(20)):
        index.push(token)
    assert index.propose(4) == [0, 1, 2, 3]
