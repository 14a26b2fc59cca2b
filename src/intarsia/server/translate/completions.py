"""A plain completion request as a plan."""

from collections.abc import Sequence

from intarsia.engine.requests import Request, choices
from intarsia.server.errors import InvalidRequestError
from intarsia.server.service import ServedModel, Service
from intarsia.server.translate.formats import format_of
from intarsia.server.translate.plan import Choice, Plan, Telling
from intarsia.server.translate.sampling import check_stream, common_fields, sampling_of
from intarsia.server.wire.asked import MOST_PROMPTS, CompletionRequest
from intarsia.server.wire.base import LARGEST_N

DEFAULT_TOKENS = 16


def plan_completions(service: Service, asked: CompletionRequest, id: str) -> Plan:
    """What the engine is asked for one or several prompts.

    Raises ApiError, and UsageError for values that the engine's own settings refuse.
    """
    service.check_model(asked.model)
    check_stream(asked)
    model = service.model
    prompts = _prompts(model, asked.prompt)
    count = asked.n or 1
    if count * len(prompts) > LARGEST_N:
        raise InvalidRequestError(f"More than {LARGEST_N} replies are asked for.", field="n")
    _check_echo(asked)
    fields = common_fields(asked, model.vocab_size)
    if asked.echo and asked.logprobs is not None:
        fields["prompt_logprobs"] = asked.logprobs
    source = format_of(asked, asked.response_format)
    planned: list[Choice] = []
    for number, tokens in enumerate(prompts):
        request = Request(
            id=id if len(prompts) == 1 else f"{id}-{number}",
            tokens=tokens,
            sampling=sampling_of(asked, model.text.defaults),
            max_tokens=DEFAULT_TOKENS if asked.max_tokens is None else asked.max_tokens,
            logprobs=asked.logprobs,
            **fields,
        )
        grammars = service.grammars.compile(source, count) if source is not None else ()
        planned += [Choice(one, tokens) for one in choices(request, count, grammars)]
    return Plan(
        id=id,
        route="completions",
        choices=tuple(planned),
        telling=Telling(
            stream=bool(asked.stream),
            include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
            logprobs=asked.logprobs is not None,
            top_logprobs=asked.logprobs or 0,
            token_ids=bool(asked.return_token_ids),
            echo=bool(asked.echo),
            echo_logprobs=bool(asked.echo) and asked.logprobs is not None and asked.prompt_logprobs is None,
        ),
        model=model.name,
        user=asked.user,
        prompt_field="prompt",
    )


def _check_echo(asked: CompletionRequest) -> None:
    if not asked.echo:
        return
    if asked.stream and asked.logprobs is not None:
        raise InvalidRequestError("Logprobs of an echoed prompt are not streamed.", field="echo")
    if asked.prompt_logprobs is not None and asked.logprobs is not None:
        raise InvalidRequestError("An echo with logprobs has those of the prompt.", field="prompt_logprobs")


def _prompts(model: ServedModel, asked: str | Sequence[object]) -> list[tuple[int, ...]]:
    """The prompts as token ids; every item of a list is of the same kind."""
    items: list[object] = [asked] if isinstance(asked, str) else list(asked)
    if all(isinstance(item, int) for item in items):
        items = [items]
    if len(items) > MOST_PROMPTS:
        raise InvalidRequestError(f"More than {MOST_PROMPTS} prompts.", field="prompt")
    if len({type(item) for item in items}) > 1:
        raise InvalidRequestError("Texts, ids and lists of ids cannot be mixed.", field="prompt")
    return [
        _tokens(model, item, f"prompt[{i}]" if len(items) > 1 else "prompt") for i, item in enumerate(items)
    ]


def _tokens(model: ServedModel, item: object, field: str) -> tuple[int, ...]:
    tokens: tuple[int, ...] = ()
    if isinstance(item, str):
        tokens = tuple(model.text.tokenizer.encode(item))
    elif isinstance(item, list):
        tokens = tuple(item)
    if not tokens:
        raise InvalidRequestError("The prompt has no token.", field=field)
    if max(tokens) >= model.vocab_size:
        raise InvalidRequestError(f"The token id {max(tokens)} is not below {model.vocab_size}.", field=field)
    return tokens
