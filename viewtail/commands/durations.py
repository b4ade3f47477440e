"""Durations on the command line: 90m, 24h, 7d."""

from __future__ import annotations

import re

from viewtail.changes.errors import MisuseError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(option: str, text: str) -> int:
    """'24h' -> 86400. Raises MisuseError."""
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if match is None or (seconds := int(match[1]) * _UNITS[match[2]]) >= 1 << 31:
        raise MisuseError(f"{option} {text}: write a number and s, m, h or d, such as 24h")
    return seconds
