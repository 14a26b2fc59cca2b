"""Who asks for what: conversations that grow turn by turn, the same for every run with the same seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from intarsia.core.config import check_integer

ProfileName = Literal["chat", "agent", "long"]
Message = dict[str, Any]

_TEXT = (
    "the river carried small boats past green hills while people sang about summer and bread that "
    "an old baker made before morning with flour water salt and time for everyone who came by foot"
)
_WORDS = tuple(_TEXT.split())
_TOOL_NAMES = ("calculate", "get_weather", "find_item", "read_file", "list_files", "search")


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of use. Sizes are in words, which are about as many tokens."""

    name: ProfileName
    about: str
    turns: int
    shared: int
    """Words of a system message that all clients share."""
    question: int
    """Words of a user's turn."""
    result: int
    """Words a tool answers; 0 for turns without tools."""
    document: int
    """Words of a document in the first turn."""


PROFILES: dict[ProfileName, Profile] = {
    "chat": Profile("chat", "people who talk: short turns, three each", 3, 30, 20, 0, 0),
    "agent": Profile("agent", "agents: a long shared system text, tools, six turns", 6, 900, 20, 120, 0),
    "long": Profile("long", "readers: a question about a long document each", 1, 0, 20, 0, 2000),
}


@dataclass(frozen=True)
class TrafficSettings:
    """How much load, of which kind."""

    profile: ProfileName = "chat"
    """chat: short turns. agent: a long shared system text, tools, many turns. long: long documents."""
    clients: int = 8
    """Conversations that go on at the same time."""
    conversations: int = 16
    """Conversations in all."""
    tokens: int = 64
    """Most tokens of a reply."""
    scale: float = 1.0
    """Factor on the profile's prompt sizes, for small windows."""
    seed: int = 1
    """What the words follow from."""
    model: str | None = None
    """Name of the model; by default the first one the server offers."""

    def __post_init__(self) -> None:
        check_integer("clients", self.clients, 1, 4096)
        check_integer("conversations", self.conversations, 1, 1_000_000)
        check_integer("tokens", self.tokens, 1)


@dataclass
class Conversation:
    """One client's messages as they grow."""

    settings: TrafficSettings
    number: int
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._profile = PROFILES[self.settings.profile]
        self._dice = random.Random(f"{self.settings.seed}/{self.number}")
        shared = random.Random(f"{self.settings.seed}/shared")
        if self._profile.shared:
            self.messages.append(
                {"role": "system", "content": _text(shared, self._size(self._profile.shared))}
            )

    def bodies(self) -> Iterator[dict[str, Any]]:
        """The request of every turn; tell the reply with `answer` before the next."""
        for turn in range(self._profile.turns):
            self._ask(turn)
            body: dict[str, Any] = {
                "messages": self.messages,
                "max_tokens": self.settings.tokens,
                "seed": self.number,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            if self._profile.result:
                body["tools"] = [_tool(name) for name in _TOOL_NAMES]
            yield body

    def answer(self, text: str) -> None:
        """Append what the model replied."""
        self.messages.append({"role": "assistant", "content": text})

    def _ask(self, turn: int) -> None:
        question = _text(self._dice, self._size(self._profile.question))
        if turn == 0 and self._profile.document:
            question = f"{_text(self._dice, self._size(self._profile.document))}\n\n{question}"
        if turn and self._profile.result:
            question = f"{_text(self._dice, self._size(self._profile.result))}\n\n{question}"
        self.messages.append({"role": "user", "content": question})

    def _size(self, words: int) -> int:
        return max(1, round(words * self.settings.scale))


def _text(dice: random.Random, words: int) -> str:
    return " ".join(dice.choices(_WORDS, k=words))


def _tool(name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    function = {"name": name, "description": f"Does {name.replace('_', ' ')}", "parameters": schema}
    return {"type": "function", "function": function}
