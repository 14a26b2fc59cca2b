"""Clients that leave, stall, flood or send nonsense: others go on, nothing is left behind."""

import http.client
import os
import socket
import time

import pytest

from tests.server.conftest import running
from tests.server.raw import CHAT, ask, ask_on, body_of, connect, post_bytes, read_all


@pytest.fixture(scope="module")
def strict():
    """A server whose limits are near."""
    with running(
        max_body_bytes=4096,
        header_timeout=0.5,
        body_timeout=0.5,
        idle_timeout=1.0,
        request_timeout=1.5,
        max_connections=20,
        queue=2,
        engine_streams=1,
    ) as one:
        yield one


def settled(server, seconds=10):
    """The engine holds nothing and no request is open."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        health = ask(server, "GET", "/health")[2]
        if not (health["engine"]["running"] or health["engine"]["waiting"] or health["active_requests"]):
            return health
        time.sleep(0.02)
    raise AssertionError(health)


def finished(server, reason):
    return ask(server, "GET", "/health")[2]["engine"]["requests_finished"].get(reason, 0)


def cancelled_then_settled(server, count):
    """So many requests were cancelled in the end, and nothing is left of them."""
    deadline = time.monotonic() + 10
    while finished(server, "cancelled") < count and time.monotonic() < deadline:
        time.sleep(0.02)
    settled(server)
    assert finished(server, "cancelled") == count


def test_leaving_in_the_headers_or_the_body_harms_nobody(server):
    for sent in (b"POST /v1/chat", post_bytes(b'{"mess', length=5000)):
        with connect(server) as sock:
            sock.sendall(sent)
    assert ask(server, "POST", CHAT, body_of())[0] == 200
    assert server.wait_for("request", status=499)
    settled(server)


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_in_the_middle_of_a_reply_cancels_it(server, stream):
    before = finished(server, "cancelled")
    with connect(server) as sock:
        sock.sendall(post_bytes(body_of(stream, say="word " * 500, delay=0.02)))
        if stream:
            assert b"200 OK" in sock.recv(100)
        else:
            time.sleep(0.2)
    cancelled_then_settled(server, before + 1)


def test_leaving_while_waiting_for_a_stream_cancels_too(server):
    slow = [connect(server) for _ in range(4)]
    for sock in slow:
        sock.sendall(post_bytes(body_of(True, say="word " * 500, delay=0.02)))
        sock.recv(100)
    before = finished(server, "cancelled")
    with connect(server) as sock:
        sock.sendall(post_bytes(body_of(say="never")))
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            if ask(server, "GET", "/health")[2]["engine"]["waiting"] == 1:
                break
    for sock in slow:
        sock.close()
    cancelled_then_settled(server, before + 5)


def test_a_half_closed_connection_counts_as_gone(server):
    before = finished(server, "cancelled")
    with connect(server) as sock:
        sock.sendall(post_bytes(body_of(say="word " * 500, delay=0.02)))
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b""
    cancelled_then_settled(server, before + 1)


def test_a_client_that_does_not_read_is_dropped():
    with running(write_timeout=0.5, engine_window=16_384) as patient, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(10)
        sock.connect(("127.0.0.1", patient.port))
        # with probabilities, more than the kernel buffers between two sockets
        told = b'"logprobs": true, "top_logprobs": 20, "stream"'
        sock.sendall(post_bytes(body_of(True, say="word " * 7000).replace(b'"stream"', told)))
        line = patient.wait_for("request", seconds=30, path=CHAT)
        assert (line["status"], line["finish"]) == (499, "cancelled")
        settled(patient)
        assert ask(patient, "POST", CHAT, body_of())[0] == 200


def test_a_thousand_idle_connections_are_no_obstacle(server):
    idle = []
    try:
        for _ in range(1000):
            idle.append(connect(server))
        status, _, reply = ask(server, "POST", CHAT, body_of(say="still here"))
        assert status == 200
        assert reply["choices"][0]["message"]["content"] == "still here"
        # a descriptor beyond 1,023 is noticed when it leaves, too
        before = finished(server, "cancelled")
        with connect(server) as sock:
            sock.sendall(post_bytes(body_of(True, say="word " * 500, delay=0.02)))
            sock.recv(100)
            assert max(map(int, os.listdir(f"/proc/{server.process.pid}/fd"))) > 1000
        cancelled_then_settled(server, before + 1)
    finally:
        for sock in idle:
            sock.close()


def test_idle_connections_are_closed_in_time(strict):
    with connect(strict) as silent, connect(strict) as kept:
        kept.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert kept.recv(100).startswith(b"HTTP/1.1 200")
        begun = time.monotonic()
        assert read_all(silent) == b""
        read_all(kept)
        assert time.monotonic() - begun < 5


def test_headers_and_bodies_must_arrive_in_time(strict):
    with connect(strict) as sock:
        sock.sendall(b"GET /version HTTP/1.1\r\nHost: loc")
        assert read_all(sock).startswith(b"HTTP/1.1 400")
    with connect(strict) as sock:
        sock.sendall(post_bytes(b"{", length=100))
        reply = read_all(sock)
        assert reply.startswith(b"HTTP/1.1 408")
        assert b"body_timeout" in reply


def test_more_connections_than_allowed_are_told_so(strict):
    socks = [connect(strict) for _ in range(20)]
    try:
        with connect(strict) as one:
            reply = read_all(one)
        assert reply.startswith(b"HTTP/1.1 503")
        assert b"too_many_connections" in reply
    finally:
        for sock in socks:
            sock.close()
    settled(strict)


def test_large_bodies_are_refused_with_a_name(strict):
    for body in (b"x" * 6000, iter([b"x" * 3000, b"x" * 3000])):  # of known length, and in chunks
        status, _, reply = ask(strict, "POST", CHAT, body)
        assert (status, reply["error"]["code"]) == (413, "body_too_large")
    with connect(strict) as sock:
        sock.sendall(post_bytes(b"", length=10**12, headers=("Expect: 100-continue",)))
        assert read_all(sock).startswith(b"HTTP/1.1 413")


def test_a_full_queue_is_told_before_anything_else(strict):
    socks = []
    try:
        for _ in range(3):
            sock = connect(strict)
            sock.sendall(post_bytes(body_of(True, say="word " * 300, delay=0.05)))
            sock.recv(50)
            socks.append(sock)
        for stream in (False, True):
            status, headers, reply = ask(strict, "POST", CHAT, body_of(stream))
            assert (status, reply["error"]["type"]) == (429, "rate_limit_error")
            assert int(headers["retry-after"]) > 0
    finally:
        for sock in socks:
            sock.close()
    settled(strict)


def test_a_reply_has_a_time_limit(strict):
    slow = {"say": "word " * 200, "delay": 0.1}
    status, _, reply = ask(strict, "POST", CHAT, body_of(**slow))
    assert (status, reply["error"]["code"]) == (504, "time_limit")
    _, _, events = ask(strict, "POST", CHAT, body_of(True, **slow))
    assert b'"code":"time_limit"' in events
    assert events.endswith(b"data: [DONE]\n\n")
    settled(strict)


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/nowhere", None, {}, 404),
        ("POST", "/nowhere", b"x" * 50_000, {}, 404),
        ("GET", CHAT, None, {}, 405),
        ("POST", "/health", b"{}", {}, 405),
        ("POST", CHAT, b"{}", {"Content-Type": "text/plain"}, 415),
        ("POST", CHAT, b"{}", {"Content-Encoding": "gzip"}, 415),
        ("POST", CHAT, b'{"a": 1, "a": 2}', {}, 400),
        ("POST", CHAT, b'{"temperature": 1e999}', {}, 400),
        ("POST", CHAT, b"\xff\xfe", {}, 400),
        ("POST", CHAT, b"", {}, 400),
        ("POST", CHAT, b"[" * 100_000, {}, 400),
        ("POST", CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}', {}, 400),
        ("GET", "/version", None, {"Host": "evil.example"}, 403),
        ("GET", "/version", None, {f"X-{number}": "y" for number in range(120)}, 431),
        ("GET", "/version", None, {"X": "y" * 40_000}, 431),
    ],
)
def test_a_refusal_leaves_the_connection_usable(server, method, path, body, headers, status):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        for _ in range(2):
            got, _, reply = ask_on(connection, method, path, body, headers)
            assert got == status
            assert set(reply["error"]) == {"message", "type", "param", "code"}
        assert ask_on(connection, "GET", "/version")[0] == 200
        assert ask_on(connection, "POST", CHAT, body_of())[0] == 200
    finally:
        connection.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    ],
)
def test_what_is_no_http_ends_the_connection(server, sent):
    with connect(server) as sock:
        try:
            sock.sendall(sent)
            reply = read_all(sock)
        except ConnectionError:
            reply = b"HTTP/1.1 400"  # closed while the flood was still on its way
    assert reply == b"" or reply.startswith(b"HTTP/1.1 400")
    assert b'"error"' in reply or not reply.partition(b"\r\n\r\n")[2]
    assert ask(server, "GET", "/version")[0] == 200


def test_bodies_may_come_in_chunks(server):
    body = body_of(say="in pieces")
    pieces = iter([body[place : place + 7] for place in range(0, len(body), 7)])
    status, _, reply = ask(server, "POST", CHAT, pieces)
    assert status == 200
    assert reply["choices"][0]["message"]["content"] == "in pieces"


def test_an_upgrade_to_websockets_is_ignored(server):
    status, _, _ = ask(
        server,
        "GET",
        "/version",
        headers={"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "x"},
    )
    assert status == 200
