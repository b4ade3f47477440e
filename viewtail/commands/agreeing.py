"""Asking before something large or final is done; scripts say --yes."""

from __future__ import annotations

import sys

from viewtail.changes.errors import MisuseError


def agreed(question: str, *, is_yes: bool) -> bool:
    """Ask the operator, and return True if they agree. Raises MisuseError where nobody can be asked."""
    if is_yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise MisuseError(f"nothing was done. {question} Nobody can be asked here: repeat the command with --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip().lower()
    return answer in ("y", "yes")
