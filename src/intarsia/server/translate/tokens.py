"""Tokenizing as the other routes would, and back."""

from typing import Any

from intarsia.server.errors import InvalidRequestError
from intarsia.server.service import Service
from intarsia.server.translate.prompt import render
from intarsia.server.translate.thinking import template_options
from intarsia.server.wire.asked import DetokenizeRequest, TokenizeRequest


def tokenize(service: Service, asked: TokenizeRequest) -> dict[str, Any]:
    """The tokens of a text, or of messages through the chat template."""
    service.check_model(asked.model)
    if (asked.prompt is None) == (asked.messages is None):
        raise InvalidRequestError("Expected either 'prompt' or 'messages'.", field="prompt")
    text = service.model.text
    if asked.messages is not None:
        tokens = list(render(text, asked.messages, asked.tools or [], template_options(asked)).tokens)
    else:
        for name in ("tools", "chat_template_kwargs", "reasoning_effort"):
            if getattr(asked, name) is not None:
                raise InvalidRequestError(f"'{name}' needs 'messages'.", field=name)
        tokens = text.tokenizer.encode(asked.prompt or "")
    result: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": service.engine.window,
        "tokens": tokens,
    }
    if asked.return_token_strs:
        result["token_strs"] = [service.model.token_text(token)[0] for token in tokens]
    return result


def detokenize(service: Service, asked: DetokenizeRequest) -> dict[str, Any]:
    """The text of token ids, control tokens left out as in replies."""
    service.check_model(asked.model)
    if asked.tokens and max(asked.tokens) >= service.model.vocab_size:
        raise InvalidRequestError(
            f"The token id {max(asked.tokens)} is not below {service.model.vocab_size}.", field="tokens"
        )
    return {"prompt": service.model.text.tokenizer.decode(asked.tokens)}
