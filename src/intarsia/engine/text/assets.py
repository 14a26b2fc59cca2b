"""Everything about text that a checkpoint folder holds besides its tokenizer's vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intarsia.checkpoint.files import read_small
from intarsia.core.config import SamplingSettings
from intarsia.core.errors import UsageError
from intarsia.core.json import parse_object
from intarsia.engine.text.errors import TemplateError, TextConfigError
from intarsia.engine.text.template import MAX_TEMPLATE_BYTES, ChatTemplate
from intarsia.engine.text.tokenizer import Tokenizer

GENERATION = "generation_config.json"
TOKENIZER = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
MAX_CONFIG_BYTES = 16 << 20


@dataclass(frozen=True)
class TextAssets:
    """What turns a conversation into tokens and tokens into a reply."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    stop_tokens: frozenset[int]
    """Tokens that end a reply."""
    defaults: SamplingSettings
    """How the checkpoint's makers would sample; greedy unless the file says otherwise."""

    @classmethod
    def open(cls, folder: Path, config: Mapping[str, Any], *, vocab_size: int) -> "TextAssets":
        """Read a checkpoint folder; `config` is its config.json.

        Raises `TokenizerError`, `TextConfigError`, `TemplateError` or the checkpoint layer's errors.
        """
        generation = _read(folder, GENERATION)
        tokenizer = Tokenizer.open(folder)
        if tokenizer.size > vocab_size:
            raise TextConfigError(
                "tokenizer.json",
                found=f"token id {tokenizer.size - 1}",
                expected=f"ids below the network's vocabulary of {vocab_size}",
            )
        return cls(
            tokenizer=tokenizer,
            template=_template(folder),
            stop_tokens=_stop_tokens(generation, config, vocab_size),
            defaults=_defaults(generation),
        )

    def chat_template(self) -> ChatTemplate:
        """The chat template; raises `TemplateError` when the checkpoint has none."""
        if self.template is None:
            raise TemplateError(TEMPLATE, found="no such file", action="generate from a plain prompt instead")
        return self.template


def _read(folder: Path, name: str) -> dict[str, Any]:
    if not (folder / name).exists():
        return {}
    return parse_object(read_small(folder / name, name, MAX_CONFIG_BYTES), name)


def _stop_tokens(generation: Mapping[str, Any], config: Mapping[str, Any], vocab_size: int) -> frozenset[int]:
    """`eos_token_id` of the first place that has one: generation_config, then config, then its text part."""
    text_config = config.get("text_config")
    places = (
        (GENERATION, generation),
        ("config.json", config),
        ("config.json text_config", text_config if isinstance(text_config, Mapping) else {}),
    )
    for where, place in places:
        value = place.get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                raise TextConfigError(
                    f"{where}: eos_token_id",
                    found=f"{token!r}"[:60],
                    expected=f"token ids below {vocab_size}",
                )
        return frozenset(ids)
    return frozenset()


def _defaults(generation: Mapping[str, Any]) -> SamplingSettings:
    """Sampling as generation_config.json asks for it; without `do_sample` the likeliest token is taken."""
    do_sample = generation.get("do_sample", False)
    if not isinstance(do_sample, bool):
        raise TextConfigError(f"{GENERATION}: do_sample", found=f"{do_sample!r}", expected="true or false")
    if not do_sample:
        return SamplingSettings()
    fields = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    given = {name: generation[name] for name in fields if generation.get(name) is not None}
    problem = None
    try:
        return SamplingSettings(**{**fields, **given})
    except UsageError as error:
        problem = error
    raise TextConfigError(f"{GENERATION}: {problem.where}", found=problem.found, expected=problem.expected)


def _template(folder: Path) -> ChatTemplate | None:
    """The file chat_template.jinja, else the string in tokenizer_config.json, the default one of several."""
    config = _read(folder, TOKENIZER)
    special = {
        name: content
        for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        if isinstance(content := _content(config.get(name)), str)
    }
    if (folder / TEMPLATE).exists():
        data = read_small(folder / TEMPLATE, TEMPLATE, MAX_TEMPLATE_BYTES)
        try:
            return ChatTemplate(data.decode(), special)
        except UnicodeDecodeError as error:
            place = error.start
        raise TemplateError(TEMPLATE, found=f"bytes that are not UTF-8 at offset {place}", expected="text")
    source = config.get("chat_template")
    if isinstance(source, list):
        named = [entry for entry in source if isinstance(entry, dict) and entry.get("name") == "default"]
        source = named[0].get("template") if named else None
    if source is None:
        return None
    if not isinstance(source, str):
        raise TemplateError(f"{TOKENIZER}: chat_template", found=type(source).__name__, expected="a string")
    return ChatTemplate(source, special)


def _content(token: object) -> object:
    """A special token is written as a string or as an object with its content."""
    return token.get("content") if isinstance(token, dict) else token
