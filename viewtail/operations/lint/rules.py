"""What a rule is: a code, words for people, an example of each kind, and a function that finds problems.

Rules are about four things (`about`): a table as it is in the end, a program, one change of a migration, before it is
made (`Step`), or a migration as a whole (`Migration`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ingest.sql_words import Name
from viewtail.operations.contract import Effect
from viewtail.operations.lint.renames import Renames
from viewtail.operations.lint.schema import Change, Place, Schema, TableDefinition


class Level(Enum):
    """How much a finding weighs: errors make the exit code 1, warnings only where the settings say so."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Problem:
    """What a rule finds."""

    place: Place
    of: str  # a table, a column or an index by its full name; of a row change its verb
    why: str
    instead: str = ""  # '': as the rule says


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change of a migration, and the schema right before it."""

    change: Change
    place: Place
    schema: Schema
    made: frozenset[Name]  # tables that the migration itself created
    renames: Renames  # of its file, before this change

    def existing(self, name: Name) -> TableDefinition | None:
        """The table, if it was there before the migration."""
        return None if self.is_made(name) else self.schema.table(name)

    def is_made(self, name: Name) -> bool:
        return name in self.made


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """A migration as a whole, as those judge it who read the changes of its tables."""

    broken: Sequence[tuple[Place, Effect]]  # what breaks a declared view
    lost: Sequence[tuple[Place, Name, str]]  # what any reader of a table's changes misses, and why
    unlogged: Sequence[Place]  # statements that keep changes out of the binlog


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of the guideline.

    Args:
        about: TableDefinition, Program, Step or Migration: what `find` takes.
        bad: SQL in which nothing but this rule finds something, but for `along`.
        good: the same done right: no rule finds anything.
        given: the schema that both are run against, where they are migrations.
        along: codes of rules that the bad example cannot keep either.
    """

    code: str
    name: str
    level: Level
    about: type
    find: Callable[[Any], Iterable[Problem]]
    what: str
    why: str
    instead: str
    bad: str
    good: str
    given: str = ""
    along: Sequence[str] = field(default=())

    @property
    def is_of_statements(self) -> bool:
        """Return whether it is about what migrations do, not about what there is."""
        return self.about in (Step, Migration)
