"""The names that one file of a migration gave to what is to be dropped: its drop belongs to a later file."""

from __future__ import annotations

from dataclasses import dataclass, field

from ingest.sql_words import Name
from viewtail.operations.lint.schema import Change, ColumnRedefined, ColumnRenamed, TablesRenamed, key_of
from viewtail.operations.lint.words import is_to_drop


@dataclass(slots=True)
class Renames:
    """What was renamed; not what was to be dropped before already. Case does not count."""

    _tables: set[tuple[str, str]] = field(default_factory=set)
    _columns: set[tuple[tuple[str, str], str]] = field(default_factory=set)

    def has_table(self, name: Name) -> bool:
        return key_of(name) in self._tables

    def has_column(self, table: Name, name: str) -> bool:
        return (key_of(table), name.lower()) in self._columns

    def note(self, change: Change) -> None:
        """Take note of what a statement renames."""
        match change:
            case TablesRenamed(pairs):
                for old, new in pairs:
                    self._note_table(old, new)
            case ColumnRenamed(table, old, new):
                self._note_column(table, old, new)
            case ColumnRedefined(table, old, column):
                self._note_column(table, old, column.name)

    def _note_table(self, old: Name, new: Name) -> None:
        before, now = key_of(old), key_of(new)
        if before in self._tables or not is_to_drop(old.name):
            self._tables.discard(before)
            self._tables.add(now)
        self._columns = {(now if table == before else table, column) for table, column in self._columns}

    def _note_column(self, table: Name, old: str, new: str) -> None:
        before = (key_of(table), old.lower())
        if old.lower() != new.lower() and (before in self._columns or not is_to_drop(old)):
            self._columns.discard(before)
            self._columns.add((key_of(table), new.lower()))
