"""One stream step by step: what it refuses, which pages it holds, and that drafts change no bit."""

import random

import pytest
import torch

from intarsia.engine.errors import StepOrderError, WindowError
from intarsia.engine.runner import ModelRunner
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.models.errors import StateError
from intarsia.models.glm5_next.model import Glm5NextModel
from tests.models.cases import random_network
from tests.models.oracle import (
    TOLERANCE,
    difference,
    random_tensors,
    random_tokens,
    runtime_weights,
    tiny_config,
)

CONFIG = tiny_config("kmkm", dense=1)
PAGE, PROMPT, END = 16, 70, 110


@pytest.fixture(scope="module")
def model():
    return random_network(CONFIG, seed=5)


@pytest.fixture(scope="module")
def tokens(model):
    return random_tokens(model.config, 1, 170, seed=5)[0]


@pytest.fixture(scope="module")
def logits(model, tokens):
    return model.logits(tokens)


@pytest.fixture(scope="module")
def plain(model, tokens):
    """Logits of rows PROMPT - 1 .. END, each run alone by a runner that drafts nothing."""
    runner = ModelRunner(model, window=192, max_drafts=0, page=PAGE)
    rows = [runner.start(tokens[:PROMPT])]
    for token in tokens[PROMPT:END]:
        rows.append(runner.verify([token])[0])
        runner.commit(1)
    return torch.stack(rows)


def new(model, **options):
    return ModelRunner(model, **{"window": 192, "max_drafts": 4, "page": PAGE, **options})


def mapped(runner):
    return [page for page in runner.state.page_table[0].tolist() if page != runner.state.null_page]


def lowest(logits, _):
    return int(logits.argmin())


@pytest.mark.parametrize("count", [1, 15, 16, 17, 63, 64, 65, 128, 150])
def test_a_prompt_gives_the_logits_of_its_last_row(model, tokens, logits, count):
    runner = new(model)
    got = runner.start(tokens[:count])
    assert torch.equal(got, logits[count - 1])
    assert runner.length == count
    assert (runner.vocab_size, runner.window) == (128, 192)


def test_rows_one_at_a_time_follow_the_network(plain, logits):
    assert difference(plain, logits[PROMPT - 1 : END]) < TOLERANCE


def test_a_prompt_longer_than_a_piece(model, tokens, logits, plain, monkeypatch):
    """Run in pieces of the grid, also what the MTP layer sees of it: drafts are the same to the last bit."""
    drafts = []
    for rows in (1024, 64):
        monkeypatch.setattr("intarsia.engine.runner.CPU_PROMPT_ROWS", rows)
        runner, seen = new(model), []
        assert torch.equal(runner.start(tokens[:150]), logits[149])
        runner.draft(tokens[150], 4, lambda row, _, seen=seen: seen.append(row) or lowest(row, _))
        drafts.append(torch.stack(seen))
        assert torch.equal(runner.start(tokens[:PROMPT]), plain[0])
        assert torch.equal(runner.verify(tokens[PROMPT : PROMPT + 3]), plain[1:4])
    assert torch.equal(*drafts)


