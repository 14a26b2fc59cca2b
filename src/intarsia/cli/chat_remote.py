"""The replies of a server for intarsia chat."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.cli.chat import Message, show
from intarsia.cli.output import colours, note, write
from intarsia.evidence.traffic.client import Server, ServerError


class RemoteReplies:
    """Asks any OpenAI-compatible server, with the fields of `options` in every request."""

    def __init__(self, server: Server, options: Mapping[str, Any]) -> None:
        """Ask the server which model it serves. Raises ServerError."""
        models = asyncio.run(server.get("/v1/models"))["data"]
        self._server = server
        self._options = {"model": models[0]["id"], **options}
        note(f"{models[0]['id']} at {server.host}:{server.port}")

    def answer(self, messages: Sequence[Message]) -> str | None:
        """Stream one reply and return its answer; None when the server refuses, which is told."""
        self._shown, self._text = "", ""
        self._usage: dict[str, Any] = {}
        try:
            asyncio.run(self._follow(messages))
        except ServerError as error:
            note(f"{error.found}; /reset begins a new conversation")
            return None
        except KeyboardInterrupt:
            write("\n")
            note("(ended here)")
            return self._text.strip()
        write("\n" if self._shown != "thinking" or colours() else "</think>\n")
        note(_usage_line(self._usage))
        return self._text.strip()

    async def _follow(self, messages: Sequence[Message]) -> None:
        body = {
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._options,
        }
        async for event in self._server.events("/v1/chat/completions", body):
            self._usage = event.get("usage") or self._usage
            for choice in event["choices"]:
                for field, part in (("reasoning_content", "thinking"), ("content", "answer")):
                    if piece := choice["delta"].get(field):
                        self._shown = show(part, piece, self._shown)
                        self._text += piece if part == "answer" else ""


def _usage_line(usage: Mapping[str, Any]) -> str:
    """One line on tokens, and on what was reused of the prompt."""
    line = f"{usage.get('prompt_tokens', 0)} + {usage.get('completion_tokens', 0)} tokens"
    details = usage.get("prompt_tokens_details") or {}
    if "cached_tokens" in details:
        reason = details.get("cache_reason")
        line += f", {details['cached_tokens']} of the prompt reused" + (f" ({reason})" if reason else "")
    return line
