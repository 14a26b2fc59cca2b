"""Progress: nothing for what is quick, a line every two seconds in logs, a bar on a terminal."""

import io

import pytest

from intarsia.cli.output import gigabytes
from intarsia.cli.progress import BarProgress, LineProgress, terminal_progress


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_lines_every_two_seconds():
    clock, stream = Clock(), io.StringIO()
    with LineProgress(stream, clock=clock).phase("reading", 10_000_000_000) as phase:
        for _ in range(10):
            clock.now += 0.75
            phase.advance(1_000_000_000)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0] == "reading: 3 GB of 10 GB, 1.33 GB/s, 5 s left"


def test_quick_phases_say_nothing():
    clock, stream = Clock(), io.StringIO()
    with LineProgress(stream, clock=clock).phase("reading", 10) as phase:
        clock.now += 1.9
        phase.advance(10)
    assert stream.getvalue() == ""


def test_the_form_follows_the_stream():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    assert isinstance(terminal_progress(io.StringIO()), LineProgress)
    assert isinstance(terminal_progress(Terminal()), BarProgress)
    stream = Terminal()
    with BarProgress(stream).phase("converting", 100) as phase:
        phase.advance(50)
    assert "converting" in stream.getvalue()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (22_214_912, "22.2 MB"),
        (177.48e9, "177 GB"),
        (2.5e12, "2,500 GB"),
    ],
)
def test_gigabytes(count, text):
    assert gigabytes(count) == text


def test_other_units_are_named():
    stream, now = io.StringIO(), iter([0.0, 3.0])
    with LineProgress(stream, clock=lambda: next(now)).phase("base", 4000, "tokens") as phase:
        phase.advance(1500)
    assert stream.getvalue() == "base: 1,500 tokens of 4,000 tokens, 500 tokens/s, 5 s left\n"
