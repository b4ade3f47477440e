"""VT4xx: what the statements of a migration do to those who still run the old code."""

from __future__ import annotations

from collections.abc import Iterator

from ingest import ddl
from ingest.binlog.table_effects import only_widens
from ingest.sql_words import Name
from viewtail.changes.tables import Column, Kind, full_name
from viewtail.operations.lint.rules import Level, Problem, Rule, Step
from viewtail.operations.lint.schema import (
    ColumnDefinition,
    ColumnDropped,
    ColumnRedefined,
    ColumnRenamed,
    ColumnsAdded,
    DatabaseDropped,
    DefaultSet,
    IndexAdded,
    IndexDropped,
    RowsChanged,
    TableCreated,
    TablesDropped,
    TablesRenamed,
)
from viewtail.operations.lint.words import is_to_drop

_INVOICE = (
    "CREATE TABLE invoice (\n"
    "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
    "  number VARCHAR(20) NULL COMMENT 'As printed',\n"
    "  customer_id INT NOT NULL COMMENT 'Who pays'\n) COMMENT 'Invoices';"
)
_NO_DEFAULT = "the column has no default any more"
_SAME_FILE = "is dropped by the file that renames it, which is one step"
_LATER = "drop it in a later migration, in a file of its own"


def _shown(name: Name) -> str:
    return full_name(name.schema, name.name) if name.schema else name.name


def _added_without_default(step: Step) -> Iterator[Problem]:
    match step.change:
        case ColumnsAdded(table, columns) if not step.is_made(table):
            for column in columns:
                if _refuses_old_inserts(column):
                    why = "the new column is NOT NULL and has no default"
                    yield Problem(column.place, f"{_shown(table)}.{column.name}", why)


def _refuses_old_inserts(column: ColumnDefinition) -> bool:
    is_filled = column.is_auto_increment or column.is_generated or column.type.word == "SERIAL"
    return not column.is_nullable and column.default is None and not is_filled


def _own_statement(step: Step) -> Iterator[Problem]:
    match step.change:
        case IndexAdded(table, index, is_own_statement=True):
            instead = f"ALTER TABLE {_shown(table)} ADD {index.kind or 'INDEX'} {index.name} (...)"
            yield Problem(index.place, f"{_shown(table)}.{index.name}", "a CREATE INDEX statement", instead)
        case IndexDropped(table, index, is_own_statement=True):
            instead = f"ALTER TABLE {_shown(table)} DROP INDEX {index}"
            yield Problem(step.place, f"{_shown(table)}.{index}", "a DROP INDEX statement", instead)


def _table_dropped(step: Step) -> Iterator[Problem]:
    match step.change:
        case TablesDropped(names, is_if_there):
            for name in names:
                if not step.is_made(name) and not (is_if_there and step.schema.lacks(name)):
                    yield from _one_dropped(step, name)
        case DatabaseDropped(schema):
            yield Problem(
                step.place, schema, "a database is dropped with everything in it", "drop its tables in two steps"
            )


def _one_dropped(step: Step, name: Name) -> Iterator[Problem]:
    if step.renames.has_table(name):
        yield Problem(step.place, _shown(name), f"the table {_SAME_FILE}", _LATER)
    elif not is_to_drop(name.name):
        instead = f"rename it first: RENAME TABLE {_shown(name)} TO {_shown(name)}_dropped; drop it later"
        yield Problem(step.place, _shown(name), "the table is dropped in one step", instead)


def _column_dropped(step: Step) -> Iterator[Problem]:
    match step.change:
        case ColumnDropped(table, column) if not step.is_made(table):
            full = f"{_shown(table)}.{column}"
            if step.renames.has_column(table, column):
                yield Problem(step.place, full, f"the column {_SAME_FILE}", _LATER)
            elif not is_to_drop(column):
                instead = f"rename it first: RENAME COLUMN {column} TO {column}_dropped; drop it later"
                yield Problem(step.place, full, "the column is dropped in one step", instead)


def _renamed(step: Step) -> Iterator[Problem]:
    match step.change:
        case TablesRenamed(pairs):
            gone, arrived = zip(*pairs, strict=True)
            for old, new in pairs:
                is_swap = old in arrived or new in gone
                if not is_swap and not step.is_made(old) and not _leads_to_drop(old.name, new.name):
                    yield Problem(step.place, _shown(old), f"the table is called {new.name} from then on")
        case ColumnRenamed(table, old, new) if not step.is_made(table):
            yield from _column_renamed(step, table, old, new)
        case ColumnRedefined(table, old, column) if not step.is_made(table):
            yield from _column_renamed(step, table, old, column.name)


