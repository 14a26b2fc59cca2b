"""How a server ends: running replies end, new requests are told, a second signal ends at once."""

import json
import signal
import threading
import time

import pytest

from intarsia.core.errors import UsageError
from intarsia.server import start
from intarsia.server.errors import KeyFileError
from intarsia.server.settings import ServerSettings
from intarsia.server.web.process import Process
from tests.server.conftest import running
from tests.server.inside import Inside
from tests.server.raw import CHAT, ask, body_of, connect, post_bytes, read_all


def begin(server, **order):
    sock = connect(server, seconds=30)
    sock.sendall(post_bytes(body_of(True, **order), headers=("Connection: close",)))
    assert b"200 OK" in sock.recv(15)
    return sock


def test_sigterm_drains():
    with running() as server:
        sock = begin(server, say="word " * 40, delay=0.02)
        server.signal(signal.SIGTERM)
        server.wait_for("draining", requests=1)
        status, headers, reply = ask(server, "POST", CHAT, body_of())
        assert (status, reply["error"]["code"]) == (503, "draining")
        assert int(headers["retry-after"]) > 0
        assert headers["connection"] == "close"
        assert ask(server, "GET", "/health")[:1] == (503,)
        assert ask(server, "GET", "/metrics")[0] == 200
        reply = read_all(sock).decode()
        sock.close()
        assert "data: [DONE]" in reply
        assert '"finish_reason":"stop"' in reply
        assert server.wait() == 0
        server.wait_for("ended")


def test_a_second_sigterm_ends_at_once():
    with running() as server:
        sock = begin(server, say="word " * 400, delay=0.1)
        server.signal(signal.SIGTERM)
        server.wait_for("draining")
        begun = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait(5) == 128 + signal.SIGTERM
        assert time.monotonic() - begun < 3
        server.wait_for("ended at once", requests=1)
        assert b"[DONE]" not in read_all(sock)
        sock.close()


def test_a_drain_has_a_time_limit():
    with running(drain_timeout=0.3) as server:
        sock = begin(server, say="word " * 400, delay=0.1)
        idle = connect(server)
        server.signal(signal.SIGINT)
        server.wait_for("drain ended", reason="time")
        assert server.wait() == 0
        reply = read_all(sock)
        assert b'"code":"draining"' in reply
        assert reply.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert read_all(idle) == b""
        assert all(line["level"] != "error" for line in server.lines)
        sock.close()
        idle.close()


def test_a_port_in_use_is_told_by_name(server):
    inside = Inside(port=server.port)
    try:
        with pytest.raises(UsageError, match="Address already in use"):
            Process(inside.service).run()
    finally:
        inside.close()


def test_sigusr1_dumps_stacks_and_the_step():
    with running(stall_timeout=0.2) as server:
        caller = threading.Thread(target=ask, args=(server, "POST", CHAT, body_of(say="x", stall=2.5)))
        caller.start()
        stalled = server.wait_for("step stalled")
        assert stalled["requests"][0].startswith("chatcmpl-")
        assert ask(server, "GET", "/health")[2]["status"] == "stalled"
        server.signal(signal.SIGUSR1)
        dump = server.wait_for("dump")
        assert dump["step_requests"] == stalled["requests"]
        stacks = "".join(line["text"] for line in server.lines if line["event"] == "raw")
        assert "fake_engine.py" in stacks
        assert "watchdog.py" in stacks
        server.wait_for("step went on")
        caller.join(10)
        assert ask(server, "GET", "/health")[2]["status"] == "ok"
        assert json.dumps(server.lines).count('"step stalled"') == 1
        page = ask(server, "GET", "/metrics")[2].decode()
        assert "intarsia_stalled_steps_total 1.0" in page


def test_what_cannot_start_is_told_before_anything_is_loaded(server, tmp_path, monkeypatch):
    def load(*_, **__):
        raise AssertionError("loaded")

    monkeypatch.setattr(start, "load_service", load)
    with pytest.raises(UsageError, match="Address already in use"):
        start.serve("demo", ServerSettings(port=server.port))
    with pytest.raises(KeyFileError):
        start.serve("demo", ServerSettings(port=0, api_key_file=str(tmp_path / "missing")))
    with pytest.raises(AssertionError, match="loaded"):
        start.serve("demo", ServerSettings(port=0))
