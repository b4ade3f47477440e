"""Keeps the fan-outs: changed rows that many entities of a view depend on, and how many of these are written by now.

A row is there before the offset moves past the change, and goes when all entities have been written and the store has
shown a later position. FencedError for a stale owner of the pipeline.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from offsets import Owner
from offsets.mysql import Session, check_fence, reading, transaction
from viewtail.changes.counting import counted
from viewtail.servers.sessions import quote

MOST_KEY = 1000  # characters of the keys that are kept for people


@dataclass(slots=True, kw_only=True)
class FanOut:
    """One of them; the pipeline's loop writes it."""

    view: str  # its id
    what: str  # names the changed rows; only the view's rows read more out of it
    table: str  # for people
    key: str
    version: int  # of the change that this pass brings
    committed_us: int  # when that was committed, microseconds since 1970
    next_version: int | None = None  # of a change since the pass began: another pass follows
    next_committed_us: int | None = None
    cursor: str | None = None  # where the pass goes on; None: at its beginning
    done: int = 0  # entities that the pass has written
    about: int | None = None  # entities that there are; None: not known
    written_upto: int | None = None  # the pass is done, its last page has this version
    incarnation: str = ""  # of the store, when the pass began

    @property
    def is_open(self) -> bool:
        """Whether there are entities that the change has not come to."""
        return self.written_upto is None

    def __str__(self) -> str:
        return in_words(self.table, self.key, self.done, self.about)


def in_words(table: str, key: str, done: int, about: int | None) -> str:
    """'a fan-out of shop.product 7 is under way, 12,000 of about 600,000'"""
    how_far = f"{counted(done, 'entities')} written" if about is None else f"{done:,} of about {max(about, done):,}"
    return f"a fan-out of {table} {key} is under way, {how_far}"


_MICROSECONDS = "CAST(UNIX_TIMESTAMP({0}) * 1000000 AS UNSIGNED)"
_COLUMNS = (
    "f.what, f.changed_table, f.changed_key, f.version, "
    f"{_MICROSECONDS.format('f.committed_at')}, f.next_version, {_MICROSECONDS.format('f.next_committed_at')}, "
    "f.page_cursor, f.done_count, f.estimate, f.written_upto, f.incarnation"
)
_MOVING = (
    "version = %(version)s, committed_at = FROM_UNIXTIME(%(committed)s), next_version = %(next_version)s, "
    "next_committed_at = FROM_UNIXTIME(%(next_committed)s), page_cursor = %(cursor)s, done_count = %(done)s, "
    "estimate = %(about)s, written_upto = %(written_upto)s, incarnation = %(incarnation)s"
)


@dataclass(frozen=True, slots=True, eq=False)
class FanOutRecords:
    """The rows of one pipeline's views; each method is a transaction. `ids`: of the views' rows, by the views' ids."""

    session: Session
    database: str
    owner: Owner
    ids: Mapping[str, int]

    def read(self) -> list[FanOut]:
        """All of them, the oldest change first."""
        names = {number: view for view, number in self.ids.items()}
        if not names:
            return []
        with transaction(self.session, "reading the fan-outs") as cursor:
            cursor.execute(
                f"SELECT f.view_id, {_COLUMNS} FROM {self._table} f WHERE f.view_id IN %s ORDER BY f.version",
                (sorted(names),),
            )
            return [_fan_out(names[number], row) for number, *row in cursor.fetchall()]

    def keep(self, fan_outs: Collection[FanOut]) -> None:
        """Keep some that are new, or that another pass is to follow."""
        with self._owned("keeping fan-outs") as cursor:
            for fan_out in fan_outs:
                cursor.execute(
                    f"INSERT INTO {self._table} SET view_id = %(view)s, what_hash = %(hash)s, what = %(what)s, "
                    f"changed_table = %(table)s, changed_key = %(key)s, {_MOVING} ON DUPLICATE KEY UPDATE {_MOVING}",
                    self._values(fan_out),
                )

    def save(self, fan_outs: Collection[FanOut]) -> list[FanOut]:
        """Save how far they are. Returns those that are there no more: the view is filled again, or gets nothing."""
        update = f"UPDATE {self._table} SET {_MOVING} WHERE view_id = %(view)s AND what_hash = %(hash)s"
        with self._owned("saving fan-outs") as cursor:
            return [fan_out for fan_out in fan_outs if not cursor.execute(update, self._values(fan_out))]

    def end(self, fan_outs: Collection[FanOut], shown_upto: int) -> None:
        """Forget those that are written, once the store has shown a later position, which is `shown_upto`.

        A store that comes back with less has lost some of it; then the view is filled again, as after a backfill.
        """
        with self._owned("ending fan-outs") as cursor:
            for fan_out in fan_outs:
                values = {**self._values(fan_out), "upto": shown_upto}
                cursor.execute(f"DELETE FROM {self._table} WHERE view_id = %(view)s AND what_hash = %(hash)s", values)
                cursor.execute(
                    f"UPDATE {quote(self.database, 'view')} SET watermark_version = GREATEST(%(upto)s, "
                    "COALESCE(watermark_version, 0)) WHERE id = %(view)s AND state = 'filled'",
                    values,
                )

    @property
    def _table(self) -> str:
        return quote(self.database, "fan_out")

    def _owned(self, doing: str) -> AbstractContextManager[Any]:
        return _owned(self.session, doing, self.owner)

    def _values(self, fan_out: FanOut) -> dict[str, Any]:
        return {
            "view": self.ids[fan_out.view],
            "hash": hashlib.sha256(fan_out.what.encode()).digest()[:16],
            "what": fan_out.what,
            "table": fan_out.table,
            "key": fan_out.key[:MOST_KEY],
            "version": fan_out.version,
            "committed": _seconds(fan_out.committed_us),
            "next_version": fan_out.next_version,
            "next_committed": _seconds(fan_out.next_committed_us),
            "cursor": fan_out.cursor,
            "done": fan_out.done,
            "about": fan_out.about,
            "written_upto": fan_out.written_upto,
            "incarnation": fan_out.incarnation,
        }


