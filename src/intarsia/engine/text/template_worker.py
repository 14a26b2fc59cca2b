"""Renders chat templates in a process of its own, with little memory and no files.

A template is a program that came with a checkpoint. Jinja's sandbox keeps it from Python's internals, but not
from looping for ever or from building a string of a terabyte; only the operating system can. Run as a script,
so that nothing but the standard library and jinja2 is imported.

Messages in both directions: four bytes of length (big endian), then JSON.
"""

import json
import struct
import sys
from datetime import datetime
from typing import Any, BinaryIO

MEMORY_BYTES = 512 << 20
MOST_CHARACTERS = 16 << 20


def limit_resources() -> None:
    """Bound memory, and forbid writing files; platforms without rlimits keep the time limit only."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def environment() -> Any:
    """The environment that Hugging Face chat templates are written for."""
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class RefusalError(TemplateError):
        """What a template says through raise_exception."""

    def raise_exception(message: str) -> None:
        raise RefusalError(str(message))

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        # unlike Jinja's own filter this one does not escape for HTML
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
    )
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def render(compiled: Any, variables: dict[str, Any]) -> dict[str, str]:
    """The answer to one request: {"text": ...} or {"error": ..., "kind": ...}."""
    try:
        text = compiled.render(**variables)
        if len(text) > MOST_CHARACTERS:
            return {"kind": "size", "error": f"a prompt of {len(text):,} characters"}
        return {"text": text}
    except MemoryError:
        return {"kind": "size", "error": "more memory than a template may use"}
    except RecursionError:
        return {"kind": "failed", "error": "endless recursion"}
    except Exception as error:
        kind = "refused" if type(error).__name__ == "RefusalError" else "failed"
        return {
            "kind": kind,
            "error": f"{error}" if kind == "refused" else f"{type(error).__name__}: {error}",
        }


def receive(stream: BinaryIO) -> Any:
    """The next message, or None when the other side has gone."""
    header = stream.read(4)
    if len(header) < 4:
        return None
    return json.loads(stream.read(struct.unpack(">I", header)[0]))


def send(stream: BinaryIO, message: dict[str, str]) -> None:
    body = json.dumps(message).encode()
    stream.write(struct.pack(">I", len(body)) + body)
    stream.flush()


def serve(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Say that it has started, compile the template of the first message, render the variables of each other.

    Starting is apart from compiling, since a template's constants are computed while it is compiled.
    """
    limit_resources()
    made = environment()
    send(outgoing, {"text": ""})
    try:
        compiled = made.from_string(receive(incoming)["template"])
    except MemoryError:
        send(outgoing, {"kind": "size", "error": "more memory than a template may use"})
        return
    except Exception as error:
        send(outgoing, {"kind": "syntax", "error": f"{type(error).__name__}: {error}"})
        return
    send(outgoing, {"text": ""})
    while (request := receive(incoming)) is not None:
        send(outgoing, render(compiled, request["variables"]))


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
