"""API keys, and who may ask without one."""

import hashlib
import time
from types import SimpleNamespace

import pytest

from intarsia.server.errors import KeyFileError, KeyRefusedError, UnavailableError
from intarsia.server.web import keys as module
from intarsia.server.web import process
from intarsia.server.web.keys import KeyFile
from tests.server.conftest import running
from tests.server.inside import Inside
from tests.server.raw import CHAT, ask, body_of


def line(label, key):
    return f"{label}: {hashlib.sha256(key.encode()).hexdigest()}\n"


def written(path, text):
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.0)
    return written(tmp_path / "keys", "# who\n" + line("ann", "key-a") + line("bob", "key-b"))


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def test_keys_have_labels(file):
    keys = KeyFile(file)
    assert keys.label_of(bearer("key-a")) == "ann"
    assert keys.label_of({"x-api-key": "key-b"}) == "bob"
    written(file, line("eve", "schlüssel"))
    assert keys.label_of(bearer("schlüssel".encode().decode("latin-1"))) == "eve"


@pytest.mark.parametrize(
    "headers", [{}, bearer("key-c"), bearer(""), {"authorization": "Basic key-a"}, {"authorization": "key-a"}]
)
def test_others_are_refused(file, headers):
    with pytest.raises(KeyRefusedError):
        KeyFile(file).label_of(headers)


def test_every_digest_is_compared(file, monkeypatch):
    seen = []
    monkeypatch.setattr(module.hmac, "compare_digest", lambda a, b: seen.append(b) or a == b)
    keys = KeyFile(file)
    keys.label_of(bearer("key-a"))
    assert len(seen) == 2


def test_a_change_is_read(file):
    keys = KeyFile(file)
    written(file, line("eve", "key-e"))
    assert keys.label_of(bearer("key-e")) == "eve"
    with pytest.raises(KeyRefusedError):
        keys.label_of(bearer("key-a"))


@pytest.mark.parametrize(
    "text", ["", "# none\n", "ann key\n", "ann: 12\n", line("ann", "x") + line("ann", "y")]
)
def test_a_bad_change_closes_the_service_and_a_good_one_opens_it(file, text):
    keys = KeyFile(file)
    written(file, text)
    with pytest.raises(UnavailableError):
        keys.label_of(bearer("key-a"))
    written(file, line("ann", "key-a") + "# longer than before\n")
    assert keys.label_of(bearer("key-a")) == "ann"


def test_a_file_that_vanished_closes_the_service(file):
    keys = KeyFile(file)
    file.unlink()
    with pytest.raises(UnavailableError):
        keys.label_of(bearer("key-a"))


def test_a_bad_file_does_not_start(tmp_path):
    with pytest.raises(KeyFileError):
        KeyFile(tmp_path / "missing")
    with pytest.raises(KeyFileError, match="line 1"):
        KeyFile(written(tmp_path / "keys", "key-a\n"))
    open_to_all = written(tmp_path / "open", line("ann", "key-a"))
    open_to_all.chmod(0o666)
    with pytest.raises(KeyFileError, match="others may write"):
        KeyFile(open_to_all)


def test_a_server_with_keys(tmp_path):
    file = written(tmp_path / "keys", line("ann", "key-a"))
    with running(api_key_file=str(file)) as server:
        good = {"Authorization": "Bearer key-a"}
        for path in ("/v1/models", "/metrics", "/weights", "/nowhere"):
            status, headers, reply = ask(server, "GET", path)
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            assert reply["error"]["code"] == "invalid_api_key"
        assert ask(server, "POST", CHAT, body_of())[0] == 401
        assert ask(server, "POST", CHAT, body_of(), good)[0] == 200
        assert server.wait_for("request", status=200, path=CHAT)["key"] == "ann"
        assert ask(server, "GET", "/health")[2] == {"status": "ok"}
        assert "engine" in ask(server, "GET", "/health", headers=good)[2]
        # with keys a proxy may call the service by any name
        assert ask(server, "GET", "/v1/models", headers={**good, "Host": "glm.example"})[0] == 200
        written(file, line("bob", "key-b") + "# another size\n")
        time.sleep(1.1)
        assert ask(server, "GET", "/v1/models", headers=good)[0] == 401
        assert ask(server, "GET", "/v1/models", headers={"x-api-key": "key-b"})[0] == 200
        assert "key-a" not in "".join(map(str, server.lines))


@pytest.mark.parametrize(
    ("options", "warned"),
    [({}, False), ({"host": "0.0.0.0"}, True), ({"host": "0.0.0.0", "api_key_file": "keys"}, False)],
)
def test_an_open_service_without_keys_is_warned_about(options, warned, file, monkeypatch):
    monkeypatch.chdir(file.parent)
    told = []
    monkeypatch.setattr(process, "log", lambda event, *_, **fields: told.append((event, fields)))
    inside = Inside(**options)
    try:
        listener = SimpleNamespace(getsockname=lambda: (inside.service.settings.host, 80))
        process.Process(inside.service)._tell(listener)
    finally:
        inside.close()
    assert told[0][0] == "listening"
    assert [event for event, _ in told[1:]] == (["open to everybody"] if warned else [])


@pytest.mark.parametrize(
    ("options", "host", "status"),
    [
        ({}, "localhost:8000", 200),
        ({}, "127.0.0.1", 200),
        ({}, "[::1]:8000", 200),
        ({}, "box.example", 403),
        ({}, "", 200),
        ({"allowed_hosts": ("box.example",)}, "BOX.example:8000", 200),
        ({"allowed_hosts": ("box.example",)}, "localhost", 403),
        ({"host": "0.0.0.0"}, "box.example", 200),
    ],
)
def test_host_names(options, host, status):
    inside = Inside(**options)
    try:
        assert inside.ask("GET", "/version", headers={"host": host})[0] == status
    finally:
        inside.close()
