"""Probabilities of tokens in the three forms clients know."""

from collections.abc import Sequence
from typing import Any

from intarsia.engine.events import PromptLogprobs, TokenLogprob
from intarsia.server.service import ServedModel
from intarsia.server.wire.told import ChatLogprobs, CompletionLogprobs, ContentLogprob, TopLogprob

# JSON has no infinity; OpenAI tells this for a token that cannot be.
IMPOSSIBLE = -9999.0


def chat_logprobs(model: ServedModel, entries: Sequence[TokenLogprob]) -> ChatLogprobs:
    """The form of chat responses."""
    content = []
    for entry in entries:
        text, data = model.token_text(entry.id)
        content.append(
            ContentLogprob(
                token=text,
                logprob=told(entry.logprob),
                bytes=list(data),
                top_logprobs=[_top(model, token, value) for token, value in entry.top],
            )
        )
    return ChatLogprobs(content=content)


def completion_logprobs(
    model: ServedModel, entries: Sequence[TokenLogprob], top: int, offset: int
) -> CompletionLogprobs:
    """The form of plain completions; `offset`: characters of text before the first of these tokens."""
    result = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for entry in entries:
        text, data = model.token_text(entry.id)
        result.tokens.append(text)
        result.token_logprobs.append(told(entry.logprob))
        result.top_logprobs.append(_map(model, entry) if top else None)
        result.text_offset.append(offset)
        offset += len(text) if data else 0
    return result


def echoed_logprobs(
    model: ServedModel, prompt: Sequence[int], told_prompt: PromptLogprobs | None, top: int
) -> CompletionLogprobs:
    """The form of plain completions for an echoed prompt: nothing is known of its first token."""
    result = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    offset = 0
    entries = told_prompt.entries if told_prompt is not None else (None,) * len(prompt)
    for token, entry in zip(prompt, entries, strict=True):
        text, data = model.token_text(token)
        result.tokens.append(text)
        result.token_logprobs.append(None if entry is None else told(entry.logprob))
        result.top_logprobs.append(_map(model, entry) if top and entry is not None else None)
        result.text_offset.append(offset)
        offset += len(text) if data else 0
    return result


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """Two parts of one text, as one."""
    return CompletionLogprobs(
        tokens=first.tokens + second.tokens,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        top_logprobs=first.top_logprobs + second.top_logprobs,
        text_offset=first.text_offset + second.text_offset,
    )


def prompt_logprobs(model: ServedModel, event: PromptLogprobs) -> list[dict[str, Any] | None]:
    """vLLM's form for prompts: null for the first token, then a map from id to logprob, rank and text."""
    result: list[dict[str, Any] | None] = []
    for entry in event.entries:
        if entry is None:
            result.append(None)
            continue
        row = {
            str(token): {
                "logprob": told(value),
                "rank": rank,
                "decoded_token": model.token_text(token)[0],
            }
            for rank, (token, value) in enumerate(entry.top, start=1)
        }
        row[str(entry.id)] = {
            "logprob": told(entry.logprob),
            "rank": entry.rank,
            "decoded_token": model.token_text(entry.id)[0],
        }
        result.append(row)
    return result


def told(logprob: float) -> float:
    """A logprob that JSON can hold."""
    return max(logprob, IMPOSSIBLE)


def _top(model: ServedModel, token: int, value: float) -> TopLogprob:
    text, data = model.token_text(token)
    return TopLogprob(token=text, logprob=told(value), bytes=list(data))


def _map(model: ServedModel, entry: TokenLogprob) -> dict[str, float]:
    result = {model.token_text(token)[0]: told(value) for token, value in entry.top}
    result.setdefault(model.token_text(entry.id)[0], told(entry.logprob))
    return result
