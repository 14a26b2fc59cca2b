"""Where a command's words go: results to standard output, everything else to standard error."""

import json
import os
import signal
import sys
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from intarsia.core.errors import IntarsiaError, UsageError, ViolationsError

INTERRUPTED = 130
"""The exit code of a command that was ended by Ctrl-C or SIGTERM."""
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def emit_json(document: Any) -> None:
    """Print the one JSON document of a command on standard output."""
    print(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2))


def note(text: str) -> None:
    """Say something that is not the result."""
    print(printable(text), file=sys.stderr, flush=True)


def describe_error(error: IntarsiaError) -> dict[str, Any]:
    """An error as the JSON that `--json` commands print instead of their result."""
    described: dict[str, Any] = {
        "type": type(error).__name__,
        "message": str(error),
        "where": error.where,
        "found": error.found,
        "expected": error.expected,
        "action": error.action,
    }
    if isinstance(error, ViolationsError):
        described["violations"] = [
            {name: getattr(violation, name) for name in ("rule", "where", "found", "expected", "action")}
            for violation in error.violations
        ]
    return {"error": described}


def printable(text: str) -> str:
    """Text from a file or a model without control characters, which could drive the terminal.

    Newlines and tabs stay.
    """
    return "".join(
        character if character in "\n\t" or unicodedata.category(character) != "Cc" else "\ufffd"
        for character in text
    )


def read_key(file: str | None) -> str | None:
    """The API key in a file, for clients of a server. Raises UsageError for a file that cannot be read."""
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"{error}"
    raise UsageError("api-key-file", found=problem, expected="a file with a key")


def require_files(command: str, files: Sequence[str]) -> None:
    """Raise UsageError unless files are named, and all of them are there."""
    if not files:
        raise UsageError(command, found="no file", expected="at least one", action="name files")
    for file in files:
        if not Path(file).is_file():
            found = "a folder" if Path(file).is_dir() else "no such file"
            raise UsageError(file, found=found, expected="a file")


def colours() -> bool:
    """True when standard output is a terminal that shows dim text."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def write(text: str, *, dim: bool = False) -> None:
    """Show a piece of a model's text at once."""
    shown = printable(text) if sys.stdout.isatty() else text
    sys.stdout.write(f"{DIM}{shown}{PLAIN}" if dim and shown and colours() else shown)
    sys.stdout.flush()


@contextmanager
def stoppable() -> Iterator[None]:
    """Within it, being told to end (SIGTERM) is what Ctrl-C is, so that what was found until then is kept."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def gigabytes(count: float) -> str:
    """Bytes in the unit people read them in (decimal)."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:,.0f} {unit}"
    return f"{count:.0f} B"
