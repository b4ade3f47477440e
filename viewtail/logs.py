"""Logs, on stderr: key=value on a terminal, one JSON object a line otherwise.

What libraries log through `logging` comes out the same way, from warnings up. A password in an address is masked on
its way out, whoever logged it; tracebacks never hold the values of variables.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import orjson
import structlog

if TYPE_CHECKING:
    from viewtail.settings import Logs

_LOGIN = re.compile(r"(\w+://[^\s/:@]*):(?!PASSWORD@)[^\s@]+@")  # the word itself is an example's


def configure(logs: Logs | None = None) -> None:
    """Set structlog and logging up for this process.

    Without settings from warnings up: a command prints results on stdout, and says itself how far it is.
    """
    format_, level = ("auto", "warning") if logs is None else (logs.format, logs.level)
    is_text = format_ == "text" or (format_ == "auto" and sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _mask,
            _text() if is_text else structlog.processors.JSONRenderer(serializer=_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.root.handlers = [_Handler(logging.WARNING)]
    # It warns of each attempt on a node that is away; viewtail says it once itself, with what to do.
    logging.getLogger("elastic_transport").setLevel(logging.ERROR)


def bind(**given: str) -> None:
    """Add these to what this thread logs from now on."""
    structlog.contextvars.bind_contextvars(**given)


def masked(text: str) -> str:
    """The text without the passwords of addresses in it."""
    return _LOGIN.sub(r"\1:***@", text)


def _mask(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        if isinstance(value, str) and "@" in value:
            event[name] = masked(value)
    return event


def _text() -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)


def _json(event: Any, **_given: Any) -> str:
    return orjson.dumps(event, default=str).decode()


class _Handler(logging.Handler):
    """Passes what libraries log on to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger(record.name).log(record.levelno, record.getMessage(), logger=record.name)
