"""The findings of checks: one per requirement. Each source and store brings its own checks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"  # it works, but something may go wrong one day
    FAIL = "fail"  # viewtail cannot work, or would lose changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One requirement, and whether it is met."""

    where: str  # 'source', 'mysql', 'redis', 'elasticsearch' or 'views'
    what: str  # the requirement, short
    level: Level
    seen: str  # what there is
    why: str = ""  # why it matters; of warnings and failures
    mend: str = ""  # the SQL, command or setting that mends it


def ok(where: str, what: str, seen: object) -> Finding:
    """A requirement that is met."""
    return Finding(where=where, what=what, level=Level.OK, seen=str(seen))


def warn(where: str, what: str, seen: object, why: str, mend: str) -> Finding:
    """Something to know."""
    return Finding(where=where, what=what, level=Level.WARN, seen=str(seen), why=why, mend=mend)


def fail(where: str, what: str, seen: object, why: str, mend: str) -> Finding:
    """Something to mend before viewtail runs."""
    return Finding(where=where, what=what, level=Level.FAIL, seen=str(seen), why=why, mend=mend)


def expect(is_met: object, where: str, what: str, seen: object, why: str, mend: str) -> Finding:
    """A requirement that is met, or something to mend before viewtail runs."""
    return ok(where, what, seen) if is_met else fail(where, what, seen, why, mend)
