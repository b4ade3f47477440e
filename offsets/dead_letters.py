"""Dead letters: keys that a projection or a store refused, a row each. They hold no value of a row but its key."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offsets import runs
from offsets.mysql import Session, reading, transaction
from viewtail.changes.counting import counted
from viewtail.changes.rendering import some_in_a_line
from viewtail.changes.writes import LIVES_ON, Parked
from viewtail.servers.sessions import quote


@dataclass(frozen=True, slots=True)
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

    @property
    def waits(self) -> bool:
        """Return whether it goes in by itself, once another source's row is deleted."""
        return self.cause.startswith(LIVES_ON)


def key_hash(key: str) -> bytes:
    """Hash a rendered key: its letter's place in the table."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:16]


# -- of some views, by the numbers of their rows ----------------------------------------------------------------


def fingerprint(session: Session, database: str, views: Collection[int]) -> tuple[object, ...]:
    """Return a fingerprint of these views' letters: another one when some were added or removed."""
    if not views:
        return ()
    with reading(session, "looking at the dead letters") as cursor:
        table = quote(database, "dead_letter")
        cursor.execute(
            f"SELECT COUNT(*), MAX(last_at), MAX(first_at) FROM {table} WHERE view_id IN %s", (sorted(views),)
        )
        return tuple(cursor.fetchone())


def keys(session: Session, database: str, views: Collection[int]) -> list[tuple[int, str]]:
    """Read the rendered keys of these views' letters, each with its view."""
    if not views:
        return []
    with transaction(session, "reading the dead letters") as cursor:
        cursor.execute(
            f"SELECT view_id, rendered_key FROM {quote(database, 'dead_letter')} WHERE view_id IN %s", (sorted(views),)
        )
        return list(cursor.fetchall())


def waiting(session: Session, database: str, view: int, after: bytes, limit: int) -> list[tuple[bytes, str]]:
    """Read the keys that wait for another source's delete, behind a hash: each one's hash, and the key, rendered."""
    with transaction(session, "reading the dead letters") as cursor:
        cursor.execute(
            f"SELECT key_hash, rendered_key FROM {quote(database, 'dead_letter')} WHERE view_id = %s AND key_hash > %s "
            "AND LEFT(reason, %s) = %s ORDER BY key_hash LIMIT %s",
            (view, after, len(LIVES_ON), LIVES_ON, limit),
        )
        return list(cursor.fetchall())


def counts(cursor: Any, database: str) -> dict[int, int]:
    """Count the letters of each view that has some."""
    cursor.execute(f"SELECT view_id, COUNT(*) FROM {quote(database, 'dead_letter')} GROUP BY view_id")
    return dict(cursor.fetchall())


def record(session: Session, database: str, ids: Mapping[str, int], letters: Iterable[Parked]) -> None:
    """Record letters; durable on return. `ids` has the numbers of the views."""
    with transaction(session, "recording dead letters") as cursor:
        for letter in letters:
            cursor.execute(
                f"INSERT INTO {quote(database, 'dead_letter')} (view_id, key_hash, rendered_key, version, reason) "
                "VALUES (%s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE attempt_count = attempt_count + 1, "
                "reason = IF(VALUES(version) < version, reason, VALUES(reason)), "
                "version = GREATEST(version, VALUES(version))",
                (ids[letter.view], key_hash(letter.key), letter.key, letter.version, letter.reason[:2000]),
            )


def clear(session: Session, database: str, view: int, upto: Mapping[str, int]) -> list[str]:
    """Remove, by key, the letters of changes up to a version; returns the keys that have none then.

    Of a newer change another process may have told meanwhile.
    """
    table, gone = quote(database, "dead_letter"), []
    with transaction(session, "clearing dead letters") as cursor:
        for key, version in upto.items():
            where, values = "view_id = %s AND key_hash = %s", (view, key_hash(key))
            if not cursor.execute(f"DELETE FROM {table} WHERE {where} AND version <= %s", (*values, version)):
                cursor.execute(f"SELECT 1 FROM {table} WHERE {where}", values)
                if cursor.fetchone() is not None:
                    continue
            gone.append(key)
    return gone


# -- of views by their names, in every pipeline -----------------------------------------------------------------


def _letters(database: str) -> str:
    """Each letter `d`, with its view `v` and the pipeline `p` that keeps that."""
    return (
        f"FROM {quote(database, 'dead_letter')} d JOIN {quote(database, 'view')} v ON v.id = d.view_id "
        f"JOIN {quote(database, 'pipeline')} p ON p.id = v.pipeline_id"
    )


def _of_view(view: str | None) -> str:
    return "WHERE TRUE" if view is None else "WHERE v.name = %(view)s"


def views(session: Session, database: str) -> list[str]:
    """List the ids of views that have letters."""
    with transaction(session, "reading the dead letters") as cursor:
        cursor.execute(f"SELECT DISTINCT v.name {_letters(database)} ORDER BY v.name")
        return [view for (view,) in cursor.fetchall()]