@pytest.mark.parametrize("seed", range(4))
def test_drafting_verifying_and_taking_back_change_no_bit(model, tokens, plain, seed):
    """Any order of drafts kept, drafts refused and steps without drafts."""
    choose = random.Random(seed)
    runner = new(model, page=choose.choice([8, 16, 64]))
    assert torch.equal(runner.start(tokens[:PROMPT]), plain[0])
    at = PROMPT
    while at < END:
        if choose.random() < 0.7:
            drafts = runner.draft(tokens[at], choose.randint(1, 4), lowest)
            assert len(drafts) <= 4
        kept = min(choose.randint(1, 5), END - at)
        wrong = [choose.randrange(100) for _ in range(choose.randint(0, 5 - kept))]
        got = runner.verify(tokens[at : at + kept] + wrong)
        assert got.shape == (kept + len(wrong), 128)
        assert torch.equal(got[:kept], plain[at - PROMPT + 1 : at - PROMPT + 1 + kept])
        runner.commit(kept)
        at += kept
        assert runner.length == at
        assert len(mapped(runner)) == -(-at // runner.state.settings.page)


def test_pages_are_taken_lowest_first_and_given_back(model, tokens):
    runner = new(model)
    assert mapped(runner) == []
    runner.start(tokens[:100])
    assert mapped(runner) == list(range(7))
    runner.start(tokens[:20])
    assert mapped(runner) == [0, 1]
    runner.draft(tokens[20], 4, lowest)
    runner.verify(tokens[20:22] + [1] * 3)
    runner.commit(2)
    assert mapped(runner) == [0, 1]
    for at in range(22, 31, 3):
        runner.verify(tokens[at : at + 3])
        runner.commit(3)
    assert (runner.length, mapped(runner)) == (31, [0, 1])
    # A chain of drafts writes rows beyond the committed length; the page it needs is given back.
    runner.draft(tokens[31], 4, lowest)
    assert mapped(runner) == [0, 1, 2]
    runner.verify([tokens[31]])
    runner.commit(1)
    assert (runner.length, mapped(runner)) == (32, [0, 1])
    assert (runner.state.latents[:, runner.state.null_page] == 0).all()


def test_calls_out_of_order_are_refused_and_change_nothing(model, tokens, plain):
    runner = new(model)
    with pytest.raises(StepOrderError, match="no token"):
        runner.start([])
    with pytest.raises(StepOrderError, match="no verified rows"):
        runner.commit(1)
    runner.start(tokens[:PROMPT])
    with pytest.raises(StepOrderError, match="no verified rows"):
        runner.commit(1)
    for count in (0, 6):
        with pytest.raises(StepOrderError, match=f"found {count} rows; expected 1 to 5"):
            runner.verify([1] * count)
    assert torch.equal(runner.verify([*tokens[PROMPT : PROMPT + 2], 3]), new_rows(model, tokens))
    with pytest.raises(StepOrderError, match="call commit first"):
        runner.verify([1])
    for count in (0, 4, -1):
        with pytest.raises(StepOrderError, match="expected 1 to 3"):
            runner.commit(count)
    runner.commit(2)
    assert torch.equal(runner.verify([tokens[PROMPT + 2]])[0], plain[3])


def new_rows(model, tokens):
    runner = new(model)
    runner.start(tokens[:PROMPT])
    return runner.verify([*tokens[PROMPT : PROMPT + 2], 3])


@pytest.mark.parametrize("drafted", [True, False])
@pytest.mark.parametrize("committed", [True, False])
def test_a_new_prompt_may_come_at_any_time(model, tokens, plain, drafted, committed):
    """Also with rows that nobody kept, or that the MTP layer has not seen: they are forgotten."""
    runner, seen = new(model), []
    runner.start(tokens[30:100])
    if drafted:
        runner.draft(5, 3, lowest)
    runner.verify([5, 6])
    if committed:
        runner.commit(2)
    for used in (runner, new(model)):
        assert torch.equal(used.start(tokens[:PROMPT]), plain[0])
        rows = []
        used.draft(tokens[PROMPT], 4, lambda row, _, rows=rows: rows.append(row) or lowest(row, _))
        seen.append(torch.stack(rows))
        assert torch.equal(used.verify(tokens[PROMPT : PROMPT + 5]), plain[1:6])
    assert torch.equal(*seen)


@pytest.mark.parametrize("bad", [-1, 128])
def test_tokens_outside_the_vocabulary_are_refused_and_change_nothing(model, tokens, plain, bad):
    runner = new(model)
    runner.start(tokens[:PROMPT])
    for call in (runner.start, runner.verify):
        with pytest.raises(StateError, match="token at position 1"):
            call([1, bad])
    assert runner.length == PROMPT
    assert torch.equal(runner.verify(tokens[PROMPT : PROMPT + 2]), plain[1:3])


def test_the_window_is_a_limit(model, tokens, plain):
    """72 tokens, not a whole number of pages: the limit is the window, not the last page's end."""
    runner = new(model, window=72)
    with pytest.raises(WindowError, match="found 73 tokens; expected at most 72"):
        runner.start(tokens[:73])
    assert torch.equal(runner.start(tokens[:PROMPT]), plain[0])
    with pytest.raises(WindowError, match="found 73 tokens"):
        runner.verify(tokens[PROMPT : PROMPT + 3])
    assert runner.length == PROMPT
    assert torch.equal(runner.verify(tokens[PROMPT : PROMPT + 2]), plain[1:3])
    runner.commit(2)
    with pytest.raises(WindowError):
        runner.verify([1])
    assert runner.length == 72


@pytest.mark.parametrize(("length", "drafts"), [(70, 2), (71, 1), (69, 3), (64, 4)])
def test_drafts_stop_at_the_window(model, tokens, length, drafts):
    """The pending token takes the committed length; what may follow is at positions up to the window."""
    runner = new(model, window=72)
    runner.start(tokens[:length])
    positions = []
    got = runner.draft(tokens[length], 4, lambda row, position: positions.append(position) or 3)
    assert got == [3] * drafts
    assert positions == [*range(length + 1, length + 1 + drafts)]


def test_how_many_drafts_there_are(model, tokens):
    runner = new(model, max_drafts=2)
    assert runner.can_draft
    runner.start(tokens[:PROMPT])
    assert runner.draft(1, 0, lowest) == []
    assert len(runner.draft(1, 9, lowest)) == 2
    assert runner.draft(1, 2, lowest) == []  # nothing has been committed since
    runner.verify([1])
    runner.commit(1)
    assert len(runner.draft(2, 1, lowest)) == 1


def test_drafts_depend_on_the_pending_token_and_on_picks(model, tokens):
    seen = {}
    for pending, pick in ((1, 5), (2, 5), (1, 6)):
        runner = new(model)
        runner.start(tokens[:PROMPT])
        rows = []
        runner.draft(pending, 2, lambda row, _, rows=rows, pick=pick: rows.append(row) or pick)
        seen[pending, pick] = rows
    assert not torch.equal(seen[1, 5][0], seen[2, 5][0])
    assert torch.equal(seen[1, 5][0], seen[1, 6][0])
    assert not torch.equal(seen[1, 5][1], seen[1, 6][1])


@pytest.mark.parametrize("has_mtp", [True, False])
def test_without_an_mtp_layer_or_without_drafts_nothing_is_drafted(tokens, plain, has_mtp):
    config = Glm5NextConfig.from_checkpoint_config(CONFIG)
    weights = runtime_weights(config, random_tensors(config, 5))
    if not has_mtp:
        weights = {name: weight for name, weight in weights.items() if not name.startswith("mtp.")}
    model = Glm5NextModel(config, weights, dtype=torch.float32, device="cpu")
    runner = new(model, max_drafts=0 if has_mtp else 4)
    assert not runner.can_draft
    assert torch.equal(runner.start(tokens[:PROMPT]), plain[0])
    assert runner.draft(tokens[PROMPT], 3, lowest) == []
    assert torch.equal(runner.verify([tokens[PROMPT]])[0], plain[1])
    runner.commit(1)
    assert runner.draft(tokens[PROMPT + 1], 3, lowest) == []
    assert (runner.state.latents[-1] == 0).all()  # the MTP layer's own cache