def _column_renamed(step: Step, table: Name, old: str, new: str) -> Iterator[Problem]:
    if old.lower() != new.lower() and not _leads_to_drop(old, new):
        yield Problem(step.place, f"{_shown(table)}.{old}", f"the column is called {new} from then on")


def _leads_to_drop(old: str, new: str) -> bool:
    """Return whether a rename is the first step of a drop, or takes it back."""
    return is_to_drop(new) or is_to_drop(old)


def _narrowed(step: Step) -> Iterator[Problem]:
    match step.change:
        case ColumnRedefined(table, old, column):
            before = _column_of(step, table, old)
            if before is None or before.is_generated or column.is_generated:
                return
            if not only_widens(_described(before), ddl.column_type(_declared(column))):
                why = (
                    f"the column was {before.type.declared}, and {column.type.declared} does not hold all that it held"
                )
                yield Problem(column.place, f"{_shown(table)}.{old}", why)


def _stricter(step: Step) -> Iterator[Problem]:
    match step.change:
        case ColumnRedefined(table, old, column):
            if (before := _column_of(step, table, old)) is not None and (why := _why_stricter(before, column)):
                yield Problem(column.place, f"{_shown(table)}.{old}", why)
        case DefaultSet(table, name, None):
            before = _column_of(step, table, name)
            if before is not None and not before.is_nullable and before.default is not None:
                yield Problem(step.place, f"{_shown(table)}.{name}", _NO_DEFAULT)


def _why_stricter(before: ColumnDefinition, column: ColumnDefinition) -> str:
    """Return what a column takes no more; '' where it takes all that it took."""
    if before.is_nullable and not column.is_nullable:
        return "the column refuses NULL from then on"
    return _NO_DEFAULT if before.default is not None and _refuses_old_inserts(column) else ""


def _column_of(step: Step, table: Name, name: str) -> ColumnDefinition | None:
    """The column as it was, if its table was there before the migration."""
    existing = step.existing(table)
    return None if existing is None else existing.column(name)


def _described(column: ColumnDefinition) -> Column:
    """As the judge of a running viewtail has it."""
    numbers = [int(argument) for argument in column.type.arguments if argument.isdecimal()]
    precision, scale = (*numbers, 0, 0)[:2] if numbers else (10, 0)
    return Column(
        name=column.name,
        kind=Kind.UNSUPPORTED,
        declared=_declared(column),
        is_nullable=column.is_nullable,
        is_unsigned=column.type.is_unsigned,
        length=column.type.length or 1,
        precision=precision,
        scale=scale,
    )


def _declared(column: ColumnDefinition) -> str:
    declared = "tinyint(1)" if column.type.word in ("BOOL", "BOOLEAN") else column.type.declared
    return declared + " unsigned" * column.type.is_unsigned


def _unbounded(step: Step) -> Iterator[Problem]:
    match step.change:
        case RowsChanged(verb, is_bounded=False):
            yield Problem(step.place, verb, "it has neither a WHERE that leaves rows out nor a LIMIT")


def _unknown(step: Step) -> Iterator[Problem]:
    match step.change:
        case TableCreated(_, like):
            table = like
        case change:
            table = getattr(change, "table", None)  # of an ALTER TABLE, an index, a TRUNCATE
    if table is not None and step.schema.table(table) is None:
        yield Problem(step.place, _shown(table), "the table is not in the schema: this was not judged")


