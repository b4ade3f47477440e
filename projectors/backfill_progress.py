"""How far a backfill has come, saved under its owner's fence: in the transaction of the rows where both are MySQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from offsets import Owner
from offsets.mysql import Session, check_fence, transaction
from projectors.view_states import Event, State, last_key_text, move
from servers.sessions import quote


class BackfillProgress:
    """Of one view. Each method commits `session`; it raises FencedError for a stale owner.

    Args:
        session: where the sink's rows wait for their commit, or any other.
        owner: of the pipeline.
        row_order: in which the rows are read.
    """

    def __init__(self, session: Session, database: str, owner: Owner, view: str, row_order: str) -> None:
        self._session = session
        self._table = quote(database, "view")
        self._owner = owner
        self._view = view
        self._row_order = row_order

    def save(self, key: tuple[Any, ...], row_count: int) -> None:
        """The chunk that ends with `key` is durable."""
        with self._owned() as cursor:
            cursor.execute(
                f"UPDATE {self._table} SET fill_key = %s, fill_row_count = %s WHERE pipeline_id = %s AND name = %s "
                f"AND state = '{State.BACKFILLING}'",
                (last_key_text(key, self._row_order), row_count, self._owner.id, self._view),
            )

    def finish(self, end: int) -> None:
        """A store that has a witness of version `end` or above has every row of the backfill."""
        with self._owned() as cursor:
            move(cursor, self._table, self._owner.id, Event.FINISHED, [self._view], end=end)

    def commit_rows(self) -> None:
        """Make rows durable that move no progress (the sweep's tombstones)."""
        with self._owned():
            pass

    @contextmanager
    def _owned(self) -> Iterator[Any]:
        """A cursor of a transaction that is committed only for the owner."""
        with transaction(self._session, "saving a backfill's progress") as cursor:
            check_fence(cursor, self._owner)
            yield cursor
