"""The delta rule, in chunks and row by row, against a loop in double precision."""

import pytest
import torch

from intarsia.kernels.kda import scan
from intarsia.kernels.kda.chunk import chunk_terms
from intarsia.kernels.rows import Piece, rows_of
from tests.kernels.steps import padded, page_table, randn, step

HEADS, KEY, VALUE = 2, 16, 16

DECAYS = {
    "near_the_bound": lambda x: -5 + 1e-3 * torch.sigmoid(x),
    "near_zero": lambda x: -1e-4 * torch.sigmoid(x),
    "exactly_zero": torch.zeros_like,
    "middling": lambda x: -5 * torch.sigmoid(x),
    "from_one_extreme_to_the_other": lambda x: torch.where(x > 0, -4.999, -1e-6),
}


def inputs(length, decay="middling", seed=0, beta=None):
    q, k, v, raw = (randn(length, HEADS, KEY, seed=seed + i) for i in range(4))
    unit = [x / x.norm(dim=-1, keepdim=True) for x in (q, k)]
    random = torch.sigmoid(2 * randn(length, HEADS, seed=seed + 4))
    strength = random if beta is None else torch.full_like(random, beta)
    return unit[0] * KEY**-0.5, unit[1], v, DECAYS[decay](raw), strength


def naive(q, k, v, g, beta, state=None):
    """What each row reads, and the last state [H, K, V]."""
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    state = torch.zeros(HEADS, KEY, VALUE, dtype=torch.float64) if state is None else state.double()
    out = torch.zeros_like(v)
    for t in range(q.shape[0]):
        for h in range(HEADS):
            decayed = state[h] * g[t, h].exp()[:, None]
            change = beta[t, h] * (v[t, h] - decayed.T @ k[t, h])
            state = state.clone()
            state[h] = decayed + torch.outer(k[t, h], change)
            out[t, h] = state[h].T @ q[t, h]
    return out, state


def memory(copies=1, streams=1):
    """States as they are when streams begin: zero in copy 0, anything elsewhere."""
    m = torch.full((streams, copies, HEADS, KEY, VALUE), torch.nan)
    m[:, 0] = 0
    return m, torch.zeros(streams, dtype=torch.int32)


