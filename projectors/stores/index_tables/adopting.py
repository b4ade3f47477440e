"""Takes over a table that another tool made under an index table's name: one ALTER TABLE adds what viewtail needs.

Readers see the table before and after it, so no value may become another one by it: `surviving` says which do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pymysql

from projectors.stores import Adoption
from projectors.stores.index_tables.table import (
    IndexTableShape,
    PresentTable,
    RowsDoNotFitError,
    Shape,
    present_tables,
    table_name,
)
from projectors.views import BoundView
from viewtail.changes.errors import StoreError, StoreUnavailableError
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import (
    TEMPORARY_NUMBERS,
    Connection,
    mend_of_denial,
    number_of,
    quote,
    value_of,
)

WAIT_S = 10  # for readers' transactions; those that begin meanwhile wait for it
_NOT_INSTANT = frozenset({1845, 1846, 4092})
_ANEW = "Declare the view under a new name, let `viewtail run` fill it, and lead the readers there"
_INTEGER = re.compile(r"(tiny|small|medium|big)?int(?:\(\d+\))?( unsigned)?")
_BITS = {"tiny": 8, "small": 16, "medium": 24, None: 32, "big": 64}
_TEXT = re.compile(r"(?:var)?char\(\d+\)|(?:tiny|medium|long)?text|(?:enum|set)\(.*\)", re.DOTALL)
_BYTES = re.compile(r"(?:var)?binary\(\d+\)|(?:tiny|medium|long)?blob")
_TIME = re.compile(r"(time|datetime|timestamp)(?:\((\d)\))?")
_SIZED_TEXT = re.compile(r"(var)?char\((\d+)\)")
_SIZED_BYTES = re.compile(r"varbinary\((\d+)\)")
_COLUMN_IN_ERROR = re.compile(r"for column ['`](?:[^'`]*`\.`)*([^'`]+)['`]")


def surviving(column: str, before: Shape, after: Shape) -> str | None:
    """The condition under which a value stays what it is when its column's type is changed; '' where all do.

    None where that is not known: numbers are rounded, and times lose their fractions, without an error.
    """
    if before.type == after.type:
        return ""
    found = (of_kind(column, before.type, after.type) for of_kind in (_numbers, _texts, _times, _bytes))
    return next((condition for condition in found if condition is not None), None)


def _numbers(column: str, before: str, after: str) -> str | None:
    if not _INTEGER.fullmatch(before) or not (number := _INTEGER.fullmatch(after)):
        return None
    values = 1 << _BITS[number[1]]
    least, most = (0, values - 1) if number[2] else (-values // 2, values // 2 - 1)
    return f"{column} BETWEEN {least} AND {most}"


def _texts(column: str, before: str, after: str) -> str | None:
    if not _TEXT.fullmatch(before) or not (text := _SIZED_TEXT.fullmatch(after)):
        return None
    no_blank = "" if text[1] else f" AND {column} NOT LIKE '% '"  # CHAR gives no blanks at the end back
    return f"CHAR_LENGTH({column}) <= {text[2]}{no_blank}"


def _times(column: str, before: str, after: str) -> str | None:
    time, fewer = _TIME.fullmatch(before), _TIME.fullmatch(after)
    if time is None or fewer is None or time[1] != fewer[1]:
        return None
    digits = int(fewer[2] or 0)
    kind = "TIME" if time[1] == "time" else "DATETIME"
    return "" if digits >= int(time[2] or 0) else f"{column} = CAST({column} AS {kind}({digits}))"


def _bytes(column: str, before: str, after: str) -> str | None:
    some = _SIZED_BYTES.fullmatch(after)
    return f"LENGTH({column}) <= {some[1]}" if some and _BYTES.fullmatch(before) else None


_TRIGGERS = (
    "SELECT CONCAT('a trigger ', trigger_name) FROM information_schema.triggers "
    "WHERE event_object_schema = %s AND event_object_table = %s"
)
_CONSTRAINTS = (
    "SELECT CONCAT('a ', LOWER(constraint_type), ' ', constraint_name) FROM information_schema.table_constraints "
    "WHERE table_schema = %s AND table_name = %s AND constraint_type IN ('FOREIGN KEY', 'CHECK')"
)
_REFERRING = (
    "SELECT DISTINCT CONCAT('a foreign key of ', table_name, ' to it') FROM information_schema.key_column_usage "
    "WHERE referenced_table_schema = %s AND referenced_table_name = %s"
)


def rules_of(session: Connection, database: str, table: str) -> list[str]:
    """What the server does by itself, or refuses, when a row of the table is written: each with its name."""
    rules: list[str] = []
    with session.cursor() as cursor:
        for question in (_TRIGGERS, _CONSTRAINTS, _REFERRING):
            cursor.execute(question, (database, table))
            rules += [row[0] for row in cursor.fetchall()]
    return sorted(rules)


def engine_of(session: Connection, database: str, table: str) -> str | None:
    """The storage engine of a table."""
    engine: str | None = value_of(
        session,
        "SELECT engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
        database,
        table,
    )
    return engine


class TableAdoption(Adoption):
    """Adopts one view's table, on a session of its own."""

    def __init__(self, open_: Callable[[], Connection], database: str, view: BoundView) -> None:
        self._database, self._view = database, view
        self._session = open_()
        self._session.autocommit(True)

    def refusal(self, *, drops_extra: bool) -> str | None:
        present, shape = self._looked()
        why = "there is no such table" if present is None else None if present.is_own else self._why_not(present, shape)
        return None if why is None else f"{self._view.id}: {shape.table}: {why}"

    def _why_not(self, present: PresentTable, shape: IndexTableShape) -> str | None:
        """The reason why one ALTER TABLE does not make it the view's."""
        return (
            self._of_columns(present, shape)
            or self._of_keys(present, shape)
            or self._of_rules(present)
            or self._of_values(present, shape)
        )

    @staticmethod
    def _of_columns(present: PresentTable, shape: IndexTableShape) -> str | None:
        if (version := shape.version_name) in {name.lower() for name in present.columns}:
            return (
                f"it has a column {version}, the name under which viewtail keeps its own, whose values would hide "
                f"changes. Drop or rename it where nobody reads it: ALTER TABLE ... DROP COLUMN {version}; or: {_ANEW}"
            )
        wanted = dict.fromkeys(definition.name for definition in shape.columns)
        if missing := [name for name in wanted if name not in {*present.columns, shape.version_name}]:
            return f"it has no column {', '.join(missing)}. Declare the columns that it has"
        if others := [name for name in present.columns if name not in wanted]:
            return (
                f"it has columns that the view has not: {', '.join(others)}. viewtail drops no column of another "
                "tool's. Name them in value=[...], or drop them where nobody reads them"
            )
        return None

    def _of_keys(self, present: PresentTable, shape: IndexTableShape) -> str | None:
        if present.indexes.get("PRIMARY") != shape.primary:
            return f"its primary key is not ({', '.join(shape.primary)}), the entity's key. Change it first"
        if unique := sorted(present.unique - {"PRIMARY"}):
            return (
                f"it has a unique index {', '.join(unique)}, by which a write of one row could change another one. "
                f"ALTER TABLE ... DROP INDEX {unique[0]}"
            )
        if engine_of(self._session, self._database, table_name(self._view)) != "InnoDB":
            return "its engine is not InnoDB. ALTER TABLE ... ENGINE=InnoDB"
        return None

    def _of_rules(self, present: PresentTable) -> str | None:
        """What MySQL does by itself when viewtail writes a row, so that it does not stay as it was written."""
        for name, extra in present.extras.items():
            if "ON UPDATE" in extra:
                return (
                    f"column {name} is ON UPDATE CURRENT_TIMESTAMP, so each write of viewtail's would set it to now. "
                    "ALTER TABLE ... MODIFY it without that"
                )
            if " GENERATED" in extra:
                return (
                    f"column {name} is generated, so viewtail could not write it. Make it a plain column: ALTER TABLE "
                    f"... MODIFY; or: {_ANEW}"
                )
        if rules := rules_of(self._session, self._database, table_name(self._view)):
            return f"it has {', '.join(rules)}, by which what viewtail writes may be changed or refused. Drop it first"
        return None

    def _of_values(self, present: PresentTable, shape: IndexTableShape) -> str | None:
        """The values that ALTER TABLE would change. It refuses most of them itself, though others have been taken."""
        for definition in shape.columns:
            if (before := present.columns.get(definition.name)) is None:
                continue
            kept = surviving(quote(definition.name), before, definition.shape)
            types = f"column {definition.name} is {before.type}, and {definition.shape.type} as declared"
            if kept is None:
                return f"{types}; not every value survives that. ALTER TABLE ... MODIFY it first; or: {_ANEW}"
            if kept and self._has(shape, kept):
                return f"{types}, which some of its values do not fit. Mend them first: SELECT ... WHERE NOT ({kept})"
        return None

    def _has(self, shape: IndexTableShape, kept: str) -> bool:
        asked = f"SELECT EXISTS (SELECT 1 FROM {shape.table} WHERE NOT ({kept}))"
        return bool(value_of(self._session, asked.replace("%", "%%")))

    def steps(self) -> list[str]:
        present, shape = self._looked()
        return [] if present is None or present.is_own else [shape.adopting(present)]

    def take(self, *, is_beside: bool) -> None:
        """At once where the server can. A value that does not fit, which came since the look, ends it unchanged."""
        present, shape = self._looked()
        if present is None or present.is_own:
            return
        self._session.query(f"SET SESSION lock_wait_timeout = {WAIT_S}")
        self._altered(shape, shape.adopting(present))

    def _altered(self, shape: IndexTableShape, statement: str) -> None:
        for algorithm in (", ALGORITHM = INSTANT", ""):
            try:
                self._session.query(f"{statement}{algorithm}")
                return
            except pymysql.err.MySQLError as error:
                if not algorithm or number_of(error) not in _NOT_INSTANT:
                    raise self._explained(shape, error) from None

    def _explained(self, shape: IndexTableShape, error: pymysql.err.MySQLError) -> Exception:
        why = shape.failure(error)
        if not isinstance(why, RowsDoNotFitError):
            return why or self._failure(error)
        named = _COLUMN_IN_ERROR.search(str(error.args[-1]))
        which = f"column {named[1]}" if named else "a column"
        return StoreError(
            f"{self._view.id}: {shape.table}: {which} has values that do not fit it as it is declared (MySQL error "
            f"{number_of(error)}); none was changed. Mend them, and give the same command again"
        )

    def _looked(self) -> tuple[PresentTable | None, IndexTableShape]:
        name = table_name(self._view)
        try:
            facts = facts_of(self._session)
            present = present_tables(self._session, facts, self._database, [name]).get(name)
        except pymysql.err.MySQLError as error:
            raise self._failure(error) from None
        return present, IndexTableShape(self._database, self._view, facts.name, present)

    def _failure(self, error: pymysql.err.MySQLError) -> StoreError | StoreUnavailableError:
        said = f"{self._view.id}: adopting its table failed with MySQL error {number_of(error)}"
        if number_of(error) in TEMPORARY_NUMBERS:
            return StoreUnavailableError(f"{said}: a session uses the table, or the server does not answer. Try again")
        mend = mend_of_denial(error)
        return StoreError(f"{said} {error.args[-1]}{f'. {mend}' if mend else ''}")

    def close(self) -> None:
        self._session.close()
