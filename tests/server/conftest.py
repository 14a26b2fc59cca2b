"""Server processes for tests, on free loopback ports, clients of them, and a compiler of grammars."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import openai
import pytest

from intarsia.server.grammar.compiler import GrammarCompiler
from tests.server.grammars import ENDS
from tests.server.serving import DEMO, VOCAB

ROOT = Path(__file__).parents[2]
START_SECONDS = 60


class Running:
    """A server process, its address and what it has logged so far."""

    def __init__(self, *words, **options):
        """The fake engine with `options`, or a command line's `words`."""
        self.lines = []
        fake = ["tests.server.serving", json.dumps({"port": 0, **options})]
        self.process = subprocess.Popen(
            [sys.executable, "-m", *(words or fake)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = self.wait_for("listening", START_SECONDS)["url"]
        self.port = int(self.url.rpartition(":")[2])

    def _read(self):
        for line in self.process.stderr:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.lines.append({"event": "raw", "text": line.decode(errors="replace")})

    def wait_for(self, event, seconds=10, **fields):
        """The first log line of this event with these fields, waiting for it if need be."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if line["event"] == event and all(line.get(name) == value for name, value in fields.items()):
                    return line
            if self.process.poll() is not None and not self._reader.is_alive():
                break
            time.sleep(0.01)
        raise AssertionError(f"no {event} {fields} in {self.lines[-20:]}")

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=15):
        return self.process.wait(seconds)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            self.process.kill()
        self.process.wait(10)
        self._reader.join(5)
        self.process.stderr.close()


@contextlib.contextmanager
def running(*words, **options):
    server = Running(*words, **options)
    try:
        yield server
    finally:
        server.end()


@pytest.fixture(scope="session")
def server():
    """A server with default limits, shared by tests that leave it as it was."""
    with running() as one:
        yield one


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as one:
        yield one


@pytest.fixture(scope="module")
def compiler():
    return GrammarCompiler((DEMO / "tokenizer.json").read_text(), VOCAB, ENDS)
