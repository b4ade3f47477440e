"""One table that is polled: which of its rows are new, and up to which id nothing can come any more."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ingest.canonical.rows import Form, expressions_of, fetch_rows, select_of, source_errors
from ingest.canonical.tables import describe
from ingest.poll.ids import Ids
from ingest.poll.position import PollPosition
from ingest.poll.writers import Open, Writers, still_open
from viewtail.changes.batches import Followed, Row
from viewtail.changes.errors import DeclarationError, TablesChangedError
from viewtail.changes.tables import Column, Table, unlike
from viewtail.servers.answers import LastAnswer
from viewtail.servers.sessions import Connection, quote, value_of

MOST_ROWS = 10_000  # of one SELECT
MOST_BYTES = 8 << 20
MOST_GAPS = 2_000  # that one SELECT names
# viewtail's sessions see each statement's own moment otherwise.
_SAME_MOMENT = ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION WITH CONSISTENT SNAPSHOT")


@dataclass(slots=True)
class _Look:
    """The sessions that may bring rows up to an id, and have not let go since."""

    upto: int
    writers: Open


@dataclass(slots=True, eq=False)
class PolledTable:
    """One reading's state of a table.

    Args:
        table: it, or one of those that `followed` stands for.
        order: the column of its ids.
        ids: those that were delivered; None: reading begins behind all that is there once nobody is left who may have
            got an id by now. Rows up to there are a backfill's.
    """

    followed: Followed
    table: Table
    order: Column
    ids: Ids | None
    _looks: deque[_Look] = field(default_factory=deque)
    _final: int = 0  # up to here nobody was left at the last look: what there is the next SELECT sees
    _last: LastAnswer = field(default_factory=LastAnswer, init=False)  # mostly nothing is new
    _given: LastAnswer = field(default_factory=LastAnswer, init=False)  # which id is the next
    _upto: int = field(default=-1, init=False)
    _newer: str = field(default="", init=False)  # the SELECT of what is above that id
    _form: Form | None = field(default=None, init=False)  # of its rows, when their columns were as described
    _columns: tuple[Column, ...] = field(init=False)
    _selected: tuple[Column, ...] = field(init=False)
    _select: str = field(init=False)

    def __post_init__(self) -> None:
        table, names = self.table, self.followed.columns
        self._columns = tuple(column for column in table.columns if column.name in names)
        self._selected = (self.order, *self._columns)
        self._select = select_of(table, expressions_of(table, self._selected), "")

    @property
    def name(self) -> str:
        return self.table.full_name

    @property
    def passed(self) -> int | None:
        """The id up to which nothing can come any more; None: it has not begun."""
        return None if self.ids is None else self.ids.passed

    @property
    def waits(self) -> bool:
        """Return whether rows may still come below ids that were delivered, or it has not begun."""
        return self.ids is None or self.ids.passed < self.ids.top

    def read(self, connection: Connection) -> tuple[list[Row], bool]:
        """The rows that are new, in the order of their ids, and whether these are all.

        All of one moment, so that no row comes without those that were committed before it.
        """
        if self.ids is None:
            return [], True
        final, top = self._final, self.ids.top
        rows = self._missing(connection)
        is_whole = len(rows) < MOST_ROWS and bool(connection.open)  # a SELECT that is cut at its bytes closes it
        self.ids.add([row[0] for row in rows])
        if is_whole or rows[-1][0] >= top:  # all up to the last one are there
            self.ids.pass_up_to(final)
        return [row[1:] for row in rows], is_whole

    def _missing(self, connection: Connection) -> list[Row]:
        """Rows whose ids were not read: the first ones, up to MOST_ROWS or MOST_BYTES."""
        assert self.ids is not None
        if not self.waits:
            return self._fetched(connection, self._above(self.ids.top))
        order = quote(self.order.name)
        slices = _unread(self.ids, order)
        if len(slices) > 1:
            _execute(connection, *_SAME_MOMENT)
        rows: list[Row] = []
        for ranges in slices:
            limit = MOST_ROWS - len(rows)
            statement = f"{self._select} WHERE {' OR '.join(ranges)} ORDER BY {order} LIMIT {limit}"
            more = self._fetched(connection, statement)
            rows += more
            if len(more) == limit or not connection.open:
                break
        if len(slices) > 1 and connection.open:
            _execute(connection, "COMMIT")
        return rows

    def _above(self, top: int) -> str:
        """The SELECT of a pass that no lower id is waited for in; the same text while nothing comes."""
        if self._upto != top:
            order = quote(self.order.name)
            where = f"WHERE {order} > {top} ORDER BY {order} LIMIT {MOST_ROWS}"
            self._upto, self._newer = top, f"{self._select} {where}"
        return self._newer

    def _fetched(self, connection: Connection, statement: str) -> list[Row]:
        """Rows with their ids. Raises TablesChangedError where their columns are not any more as they were described.

        The rows of such an answer are not read: as what they were, they could be rounded or decoded wrongly.
        """
        return fetch_rows(connection, statement, self._selected, MOST_BYTES, self._see, self._last)

    def _see(self, form: Form) -> None:
        if self._form not in (None, form):
            raise _changed(self.name)
        self._form = form

    def look(self, connection: Connection, writers: Writers) -> None:
        """Look, after `read`, who is there now that may have got an id up to the largest that was delivered."""
        if not self.waits:
            self._looks.clear()
            return
        top = self._newest(connection) if self.ids is None else self.ids.top  # before it is asked who is there
        open_now = writers.now(connection, self.table.schema, self.table.name)
        self._looks = _still_waiting(self._looks, open_now)
        if not self._looks:
            self._looks.append(_Look(top, open_now))
        elif self.ids is not None:  # else it begins where the first look was
            if self._looks[-1].writers == open_now:
                self._looks[-1].upto = top
            else:
                self._looks.append(_Look(top, open_now))
        while self._looks and not self._looks[0].writers:
            self._final = self._looks.popleft().upto
            if self.ids is None:
                self.ids = Ids(self._final)

    def begins_again(self, connection: Connection) -> bool:
        """Return whether its ids do: rows come under ids that were delivered, or passed, as others."""
        table = self.table
        asks = "SELECT AUTO_INCREMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        statement = connection.cursor().mogrify(asks, (table.schema, table.name))
        with source_errors(connection):
            rows = self._given.ask(connection, statement)
        given_next = rows[0][0] if rows else None
        if self.ids is None or given_next is None:
            return False
        top = self.ids.top
        is_last = int(given_next) == top and top & (top + 1) == 0  # of its column, which MySQL shows as the next, too
        return int(given_next) <= top and not is_last

    def check(self, connection: Connection) -> None:
        """Raises DeclarationError where the column is not the one whose ids the server gives out.

        TablesChangedError where the columns are not as they were described.
        """
        table = self.table
        numbered = auto_increment(connection, table.schema, table.name)
        if numbered != self.order.name:
            which = f"its AUTO_INCREMENT column is {numbered}" if numbered else "it has no AUTO_INCREMENT column"
            raise DeclarationError(
                f"{table.full_name} is to be polled by {self.order.name}, and {which}: ids that are given otherwise "
                f"may be lower than some that were read. Write order={numbered or 'COLUMN'!r}, or tail the binlog"
            )
        self._fetched(connection, f"{self._select} LIMIT 0")  # before they are described: that is the form of these
        now = describe(connection, table.schema, table.name)
        if any(self._is_other(column, now.column(column.name)) for column in (self.order, *self._columns)):
            raise _changed(self.name)

    def _is_other(self, column: Column, now: Column | None) -> bool:
        """Return whether a column is not as it was described: of a pattern, as wide as the widest of its tables has."""
        if column.name in self.table.of_braces or self.table.part is None:
            return column.name not in self.table.of_braces and now != column.stored
        return now is None or unlike(now, column.stored) is not None

    def _newest(self, connection: Connection) -> int:
        """The largest id that is there."""
        table = self.table
        newest = asked(connection, f"SELECT MAX({quote(self.order.name)}) FROM {quote(table.schema, table.name)}")
        return int(newest or 0)


def _unread(ids: Ids, order: str) -> list[list[str]]:
    """The ranges of ids that were not read, as conditions on the column `order`; each list is for one SELECT."""
    wanted = [f"{order} BETWEEN {low} AND {high}" for low, high in ids.gaps()]
    wanted.append(f"{order} > {ids.top}")
    return [wanted[at : at + MOST_GAPS] for at in range(0, len(wanted), MOST_GAPS)]


def _still_waiting(looks: Iterable[_Look], open_now: Open) -> deque[_Look]:
    """The looks, each with those of its writers that are still there; those that wait for the same ones are one."""
    kept: deque[_Look] = deque()
    for look in looks:  # few
        look.writers = still_open(look.writers, open_now)
        if kept and kept[-1].writers == look.writers:
            kept[-1].upto = look.upto
        else:
            kept.append(look)
    return kept


def _changed(table: str) -> TablesChangedError:
    return TablesChangedError(f"columns of {table} changed: the pipeline starts again, and reads them as they are now")


def asked(connection: Connection, statement: str, *values: object) -> Any:
    """The first value. Raises SourceError or SourceUnavailableError."""
    with source_errors(connection):
        return value_of(connection, statement, *values)


def auto_increment(connection: Connection, schema: str, table: str) -> str | None:
    """The column whose ids the server gives out."""
    column = asked(
        connection,
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s "
        "AND EXTRA LIKE '%auto_increment%'",
        schema,
        table,
    )
    return None if column is None else str(column)


def _execute(connection: Connection, *statements: str) -> None:
    with source_errors(connection), connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def polled(followed: Followed, order: str, at: PollPosition) -> list[PolledTable]:
    """The table that is followed, or all of its pattern, to be read on behind a position.

    One that matches a pattern whose reading has begun came later: it is read from its first row. Raises
    DeclarationError where the table has no such column.
    """
    whole = followed.table
    column = whole.column(order)
    if column is None:
        raise DeclarationError(f"{whole.full_name} has no column {order!r}, by which it is to be polled")
    is_begun = bool(at.of_pattern(whole))
    return [
        PolledTable(followed, table, column, at.ids(table.full_name) or (Ids() if is_begun else None))
        for table in whole.each
    ]