def count(session: Session, database: str, view: str | None) -> int:
    """Count the letters of a view, or of all."""
    with transaction(session, "counting the dead letters") as cursor:
        cursor.execute(f"SELECT COUNT(*) {_letters(database)} {_of_view(view)}", {"view": view})
        return int(cursor.fetchone()[0])


def newest(session: Session, database: str, view: str | None, limit: int) -> list[Letter]:
    """Read the letters of a view, or of all; those that were refused last come first."""
    which = f"{_of_view(view)} ORDER BY d.last_at DESC, v.name, d.key_hash LIMIT {limit:d}"
    return _read(session, database, which, view=view)


def of_keys(session: Session, database: str, view: str, keys: Sequence[str]) -> list[Letter]:
    """Read the letters of these rendered keys; of no keys, all of the view's."""
    if not keys:
        return _read(session, database, f"{_of_view(view)} ORDER BY d.key_hash, p.name", view=view)
    hashes = sorted({key_hash(key) for key in keys})
    which = f"{_of_view(view)} AND d.key_hash IN %(keys)s ORDER BY d.key_hash"
    return _read(session, database, which, view=view, keys=hashes)


def _read(session: Session, database: str, which: str, **values: object) -> list[Letter]:
    at = "DATE_FORMAT(d.{0}_at, '%Y-%m-%d %H:%i:%s.%f')"
    with transaction(session, "reading dead letters") as cursor:
        cursor.execute(
            f"SELECT v.name, p.name, d.rendered_key, d.version, d.reason, d.attempt_count, {at.format('first')}, "
            f"{at.format('last')} {_letters(database)} {which}",
            values,
        )
        return [Letter(*row) for row in cursor.fetchall()]


def parked_alone(session: Session, database: str, copy: str, live: str, limit: int) -> tuple[int, list[str]]:
    """Find keys parked in one view and not in another of its pipeline: how many, and the first of them, rendered."""
    alone = (
        f"{_letters(database)} LEFT JOIN {quote(database, 'view')} o "
        "ON o.pipeline_id = v.pipeline_id AND o.name = %(live)s "
        f"LEFT JOIN {quote(database, 'dead_letter')} l ON l.view_id = o.id AND l.key_hash = d.key_hash "
        "WHERE v.name = %(copy)s AND l.view_id IS NULL"
    )
    values = {"copy": copy, "live": live}
    with transaction(session, "comparing the dead letters of two copies") as cursor:
        cursor.execute(f"SELECT COUNT(*) {alone}", values)
        ((number,),) = cursor.fetchall()
        cursor.execute(f"SELECT d.rendered_key {alone} ORDER BY d.first_at, d.key_hash LIMIT {limit:d}", values)
        return int(number), [key for (key,) in cursor.fetchall()]


def forget(session: Session, database: str, letters: Sequence[Letter]) -> list[Letter]:
    """Remove those that were not written again since they were read, and put that into the record; returns them.

    A key that was refused once more has a higher count.
    """
    statement = (
        f"DELETE FROM {quote(database, 'dead_letter')} WHERE view_id = (SELECT v.id FROM {quote(database, 'view')} v "
        f"JOIN {quote(database, 'pipeline')} p ON p.id = v.pipeline_id WHERE v.name = %s AND p.name = %s) "
        "AND key_hash = %s AND attempt_count = %s AND version = %s"
    )
    with transaction(session, "forgetting dead letters") as cursor:
        placed = ((one, (one.view, one.pipeline, key_hash(one.key), one.count, one.version)) for one in letters)
        gone = [letter for letter, values in placed if cursor.execute(statement, values)]
        keys: dict[str, list[str]] = {}
        for letter in gone:
            keys.setdefault(letter.view, []).append(letter.key)
        for view, of in keys.items():
            result = f"{counted(len(of), 'dead letters')} forgotten"
            runs.record_in(cursor, database, runs.DROP, view, f"parked keys: {some_in_a_line(of)}", result)
    for view in keys:
        runs.forget_but_last(session, database, runs.DROP, view, runs.KEPT_RECORDED)
    return gone


def forget_views(cursor: Any, database: str, views: Collection[int]) -> None:
    """Forget all letters of the views of these rows, in the caller's transaction."""
    if views:
        cursor.execute(f"DELETE FROM {quote(database, 'dead_letter')} WHERE view_id IN %s", (sorted(views),))


def erase(session: Session, database: str, views: Collection[int], keys: Collection[str]) -> int:
    """Remove the letters of an entity, by its rendered keys, from the views of these rows; returns how many there were.

    By the rows: a pipeline of another source may keep a view of the same name, and have another entity under the key.
    """
    if not views:
        return 0
    with transaction(session, "erasing dead letters") as cursor:
        removed: int = cursor.execute(
            f"DELETE FROM {quote(database, 'dead_letter')} WHERE view_id IN %s AND key_hash IN %s",
            (sorted(views), sorted(map(key_hash, keys))),
        )
        return removed
