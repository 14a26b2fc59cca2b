"""The settings of the HTTP service, on top of the engine's. Importing this stays cheap."""

from dataclasses import dataclass

from intarsia.core.config import check_integer, check_number
from intarsia.core.errors import UsageError
from intarsia.engine.settings import StreamSettings


@dataclass(frozen=True)
class ServerSettings(StreamSettings):
    """Where the service listens, who may use it, and how much of it one client may take."""

    served_model_name: tuple[str, ...] = ()
    """Names that requests may use for the model; the first is told back. By default the folder's name."""
    host: str = "127.0.0.1"
    """Address to listen on; the default is reachable from this machine alone."""
    port: int = 8000
    """Port to listen on; 0 takes a free one, which the first log line names."""
    api_key_file: str | None = None
    """File of SHA-256 digests of API keys, one `label: digest` a line; read again when it changes."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names requests may be addressed to. By default any, but only the machine's own names while
    listening on loopback without keys, so that no web page can lead a browser here."""
    metrics_open: bool = False
    """Serve /metrics without a key."""
    max_connections: int = 2048
    """Most connections at once; more are answered 503 and closed."""
    max_body_bytes: int = 32 << 20
    """Most bytes of a request's body."""
    header_timeout: float = 10.0
    """Seconds from the first byte of a request to the end of its headers."""
    body_timeout: float = 60.0
    """Seconds for a body to arrive."""
    idle_timeout: float = 75.0
    """Seconds a connection may rest without a request."""
    write_timeout: float = 60.0
    """Seconds a client may leave a reply unread before it counts as gone."""
    request_timeout: float = 3600.0
    """Seconds a reply may take, waiting included."""
    drain_timeout: float = 300.0
    """Seconds that running replies have to end after SIGTERM."""
    stall_timeout: float = 120.0
    """Seconds a step of the engine may take before the watchdog names it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("served_model_name", "allowed_hosts"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(item, str) and item for item in value):
                raise UsageError(name, found=f"{value!r}", expected="names")
        if not isinstance(self.host, str) or not self.host:
            raise UsageError("host", found=f"{self.host!r}", expected="an address")
        if not isinstance(self.metrics_open, bool):
            raise UsageError("metrics_open", found=f"{self.metrics_open!r}", expected="true or false")
        if self.api_key_file is not None and not isinstance(self.api_key_file, str):
            raise UsageError("api_key_file", found=f"{self.api_key_file!r}", expected="a path")
        check_integer("port", self.port, 0, 65535)
        check_integer("max_connections", self.max_connections, 1, 1_000_000)
        check_integer("max_body_bytes", self.max_body_bytes, 1024, 1 << 30)
        for name in ("header", "body", "idle", "write", "request", "drain", "stall"):
            name += "_timeout"
            check_number(name, getattr(self, name), 0.0, 604_800.0, open_low=True)

    @property
    def loopback(self) -> bool:
        """True when only this machine can reach the service."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")
