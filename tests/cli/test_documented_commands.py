"""Every command line that README and the pages show is one that the command line takes."""

import re
import shlex
from pathlib import Path

import pytest

from intarsia.cli.main import parse

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
STANDS_FOR = {"PATH|demo": "demo", "NAME|FILE": "spark", "chat|agent|long": "chat", "--FLAG VALUE": ""}


def shown(page: Path) -> set[str]:
    """Command lines in blocks and between backticks, without comments and what is in brackets."""
    text = page.read_text()
    found = re.findall(r"`(intarsia [^`]+)`", text) + re.findall(r"^    (?:\$ )?(intarsia .*)$", text, re.M)
    lines = {" ".join(re.sub(r"\[[^\]]*\]", "", line.partition(" #")[0]).split()) for line in found}
    for written, meant in STANDS_FOR.items():
        lines = {line.replace(written, meant) for line in lines}
    return {line for line in lines if len(line.split()) > 3 and "..." not in line and "|" not in line}


LINES = sorted(set().union(*map(shown, PAGES)))


def test_there_are_many():
    assert len(LINES) > 60


@pytest.mark.parametrize("line", LINES)
def test_it_is_understood(line):
    _, *words = shlex.split(re.sub(r"\bN\b", "2", line).replace("check NAME", "check shared"))
    assert parse(words)
