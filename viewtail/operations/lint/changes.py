"""VT5xx: what those lose who read a table's changes: views, and any other reader of the binlog.

The judge is that of `viewtail contract check` (viewtail/operations/contract.py); what a table is made of adds to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from viewtail.changes.tables import full_name
from viewtail.operations.lint.rules import Level, Migration, Problem, Rule
from viewtail.operations.lint.schema import TableDefinition

_TRANSACTIONAL = frozenset({"INNODB", "XTRADB", "ROCKSDB", "NDB", "NDBCLUSTER"})
_INVOICE = (
    "CREATE TABLE invoice (\n"
    "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
    "  number VARCHAR(20) NULL COMMENT 'As printed'\n) COMMENT 'Invoices';"
)


def _breaks_view(migration: Migration) -> Iterator[Problem]:
    for place, effect in migration.broken:
        yield Problem(place, effect.view, effect.why)


def _missed(migration: Migration) -> Iterator[Problem]:
    for place, table, why in migration.lost:
        yield Problem(place, full_name(table.schema, table.name) if table.schema else table.name, why)


def _unlogged(migration: Migration) -> Iterator[Problem]:
    for place in migration.unlogged:
        yield Problem(place, "session", "from here on the server writes no row events")


def _cascade(table: TableDefinition) -> Iterator[Problem]:
    for key in table.foreign_keys:
        if key.changes_rows:
            why = "the server changes or deletes its rows by this foreign key, and writes no row events"
            yield Problem(key.place, table.named(key.shown), why)


def _engine(table: TableDefinition) -> Iterator[Problem]:
    engine = table.options.get("ENGINE", "InnoDB")
    if engine.upper() not in _TRANSACTIONAL:
        why = f"the table's engine is {engine}: a crash or a rollback leaves the binlog and the table apart"
        yield Problem(table.option_places.get("ENGINE", table.place), table.full_name, why)


RULES = (
    Rule(
        code="VT501",
        name="breaks-view",
        level=Level.ERROR,
        about=Migration,
        find=_breaks_view,
        what="No declared view breaks: viewtail would not halt it, or empty it. `viewtail contract check` says the "
        "same, and more.",
        why="A halted view shows what was true before the migration.",
        instead="change the view first, or run the migration and backfill the view again: viewtail replay VIEW",
        given=_INVOICE,
        bad="ALTER TABLE invoice MODIFY number TEXT NULL COMMENT 'As printed'; -- with a view of number",
        along=("VT406",),
        good="ALTER TABLE invoice ADD COLUMN title TEXT NULL COMMENT 'As printed'; -- with a view of number",
    ),
    Rule(
        code="VT502",
        name="rows-without-events",
        level=Level.WARNING,
        about=Migration,
        find=_missed,
        what="No statement takes rows away, brings or changes some, without row events: TRUNCATE, partitions that "
        "are dropped or exchanged, a swap of tables, a conversion of all values, another primary key.",
        why="A reader of changes is given no event for each row, and keeps what is gone. viewtail's views follow some "
        "of these by themselves.",
        instead="delete rows in parts with DELETE ... LIMIT, or see that every reader reads the table again",
        given=_INVOICE,
        bad="TRUNCATE TABLE invoice;",
        good="DELETE FROM invoice LIMIT 1000;",
    ),
    Rule(
        code="VT503",
        name="unlogged",
        level=Level.ERROR,
        about=Migration,
        find=_unlogged,
        what="No session turns the binlog off, or writes statements into it instead of rows.",
        why="Replicas, and all other readers of changes, miss what it does, for good.",
        instead="leave sql_log_bin and binlog_format as they are",
        given=_INVOICE,
        bad="SET SESSION sql_log_bin = 0;",
        good="SET SESSION lock_wait_timeout = 5;",
    ),
    Rule(
        code="VT504",
        name="cascade",
        level=Level.ERROR,
        about=TableDefinition,
        find=_cascade,
        what="No foreign key changes rows by itself: ON DELETE CASCADE, ON DELETE SET NULL, ON UPDATE CASCADE.",
        why="MariaDB, and MySQL before 9.6, do it below the binlog: a reader of changes keeps every row that is gone.",
        instead="let the application delete the rows",
        bad="CREATE TABLE invoice_line (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  invoice_id INT NOT NULL COMMENT 'Of which invoice',\n"
        "  KEY invoice_idx (invoice_id),\n"
        "  CONSTRAINT invoice_fk FOREIGN KEY (invoice_id) REFERENCES invoice (id) ON DELETE CASCADE\n"
        ") COMMENT 'Lines';",
        along=("VT303",),
        good="CREATE TABLE invoice_line (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  invoice_id INT NOT NULL COMMENT 'Of which invoice',\n"
        "  KEY invoice_idx (invoice_id)\n) COMMENT 'Lines';",
    ),
    Rule(
        code="VT505",
        name="engine",
        level=Level.ERROR,
        about=TableDefinition,
        find=_engine,
        what="Tables are InnoDB, or of another engine with transactions.",
        why="MyISAM, MEMORY and the like keep no promise that the binlog says what the table holds.",
        instead="ENGINE=InnoDB",
        bad="CREATE TABLE visit (id INT NOT NULL PRIMARY KEY COMMENT 'Its number') ENGINE=MyISAM COMMENT 'Visits';",
        good="CREATE TABLE visit (id INT NOT NULL PRIMARY KEY COMMENT 'Its number') ENGINE=InnoDB COMMENT 'Visits';",
    ),
)
