"""The checkpoint's own chat template: messages in, prompt text out."""

import json
import os
import selectors
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from intarsia.core.errors import UsageError
from intarsia.engine.text import template_worker
from intarsia.engine.text.errors import MessageRefusedError, TemplateError

MAX_TEMPLATE_BYTES = 1 << 20
MAX_MESSAGE_BYTES = 32 << 20
SECONDS = 5.0
START_SECONDS = 30.0

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# Variables a caller may set, and the values each accepts. Anything else could reach parts of a template that
# its author did not mean to be reached.
ALLOWED: Mapping[str, tuple[object, ...]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "clear_thinking": (True, False),
    "reasoning_effort": EFFORTS,
}

Message = Mapping[str, Any]


class ChatTemplate:
    """Renders conversations in a limited process that is started at the first use and kept.

    A template that takes longer than `seconds` or more memory than 512 MiB is ended with its process and
    reported as `TemplateError`; the next call starts a fresh one. Calls from several threads take turns.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, *, seconds: float = SECONDS
    ) -> None:
        """`special_tokens`: bos_token, eos_token ... as templates name them."""
        if len(source.encode(errors="replace")) > MAX_TEMPLATE_BYTES:
            raise TemplateError(
                "chat template", found=f"{len(source):,} characters", expected="at most 1 MiB"
            )
        self._source = source
        self._special = dict(special_tokens or {})
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **options: object,
    ) -> str:
        """The prompt of a conversation; `options` are those of `ALLOWED`.

        Raises `UsageError` for an option or message that cannot be meant, `MessageRefusedError` when the
        template refuses the messages and `TemplateError` when it fails.
        """
        for name, value in options.items():
            accepted = ALLOWED.get(name)
            if accepted is None:
                raise UsageError(name, found="a template option", expected=", ".join(ALLOWED))
            if not any(value is entry or (isinstance(value, str) and value == entry) for entry in accepted):
                raise UsageError(name, found=f"{value!r}", expected=", ".join(map(str, accepted)))
        _check_messages(messages)
        variables = {
            **self._special,
            **options,
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        with self._lock:
            if self._process is None:
                self._start()
            return self._ask({"variables": variables}, self._seconds)

    def mentions(self, variable: str) -> bool:
        """False if the template cannot depend on a variable, because nothing in it has that name."""
        return variable in self._source

    def check(self) -> None:
        """Compile the template now; raises `TemplateError` when it has a syntax error."""
        with self._lock:
            if self._process is None:
                self._start()

    def close(self) -> None:
        """End the process; a later call starts another."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def __enter__(self) -> "ChatTemplate":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        # -P: modules beside the script must not stand in for the standard library's
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(template_worker.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt at the terminal is for this process alone
        )
        weakref.finalize(self, _end, self._process)
        self._understand(self._receive(START_SECONDS))
        self._ask({"template": self._source}, self._seconds)

    def _ask(self, request: Mapping[str, Any], seconds: float) -> str:
        try:
            body = json.dumps(request, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError("messages", found=f"{error}", expected="values JSON can hold") from None
        if len(body) > MAX_MESSAGE_BYTES:
            raise UsageError(
                "messages", found=f"{len(body):,} bytes", expected=f"at most {MAX_MESSAGE_BYTES:,}"
            )
        return self._understand(self._send(body) or self._receive(seconds))

    def _understand(self, answer: dict[str, str] | str) -> str:
        """The text of an answer; an answer that is a mere string says what went wrong."""
        if isinstance(answer, str):
            self.close()
            raise TemplateError("chat template", found=answer, action="check the checkpoint's template")
        if "text" in answer:
            return str(answer["text"])
        if answer["kind"] == "refused":
            raise MessageRefusedError("messages", found=answer["error"])
        if answer["kind"] in ("syntax", "size"):
            self.close()
        raise TemplateError("chat template", found=answer["error"], action="check the checkpoint's template")

    def _send(self, body: bytes) -> str:
        """What went wrong with sending, or an empty string."""
        if self._process is None or self._process.stdin is None:
            return "no process to render in"
        try:
            self._process.stdin.write(struct.pack(">I", len(body)) + body)
            self._process.stdin.flush()
        except OSError:
            return "a process that ended early"
        return ""

    def _receive(self, seconds: float) -> dict[str, str] | str:
        """The worker's answer, or what went wrong with it."""
        deadline = time.monotonic() + seconds
        if self._process is None or self._process.stdout is None:
            return "no process to render in"
        received = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while len(received) < 4 or len(received) < 4 + struct.unpack(">I", received[:4])[0]:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return f"no result after {seconds:g} seconds"
                piece = os.read(self._process.stdout.fileno(), 1 << 20)
                if not piece:
                    return "more memory than a template may use, or a process that ended early"
                received += piece
        answer: dict[str, str] = json.loads(received[4:])
        return answer


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _check_messages(messages: object) -> None:
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise UsageError("messages", found=f"{messages!r}"[:100], expected="a list of messages")
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, Mapping):
            raise UsageError(where, found=type(message).__name__, expected="an object with role and content")
        if not isinstance(message.get("role"), str):
            raise UsageError(f"{where}.role", found=f"{message.get('role')!r}", expected="a string")
