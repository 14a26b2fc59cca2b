"""Help that fits its terminal, and the name that was meant where a command's name is none."""

import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TextIO, get_args

FRAMES = "╭│╰"
"""What lines of a table of options begin with: they have its width already."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PIECES = re.compile(r"[^\s,]*,?\s*")


@contextmanager
def folded_help() -> Iterator[None]:
    """Within it, sentences and usage lines on standard output end where the terminal does."""
    with redirect_stdout(_Folded(sys.stdout)):
        yield


class _Folded:
    """A stream as it is, but for long lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._width = shutil.get_terminal_size().columns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write lines, each folded."""
        return self._stream.write("\n".join(fold(line, self._width) for line in text.split("\n")))


def fold(line: str, width: int) -> str:
    """A line in several that are at most `width` wide, broken behind spaces and commas."""
    plain = _COLOURS.sub("", line)
    if len(plain) <= width or plain.startswith(tuple(FRAMES)):
        return line
    indent = " " * len("usage: ") if plain.startswith("usage: ") else ""
    lines, last = [], ""
    for piece in _PIECES.findall(line):
        if last.strip() and len(_COLOURS.sub("", last + piece).rstrip()) > width:
            lines.append(last.rstrip())
            last = indent
        last += piece
    return "\n".join([*lines, last])


def meant(words: Sequence[str], commands: Mapping[str, type]) -> str | None:
    """The command or subcommand that a line with a wrong name probably means."""
    first, second = [*words, "", ""][:2]
    if first not in commands:
        return _near(first, commands)
    names = _subcommands(commands[first])
    near = _near(second, names) if names and second not in names else None
    return f"{first} {near}" if near else None


def _near(word: str, names: Iterable[str]) -> str | None:
    return next(iter(get_close_matches(word, list(names), 1)), None)


def _subcommands(command: Any) -> list[str]:
    """Names of what a command has to choose from, in its one field of several kinds."""
    unions = [get_args(item.type)[0] for item in fields(command) if get_args(item.type)]
    choices = [choice for union in unions for choice in get_args(union)]
    notes = [about for choice in choices for about in getattr(choice, "__metadata__", ())]
    return [about.name for about in notes if isinstance(getattr(about, "name", None), str)]
