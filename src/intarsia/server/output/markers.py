"""The marks GLM models write around reasoning and tool calls, and finding them in text that still grows."""

from collections.abc import Sequence

THINK = "<think>"
THINK_END = "</think>"
ASSISTANT = "<|assistant|>"
CALL = "<tool_call>"
CALL_END = "</tool_call>"
KEY = "<arg_key>"
KEY_END = "</arg_key>"
VALUE = "<arg_value>"
VALUE_END = "</arg_value>"


def unfinished(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that may turn out to begin one of `markers`, but is none yet."""
    longest = max(map(len, markers)) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(len(marker) > length and marker.startswith(text[-length:]) for marker in markers):
            return length
    return 0


def earliest(text: str, markers: Sequence[str], begin: int = 0) -> tuple[int, str] | None:
    """Place and text of the marker that begins first at or after `begin`."""
    found = [(at, marker) for marker in markers if (at := text.find(marker, begin)) >= 0]
    return min(found) if found else None


def trailing_space(text: str) -> int:
    """How many characters of white space `text` ends with."""
    return len(text) - len(text.rstrip())
