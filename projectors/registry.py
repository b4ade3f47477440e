"""The views as viewtail's own tables know them: fingerprint, state, and how far a fill has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson
import pymysql

from changes.errors import DeclarationError
from offsets.mysql import Session, check_fence, transaction
from projectors.binding import declaration_hash, earlier_fingerprint
from projectors.bound_views import BoundView
from servers.sessions import quote

NEW = "new"
FILLING = "filling"
FILLED = "filled"
HALTED = "halted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRecord:
    """One view's row in the table `view`."""

    id: int
    name: str  # the view's id: 'store:name'
    state: str
    reason: str | None
    watermark_version: int | None
    fill_key: tuple[Any, ...] | None  # primary key of the last row of the last finished chunk
    fill_order: str  # in which its rows were read; '' where none was kept
    fill_row_count: int
    fill_incarnation: str  # of the store, when the fill began


class Registry:
    """Reads and writes view rows; each method is one transaction on its session."""

    def __init__(self, session: Session, database: str, pipeline: str) -> None:
        self._session = session
        self._view = quote(database, "view")
        self._pipeline_table = quote(database, "pipeline")
        self._pipeline = pipeline
        self.ids: dict[str, int] = {}

    def sync(self, views: Sequence[BoundView]) -> dict[str, ViewRecord]:
        """Make a row for each declared view; one whose declaration changed is new again."""
        with transaction(self._session, "reading the views") as cursor:
            cursor.execute(f"SELECT id FROM {self._pipeline_table} WHERE name = %s", (self._pipeline,))
            (pipeline_id,) = cursor.fetchone()
            records = {}
            for view in views:
                records[view.id] = self._sync_one(cursor, view, pipeline_id)
        self.ids = {name: record.id for name, record in records.items()}
        return records

    def _sync_one(self, cursor: Any, view: BoundView, pipeline_id: int) -> ViewRecord:
        kind = view.view.entity.version or "binlog"
        declaration = declaration_hash(view.view)
        cursor.execute(
            f"SELECT fingerprint, version_kind, declaration FROM {self._view} WHERE name = %s", (view.id,)
        )
        row = cursor.fetchone()
        if row is None:
            # Not before looking: InnoDB spends a number of the key on each INSERT, ignored ones too.
            row = (view.fingerprint, kind, declaration)
            cursor.execute(
                f"INSERT IGNORE INTO {self._view} (name, pipeline_id, fingerprint, version_kind, declaration, state) "
                f"VALUES (%s, %s, %s, %s, %s, '{NEW}')",
                (view.id, pipeline_id, *row),
            )
        fingerprint, stored_kind, stored_declaration = row
        if stored_kind != kind:
            raise DeclarationError(
                f"view {view.id} was filled with versions of kind {stored_kind!r}, its declaration now asks for "
                f"{kind!r}; the two cannot be compared. Give the view a new name, or change the entity back"
            )
        if stored_declaration != declaration:
            cursor.execute(
                f"UPDATE {self._view} SET declaration = %s WHERE name = %s", (declaration, view.id)
            )
        if fingerprint != view.fingerprint:
            is_as_it_was = fingerprint == earlier_fingerprint(view)
            cursor.execute(
                f"UPDATE {self._view} SET fingerprint = %s{'' if is_as_it_was else f', {_ANEW}'} WHERE name = %s",
                (view.fingerprint, view.id),
            )
        return self._read(cursor, view.id)

    def read(self, view: str) -> ViewRecord:
        with transaction(self._session, "reading a view") as cursor:
            return self._read(cursor, view)

    def _read(self, cursor: Any, view: str) -> ViewRecord:
        cursor.execute(
            "SELECT id, name, state, reason, watermark_version, fill_key, fill_row_count, fill_incarnation "
            f"FROM {self._view} WHERE name = %s",
            (view,),
        )
        number, name, state, reason, watermark, kept, count, incarnation = cursor.fetchone()
        key, order = _fill_key_from(kept)
        return ViewRecord(
            id=number,
            name=name,
            state=state,
            reason=reason,
            watermark_version=watermark,
            fill_key=key,
            fill_order=order,
            fill_row_count=count,
            fill_incarnation=incarnation,
        )

    def marked(self, views: Sequence[str]) -> list[str]:
        """Those of these views that are to be filled from the beginning."""
        if not views:
            return []
        marks = ", ".join(["%s"] * len(views))
        with transaction(self._session, "looking at views that are left out") as cursor:
            cursor.execute(
                f"SELECT name FROM {self._view} WHERE state = '{NEW}' AND name IN ({marks})", tuple(views)
            )
            return [name for (name,) in cursor.fetchall()]

    def keep(self, view: BoundView) -> None:
        """The view was bound anew, and its content needs no fill for that."""
        with transaction(self._session, "keeping a view as it is") as cursor:
            cursor.execute(
                f"UPDATE {self._view} SET fingerprint = %s WHERE name = %s", (view.fingerprint, view.id)
            )

    def fill_anew(self, views: Sequence[str]) -> None:
        """These views are to be filled from the beginning, whatever was known of them."""
        with transaction(self._session, "marking views to be filled") as cursor:
            self.mark_anew(cursor, views)

    def fill_after(self, view: str, version: int) -> None:
        """The view is to be filled anew, under a watermark above `version`: one taken before will not do."""
        with transaction(self._session, "marking a view to be filled") as cursor:
            cursor.execute(
                f"UPDATE {self._view} SET {_ANEW}, watermark_version = %s WHERE name = %s AND state <> '{HALTED}'",
                (version, view),
            )

    def begin_again_after(self, view: str, version: int) -> None:
        """As `fill_after`, where a fill is under way or was interrupted."""
        with transaction(self._session, "beginning a fill again") as cursor:
            cursor.execute(
                f"UPDATE {self._view} SET {_ANEW}, watermark_version = %s WHERE name = %s AND state = '{FILLING}'",
                (version, view),
            )

    def mark_anew(self, cursor: Any, views: Sequence[str]) -> None:
        """`fill_anew` as a part of the caller's transaction."""
        for view in views:
            cursor.execute(f"UPDATE {self._view} SET {_ANEW} WHERE name = %s", (view,))

    def retire_others(self, declared: Sequence[str]) -> None:
        """Views of this pipeline that are no longer declared miss its changes from now on: put back, they are new."""
        with transaction(self._session, "retiring views") as cursor:
            cursor.execute(f"SELECT id FROM {self._pipeline_table} WHERE name = %s", (self._pipeline,))
            (pipeline_id,) = cursor.fetchone()
            marks = ", ".join(["%s"] * len(declared))
            cursor.execute(
                f"UPDATE {self._view} SET {_ANEW} WHERE pipeline_id = %s AND name NOT IN ({marks}) "
                f"AND state NOT IN ('{NEW}', '{HALTED}')",
                (pipeline_id, *declared),
            )

    def begin_fill(self, view: str, watermark_version: int, row_estimate: int, incarnation: str) -> None:
        """Only of a new view: one that was halted since gets no changes, so that a fill would hide what it misses.

        Nor of one whose table was replaced behind the watermark (`fill_after`).
        """
        with transaction(self._session, "beginning a fill") as cursor:
            cursor.execute(
                f"UPDATE {self._view} SET state = '{FILLING}', reason = NULL, watermark_version = %s, fill_key = NULL, "
                "fill_row_count = 0, fill_row_estimate = %s, fill_incarnation = %s, "
                "fill_started_at = CURRENT_TIMESTAMP(6), filled_at = NULL "
                f"WHERE name = %s AND state = '{NEW}' AND COALESCE(watermark_version, 0) < %s",
                (watermark_version, row_estimate, incarnation, view, watermark_version),
            )

    def halt(self, view: str, reason: str) -> None:
        with transaction(self._session, "halting a view") as cursor:
            cursor.execute(
                f"UPDATE {self._view} SET state = '{HALTED}', reason = %s WHERE name = %s",
                (reason[:2000], view),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownView:
    """What is known of a view without its table."""

    state: str
    declaration: str  # hash, as of `declaration_hash`; '' where an earlier viewtail kept none


def known_views(connection: pymysql.Connection[Any], database: str) -> dict[str, KnownView]:
    """By id, of every pipeline; none where viewtail's tables are not there or not readable."""
    try:
        with connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute(
                f"SELECT * FROM {quote(database, 'view')}"
            )  # an earlier viewtail's has fewer columns
            return {
                row["name"]: KnownView(state=row["state"], declaration=row.get("declaration", ""))
                for row in cursor.fetchall()
            }
    except pymysql.err.MySQLError:
        return {}


_ANEW = (
    f"state = '{NEW}', reason = NULL, watermark_version = NULL, fill_key = NULL, fill_row_count = 0, "
    "fill_row_estimate = 0, fill_started_at = NULL, filled_at = NULL"
)


class FillProgress:
    """How far a fill has come, saved in the transaction of the sink's rows where both are MySQL."""

    def __init__(
        self, session: Session, database: str, pipeline: str, fence: int, view: str, order: str
    ) -> None:
        self._session = session
        self._order = order
        self._view_table = quote(database, "view")
        self._pipeline_table = quote(database, "pipeline")
        self._pipeline = pipeline
        self._fence = fence
        self._view = view

    def save(self, key: tuple[Any, ...] | None, row_count: int) -> None:
        """The chunk that ends with `key` is durable. Commits. Raises FencedError for a stale owner."""
        self._update(
            "fill_key = %s, fill_row_count = %s",
            (None if key is None else _fill_key_to(key, self._order), row_count),
        )

    def finish(self, version: int) -> None:
        """Filled; a store that has a witness of `version` or above has every row of the fill."""
        self._update(
            f"state = '{FILLED}', watermark_version = %s, filled_at = CURRENT_TIMESTAMP(6)", (version,)
        )

    def commit_rows(self) -> None:
        """Make rows durable that move no progress (the sweep's tombstones)."""
        self._update("name = name", ())

    def _update(self, assignments: str, arguments: tuple[Any, ...]) -> None:
        with transaction(self._session, "saving a fill's progress") as cursor:
            check_fence(cursor, self._pipeline_table, self._pipeline, self._fence)
            cursor.execute(
                f"UPDATE {self._view_table} SET {assignments} WHERE name = %s AND state = '{FILLING}'",
                (*arguments, self._view),
            )


def _fill_key_to(key: tuple[Any, ...], order: str) -> str:
    return orjson.dumps({"order": order, "key": [_value_to(part) for part in key]}).decode()


def _fill_key_from(kept: str | None) -> tuple[tuple[Any, ...] | None, str]:
    """The key and the order of its rows, which an earlier viewtail did not keep."""
    if kept is None:
        return None, ""
    found = orjson.loads(kept)
    order, key = ("", found) if isinstance(found, list) else (found["order"], found["key"])
    return tuple(_value_from(part) for part in key), order


def _value_to(value: Any) -> Any:
    """A key part as JSON can hold it: bytes and decimals tagged."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, Decimal):
        return {"decimal": f"{value:f}"}
    assert isinstance(value, int | str), "keys of other types are refused at start"
    return value


def _value_from(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"]) if "hex" in value else Decimal(value["decimal"])
    return value
