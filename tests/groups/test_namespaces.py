"""Three machines, as network namespaces, in a ring of point-to-point links: no address reaches them all."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from intarsia import api
from intarsia.core.config import EngineSettings, GenerationSettings

RANKS = 3
PROMPT = "Once upon a time"
LENGTH = 12
HTTP = 8123
TIMEOUT = "6"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
ASK = """
import json, sys, time, urllib.request, urllib.error
deadline = time.monotonic() + 60
while True:
    try:
        request = urllib.request.Request(sys.argv[1], sys.argv[2].encode() or None)
        request.add_header("Content-Type", "application/json")
        print(urllib.request.urlopen(request, timeout=60).read().decode())
        break
    except (urllib.error.URLError, ConnectionError):
        if time.monotonic() > deadline:
            raise
        time.sleep(0.2)
"""


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


class Ring:
    """Namespaces whose links have a /32 address at each end, and no other way to each other."""

    def __init__(self, stack):
        self.names = [f"intarsia-{os.getpid()}-{rank}" for rank in range(RANKS)]
        for name in self.names:
            done = ip("netns", "add", name)
            if done.returncode:
                pytest.skip(f"needs network namespaces: {done.stderr.strip()}")
            stack.callback(ip, "netns", "delete", name)
            self.inside(name, "link", "set", "lo", "up")
        for link in range(RANKS):
            first, second = self.names[link], self.names[(link + 1) % RANKS]
            made = ip(
                *("-n", first, "link", "add", f"next{link}", "type", "veth"),
                *("peer", "name", f"prev{link}", "netns", second),
            )
            if made.returncode:
                pytest.skip(f"needs veth links: {made.stderr.strip()}")
            for name, device, own, far in ((first, "next", 1, 2), (second, "prev", 2, 1)):
                device, here, there = f"{device}{link}", f"10.91.{link}.{own}", f"10.91.{link}.{far}/32"
                self.inside(name, "address", "add", here, "peer", there, "dev", device)
                self.inside(name, "link", "set", device, "up")

    def inside(self, name, *words):
        done = ip("-n", name, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def neighbours(self, rank):
        return f"10.91.{(rank - 1) % RANKS}.1,10.91.{rank}.2"

    def start(self, rank, *command, **options):
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[rank], sys.executable, *command],
            text=True,
            env=ENVIRONMENT,
            **options,
        )

    def ask(self, path, body=None):
        url, data = f"http://127.0.0.1:{HTTP}{path}", json.dumps(body) if body else ""
        asking = self.start(0, "-c", ASK, url, data, stdout=subprocess.PIPE)
        out, _ = asking.communicate(timeout=120)
        assert asking.returncode == 0
        return json.loads(out)


@pytest.fixture(scope="module")
def ring():
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs to be root, and iproute2, to make network namespaces")
    with ExitStack() as stack:
        yield Ring(stack)


def test_a_ring_serves_and_a_link_that_drops_ends_it_with_a_name(ring):
    # an address of rank 0 that rank 1 has no way to: there is no common meeting point
    unreachable = ip("netns", "exec", ring.names[1], "ip", "route", "get", "10.91.2.2")
    assert unreachable.returncode != 0
    servers = [
        ring.start(
            rank, "-m", "intarsia", "serve", "demo", "--tp", str(RANKS), "--rank", str(rank),
            "--ring", ring.neighbours(rank), "--port", str(HTTP), "--rank-timeout", TIMEOUT,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        body = {"model": "demo", "prompt": PROMPT, "max_tokens": LENGTH, "temperature": 0}
        reply = ring.ask("/v1/completions", body)
        model = api.load_text_model("demo", EngineSettings(window=256, threads=1))
        alone = model.generate(PROMPT, GenerationSettings(max_tokens=LENGTH))
        assert reply["choices"][0]["text"] == "".join(delta.text for delta in alone)
        ring.inside(ring.names[1], "link", "set", "next1", "down")
        begin = time.monotonic()
        told = [server.communicate(timeout=60)[1] for server in servers]
        assert time.monotonic() - begin < 30
        assert all(server.returncode not in (0, None) for server in servers)
        assert all("the line between them is down" in words for words in told)
        assert any("rank 1 hears nothing from it" in words and "rank 2" in words for words in told)
        assert all("rank 0 " in words and "step " in words for words in told)
    finally:
        for server in servers:
            if server.poll() is None:
                server.kill()
            server.wait()
            server.stderr.close()
