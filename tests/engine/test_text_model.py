"""A text model: prompts as text, streams as wide as needed, the checkpoint's own defaults."""

import pytest

from intarsia.core.config import EngineSettings, GenerationSettings, SamplingSettings
from intarsia.core.errors import UsageError
from intarsia.engine.errors import WindowError
from intarsia.engine.text import ChatTemplate, TextAssets
from intarsia.engine.text.errors import TemplateError
from intarsia.engine.text_model import TextModel

from .fakes import HashRunner

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def make(tokenizer):
    templates = [ChatTemplate(TEMPLATE)]

    def build(model_window=4096, *, template=True, can_draft=True, **settings):
        made = []

        def make_runner(window, drafts):
            made.append((window, drafts))
            return HashRunner(window)

        assets = TextAssets(
            tokenizer,
            templates[0] if template else None,
            frozenset([3]),
            SamplingSettings(temperature=0.7, top_p=0.9),
        )
        model = TextModel(
            assets,
            make_runner,
            model_window=model_window,
            can_draft=can_draft,
            settings=EngineSettings(**settings),
        )
        return model, made

    yield build
    templates[0].close()


SHORT = GenerationSettings(max_tokens=8)


def test_streams_are_as_wide_as_needed_and_reused(make):
    model, made = make()
    first = model.generate([1, 2, 3], SHORT).result
    again = model.generate([1, 2, 3], SHORT).result
    assert first == again
    assert made == [(512, 3)]
    _ = model.generate([1] * 600, SHORT).result
    assert made == [(512, 3), (1024, 3)]
    _ = model.generate([1, 2, 3], SHORT).result
    assert len(made) == 2


def test_a_reply_ends_at_the_window(make):
    model, made = make(20)
    reply = model.generate([1, 2, 3], GenerationSettings(max_tokens=100, ignore_eos=True)).result
    assert len(reply.tokens) == 17
    assert reply.finish_reason == "length"
    assert made == [(20, 3)]
    with pytest.raises(WindowError, match="at most 19 in a window of 20"):
        model.generate([1] * 20, SHORT)


def test_settings(make):
    model, made = make(100, drafts=5)
    assert model.defaults == GenerationSettings(temperature=0.7, top_p=0.9)
    _ = model.generate([1], SHORT).result
    assert made == [(100, 5)]
    model, made = make(can_draft=False, window=50)
    assert model.generate([1], SHORT).result.drafted == ()
    assert made == [(50, 0)]


def test_a_window_wider_than_the_model_is_refused(make):
    with pytest.raises(UsageError, match="window: found 200; expected at most the model's own 100"):
        make(100, window=200)


def test_texts_and_conversations(make, tokenizer):
    model, _ = make()
    tokens = tokenizer.encode("ABC")
    assert max(tokens) < HashRunner.vocab_size
    expected = model.generate(tokens, SHORT).result
    assert model.generate("ABC", SHORT).result == expected
    assert (
        model.chat([{"role": "user", "content": "AB"}, {"role": "user", "content": "C"}], SHORT).result
        == expected
    )
    assert expected.text == tokenizer.decode(expected.tokens)


def test_without_a_template(make):
    model, _ = make(template=False)
    with pytest.raises(TemplateError):
        model.chat([{"role": "user", "content": "x"}])
