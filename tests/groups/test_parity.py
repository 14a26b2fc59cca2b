"""One network over several ranks: the same text, nearly the same logits, the same bits each time."""

import itertools

import pytest
import torch

from intarsia import api
from intarsia.core.config import GenerationSettings
from intarsia.engine.drafting import FixedDepth, MtpDrafter
from intarsia.engine.generate import Generation
from intarsia.engine.runner import ModelRunner
from intarsia.engine.sampling import SamplingSettings, draw
from intarsia.engine.sampling.shards import Shards, draw_shards
from intarsia.engine.text import TextAssets
from tests.groups.threads import on_ranks

PROMPTS = ("Once upon a time", "The old clock in the hall", "In the garden there was")
LENGTH = 6

SAMPLED = GenerationSettings(temperature=0.8, top_p=0.9, seed=11, max_tokens=LENGTH, ignore_eos=True)
FREE = GenerationSettings(temperature=1.0, seed=3, max_tokens=LENGTH, ignore_eos=True)
GREEDY = GenerationSettings(max_tokens=LENGTH, ignore_eos=True)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def encoded(demo, text):
    vocab_size = demo.config.get("text_config", demo.config)["vocab_size"]
    return TextAssets.open(demo.path, demo.config, vocab_size=vocab_size).tokenizer.encode(text)


def reply(model, tokens, settings, drafts):
    runner = ModelRunner(model, window=128, max_drafts=max(drafts, 1))
    drafting = {"drafter": MtpDrafter(runner), "depth": FixedDepth(drafts)} if drafts else {}
    return Generation(runner, tokens, settings, **drafting).result.tokens


@pytest.mark.parametrize(
    ("demo", "ranks"), [("bf16", 2), ("block", 4), ("slab", 3), ("spark", 2)], indirect=["demo"]
)
def test_text_and_logits_are_those_of_one_rank(demo, ranks):
    prompts = [encoded(demo, text) for text in PROMPTS[:2]]
    model = api.load(demo)
    plain = [reply(model, tokens, GREEDY, 0) for tokens in prompts]
    logits = model.logits(prompts[0])
    spread = float(logits.std())

    def work(group):
        share = api.load(demo, group=group)
        return (
            share.logits(prompts[0]),
            reply(share, prompts[0], GREEDY, 3),
            reply(share, prompts[1], GREEDY, 0),
        )

    first, *others = on_ranks(ranks, work)
    # float32 sums in another order: each of some 20 of them adds a few roundings to numbers of this size
    assert float((first[0] - logits).abs().max()) < 1e-3 * spread
    assert list(first[1:]) == plain
    for other in others:
        assert torch.equal(other[0], first[0])
        assert other[1:] == first[1:]


@pytest.mark.parametrize("demo", ["block"], indirect=True)
def test_a_number_of_ranks_always_gives_the_same_bits(demo):
    tokens = encoded(demo, PROMPTS[2])

    def work(group):
        return api.load(demo, group=group).logits(tokens)

    assert torch.equal(on_ranks(3, work)[0], on_ranks(3, work)[2])


@pytest.mark.parametrize("demo", ["block"], indirect=True)
@pytest.mark.parametrize("settings", [SAMPLED, FREE], ids=["nucleus", "uncut"])
def test_sampled_text_agrees_on_all_ranks_drafted_or_not(demo, settings):
    tokens = encoded(demo, PROMPTS[0])

    def work(group):
        share = api.load(demo, group=group)
        return reply(share, tokens, settings, 0), reply(share, tokens, settings, 3)

    results = on_ranks(3, work)
    assert {tuple(text) for pair in results for text in pair} == {tuple(results[0][0])}


CHOICES = [
    SamplingSettings(),
    SamplingSettings(temperature=0.7, seed=1),
    SamplingSettings(temperature=1.5, top_k=5, seed=2),
    SamplingSettings(temperature=5.0, top_p=0.97, seed=3),
    SamplingSettings(temperature=1.0, top_p=0.5, min_p=0.1, top_k=300, seed=4),
]


@pytest.mark.parametrize("ranks", [2, 3])
def test_shards_draw_what_the_whole_vocabulary_draws(ranks):
    logits = torch.randn(40, 4160, generator=torch.Generator().manual_seed(5)) * 3
    logits[3] = float("nan")
    logits[4, 100] = float("nan")
    logits[5] = -torch.inf
    logits[6, 4159] = logits[6, 0] = 30.0
    positions = torch.arange(40)
    edges = [0, 1408, 2816, 4160] if ranks == 3 else [0, 2112, 4160]
    vocabulary = [range(a, b) for a, b in itertools.pairwise(edges)]
    mixed = [CHOICES[row % len(CHOICES)] for row in range(40)]

    def work(group):
        own = vocabulary[group.rank]
        shard = logits[:, own.start : own.stop]
        shards = Shards(group, tuple(vocabulary))
        return [draw_shards(shard, positions, choice, shards) for choice in [*CHOICES, mixed]]

    expected = [draw(logits, positions, choice) for choice in [*CHOICES, mixed]]
    for drawn in on_ranks(ranks, work):
        for got, wanted in zip(drawn, expected, strict=True):
            assert torch.equal(got, wanted)
