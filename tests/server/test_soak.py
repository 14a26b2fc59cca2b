"""Everything at once for minutes, on the demo: no wrong token, no leak.

SOAK_SECONDS=600 pytest -m soak tests/server
"""

import json
import os
import random
import socket
import threading
import time

import pytest

from tests.server.conftest import running
from tests.server.raw import CHAT, ask, body_of, connect, post_bytes

SECONDS = float(os.environ.get("SOAK_SECONDS", "0"))
CLIENTS = 8
WINDOW = 1024
pytestmark = [pytest.mark.soak, pytest.mark.skipif(not SECONDS, reason="SOAK_SECONDS is not set")]
MALFORMED = [
    b"{",
    b"[]",
    b'{"messages": 1}',
    b"\xff",
    b'{"messages": [{"role": "user", "content": "x"}], "n": -1}',
]
TOPICS = ["12 + 5", "a fox", "the river", "sort 5, 3, 9", "bread", "the weather in Rome", "a long story"]


def requests(dice):
    """Requests of many kinds and lengths; every one is sent many times."""
    made = []
    for number in range(60):
        shared = "Answer shortly and kindly. " * dice.choice([0, 0, 10, 60])
        messages = [{"role": "system", "content": shared}] if shared else []
        for turn in range(dice.choice([1, 1, 1, 3])):
            if turn:
                messages.append({"role": "assistant", "content": "Yes."})
            messages.append({"role": "user", "content": f"{dice.choice(TOPICS)} {number}"})
        fields = {
            "messages": messages,
            "max_tokens": dice.choice([1, 4, 16, 40]),
            "temperature": dice.choice([0, 0.7, 1.3]),
            "seed": number,
            "return_token_ids": True,
            "draft": dice.random() < 0.7,
        }
        if dice.random() < 0.2:
            fields["guided_regex"] = "[a-z]{3,9}( [a-z]{3,9}){0,4}"
        if dice.random() < 0.2:
            fields["thinking_budget"] = 5
        made.append(fields)
    return made


def ids(server, fields):
    status, _, reply = ask(server, "POST", CHAT, json.dumps(fields).encode(), seconds=120)
    assert status == 200, reply
    return reply["choices"][0]["token_ids"]


def leave_early(server, fields, dice):
    with connect(server, seconds=60) as sock:
        sock.sendall(post_bytes(json.dumps({**fields, "stream": dice.random() < 0.5}).encode()))
        time.sleep(dice.random() * 0.3)
        if dice.random() < 0.5:
            sock.shutdown(socket.SHUT_WR)


def facts(server):
    """Descriptors, threads and resident MiB of the server."""
    at = f"/proc/{server.process.pid}"
    with open(f"{at}/status") as status:
        told = dict(line.split(":", 1) for line in status)
    resident = int(told["VmRSS"].split()[0]) / 1024
    return len(os.listdir(f"{at}/fd")), int(told["Threads"]), resident


def settled(server):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        health = ask(server, "GET", "/health")[2]
        engine = health["engine"]
        if not (engine["running"] or engine["waiting"] or health["active_requests"]):
            return engine
        time.sleep(0.1)
    raise AssertionError(health)


def test_ten_minutes_of_everything(tmp_path):
    config = tmp_path / "serve.toml"
    config.write_text("threads = 1\nkept-every = 128\nkept-bytes = 20000000\n")
    words = ("intarsia", "serve", "demo", "--port", "0", "--config", str(config))
    with running(
        *words, "--max-num-seqs", "6", "--max-model-len", str(WINDOW), "--pool-tokens", "8192"
    ) as server:
        pool = requests(random.Random(1))
        alone = [ids(server, {**fields, "cache_salt": f"alone {n}"}) for n, fields in enumerate(pool)]
        wrong, failed = [], []
        before = facts(server)
        end = time.monotonic() + SECONDS
        counts = [0] * CLIENTS

        def client(number):
            dice = random.Random(f"client {number}")
            try:
                while time.monotonic() < end:
                    choice, place = dice.random(), dice.randrange(len(pool))
                    if choice < 0.05:
                        status = ask(server, "POST", CHAT, dice.choice(MALFORMED))[0]
                        assert status == 400
                    elif choice < 0.15:
                        leave_early(server, pool[place], dice)
                    elif (told := ids(server, pool[place])) != alone[place]:
                        wrong.append((place, told, alone[place]))
                    counts[number] += 1
            except Exception as error:  # told below, in the test's own thread
                failed.append(repr(error))

        clients = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        assert (wrong, failed) == ([], [])
        engine = settled(server)
        after = facts(server)
        print(f"{sum(counts)} requests, before {before}, after {after}, {engine}")
        assert sum(counts) > SECONDS / 4
        assert after[0] <= before[0] + 2
        assert after[1] <= before[1] + 2
        assert after[2] <= before[2] + 60  # the kept states are among it, and were not there before
        # nothing but kept states holds pages: with them gone the pool is whole
        assert engine["kept_bytes"] <= engine["kept_budget"]
        pages = engine["pages"] - engine["pages_free"]
        assert pages * engine["page_tokens"] <= engine["kept_states"] * WINDOW


def test_memory_is_steady_over_ten_thousand_requests():
    """On the fake engine, so that it is the service's own memory that is looked at."""
    with running(queue=64) as server:
        body = body_of(say="one two three")

        def client(count):
            for _ in range(count):
                assert ask(server, "POST", CHAT, body)[0] == 200

        def many(count):
            clients = [threading.Thread(target=client, args=(count // 4,)) for _ in range(4)]
            for one in clients:
                one.start()
            for one in clients:
                one.join()
            server.lines.clear()
            return facts(server)

        before = many(2_000)
        after = many(10_000)
        print(f"before {before}, after {after}")
        assert after[0] <= before[0] + 2
        assert after[1] <= before[1] + 2
        assert after[2] < before[2] + 20
