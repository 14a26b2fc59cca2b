"""The trained demo's own drafts: never a different reply, and most first guesses kept."""

import pytest

import intarsia
from intarsia.checkpoint import locate

PROMPTS, PROMPT_TOKENS, REPLY = 4, 16, 24
KINDS = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 20},
}


@pytest.fixture(scope="module")
def models():
    """The demo with three drafts a step, and without any."""
    return [
        intarsia.load_text_model("demo", intarsia.EngineSettings(drafts=drafts, window=128))
        for drafts in (3, 0)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_drafted_replies_are_the_plain_ones(models, kind):
    drafting, plain = models
    documents = (locate("demo") / "heldout.txt").read_text().split("<|endoftext|>\n")
    settings = intarsia.GenerationSettings(max_tokens=REPLY, ignore_eos=True, **KINDS[kind])
    first_guesses = kept = 0
    for text in documents[:PROMPTS]:
        prompt = drafting.assets.tokenizer.encode(text[:400])[:PROMPT_TOKENS]
        drafted = intarsia.generate(drafting, prompt, settings).result
        expected = intarsia.generate(plain, prompt, settings).result
        assert drafted.tokens == expected.tokens
        assert expected.steps == REPLY - 1
        assert drafted.steps < expected.steps
        first_guesses += drafted.drafted[0]
        kept += drafted.accepted[0]
    assert kept >= 0.6 * first_guesses
