"""The bodies of requests.

Names are OpenAI's, or vLLM's where OpenAI has none; `draft`, `loop_guard` and `thinking_budget` are ours. A
field that is not here is refused. Fields of type `Literal` with one value are accepted because they ask for
what happens anyway.
"""

from typing import Annotated, Literal

from msgspec import Meta

from intarsia.server.wire.base import (
    MOST_MESSAGES,
    MOST_PROMPTS,
    MOST_TOOLS,
    Additive,
    Asked,
    Biases,
    Choices,
    Json,
    Multiplicative,
    Name,
    Priority,
    Salt,
    Share,
    Stop,
    StopIds,
    Stops,
    Temperature,
    TokenCount,
    TokenId,
    TopK,
    TopLogprobs,
)
from intarsia.server.wire.messages import Message
from intarsia.server.wire.tools import (
    GrammarText,
    Options,
    Pattern,
    ResponseFormat,
    StructuredOutputs,
    Tool,
    ToolChoice,
)

LONGEST_PROMPT = 2_000_000
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Tokens = Annotated[list[TokenId], Meta(max_length=LONGEST_PROMPT)]


class StreamOptions(Asked):
    """What a stream carries besides the reply."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Sampled(Asked):
    """The fields that chat and plain completions share."""

    model: Name | None = None
    max_tokens: TokenCount | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    seed: int | None = None
    presence_penalty: Additive | None = None
    frequency_penalty: Additive | None = None
    repetition_penalty: Multiplicative | None = None
    logit_bias: Biases | None = None
    n: Choices | None = None
    stop: Stop | Stops | None = None
    stop_token_ids: StopIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_logprobs: TopLogprobs | None = None
    return_token_ids: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Json | str | None = None
    guided_regex: Pattern | None = None
    guided_choice: Options | None = None
    guided_grammar: GrammarText | None = None
    draft: bool | None = None
    loop_guard: bool | None = None
    priority: Priority | None = None
    cache_salt: Salt | None = None
    user: Annotated[str, Meta(max_length=256)] | None = None


class ChatRequest(Sampled, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: TokenCount | None = None
    tools: Annotated[list[Tool], Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    reasoning_effort: Effort | None = None
    thinking_budget: TokenCount | None = None
    chat_template_kwargs: Json | None = None
    modalities: Annotated[list[Literal["text"]], Meta(max_length=1)] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None


class CompletionRequest(Sampled, kw_only=True):
    """POST /v1/completions. `prompt` is a text, a list of texts, a list of ids or a list of lists of ids."""

    prompt: str | Annotated[list[str | TokenId | Tokens], Meta(min_length=1, max_length=LONGEST_PROMPT)]
    logprobs: TopLogprobs | None = None
    echo: bool | None = None
    response_format: ResponseFormat | None = None
    best_of: Literal[1] | None = None


class TokenizeRequest(Asked):
    """POST /tokenize: a text as it is, or messages through the chat template."""

    model: Name | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MOST_MESSAGES)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=MOST_TOOLS)] | None = None
    chat_template_kwargs: Json | None = None
    reasoning_effort: Effort | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Asked, kw_only=True):
    """POST /detokenize."""

    model: Name | None = None
    tokens: Tokens


__all__ = [
    "MOST_PROMPTS",
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "Effort",
    "Sampled",
    "StreamOptions",
    "TokenizeRequest",
]
