"""Runs the application with uvicorn until a signal: accepted requests are answered, new connections are refused."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import structlog
import uvicorn
from starlette.types import ASGIApp

from viewtail.changes.errors import SettingsError
from viewtail.signals import on_stop

_log = structlog.get_logger("viewtail.serve")

FINISH_WITHIN_S = 45  # a command's caller waits 30 s, its handler 10 s more


def listen(host: str, port: int) -> socket.socket:
    """Listen at the address. Raises SettingsError where nobody can."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server((str(address[0]), port), family=family, backlog=2048)
    except OSError as error:
        raise SettingsError(
            f"serve.host, serve.port: cannot listen on {host}:{port} ({error.strerror}). Set another --host or --port"
        ) from None


def run(application: ASGIApp, listening: socket.socket) -> None:
    """Serve until it is stopped. Nothing of a request is logged."""
    server = _Server(
        uvicorn.Config(
            application,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            http="h11",
            loop="asyncio",
            lifespan="on",
            timeout_graceful_shutdown=FINISH_WITHIN_S,
        )
    )
    on_stop(server.stop)
    _log.info("serving", url="http://{}:{}".format(*listening.getsockname()[:2]))
    asyncio.run(server.serve(sockets=[listening]))


class _Server(uvicorn.Server):
    """A server that leaves signals to viewtail: a stop that went well exits 0."""

    def stop(self) -> None:
        """Stop, at a second call at once."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