def run(data, counts, *, recurrent=False, copies=1):
    """Run in steps of `counts` rows; what the rows read and the committed state."""
    states, current = memory(copies)
    out, begin = [], 0
    for count in counts:
        rows = step((0, begin, count), recurrent=recurrent)
        part = [padded(x[begin : begin + count]) for x in data]
        out.append(scan(*part, states, current, rows)[:count])
        current[0] = count - 1 if recurrent else 0
        begin += count
    return torch.cat(out), states[0, int(current[0])]


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize(
    ("recurrent", "counts"),
    [(False, (200,)), (False, (1, 62, 1, 64, 3, 69)), (True, (1,) * 200), (True, (5,) * 40)],
    ids=["one_prompt", "uneven_prompt", "row_by_row", "several_rows"],
)
def test_both_forms_equal_the_loop(decay, recurrent, counts):
    data = inputs(200, decay)
    got, state = run(data, counts, recurrent=recurrent, copies=5)
    expected, last = naive(*data)
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=5e-6)
    torch.testing.assert_close(state.double(), last, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("beta", [0.0, 1e-6, 1.0])
def test_long_sequences_neither_overflow_nor_drift(decay, beta):
    """2048 rows: sums of log decays reach -320 a chunk and -10240 in all, and states are carried 32 times."""
    data = inputs(2048, decay, seed=7, beta=beta)
    got, state = run(data, (2048,))
    assert torch.isfinite(got).all()
    assert torch.isfinite(state).all()
    again, other = run(data, (8,) * 256, recurrent=True, copies=8)
    scale = max(float(again.abs().max()), 1e-6)
    assert (got - again).abs().max() < 1e-4 * scale + 1e-6
    assert (state - other).abs().max() < 1e-4 * max(float(other.abs().max()), 1e-6) + 1e-6


def test_equal_keys_are_overwritten_not_added_up():
    """With beta 1 and no decay a key holds its latest value only."""
    key = torch.zeros(130, HEADS, KEY)
    key[..., 3] = 1.0
    v = randn(130, HEADS, VALUE)
    got, _ = run((key, key, v, torch.zeros_like(key), torch.ones(130, HEADS)), (130,))
    torch.testing.assert_close(got, v, rtol=1e-4, atol=1e-4)


def test_several_streams_in_both_forms_at_once():
    first, second = inputs(40, seed=11), inputs(90, seed=12)
    states, current = memory(copies=3, streams=2)
    # Stream 0 has had 30 rows and verifies three; stream 1 begins with a prompt of 90 in the same step.
    scan(*[padded(x[:30]) for x in first], states, current, step((0, 0, 30)))
    rows = rows_of(
        [Piece(1, 0, [0] * 90, recurrent=False), Piece(0, 30, [0] * 3, recurrent=True)], page_table(2, 8)
    )
    both = [padded(torch.cat([x[30:33], y])) for x, y in zip(first, second, strict=True)]
    out = scan(*both, states, current, rows)
    for stream, copy, data, begin, end, at in ((0, 2, first, 30, 33, 0), (1, 0, second, 0, 90, 3)):
        expected, last = naive(*[x[:end] for x in data])
        got = out[at : at + end - begin].double()
        torch.testing.assert_close(got, expected[begin:], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(states[stream, copy].double(), last, rtol=1e-4, atol=1e-5)
    assert (out[93:] == 0).all()


def test_a_recurrent_step_leaves_the_state_after_each_row_in_its_own_copy():
    data = inputs(24, seed=3)
    states, current = memory(copies=8)
    scan(*[padded(x[:16]) for x in data], states, current, step((0, 0, 16)))
    scan(*[padded(x[16:]) for x in data], states, current, step((0, 16, 8), recurrent=True))
    for row in range(8):
        _, expected = naive(*[x[: 17 + row] for x in data])
        torch.testing.assert_close(states[0, row].double(), expected, rtol=1e-4, atol=1e-5)


def test_a_prompt_begins_from_the_committed_copy():
    data = inputs(40, seed=4)
    states, current = memory(copies=4)
    scan(*[padded(x[:4]) for x in data], states, current, step((0, 0, 4), recurrent=True))
    current[0] = 2  # three rows kept
    out = scan(*[padded(x[3:]) for x in data], states, current, step((0, 3, 37)))
    expected, last = naive(*data)
    torch.testing.assert_close(out[:37].double(), expected[3:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states[0, 0].double(), last, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [1, 5, 16, 17, 40, 63])
def test_bits_of_a_row_do_not_depend_on_the_rows_after_it_in_its_chunk(length):
    data = inputs(64, seed=5)
    whole, part = run(data, (64,)), run([x[:length] for x in data], (length,))
    assert torch.equal(part[0], whole[0][:length])


def test_a_chunk_ends_on_the_absolute_grid():
    """Rows 64.. of a sequence see one chunk whether they come alone or with the rows before them."""
    data = inputs(150, seed=6)
    whole, _ = run(data, (150,))
    resumed, _ = run(data, (64, 86))
    again, _ = run(data, (128, 22))
    assert torch.equal(resumed, whole)
    assert torch.equal(again, whole)
    off_the_grid, _ = run(data, (40, 110))
    assert not torch.equal(off_the_grid, whole)
    torch.testing.assert_close(off_the_grid, whole, rtol=1e-4, atol=1e-5)
    back_on_it, _ = run(data, (40, 24, 86))
    assert torch.equal(back_on_it, off_the_grid)


def test_terms_of_a_chunk_leave_missing_rows_at_zero():
    terms = chunk_terms(*inputs(10, seed=8))
    for part in (terms.u, terms.w, terms.q_decayed, terms.q_k, terms.k_rest):
        assert (part[:, 10:] == 0).all()
