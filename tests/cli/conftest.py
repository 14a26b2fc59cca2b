"""A text model whose network says what it is told, and the smallest real checkpoint."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from intarsia.core.config import EngineSettings, SamplingSettings
from intarsia.engine.sampling import draw
from intarsia.engine.text import ChatTemplate, TextAssets, Tokenizer
from intarsia.engine.text_model import TextModel
from tests.engine.conftest import train
from tests.synthetic import write_source

TEMPLATE = (
    "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "<|assistant|><think>{{ '</think>' if enable_thinking is defined and not enable_thinking }}"
)
WINDOW = 128


class ScriptRunner:
    """Says one reply after another, whatever it is asked; guesses every second token right."""

    window = WINDOW
    reused = 0

    def __init__(self, vocab_size: int, replies: list[list[int]], prompts: list[list[int]]) -> None:
        self.vocab_size = vocab_size
        self._replies = replies
        self._prompts = prompts
        self._length = 0
        self._begin = 0

    def _logits(self, place: int) -> Tensor:
        logits = torch.zeros(self.vocab_size)
        reply = self._replies[len(self._prompts) - 1]
        logits[reply[min(place - self._begin, len(reply) - 1)]] = 50.0
        return logits

    def start(self, tokens: Sequence[int]) -> Tensor:
        self._prompts.append(list(tokens))
        self._length = self._begin = len(tokens)
        return self._logits(self._length)

    def verify(self, tokens: Sequence[int]) -> Tensor:
        return torch.stack([self._logits(self._length + 1 + row) for row in range(len(tokens))])

    def draw(self, logits: Tensor, positions: Tensor, settings: SamplingSettings) -> Tensor:
        return draw(logits, positions, settings)

    def commit(self, count: int) -> None:
        self._length += count

    def draft(self, pending: int, count: int, pick) -> list[int]:
        right = [int(self._logits(self._length + 1 + place).argmax()) for place in range(count)]
        return [
            token if place % 2 == 0 else (token + 1) % self.vocab_size for place, token in enumerate(right)
        ]


class Stage:
    """What tests put on: replies to give, and what the network was asked."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.end = tokenizer.token("<|endoftext|>")
        self.template: ChatTemplate | None = ChatTemplate(TEMPLATE)
        self.replies: list[list[int]] = []
        self.prompts: list[list[int]] = []
        self.settings = EngineSettings()

    def say(self, *texts: str) -> None:
        self.replies += [[*self.tokenizer.encode(text), self.end] for text in texts]

    def asked(self, number: int) -> str:
        return self.tokenizer.decode(self.prompts[number])

    def load(self, path, settings=None, *, resume=False, progress=None) -> TextModel:
        self.settings = settings or EngineSettings()
        assets = TextAssets(
            self.tokenizer, self.template, frozenset([self.end]), SamplingSettings(temperature=0.5)
        )
        return TextModel(
            assets,
            lambda window, drafts: ScriptRunner(self.tokenizer.size, self.replies, self.prompts),
            model_window=WINDOW,
            can_draft=True,
            settings=self.settings,
        )


@pytest.fixture(scope="session")
def small_tokenizer() -> Tokenizer:
    return Tokenizer(train())


@pytest.fixture
def stage(monkeypatch, small_tokenizer):
    from intarsia import api

    made = Stage(small_tokenizer)
    monkeypatch.setattr(api, "load_text_model", made.load)
    yield made
    if made.template is not None:
        made.template.close()


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> Path:
    """A tiny random checkpoint of the real architecture."""
    return write_source(tmp_path_factory.mktemp("checkpoints") / "source").path
