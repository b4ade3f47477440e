"""Swaps the tables of two copies of a view with one RENAME TABLE, which delays readers only briefly.

A copy may have two tables, so up to four names change at once, and readers find both tables of one copy or of the
other. viewtail asks the server which tables a copy has: the two copies differ when a declaration gets or
loses `each=`.

A transaction whose snapshot is older than the end of the backfill would find the new table empty or half filled, and
gets no error (measured). So the swap waits for such transactions; it needs PROCESS to see them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pymysql
import structlog

from projectors.stores import Swapping
from projectors.stores.index_tables.renaming import Renaming
from projectors.stores.index_tables.table import PresentTable, present_tables, second_name, table_name
from projectors.views import BoundView
from viewtail.changes.errors import RETRIES, StoreError, StoreUnavailableError
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import TEMPORARY_NUMBERS, Connection, mend_of_denial, number_of, quote, value_of

PAUSE_S = 0.15  # between two looks for older transactions
ATTEMPTS = 8

_log = structlog.get_logger("viewtail.rebuild")


class TableSwapping(Swapping):
    """Swaps tables on sessions of its own, in the database of the index tables."""

    def __init__(self, connection_factory: Callable[[], Connection], database: str) -> None:
        self._open = connection_factory
        self._database = database
        self._connection: Connection | None = None

    def swap(self, live: BoundView, beside: BoundView, upto: int, *, is_adopting: bool = False) -> bool:
        """Give the live tables' names to the tables of `beside`."""
        first = table_name(live), table_name(live, is_beside=True), table_name(beside)
        second = second_name(live), second_name(live, is_beside=True), second_name(beside)
        with self._mapped(live):
            present = self._present(*first, *second)
            if _is_swapped(first, present):
                return True
            self._require_ours(first[0], present)
            if first[2] not in present:
                raise StoreError(f"{self._named(first[2])} is gone: somebody dropped it. viewtail fills it again")
            self._wait_for_snapshots(beside)
            # Another view's table stays.
            ours = {name for name, table in present.items() if name not in second or table.is_second}
            pairs = self._pairs(present, ours, [first, second])
            Renaming(self._open, self._database).rename(pairs)
            return True

    def is_swapped(self, live: BoundView, beside: BoundView) -> bool:
        names = table_name(live), table_name(live, is_beside=True), table_name(beside)
        with self._mapped(live):
            return _is_swapped(names, self._present(*names))

    def drop(self, live: BoundView, beside: BoundView) -> None:
        """Drop the tables of `beside`."""
        first, second = table_name(beside), second_name(beside)
        with self._mapped(beside):
            present = self._present(first, second)
            self._require_ours(first, present)
            names = [first, *([second] if second in present and present[second].is_second else [])]
            connection = self._living()
            connection.query("SET SESSION lock_wait_timeout = 10")
            connection.query(f"DROP TABLE IF EXISTS {', '.join(map(self._named, names))}")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close()

    def _wait_for_snapshots(self, beside: BoundView) -> None:
        """Wait for transactions that began before the copy was filled; raises StoreError if they do not end."""
        connection = self._living()
        # innodb_trx shows times in the server's own zone.
        connection.query("SET SESSION time_zone = 'SYSTEM'")
        older = (
            "SELECT GROUP_CONCAT(trx_mysql_thread_id) FROM information_schema.innodb_trx "
            "WHERE trx_mysql_thread_id <> 0 "
            f"AND trx_started <= (SELECT MAX(filled_at) FROM {self._named('view')} WHERE name = %s)"
        )
        try:
            for _ in range(ATTEMPTS):
                if (sessions := value_of(connection, older, beside.id)) is None:
                    return
                time.sleep(PAUSE_S)
        except pymysql.err.MySQLError as error:
            if mend_of_denial(error) is None:
                raise
            _log.warning("without PROCESS nobody knows whether older transactions are open", view=beside.id)
            return
        raise StoreError(
            f"transactions are open that began before the copy was filled, so they would find it half filled: sessions "
            f"{sessions}. End them, or wait"
        )

    def _pairs(
        self, present: Collection[str], ours: Collection[str], names: Sequence[tuple[str, str, str]]
    ) -> list[tuple[str, str]]:
        """The pairs to rename, from tuples of (live name, name of the former copy, name of the new copy)."""
        pairs = [
            (old_name, to)
            for live, former, new in names
            for old_name, to in ((live, former), (new, live))
            if old_name in ours
        ]
        moved = {old_name for old_name, _ in pairs}
        for _, to in pairs:
            if to in present and to not in moved:
                raise StoreError(f"{self._named(to)} is in the way; rename or drop it, then ask again")
        return pairs

    def _present(self, *names: str) -> dict[str, PresentTable]:
        """The tables that exist."""
        connection = self._living()
        return present_tables(connection, facts_of(connection), self._database, names)

    def _require_ours(self, name: str, present: Mapping[str, PresentTable]) -> None:
        """Raises StoreError for a table that an application has by now, or that somebody else made."""
        if name in present and not present[name].is_own:
            raise StoreError(
                f"{self._named(name)} is not viewtail's: its comment is {present[name].comment!r}. It is left as it is"
            )

    def _living(self) -> Connection:
        if self._connection is None or not self._connection.open:
            self._connection = self._open()
            self._connection.autocommit(True)
        return self._connection

    def _named(self, table: str) -> str:
        return quote(self._database, table)

    @contextmanager
    def _mapped(self, view: BoundView) -> Iterator[None]:
        try:
            yield
        except pymysql.err.MySQLError as error:
            self.close()
            number = number_of(error)
            said = f"view {view.view.id}: its tables cannot be renamed or dropped (MySQL error {number})"
            if number in TEMPORARY_NUMBERS:
                raise StoreUnavailableError(f"{said}; {RETRIES}") from None
            mend = mend_of_denial(error)
            raise StoreError(f"{said}: {error.args[-1]}{f'. {mend}' if mend else ''}") from None


def _is_swapped(names: tuple[str, str, str], present: Collection[str]) -> bool:
    """Return whether the former copy has the name of one beside the live copy, and the new copy's such name is gone."""
    _, former, new = names
    return former in present and new not in present
