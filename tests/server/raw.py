"""HTTP by hand, for clients that misbehave."""

import http.client
import json
import socket

CHAT = "/v1/chat/completions"


def connect(server, seconds=10):
    return socket.create_connection(("127.0.0.1", server.port), timeout=seconds)


def body_of(stream=False, **order):
    asked = {"messages": [{"role": "user", "content": json.dumps({"say": "x", **order})}], "stream": stream}
    return json.dumps(asked).encode()


def post_bytes(body, path=CHAT, headers=(), length=None):
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body) if length is None else length}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read_all(sock):
    data = b""
    while chunk := sock.recv(65536):
        data += chunk
    return data


def ask(server, method, path, body=None, headers=None, seconds=20):
    """One request on its own connection: status, headers, parsed body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=seconds)
    try:
        return ask_on(connection, method, path, body, headers)
    finally:
        connection.close()


def ask_on(connection, method, path, body=None, headers=None):
    sent = {"Content-Type": "application/json", **(headers or {})} if body is not None else headers or {}
    connection.request(method, path, body, sent)
    reply = connection.getresponse()
    data = reply.read()
    if reply.getheader("content-type") == "application/json":
        data = json.loads(data)
    return reply.status, reply.headers, data
