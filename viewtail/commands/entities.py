"""`viewtail entities create`: the tables of the declared event-sourced entities, where they are missing."""

from __future__ import annotations

from pathlib import Path

from viewtail import declarations, settings


def create(config: Path | None, *, is_printed: bool) -> int:
    """Make the tables, or print the SQL that would; returns the exit code."""
    for entity in declarations.entities(settings.load(config)):
        if is_printed:
            print(f"{entity.ddl()};")
            continue
        is_new = entity.create()
        print(f"{entity.table.name}: {'created' if is_new else 'is there already'}")
    return 0
