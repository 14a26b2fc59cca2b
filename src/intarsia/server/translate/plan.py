"""A request as it will be carried out: what the engine is asked, and how its answer is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from intarsia.engine.requests import Request

Route = Literal["chat", "completions"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One reply of a response."""

    request: Request
    prompt: tuple[int, ...]
    """The prompt as it is told: the engine's request may share it."""


@dataclass(frozen=True, slots=True)
class Telling:
    """How a reply is told to the client."""

    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    token_ids: bool = False
    inside_thinking: bool = False
    thinks: bool = False
    tools: Mapping[str, Mapping[str, Any]] | None = None
    """Schemas of the tools whose calls are looked for; None leaves all text as content."""
    several_calls: bool = True
    echo: bool = False
    echo_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a route needs to run a request."""

    id: str
    route: Route
    choices: tuple[Choice, ...]
    telling: Telling
    model: str
    user: str | None = None
    prompt_field: str = field(default="messages")

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(len(prompt) for prompt in {id(c.prompt): c.prompt for c in self.choices}.values())
