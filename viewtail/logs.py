"""Logs, on stderr."""

from __future__ import annotations

import sys

import structlog

from viewtail.settings import Logs


def configure(logs: Logs) -> None:
    """key=value on a terminal, JSON otherwise."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
