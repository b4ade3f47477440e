"""A webhook: a real HTTP server that keeps what is posted to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson


@dataclass
class Webhook:
    """What it got, and how it answers."""

    port: int = 0
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)  # of those that it took
    attempts: int = 0

    @property
    def url(self) -> str:
        """Its path is what nobody else may know."""
        return f"http://127.0.0.1:{self.port}/s3cr3t"

    def told(self) -> list[tuple[str, str]]:
        """The kind of each incident, and whether it began or is over."""
        return [(one["kind"], what) for body in self.bodies for what in ("began", "over") for one in body[what]]


@contextmanager
def webhook() -> Iterator[Webhook]:
    found = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.attempts += 1
            if self.path == "/s3cr3t" and found.status < 300:
                assert self.headers["Content-Type"] == "application/json"
                found.bodies.append(orjson.loads(body))
            self.send_response(found.status)
            for name, value in found.headers.items():
                self.send_header(name, value)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