@contextmanager
def _owned(session: Session, doing: str, owner: Owner) -> Iterator[Any]:
    with transaction(session, doing) as cursor:
        check_fence(cursor, owner)
        yield cursor


def _seconds(us: int | None) -> Decimal | None:
    return None if us is None else Decimal(us) / 1_000_000


def _fan_out(view: str, row: Sequence[Any]) -> FanOut:
    what, table, key, version, committed, next_version, next_committed, cursor, done, about, upto, incarnation = row
    return FanOut(
        view=view,
        what=what,
        table=table,
        key=key,
        version=version,
        committed_us=committed,
        next_version=next_version,
        next_committed_us=next_committed,
        cursor=cursor,
        done=done,
        about=about,
        written_upto=upto,
        incarnation=incarnation,
    )


# -- for other processes ----------------------------------------------------------------------------------------


def under_way(cursor: Any, database: str) -> list[tuple[int, FanOut]]:
    """Read those that are under way in views that get changes, each with its pipeline's number; oldest change first."""
    cursor.execute(
        f"SELECT v.pipeline_id, v.name, {_COLUMNS} FROM {quote(database, 'fan_out')} f JOIN {quote(database, 'view')} "
        "v ON v.id = f.view_id AND v.state IN ('filling', 'filled') WHERE f.written_upto IS NULL ORDER BY f.version"
    )
    return [(pipeline, _fan_out(view, row)) for pipeline, view, *row in cursor.fetchall()]


def up_to(
    session: Session, database: str, pipelines: Collection[int], version: int, view: str | None = None
) -> list[FanOut]:
    """Find those under way in a view of these pipelines, or in all of theirs, of changes up to a version.

    A pipeline that passed the version has kept them before.
    """
    with reading(session, "looking for fan-outs") as cursor:
        found = under_way(cursor, database)
    return [
        fan_out
        for pipeline, fan_out in found
        if pipeline in pipelines and fan_out.version <= version and view in (None, fan_out.view)
    ]


# -- as a part of the caller's transaction ----------------------------------------------------------------------


def forget(cursor: Any, database: str, views: Collection[int]) -> None:
    """Forget all of the views of these rows."""
    if views:
        cursor.execute(f"DELETE FROM {quote(database, 'fan_out')} WHERE view_id IN %s", (sorted(views),))


def forget_upto(cursor: Any, database: str, pipeline_id: int, view: str, version: int | None) -> None:
    """Forget those of a view whose changes are up to a version; all of them: None.

    One that another pass is to follow stays: of the changes that have it follow, only the first one's version is known.
    """
    which = "TRUE" if version is None else f"version <= {version:d} AND next_version IS NULL"
    cursor.execute(
        f"DELETE FROM {quote(database, 'fan_out')} WHERE view_id IN (SELECT id FROM {quote(database, 'view')} "
        f"WHERE pipeline_id = %s AND name = %s) AND {which}",
        (pipeline_id, view),
    )
