"""A stream that resumes: its rows are those of a fresh one, bit for bit, drafts included."""

import pytest
import torch

from intarsia.core.config import GenerationSettings
from intarsia.engine.drafting import FixedDepth, MtpDrafter
from intarsia.engine.generate import Generation
from intarsia.engine.resuming import MOST_KEPT, ResumingRunner
from intarsia.engine.runner import ModelRunner
from tests.models.cases import random_network
from tests.models.oracle import random_tokens, tiny_config

CONFIG = tiny_config("kmkm", dense=1)


@pytest.fixture(scope="module")
def model():
    return random_network(CONFIG, seed=5)


@pytest.fixture(scope="module")
def tokens(model):
    return random_tokens(model.config, 1, 400, seed=5)[0]


def reply(runner, prompt):
    settings = GenerationSettings(temperature=0.9, seed=7, max_tokens=12, ignore_eos=True)
    with torch.inference_mode():
        return Generation(
            runner, prompt, settings, drafter=MtpDrafter(runner), depth=FixedDepth(runner.max_drafts)
        ).result


def test_turns_resume_and_write_what_a_fresh_stream_writes(model, tokens):
    runner = ResumingRunner(model, window=512, max_drafts=2, page=32)
    first, second, third = tokens[:150], tokens[:150] + tokens[200:260], tokens[:150] + tokens[200:300]
    edited = tokens[:100] + tokens[350:380]
    expected = (0, 128, 192, 64)
    for prompt, reused in zip((first, second, third, edited), expected, strict=True):
        fresh = reply(ModelRunner(model, window=512, max_drafts=2, page=32), prompt)
        found = reply(runner, prompt)
        assert found.reused == reused
        assert found.tokens == fresh.tokens
        assert (found.drafted, found.accepted) == (fresh.drafted, fresh.accepted)


@pytest.mark.parametrize("drafts", [0, 3])
def test_bits_of_a_resumed_prompt(model, tokens, drafts):
    runner = ResumingRunner(model, window=512, max_drafts=drafts, page=32)
    with torch.inference_mode():
        runner.start(tokens[:140])
        runner.verify([1])
        runner.commit(1)
        found = [runner.start(tokens[:200]), runner.verify([3])[0]]
        assert runner.reused == 128
        plain = ModelRunner(model, window=512, max_drafts=drafts, page=32)
        expected = [plain.start(tokens[:200]), plain.verify([3])[0]]
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        runner.start(tokens[200:300])
        assert runner.reused == 0
        assert torch.equal(runner.start(tokens[200:300]), plain.start(tokens[200:300]))
        assert runner.reused == 64


def test_few_states_are_kept_and_short_prompts_keep_none(model, tokens):
    runner = ResumingRunner(model, window=512, max_drafts=0)
    runner.start(tokens[:64])
    runner.start(tokens[:64])
    assert runner.reused == 0
    for length in range(80, 400, 60):
        runner.start(tokens[:length])
        assert len(runner._kept) <= MOST_KEPT
    runner.start(tokens[:399])
    assert runner.reused == 320
    with pytest.raises(Exception, match="no token"):
        runner.start([])