RULES = (
    Rule(
        code="VT401",
        name="not-null-without-default",
        level=Level.ERROR,
        about=Step,
        find=_added_without_default,
        what="A NOT NULL column is added with a default.",
        why="The code that runs during the migration does not name the column: a strict server refuses its INSERTs.",
        instead="give it a DEFAULT, or let it be NULL first",
        given=_INVOICE,
        bad="ALTER TABLE invoice ADD COLUMN language CHAR(2) NOT NULL COMMENT 'Of its text';",
        good="ALTER TABLE invoice ADD COLUMN language CHAR(2) NOT NULL DEFAULT 'en' COMMENT 'Of its text';",
    ),
    Rule(
        code="VT402",
        name="index-by-itself",
        level=Level.WARNING,
        about=Step,
        find=_own_statement,
        what="Indexes are made and dropped by ALTER TABLE, not by CREATE INDEX and DROP INDEX.",
        why="All changes of a table go into one ALTER, which copies or locks the table once; gh-ost and "
        "pt-online-schema-change take nothing else.",
        instead="ALTER TABLE ... ADD INDEX",
        given=_INVOICE,
        bad="CREATE INDEX customer_idx ON invoice (customer_id);",
        good="ALTER TABLE invoice ADD INDEX customer_idx (customer_id);",
    ),
    Rule(
        code="VT403",
        name="table-dropped-at-once",
        level=Level.ERROR,
        about=Step,
        find=_table_dropped,
        what="A table is dropped in two steps: renamed to `..._dropped` first, dropped by a later migration.",
        why="What still uses it fails at once, and a RENAME brings it back in a moment. A dropped table comes back "
        "from a backup.",
        instead="rename it first; drop it later",
        given=_INVOICE,
        bad="DROP TABLE invoice;",
        along=("VT502",),
        good="DROP TABLE invoice_dropped;",
    ),
    Rule(
        code="VT404",
        name="column-dropped-at-once",
        level=Level.ERROR,
        about=Step,
        find=_column_dropped,
        what="A column is dropped in two steps: renamed to `..._dropped` first, dropped by a later migration.",
        why="As with a table: what still uses it shows, and the way back is short.",
        instead="rename it first; drop it later",
        given=_INVOICE,
        bad="ALTER TABLE invoice DROP COLUMN number;",
        good="ALTER TABLE invoice RENAME COLUMN number TO number_dropped;",
    ),
    Rule(
        code="VT405",
        name="renamed",
        level=Level.ERROR,
        about=Step,
        find=_renamed,
        what="No table or column that is in use gets another name; a swap of tables, and the first step of a drop, "
        "are fine.",
        why="The old and the new code run side by side for a while, and one of them does not know the name.",
        instead="add the new one, write both, move the readers, then drop the old one",
        given=_INVOICE,
        bad="ALTER TABLE invoice RENAME COLUMN number TO printed_number;",
        good="ALTER TABLE invoice ADD COLUMN printed_number VARCHAR(20) NULL COMMENT 'As printed';",
    ),
    Rule(
        code="VT406",
        name="narrowed",
        level=Level.ERROR,
        about=Step,
        find=_narrowed,
        what="A column that gets another type holds all that it held before.",
        why="The old code's values are refused, or cut, and values may change without row events.",
        instead="add a column of the new type, write both, move the readers, then drop the old one",
        given=_INVOICE,
        bad="ALTER TABLE invoice MODIFY number VARCHAR(10) NULL COMMENT 'As printed';",
        good="ALTER TABLE invoice MODIFY number VARCHAR(40) NULL COMMENT 'As printed';",
    ),
    Rule(
        code="VT407",
        name="stricter",
        level=Level.ERROR,
        about=Step,
        find=_stricter,
        what="A column goes on taking what it took: NULL, and INSERTs that do not name it.",
        why="The old code still writes these.",
        instead="let the new code write every value first; make it NOT NULL in a later migration, and silence this",
        given=_INVOICE,
        bad="ALTER TABLE invoice MODIFY number VARCHAR(20) NOT NULL COMMENT 'As printed';",
        good="ALTER TABLE invoice MODIFY number VARCHAR(20) NULL COMMENT 'As printed, or NULL';",
    ),
    Rule(
        code="VT408",
        name="unbounded-change",
        level=Level.ERROR,
        about=Step,
        find=_unbounded,
        what="An UPDATE or DELETE has a WHERE or a LIMIT.",
        why="One that changes every row is one transaction: it locks them all, and replicas and readers of changes "
        "wait for it.",
        instead="change the rows in parts: WHERE id BETWEEN ... AND ..., or LIMIT",
        given=_INVOICE,
        bad="UPDATE invoice SET number = NULL;",
        good="UPDATE invoice SET number = NULL WHERE id BETWEEN 1 AND 1000;",
    ),
    Rule(
        code="VT409",
        name="unknown-table",
        level=Level.ERROR,
        about=Step,
        find=_unknown,
        what="A table that is altered is in the schema, or was created by the migration.",
        why="Nobody knows what it was, and the other rules are silent about what becomes of it.",
        instead="name its database with USE or --database, or give a schema that has it with --schema",
        given=_INVOICE,
        bad="ALTER TABLE supplier ADD COLUMN title TEXT NULL COMMENT 'As printed'; -- and there is no supplier",
        good="ALTER TABLE invoice ADD COLUMN title TEXT NULL COMMENT 'As printed';",
    ),
)
