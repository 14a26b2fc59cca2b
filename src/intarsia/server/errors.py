"""What the HTTP service refuses, each kind with its status and its place in OpenAI's error envelope."""

from intarsia.core.errors import IntarsiaError, UsageError


class ApiError(IntarsiaError):
    """A refusal a client is told about. `where` is the field of the request, empty when it is about none."""

    status = 400
    type = "invalid_request_error"
    code: str | None = None
    close = False
    """True when the connection cannot be used any further."""

    def __init__(self, message: str, *, field: str = "", code: str | None = None) -> None:
        super().__init__(field or "request", found=message)
        self.message = message
        self.field = field
        if code is not None:
            self.code = code
        self.headers: dict[str, str] = {}


class InvalidRequestError(ApiError):
    """A body or a field that cannot be meant, or asks for what is not supported."""

    code = "invalid_value"


class TooManyTokensError(ApiError):
    """Prompt and reply do not fit the window."""

    code = "context_length_exceeded"


class KeyRefusedError(ApiError):
    """No API key, or one that is not in the file."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.headers["WWW-Authenticate"] = "Bearer"


class HostRefusedError(ApiError):
    """A browser was led here under another name."""

    status = 403
    type = "permission_error"
    code = "host_not_allowed"


class NotFoundError(ApiError):
    """An unknown route or model."""

    status = 404
    code = "not_found"


class MethodNotAllowedError(ApiError):
    """A known route asked with another method."""

    status = 405
    code = "method_not_allowed"


class BodyTimeoutError(ApiError):
    """The body did not arrive in time."""

    status = 408
    code = "body_timeout"
    close = True


class BodyTooLargeError(ApiError):
    """More bytes than a body may have."""

    status = 413
    code = "body_too_large"


class MediaTypeError(ApiError):
    """A body that is not declared to be JSON."""

    status = 415
    code = "unsupported_media_type"


class HeadersTooLargeError(ApiError):
    """More headers, or longer ones, than a request may have."""

    status = 431
    code = "headers_too_large"


class BusyError(ApiError):
    """Too many requests wait already."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.headers["Retry-After"] = str(retry_after)


class FailedError(ApiError):
    """The engine, or the server itself, failed at a request that was accepted."""

    status = 500
    type = "server_error"
    code = "generation_failed"


class UnavailableError(ApiError):
    """The server is ending, or something it needs is missing."""

    status = 503
    type = "server_error"
    code = "unavailable"

    def __init__(self, message: str, *, code: str | None = None, retry_after: int = 10) -> None:
        super().__init__(message, code=code)
        self.headers["Retry-After"] = str(retry_after)


class TimeLimitError(ApiError):
    """A reply took longer than a request may take."""

    status = 504
    type = "server_error"
    code = "time_limit"


class KeyFileError(UsageError):
    """A file of API keys that cannot be used."""
