"""API keys: digests in a file, compared in constant time, read again when the file changes."""

import hashlib
import hmac
import logging
import re
import time
from collections.abc import Mapping
from pathlib import Path

from intarsia.server.errors import KeyFileError, KeyRefusedError, UnavailableError
from intarsia.server.observe.log import log

MAX_FILE_BYTES = 1 << 20
CHECK_SECONDS = 1.0
_LINE = re.compile(r"(?P<label>[A-Za-z0-9_.@-]{1,64})\s*:\s*(?:sha256:)?(?P<digest>[0-9a-fA-F]{64})\Z")


class KeyFile:
    """The keys that open the service. Keys themselves are nowhere: a line is `label: sha256-digest`."""

    def __init__(self, path: Path) -> None:
        """Read the file; raises KeyFileError if it cannot be used."""
        self._path = path
        self._digests: dict[str, bytes] = {}
        self._seen: tuple[int, ...] = ()
        self._problem = ""
        self._checked = 0.0
        self._load()
        if self._problem:
            raise KeyFileError(str(path), found=self._problem, expected="lines of `label: sha256-digest`")

    def label_of(self, headers: Mapping[str, str]) -> str:
        """The label of the key in `Authorization: Bearer` or `x-api-key`.

        Raises KeyRefusedError without a known key, and UnavailableError while the file is unusable.
        """
        self._reload()
        if self._problem:
            raise UnavailableError("The API keys cannot be read.", code="keys_unreadable")
        scheme, _, value = headers.get("authorization", "").partition(" ")
        key = value.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not key:
            raise KeyRefusedError("An API key is needed: 'Authorization: Bearer KEY'.")
        digest = hashlib.sha256(key.encode("latin-1")).digest()  # the bytes that were sent
        found = ""
        # every digest is compared, so that the time tells nothing of which one matched
        for label, known in self._digests.items():
            if hmac.compare_digest(digest, known):
                found = label
        if not found:
            raise KeyRefusedError("The API key is not known.")
        return found

    def _reload(self) -> None:
        now = time.monotonic()
        if now - self._checked < CHECK_SECONDS:
            return
        self._checked = now
        if _state(self._path) != self._seen:
            self._load()
            if self._problem:
                log("api keys unusable", logging.ERROR, file=str(self._path), problem=self._problem)
            else:
                log("api keys read", file=str(self._path), keys=len(self._digests))

    def _load(self) -> None:
        """A bad replacement closes the service: keys that were taken out must not go on working."""
        self._seen = _state(self._path)
        self._digests, self._problem = {}, ""
        try:
            self._digests = _parse(self._path)
        except (OSError, ValueError) as error:
            self._problem = f"{error}"[:200]


def _state(path: Path) -> tuple[int, ...]:
    try:
        facts = path.stat()
    except OSError:
        return ()
    return facts.st_mtime_ns, facts.st_size, facts.st_ino, facts.st_mode


def _parse(path: Path) -> dict[str, bytes]:
    facts = path.stat()
    if facts.st_size > MAX_FILE_BYTES:
        raise ValueError("a file of more than 1 MiB")
    if facts.st_mode & 0o022:
        raise ValueError("a file that others may write to")
    digests: dict[str, bytes] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _LINE.match(text)
        if match is None:
            raise ValueError(f"line {number} is not `label: sha256-digest`")
        if match["label"] in digests:
            raise ValueError(f"line {number} repeats the label {match['label']}")
        digests[match["label"]] = bytes.fromhex(match["digest"])
    if not digests:
        raise ValueError("no key")
    return digests
