"""Every refusal of the layers below as one that a client is told about, and as a body."""

import msgspec

from intarsia.core.errors import IntarsiaError, UsageError
from intarsia.engine.errors import EngineClosedError, QueueFullError, RequestError, TooLongError
from intarsia.engine.text.errors import TemplateError
from intarsia.server.errors import (
    ApiError,
    BusyError,
    FailedError,
    InvalidRequestError,
    TooManyTokensError,
    UnavailableError,
)
from intarsia.server.wire.told import ErrorBody, ErrorDetail

DRAIN_RETRY = 10


def as_api_error(error: IntarsiaError, *, prompt_field: str = "messages") -> ApiError:
    """What a client is told of an error; `prompt_field` is what the route calls its prompt."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TooLongError):
        return TooManyTokensError(_about(_field(error, prompt_field), error), field=prompt_field)
    if isinstance(error, QueueFullError):
        return BusyError(_sentence(error), error.retry_after)
    if isinstance(error, EngineClosedError):
        return UnavailableError("The server is ending.", code="draining", retry_after=DRAIN_RETRY)
    if isinstance(error, UsageError | RequestError):
        field = _field(error, prompt_field)
        return InvalidRequestError(_about(field, error), field=field)
    if isinstance(error, TemplateError):
        return FailedError("The chat template failed.", code="template_failed")
    return FailedError(_sentence(error), code="internal_error")


def error_body(error: ApiError) -> bytes:
    """OpenAI's envelope."""
    detail = ErrorDetail(message=error.message, type=error.type, param=error.field or None, code=error.code)
    return msgspec.json.encode(ErrorBody(error=detail))


def _field(error: IntarsiaError, prompt_field: str) -> str:
    names = {"tokens": prompt_field, "prompt": prompt_field, "stop_ids": "stop_token_ids"}
    return names.get(error.where, error.where)


def _about(field: str, error: IntarsiaError) -> str:
    """The refusal of a field in the words of those that the wire itself refuses."""
    return f"The field '{field}' cannot be used: {str(error).removeprefix(f'{error.where}: ')[:400]}."


def _sentence(error: IntarsiaError) -> str:
    text = str(error)[:400]
    return text[:1].upper() + text[1:] + "."
