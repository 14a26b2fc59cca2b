"""The fields that chat and plain completions share, as the engine's settings."""

from collections.abc import Mapping
from typing import Any

from intarsia.core.config import SamplingSettings
from intarsia.engine.requests import Penalties
from intarsia.server.errors import InvalidRequestError
from intarsia.server.wire.asked import Sampled


def sampling_of(asked: Sampled, defaults: SamplingSettings) -> SamplingSettings:
    """How tokens are drawn: what is asked for, else the checkpoint's own defaults. Raises UsageError."""
    top_k = defaults.top_k if asked.top_k is None else max(asked.top_k, 0)
    return SamplingSettings(
        temperature=_or(asked.temperature, defaults.temperature),
        top_k=top_k,
        top_p=_or(asked.top_p, defaults.top_p),
        min_p=_or(asked.min_p, defaults.min_p),
        seed=asked.seed,
    )


def common_fields(asked: Sampled, vocab_size: int) -> dict[str, Any]:
    """Fields of the engine's `Request` that both routes fill in the same way. Raises UsageError."""
    stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop
    return {
        "stop": tuple(stop or ()),
        "stop_ids": tuple(asked.stop_token_ids or ()),
        "ignore_eos": bool(asked.ignore_eos),
        "include_stop": bool(asked.include_stop_str_in_output),
        "prompt_logprobs": asked.prompt_logprobs,
        "penalties": Penalties(
            repetition=_or(asked.repetition_penalty, 1.0),
            presence=_or(asked.presence_penalty, 0.0),
            frequency=_or(asked.frequency_penalty, 0.0),
        ),
        "logit_bias": _biases(asked.logit_bias or {}, vocab_size),
        "draft": asked.draft is not False,
        "priority": asked.priority or 0,
        "loop_guard": bool(asked.loop_guard),
        "cache_salt": asked.cache_salt,
    }


def check_stream(asked: Sampled) -> None:
    """Refuse combinations that a stream cannot carry."""
    if asked.stream_options is not None and not asked.stream:
        raise InvalidRequestError("'stream_options' needs 'stream'.", field="stream_options")
    if asked.stream and asked.prompt_logprobs is not None:
        raise InvalidRequestError("Prompt logprobs are not streamed.", field="prompt_logprobs")


def _biases(biases: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    result: dict[int, float] = {}
    for key, bias in biases.items():
        token = int(key) if key.isascii() and key.isdecimal() and len(key) < 10 else -1
        if not 0 <= token < vocab_size or token in result:
            raise InvalidRequestError(
                f"'{key[:40]}' is no token id below {vocab_size} given once.", field="logit_bias"
            )
        result[token] = bias
    return result


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
