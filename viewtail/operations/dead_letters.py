"""Dead letters: which keys of a view could not be applied and why, and forgetting them.

A letter holds no value of the row but its key. To try such keys again is a replay of them (replay_keys.py): a key that
is applied loses its letter, one that is refused again counts once more. The pipeline's process sees within some seconds
which letters are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offsets import migrations
from offsets.mysql import Session, transaction
from projectors.dead_letters import key_hash
from viewtail.changes.errors import MisuseError, UnknownNameError, nearest
from viewtail.servers.sessions import quote


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A key that could not be applied."""

    view: str  # store:name
    pipeline: str
    key: str  # rendered, as docs/views.md says
    version: int  # that could not be applied
    cause: str
    count: int  # how often it was refused
    first_at: str  # UTC
    last_at: str


class DeadLetterTable:
    """The letters of every pipeline, in viewtail's own tables."""

    def __init__(self, session: Session, database: str) -> None:
        self._session = session
        self._database = database
        self._letters = quote(database, "dead_letter")
        self._from = (
            f"FROM {self._letters} d JOIN {quote(database, 'view')} v ON v.id = d.view_id "
            f"JOIN {quote(database, 'pipeline')} p ON p.id = v.pipeline_id"
        )

    def view_named(self, name: str) -> str:
        """The id of the view of that name, declared or not. Raises MisuseError."""
        with transaction(self._session, "reading the views") as cursor:
            cursor.execute(f"SELECT DISTINCT name FROM {quote(self._database, 'view')} ORDER BY name")
            known = [view for (view,) in cursor.fetchall()]
        found = [view for view in known if name in (view, view.partition(":")[2])]
        if len(found) == 1:
            return str(found[0])
        if found:
            raise MisuseError(f"{name!r} is the name of {len(found)} views; say which: {', '.join(found)}")
        near = nearest(name, [*known, *(view.partition(":")[2] for view in known)])
        raise UnknownNameError(
            f"no run has seen a view {name!r}{near or '; there are ' + (', '.join(known) or 'none')}"
        )

    def is_there(self) -> bool:
        """False where viewtail has not run with this database."""
        with transaction(self._session, "looking for viewtail's tables") as cursor:
            return {"pipeline", "view", "dead_letter"} <= migrations.visible_columns(cursor, self._database).keys()

    def views(self) -> list[str]:
        """Those that have some."""
        with transaction(self._session, "reading the dead letters") as cursor:
            cursor.execute(f"SELECT DISTINCT v.name {self._from} ORDER BY v.name")
            return [view for (view,) in cursor.fetchall()]

    def count(self, view: str | None) -> int:
        """Of a view, or of all."""
        with transaction(self._session, "counting the dead letters") as cursor:
            cursor.execute(f"SELECT COUNT(*) {self._from} {_of_view(view)}", {"view": view})
            return int(cursor.fetchone()[0])

    def newest(self, view: str | None, limit: int) -> list[Letter]:
        """Of a view, or of all: those that were refused last come first."""
        return self._read(f"{_of_view(view)} ORDER BY d.last_at DESC, v.name, d.key_hash LIMIT {limit:d}", view=view)

    def parked_alone(self, copy: str, live: str, limit: int) -> tuple[int, list[str]]:
        """Keys parked in one view and not in another one of its pipeline: how many, and the first of them, rendered."""
        alone = (
            f"{self._from} LEFT JOIN {quote(self._database, 'view')} o "
            "ON o.pipeline_id = v.pipeline_id AND o.name = %(live)s "
            f"LEFT JOIN {self._letters} l ON l.view_id = o.id AND l.key_hash = d.key_hash "
            "WHERE v.name = %(copy)s AND l.view_id IS NULL"
        )
        values = {"copy": copy, "live": live}
        with transaction(self._session, "comparing the dead letters of two copies") as cursor:
            cursor.execute(f"SELECT COUNT(*) {alone}", values)
            ((count,),) = cursor.fetchall()
            cursor.execute(f"SELECT d.rendered_key {alone} ORDER BY d.first_at, d.key_hash LIMIT {limit:d}", values)
            return int(count), [key for (key,) in cursor.fetchall()]

    def of_keys(self, view: str, keys: Sequence[str]) -> list[Letter]:
        """Those of these rendered keys that have a letter; of no keys, all of the view's."""
        if not keys:
            return self._read(f"{_of_view(view)} ORDER BY d.key_hash, p.name", view=view)
        hashes = sorted({key_hash(key) for key in keys})
        return self._read(f"{_of_view(view)} AND d.key_hash IN %(keys)s ORDER BY d.key_hash", view=view, keys=hashes)

    def _read(self, which: str, **values: object) -> list[Letter]:
        at = "DATE_FORMAT(d.{0}_at, '%Y-%m-%d %H:%i:%s.%f')"
        with transaction(self._session, "reading dead letters") as cursor:
            cursor.execute(
                f"SELECT v.name, p.name, d.rendered_key, d.version, d.reason, d.attempt_count, {at.format('first')}, "
                f"{at.format('last')} {self._from} {which}",
                values,
            )
            return [_letter(row) for row in cursor.fetchall()]

    def forget(self, letters: Sequence[Letter]) -> list[Letter]:
        """Remove those that were not written again since they were read; returns them."""
        removed = []
        with transaction(self._session, "forgetting dead letters") as cursor:
            for letter in letters:
                if cursor.execute(f"DELETE FROM {self._letters} {self._unchanged}", _values(letter)):
                    removed.append(letter)
        return removed

    @property
    def _unchanged(self) -> str:
        """A letter, unless its key was refused once more: that raises the count."""
        return (
            f"WHERE view_id = (SELECT v.id FROM {quote(self._database, 'view')} v "
            f"JOIN {quote(self._database, 'pipeline')} p ON p.id = v.pipeline_id "
            "WHERE v.name = %(view)s AND p.name = %(pipeline)s) "
            "AND key_hash = %(key)s AND attempt_count = %(count)s AND version = %(version)s"
        )


def _values(letter: Letter) -> dict[str, object]:
    return {
        "view": letter.view,
        "pipeline": letter.pipeline,
        "key": key_hash(letter.key),
        "count": letter.count,
        "version": letter.version,
    }


def _of_view(view: str | None) -> str:
    return "WHERE TRUE" if view is None else "WHERE v.name = %(view)s"


def _letter(row: tuple[Any, ...]) -> Letter:
    view, pipeline, key, version, reason, count, first_at, last_at = row
    return Letter(
        view=view,
        pipeline=pipeline,
        key=key,
        version=version,
        cause=reason,
        count=count,
        first_at=first_at,
        last_at=last_at,
    )
