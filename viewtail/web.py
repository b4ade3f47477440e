"""Runs an ASGI application with uvicorn until a signal: accepted requests are answered, new connections are refused."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from viewtail.changes.errors import SettingsError
from viewtail.servers.addresses import listening_at
from viewtail.signals import on_stop


def listen(host: str, port: int, section: str) -> socket.socket:
    """Listen at the address of that section of the settings. Raises SettingsError where nobody can."""
    try:
        return listening_at(host, port, backlog=2048)
    except OSError as error:
        raise SettingsError(
            f"{section}.host, {section}.port: cannot listen on {host}:{port} ({error.strerror}). Set another --host or "
            "--port"
        ) from None


class Server:
    """Serves one application. Nothing of a request is logged.

    Args:
        protocol: of a connection, where it has limits of its own.
    """

    def __init__(
        self, application: ASGIApp, *, finish_within_s: int, protocol: type[asyncio.Protocol] | None = None
    ) -> None:
        self._server = _Server(
            uvicorn.Config(
                application,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                ws="none",
                http=protocol or "h11",
                loop="asyncio",
                lifespan="auto",
                timeout_graceful_shutdown=finish_within_s,
            )
        )

    @property
    def is_stopping(self) -> bool:
        return self._server.should_exit

    def stop(self) -> None:
        """Stop; at a second call at once."""
        self._server.stop()

    def run(self, listening: socket.socket) -> None:
        """Serve on a socket that listens, until a signal, or `stop`."""
        on_stop(self.stop)
        asyncio.run(self._server.serve(sockets=[listening]))


class _Server(uvicorn.Server):
    """A server that leaves signals to viewtail: a stop that went well exits 0."""

    def stop(self) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
