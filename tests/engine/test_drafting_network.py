"""Drafted equals plain on a real network of random weights: its caches, its rollback, its MTP layer.

Fifty prompts, greedy and seeded, with the MTP drafter and with drafters that are always right, always wrong
and wrong every third time. Every verified row must have the bits of the row that was run alone.
"""

from collections.abc import Sequence
from functools import cache

import pytest
import torch
from torch import Tensor

from intarsia.core.config import GenerationSettings
from intarsia.engine.drafting import AdaptiveDepth, FixedDepth, MtpDrafter
from intarsia.engine.generate import Generation
from intarsia.engine.runner import ModelRunner
from intarsia.engine.stream import GenerationResult
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.models.glm5_next.model import Glm5NextModel
from tests.engine.scripted import ScriptedDrafter, always, every_third, never
from tests.engine.test_generate import expected_steps, without_zeros
from tests.models.oracle import network, random_tensors, tiny_config

WINDOW, PAGE, DEPTH, TOKENS = 224, 32, 3, 8
CONFIG = tiny_config("km", dense=1, index_topk=16, hc_sinkhorn_iters=3)
SETTINGS = {
    "greedy": GenerationSettings(max_tokens=TOKENS),
    "seeded": GenerationSettings(max_tokens=TOKENS, temperature=0.5, top_k=20, seed=17),
}
# From one token to past the 64-token grid, several pages, and past what the indexer selects (16 tokens).
LENGTHS = [1 + (5 * i + i * i // 8) % 150 for i in range(50)]
PROMPTS = [[(3 * i + 7 * j + i * j) % 110 for j in range(LENGTHS[i])] for i in range(50)]


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny matrices gain nothing from a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def model() -> Glm5NextModel:
    """A network whose next token depends mostly on the last one, so that its MTP layer can guess well.

    The blocks' outputs are faint; the MTP layer passes the next token's embedding on to the head.
    """
    tensors = random_tensors(Glm5NextConfig.from_checkpoint_config(CONFIG), 3)
    mtp = f"layers.{len(CONFIG['text_config']['layer_types'])}."
    width = CONFIG["text_config"]["hidden_size"]
    for name, value in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            value *= 0.02 if mtp in name else 0.12
        elif name.endswith("embed_tokens.weight"):
            value *= 8
        elif name.endswith(("enorm.weight", "shared_head.norm.weight", "language_model.norm.weight")):
            value[:] = 1
        elif name.endswith("eh_proj.weight"):
            value *= 0.05
            value[:, :width] += torch.eye(width)
        elif name.endswith("lm_head.weight"):
            value *= 4
    return network(CONFIG, tensors)


class Recorder(ModelRunner):
    """Remembers the logits of every row, by the tokens before and in it."""

    def __init__(self) -> None:
        super().__init__(model(), window=WINDOW, max_drafts=DEPTH, page=PAGE)
        self.rows: dict[tuple[int, ...], Tensor] = {}
        self._kept: list[int] = []
        self._tried: list[int] = []

    def start(self, tokens: Sequence[int]) -> Tensor:
        logits = super().start(tokens)
        self._kept = list(tokens)
        self.rows[tuple(tokens)] = logits.clone()
        return logits

    def verify(self, tokens: Sequence[int]) -> Tensor:
        logits = super().verify(tokens)
        self._tried = list(tokens)
        for row in range(len(tokens)):
            self.rows[(*self._kept, *tokens[: row + 1])] = logits[row].clone()
        return logits

    def commit(self, count: int) -> None:
        super().commit(count)
        self._kept += self._tried[:count]


@cache
def plain(index: int, kind: str) -> tuple[GenerationResult, dict[tuple[int, ...], Tensor]]:
    runner = Recorder()
    return Generation(runner, PROMPTS[index], SETTINGS[kind]).result, runner.rows


def check(index: int, kind: str, make_drafter, depth) -> GenerationResult:
    """Generate with drafts and compare tokens and logits with the plain run; returns the reply."""
    expected, expected_rows = plain(index, kind)
    runner = Recorder()
    reply = Generation(
        runner, PROMPTS[index], SETTINGS[kind], drafter=make_drafter(runner, expected), depth=depth
    ).result
    assert reply.tokens == expected.tokens
    assert runner.length == len(PROMPTS[index]) + len(reply.tokens) - 1
    for prefix, logits in expected_rows.items():
        assert torch.equal(runner.rows[prefix], logits)
    return reply


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("mistake", [never, always, every_third])
def test_scripted_drafters(kind, mistake):
    for index, prompt in enumerate(PROMPTS):

        def scripted(runner, expected, prompt=prompt):
            return ScriptedDrafter([*prompt, *expected.tokens], runner.vocab_size, mistake)

        reply = check(index, kind, scripted, FixedDepth(DEPTH))
        steps, drafted, accepted = expected_steps(TOKENS, TOKENS, DEPTH, mistake)
        assert reply.steps == steps
        assert without_zeros(reply.drafted) == without_zeros(drafted)
        assert without_zeros(reply.accepted) == without_zeros(accepted)


@pytest.mark.parametrize("kind", SETTINGS)
def test_mtp_drafter(kind):
    drafted = accepted = 0
    for index in range(len(PROMPTS)):
        depth = AdaptiveDepth(DEPTH) if index % 2 else FixedDepth(DEPTH)
        reply = check(index, kind, lambda runner, _: MtpDrafter(runner), depth)
        drafted, accepted = drafted + sum(reply.drafted), accepted + sum(reply.accepted)
        # each step gives one token and the guesses that were right, the last of which may end the reply
        assert TOKENS - 1 - reply.steps - sum(reply.accepted) in (0, -1)
    assert 0.2 < accepted / drafted < 1.0


def test_a_stream_begun_again_forgets_the_last_one():
    runner = Recorder()
    for index in (3, 40, 3):
        reply = Generation(
            runner, PROMPTS[index], SETTINGS["greedy"], drafter=MtpDrafter(runner), depth=FixedDepth(DEPTH)
        ).result
        assert reply.tokens == plain(index, "greedy")[0].tokens


def test_the_window_can_be_filled():
    settings = GenerationSettings(max_tokens=1000)
    prompt = [1 + i % 100 for i in range(WINDOW - 9)]
    runner = Recorder()
    expected = Generation(runner, prompt, settings).result
    assert len(expected.tokens) == 9
    for make in (MtpDrafter, lambda runner: ScriptedDrafter([*prompt, *expected.tokens], 128, never)):
        runner = Recorder()
        reply = Generation(runner, prompt, settings, drafter=make(runner), depth=FixedDepth(DEPTH)).result
        assert reply.tokens == expected.tokens
        assert runner.length == WINDOW - 1
