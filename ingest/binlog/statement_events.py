"""Handles statements in the binlog: one begins or ends a transaction, or it may change followed tables."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ingest.binlog import query_event, statements
from ingest.binlog.events import EXECUTE_LOAD_QUERY, Event
from ingest.binlog.open_transaction import BEGINNING
from ingest.binlog.query_event import LOAD_FIXED_BYTES, QUERY_FIXED_BYTES, Query
from ingest.binlog.statements import Meaning
from ingest.binlog.stream_errors import BACKFILL_TABLE
from ingest.binlog.walk import Walk
from ingest.binlog.xa_transactions import XaTransactions
from viewtail.changes.batches import Followed, TableChange, TableChangeKind
from viewtail.changes.tables import Table


class StatementEvents:
    """Handles QUERY and EXECUTE_LOAD_QUERY events."""

    def __init__(self, walk: Walk, xa: XaTransactions) -> None:
        self._walk, self._xa = walk, xa
        self.changes_nothing = False  # of MariaDB's ALTER TABLE in two steps: the step that changes nothing
        self._by_meaning: dict[Meaning, Callable[[str, int], None]] = {
            Meaning.BEGIN: self._begin,
            Meaning.OPENING_STATEMENT: self._begin,
            Meaning.SAVEPOINT: self._savepoint,
            Meaning.XA_BRANCH: lambda _, __: walk.transaction.mark_branch(),
            Meaning.XA_COMMIT: self._xa.commit,
            Meaning.XA_ROLLBACK: self._xa.roll_back,
            Meaning.COMMIT: lambda _, log_pos: walk.commit(log_pos),
            Meaning.ROLLBACK: self._roll_back,
            Meaning.ROLLBACK_TO: self._roll_back_to,
        }

    def query(self, event: Event) -> None:
        """A statement, as its session or the server wrote it; LOAD DATA too."""
        fixed_bytes = LOAD_FIXED_BYTES if event.kind == EXECUTE_LOAD_QUERY else QUERY_FIXED_BYTES
        query = query_event.parse(event.buffer, event.start, event.end, fixed_bytes)
        statement = statements.plain(query.texts[0], query.sql_mode)
        meaning = statements.meaning(statement)
        if meaning is Meaning.OPENING_STATEMENT:  # the table may be one of a pattern's
            self._judge(statement, query, event.log_pos)
        handler = self._by_meaning.get(meaning)
        if handler is not None:
            handler(statement, event.log_pos)
            return
        self._walk.transaction.mark_foreign()  # the session's database does not say whose tables it is about
        for text in query.texts:
            self._judge(statements.plain(text, query.sql_mode), query, event.log_pos)
        if not self._walk.transaction.has_begun:
            self._walk.commit(event.log_pos)

    # -- transactions -------------------------------------------------------------------------------------------

    def _begin(self, statement: str, log_pos: int) -> None:
        self._walk.transaction.mark_foreign()
        self._walk.transaction.mark_begun()

    def _savepoint(self, statement: str, log_pos: int) -> None:
        self._begin(statement, log_pos)
        if statement[:7].upper() != "RELEASE":
            self._walk.transaction.set_savepoint(statements.savepoint(statement))

    def _roll_back(self, statement: str, log_pos: int) -> None:
        # In row format only transactional rows come before a rollback.
        self._walk.take_back(BEGINNING)
        self._walk.commit(log_pos)

    def _roll_back_to(self, statement: str, log_pos: int) -> None:
        savepoint = self._walk.transaction.savepoint(statements.savepoint(statement))
        if savepoint is None:
            self._walk.halt_touched("there is a rollback to a savepoint that is not in the binlog")
        else:
            self._walk.take_back(savepoint)

    # -- tables -------------------------------------------------------------------------------------------------

    def _judge(self, statement: str, query: Query, log_pos: int) -> None:
        """Note the table changes of a statement; halt tables whose rows it may have changed without row events."""
        if self.changes_nothing:
            return
        statement = statements.without_settings(statement)
        if statements.is_change(statement):
            why = (
                "a change in statement format, which does not say what rows it changed, nor what triggers, views "
                f"and functions did with other tables: {statements.shown(statement)}. SET GLOBAL binlog_format = "
                "'ROW', and see that no session changes it"
            )
            for table in self._reached(statement, query):
                self._halt(table, why, log_pos)
        else:
            self._change_tables(statement, query, log_pos)

    def _change_tables(self, statement: str, query: Query, log_pos: int) -> None:
        place, tables = self._walk.place, self._walk.tables
        followed = statements.concerned(statement, query.database, tables.followed.values())
        for table in followed:
            if table.table.pattern is None:  # else it was about another one, as a rule
                tables.last_statements[table] = f"{statements.shown(statement)} (at {place})"
        for verdict in statements.judge(
            statement, query.database, followed, query.sql_mode, folds_names=tables.folds_names
        ):
            if verdict.kind is not TableChangeKind.EXTENDED or verdict.followed not in tables.halted:
                self._note(verdict, statement, query, log_pos)

    def _note(self, verdict: statements.Verdict, statement: str, query: Query, log_pos: int) -> None:
        place, why, kind = self._walk.place, statements.reason(verdict, statement), verdict.kind
        if kind is None and _goes_on(verdict):
            kind = TableChangeKind.REPLACED
        if kind is None:
            why = why if verdict.part is None else f"{verdict.name}: {why}"
            self._halt(verdict.followed, why, log_pos, verdict.columns)
            return
        if kind is TableChangeKind.EMPTIED and query.uses_temporary_tables:
            # Perhaps a temporary table was emptied: viewtail looks up which rows are gone.
            kind = TableChangeKind.THINNED
        reason = f"{verdict.name} at {place}: {why}"
        self._walk.transaction.mark_told()
        changes = self._walk.tables.table_changes
        changes.append(TableChange(verdict.followed, place.version(log_pos), kind, reason, verdict.part))

    def _halt(self, table: Followed, why: str, log_pos: int, columns: frozenset[str] | None = None) -> None:
        why = f"{why}. When the table is as it should be, {BACKFILL_TABLE}"
        self._walk.tables.halt(table, self._walk.place.version(log_pos), why, columns)

    def _reached(self, statement: str, query: Query) -> list[Followed]:
        """The followed tables that a change in statement format may have touched.

        MySQL lists the databases of all tables that were used, unless there were too many. MariaDB lists none: the
        session's and those that the statement names are taken.
        """
        followed = self._walk.tables.followed.values()
        if self._walk.place.is_mariadb:
            return statements.of_schemas(statement, query.database, followed)
        if query.databases is None:
            return list(followed)
        schemas = {name.lower() for name in query.databases}
        return [table for table in followed if _is_in(table.table, schemas)]


def _is_in(table: Table, schemas: Collection[str]) -> bool:
    """Return whether a table, or one of a pattern's, may be in one of these schemas, in small letters."""
    if table.pattern is None:
        return table.schema.lower() in schemas
    return any(table.pattern.schema_values(schema, folds_names=True) is not None for schema in schemas)


def _goes_on(verdict: statements.Verdict) -> bool:
    """Return whether rows from here on are read in whatever form they have: no more than columns changed."""
    return verdict.followed.forms is not None and verdict.columns is not None
