"""Serves the console until a signal, or as long as the `viewtail run` that began it lives."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import NoReturn

import structlog

from viewtail import logs, settings
from viewtail.changes.errors import SettingsError
from viewtail.console.app import Console
from viewtail.console.connections import Connection
from viewtail.console.jobs import Commands
from viewtail.console.looking import Fleet
from viewtail.settings import ConsoleSettings
from viewtail.signals import end_at_once, end_now
from viewtail.web import Server, listen

_log = structlog.get_logger("viewtail.console")


def console(config: Path | None, *, host: str | None, port: int | None) -> NoReturn:
    """`viewtail console`: serve until stopped."""
    loaded = settings.load(config)
    logs.configure(loaded.logs)
    own = loaded.console
    if port is None and not own.port:
        raise SettingsError("console.port is off. Set one, or give --port")
    own = own.model_copy(update={"host": own.host if host is None else host})
    end_at_once()
    serve(config, own, listen(own.host, own.port if port is None else port, "console"))


def serve(config: Path | None, own: ConsoleSettings, listening: socket.socket) -> NoReturn:
    """Serve on a socket that listens already, and end the process with code 0.

    Raises MisuseError for settings or declarations that are wrong.
    """
    commands = Commands(config)
    made = Console(Fleet(config), commands, own)
    server = Server(made.application, finish_within_s=2, protocol=Connection)
    made.is_stopping = lambda: server.is_stopping
    _log.info("console", url=own.url or "http://{}:{}/".format(*listening.getsockname()[:2]))
    try:
        server.run(listening)
    finally:
        commands.close()
    end_now(0)  # a question that is under way may wait for a server that is away
