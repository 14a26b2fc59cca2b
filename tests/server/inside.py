"""The application without sockets: one service in this process, asked over ASGI."""

import asyncio
import json
from pathlib import Path

from intarsia.server.observe.metrics import Metrics
from intarsia.server.observe.watchdog import Watchdog
from intarsia.server.web.app import App
from intarsia.server.web.keys import KeyFile
from intarsia.server.web.routes import Routes
from tests.server.serving import service_of


class Inside:
    """One application and its service."""

    def __init__(self, **options):
        self.service = service_of(**options)
        metrics = Metrics(self.service)
        self.watchdog = Watchdog(self.service, metrics)
        keys = self.service.settings.api_key_file
        routes = Routes(self.service, metrics, self.watchdog)
        self.app = App(self.service, metrics, routes, KeyFile(Path(keys)) if keys else None)

    def ask(self, method, path, body=b"", headers=()):
        """Status, headers and body of one request."""
        return asyncio.run(self._ask(method, path, body, dict(headers)))

    async def _ask(self, method, path, body, headers):
        headers = {"host": "localhost", "content-type": "application/json", **headers}
        if body:
            headers["content-length"] = str(len(body))
        sent = []
        pending = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            if pending:
                return pending.pop()
            await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "client": ("127.0.0.1", 1),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
        await self.app(scope, receive, send)
        told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        content = b"".join(message["body"] for message in sent[1:])
        if told["content-type"] == "application/json":
            content = json.loads(content)
        return sent[0]["status"], told, content

    def close(self):
        self.service.engine.close(drain=False, timeout=5)
        self.service.close()
