"""Windows of tokens that a model reads at once, each beginning where a document begins."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from intarsia.evidence.errors import TextError
from intarsia.evidence.quality.documents import Corpus
from intarsia.evidence.quality.settings import QualitySettings

RULE = (
    "a window begins with a document and goes on with the documents after it until it is full; what does not "
    "fit is left out, and the next window begins with the next document"
)


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """How many windows, and how many tokens each."""

    count: int
    length: int

    def __str__(self) -> str:
        return f"{self.count}x{self.length}"

    @classmethod
    def parse(cls, text: str) -> "WindowPlan":
        """`16x1024`: 16 windows of 1,024 tokens. Raises UsageError."""
        return cls(*map(int, QualitySettings(tokens=text).tokens.split("x")))


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens of one window, and the document each belongs to."""

    index: int
    tokens: tuple[int, ...]
    documents: tuple[int, ...]

    def targets(self) -> torch.Tensor:
        """The token that follows each, int64 [T]; -1 for the last, whose successor is not in the window."""
        return torch.tensor([*self.tokens[1:], -1], dtype=torch.int64)


def cut_windows(corpus: Corpus, plan: WindowPlan) -> tuple[Window, ...]:
    """Full windows from the beginning of a corpus. Raises TextError when it holds too few."""
    windows: list[Window] = []
    tokens: list[int] = []
    owners: list[int] = []
    for number, document in enumerate(corpus.documents):
        if len(windows) == plan.count:
            break
        tokens += document
        owners += [number] * len(document)
        if len(tokens) >= plan.length:
            windows.append(Window(len(windows), tuple(tokens[: plan.length]), tuple(owners[: plan.length])))
            tokens, owners = [], []
    if len(windows) < plan.count:
        raise TextError(
            corpus.name,
            found=f"{corpus.tokens:,} tokens, enough for {len(windows)} windows of {plan.length:,}",
            expected=f"{plan.count} windows",
            action=f"ask for {len(windows)}x{plan.length}" if windows else "use shorter windows or more text",
        )
    return tuple(windows)


def windows_hash(windows: Sequence[Window]) -> str:
    """sha256 over the token ids of all windows, little-endian int32, each window's length before it."""
    digest = hashlib.sha256()
    for window in windows:
        for number in (len(window.tokens), *window.tokens):
            digest.update(number.to_bytes(4, "little"))
    return digest.hexdigest()
