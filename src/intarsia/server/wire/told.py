"""The bodies of replies."""

from typing import Any

from intarsia.server.wire.base import Told, ToldIfAny


class ErrorDetail(Told):
    """What went wrong; `param` names the field."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(Told):
    """OpenAI's error envelope."""

    error: ErrorDetail


class PromptDetails(Told):
    """How much of the prompt was reused, and why not more."""

    cached_tokens: int
    cache_reason: str


class CompletionDetails(Told):
    """What the reply's tokens were spent on; drafts by their place in the chain."""

    reasoning_tokens: int
    drafted_tokens: list[int]
    accepted_tokens: list[int]


class UsageTold(Told):
    """Token counts of a response."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class TopLogprob(Told):
    """A token that might have been written."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(Told):
    """A token that was written."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Told):
    """One entry for every token of the reply, reasoning and marks included."""

    content: list[ContentLogprob]
    refusal: None = None


class CalledFunctionTold(Told):
    """The called function."""

    name: str
    arguments: str


class CallTold(ToldIfAny, kw_only=True):
    """A tool call; `index` is told in streams."""

    id: str
    function: CalledFunctionTold
    type: str
    index: int | None = None


class MessageTold(Told):
    """A whole reply."""

    role: str
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[CallTold] | None = None
    refusal: None = None


class ChatChoice(Told, kw_only=True):
    """A reply of a response."""

    index: int
    message: MessageTold
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatResponse(Told, kw_only=True):
    """The body of a chat response."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageTold
    prompt_logprobs: list[Any] | None = None
    prompt_token_ids: list[int] | None = None


class Delta(ToldIfAny):
    """What a chunk adds to a reply."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallTold] | None = None


class ChatChunkChoice(ToldIfAny, kw_only=True):
    """A reply's part in a chunk."""

    index: int
    delta: Delta
    finish_reason: str | None
    logprobs: ChatLogprobs | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatChunk(ToldIfAny, kw_only=True):
    """One event of a chat stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageTold | None = None


class CompletionLogprobs(Told):
    """Logprobs in the older form, of parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(ToldIfAny, kw_only=True):
    """A completion, or a part of one in a stream."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: list[Any] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionResponse(ToldIfAny, kw_only=True):
    """The body of a completion, or one event of its stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageTold | None = None
