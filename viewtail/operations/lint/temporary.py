"""The temporary tables of a migration's file: what is done to them is not judged."""

from __future__ import annotations

from dataclasses import dataclass, field

from ingest.sql_words import Name
from viewtail.operations.lint.schema import Change, TemporaryTableCreated, TemporaryTablesDropped, key_of


@dataclass(slots=True)
class Temporary:
    """Those that there are so far. Case does not count."""

    _names: set[tuple[str, str]] = field(default_factory=set)

    def note(self, change: Change) -> None:
        """Take note of what a statement creates and drops."""
        match change:
            case TemporaryTableCreated(name):
                self._names.add(key_of(name))
            case TemporaryTablesDropped(names):
                self._names -= {key_of(name) for name in names}

    def is_changed_by(self, change: Change) -> bool:
        """Return whether a change is one of a temporary table."""
        table: Name | None = getattr(change, "table", None)
        return table is not None and key_of(table) in self._names
