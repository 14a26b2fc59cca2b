"""The log: one JSON object a line on stderr."""

import logging
import sys
import time
from typing import Any

import msgspec

LOGGER = logging.getLogger("intarsia.server")


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        # bytes that are no text never reach a log: what came from a client is escaped by the encoder
        return msgspec.json.encode(line).decode()


def start_log() -> None:
    """Write this package's and the HTTP server's messages as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    levels = {"intarsia": logging.INFO, "uvicorn": logging.ERROR, "asyncio": logging.WARNING}
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


def log(event: str, level: int = logging.INFO, *, trace: bool = False, **fields: Any) -> None:
    """Write one line. `trace` adds the traceback of the exception being handled."""
    LOGGER.log(level, event, extra={"fields": fields}, exc_info=trace)
