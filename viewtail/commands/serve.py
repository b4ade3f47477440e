"""`viewtail serve`: commands and states of the declared entities over HTTP, until SIGTERM."""

from __future__ import annotations

from pathlib import Path

import structlog

from viewtail import logs, settings
from viewtail.changes.errors import TemporaryError
from viewtail.entities.serving import declared
from viewtail.entities.serving.app import EntityServer
from viewtail.entities.serving.forwarding import Forwarding
from viewtail.signals import end_at_once
from viewtail.web import Server, listen

_log = structlog.get_logger("viewtail.serve")

FINISH_WITHIN_S = 45  # a command's caller waits 30 s, its handler 10 s more


def serve(config: Path | None, *, host: str | None, port: int | None) -> int:
    """Check what can be checked at once, then serve until stopped; returns the exit code."""
    loaded = settings.load(config)
    logs.configure(loaded.logs)
    entities = declared.entities(loaded)
    end_at_once()
    for entity in entities:
        try:
            entity.check()
        except TemporaryError as error:
            _log.warning("commands are answered 503 until the store answers", error=str(error))
            break
    own = loaded.serve
    listening = listen(own.host if host is None else host, own.port if port is None else port, "serve")
    application = EntityServer(
        entities,
        most_body_bytes=own.max_body_bytes,
        forwarding=Forwarding(own.members, own.member) if own.member is not None else None,
    ).application
    _log.info("serving", url="http://{}:{}".format(*listening.getsockname()[:2]))
    Server(application, finish_within_s=FINISH_WITHIN_S).run(listening)
    return 0
