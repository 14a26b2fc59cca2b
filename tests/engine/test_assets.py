"""What a checkpoint folder says about text: stop tokens, sampling defaults, templates."""

import json

import pytest

from intarsia.core.config import SamplingSettings
from intarsia.core.errors import IntarsiaError
from intarsia.core.json import JsonError
from intarsia.engine.text import TextAssets
from intarsia.engine.text.errors import TemplateError, TextConfigError, TokenizerError

VOCAB = 400


@pytest.fixture
def folder(tmp_path, tokenizer_json):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    return tmp_path


def write(folder, name, document):
    (folder / name).write_text(document if isinstance(document, str) else json.dumps(document))


def open_assets(folder, config=None):
    return TextAssets.open(folder, config or {}, vocab_size=VOCAB)


def test_nothing_but_a_tokenizer(folder):
    assets = open_assets(folder)
    assert assets.stop_tokens == frozenset()
    assert assets.defaults == SamplingSettings()
    with pytest.raises(TemplateError, match="plain prompt"):
        assets.chat_template()


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [1, 2]}, {"eos_token_id": 3}, {1, 2}),
        ({}, {"eos_token_id": 3}, {3}),
        ({"eos_token_id": None}, {"text_config": {"eos_token_id": [4]}}, {4}),
        ({"eos_token_id": []}, {"eos_token_id": 3}, set()),
    ],
)
def test_stop_tokens(folder, generation, config, expected):
    write(folder, "generation_config.json", generation)
    assert open_assets(folder, config).stop_tokens == expected


@pytest.mark.parametrize("value", [VOCAB, -1, True, "1", [1, 2.0], [[1]], {"a": 1}])
def test_bad_stop_tokens(folder, value):
    write(folder, "generation_config.json", {"eos_token_id": value})
    with pytest.raises(TextConfigError, match="eos_token_id"):
        open_assets(folder)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"do_sample": True}, SamplingSettings(temperature=1.0)),
        (
            {"do_sample": True, "temperature": 0.7, "top_p": 0.95},
            SamplingSettings(temperature=0.7, top_p=0.95),
        ),
        ({"do_sample": True, "top_k": 50, "min_p": None}, SamplingSettings(temperature=1.0, top_k=50)),
        ({"do_sample": False, "temperature": 0.7}, SamplingSettings()),
        ({"temperature": 0.7}, SamplingSettings()),
    ],
)
def test_sampling_defaults(folder, generation, expected):
    write(folder, "generation_config.json", generation)
    assert open_assets(folder).defaults == expected


@pytest.mark.parametrize(
    "generation",
    [{"do_sample": 1}, {"do_sample": True, "temperature": "hot"}, {"do_sample": True, "top_p": 0}],
)
def test_bad_sampling_defaults(folder, generation):
    write(folder, "generation_config.json", generation)
    with pytest.raises(TextConfigError, match=r"generation_config\.json: "):
        open_assets(folder)


def test_the_template_file_comes_first(folder):
    write(folder, "tokenizer_config.json", {"chat_template": "config", "eos_token": {"content": "<e>"}})
    with open_assets(folder).chat_template() as template:
        assert template.render([{"role": "user"}]) == "config"
    write(folder, "chat_template.jinja", "file {{ eos_token }}")
    with open_assets(folder).chat_template() as template:
        assert template.render([{"role": "user"}]) == "file <e>"


def test_of_several_templates_the_default_one_is_taken(folder):
    several = [{"name": "rag", "template": "rag"}, {"name": "default", "template": "plain"}]
    write(folder, "tokenizer_config.json", {"chat_template": several})
    with open_assets(folder).chat_template() as template:
        assert template.render([{"role": "user"}]) == "plain"
    write(folder, "tokenizer_config.json", {"chat_template": several[:1]})
    assert open_assets(folder).template is None


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("generation_config.json", "{", JsonError),
        ("generation_config.json", "[]", JsonError),
        ("tokenizer_config.json", '{"a": 1, "a": 2}', JsonError),
        ("tokenizer_config.json", '{"chat_template": 5}', TemplateError),
        ("tokenizer.json", "{}", TokenizerError),
    ],
)
def test_malformed_files(folder, name, content, error):
    write(folder, name, content)
    with pytest.raises(error):
        open_assets(folder)


def test_a_template_that_is_not_text(folder):
    (folder / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(TemplateError, match="offset 2"):
        open_assets(folder)


def test_a_folder_in_place_of_a_file(folder):
    (folder / "generation_config.json").mkdir()
    with pytest.raises(IntarsiaError, match="regular file"):
        open_assets(folder)


def test_more_tokens_than_the_network_knows(folder):
    with pytest.raises(TextConfigError, match="vocabulary of 100"):
        TextAssets.open(folder, {}, vocab_size=100)
