"""VT1xx: what tables, columns and indexes are called."""

from __future__ import annotations

import re
from collections.abc import Iterator

from viewtail.operations.lint.rules import Level, Problem, Rule
from viewtail.operations.lint.schema import ColumnDefinition, IndexDefinition, Place, TableDefinition
from viewtail.operations.lint.words import RESERVED, in_snake_case, plural

_SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
_WHO = re.compile(
    r"(?:(?P<verb>created|updated|modified|changed|deleted|approved|assigned|cancelled)_(?:user|person|account|people)"
    r"|(?P<who>creator|updater|modifier|deleter|approver))(?:_(?:id|name))?"
)
_VERBS = {"creator": "created", "updater": "updated", "modifier": "modified", "deleter": "deleted",
          "approver": "approved"}  # fmt: skip


def _named(table: TableDefinition) -> Iterator[tuple[str, str, str, Place]]:
    """The kind, name, full name and place of everything that has a name."""
    yield "table", table.name.name, table.full_name, table.name_place or table.place
    for column in table.columns:
        yield "column", column.name, table.named(column.name), column.place
    for index in _with_names(table):
        yield "index", index.name, table.named(index.name), index.place


def _with_names(table: TableDefinition) -> list[IndexDefinition]:
    return [index for index in table.indexes if index.name and index.kind != "PRIMARY"]


def _not_snake_case(table: TableDefinition) -> Iterator[Problem]:
    for kind, name, full, place in _named(table):
        if not _SNAKE_CASE.fullmatch(name):
            yield Problem(place, full, f"the {kind}'s name is not in snake_case", f"call it {in_snake_case(name)}")


def _plural_table(table: TableDefinition) -> Iterator[Problem]:
    if singular := plural(table.name.name):
        place = table.name_place or table.place
        yield Problem(place, table.full_name, "the table's name is a plural", f"call it {singular}")


def _plural_column(table: TableDefinition) -> Iterator[Problem]:
    for column in table.columns:
        if not column.type.is_boolean and (singular := plural(column.name, may_count=True)):
            yield Problem(
                column.place, table.named(column.name), "the column's name is a plural", f"call it {singular}"
            )


def _reserved(table: TableDefinition) -> Iterator[Problem]:
    for kind, name, full, place in _named(table):
        if name.lower() in RESERVED:
            yield Problem(place, full, f"the {kind}'s name is a reserved word, {name.upper()}")


def _boolean(table: TableDefinition) -> Iterator[Problem]:
    for column in table.columns:
        is_called = column.name.lower().startswith("is_")
        full = table.named(column.name)
        if column.type.is_boolean and not is_called:
            yield Problem(column.place, full, "the column is true or false", f"call it is_{in_snake_case(column.name)}")
        elif is_called and not column.type.is_boolean:
            why = f"the column is called is_..., and is {column.type.declared}"
            yield Problem(column.place, full, why, "make it BOOL, or give it another name")


def _moment(table: TableDefinition) -> Iterator[Problem]:
    for column in table.columns:
        is_called = column.name.lower().endswith("_at")
        full = table.named(column.name)
        if column.type.is_moment and not is_called:
            yield Problem(column.place, full, "the column is a moment", "end its name with _at, as in created_at")
        elif is_called and not column.type.is_moment:
            why = f"the column is called ..._at, and is {column.type.declared}"
            yield Problem(column.place, full, why, "make it TIMESTAMP or DATETIME, or give it another name")


def _who(table: TableDefinition) -> Iterator[Problem]:
    for column in table.columns:
        full = table.named(column.name)
        if match := _WHO.fullmatch(column.name.lower()):
            verb = match["verb"] or _VERBS[match["who"]]
            yield Problem(column.place, full, "the column says who did something", f"call it {verb}_by")
        elif column.name.lower().endswith("_by") and _is_no_who(column):
            why = f"the column is called ..._by, and is {column.type.declared}"
            yield Problem(column.place, full, why, "let it hold who did it, or give it another name")


def _is_no_who(column: ColumnDefinition) -> bool:
    return column.type.is_boolean or column.type.is_moment or column.type.word in ("DATE", "TIME", "DECIMAL", "JSON")


def _index_suffix(table: TableDefinition) -> Iterator[Problem]:
    for index in table.indexes:
        suffix = "_key" if index.kind == "UNIQUE" else "_idx"
        if index.kind != "PRIMARY" and not index.name.lower().endswith(suffix):
            yield _without_suffix(table, index, suffix)


def _without_suffix(table: TableDefinition, index: IndexDefinition, suffix: str) -> Problem:
    columns = "_".join(part.column for part in index.parts if part.column) or "its_columns"
    what = "unique key" if index.kind == "UNIQUE" else "index"
    why = f"the {what}'s name does not end with {suffix}" if index.name else f"the {what} has no name"
    return Problem(index.place, table.named(index.shown), why, f"call it as {columns}{suffix}")


def _json_name(table: TableDefinition) -> Iterator[Problem]:
    for column in table.columns:
        if column.is_json and not re.search(r"(?:\A|_)jdoc\Z", column.name.lower()):
            why = "the column holds JSON, which its name does not say"
            yield Problem(column.place, table.named(column.name), why)


RULES = (
    Rule(
        code="VT101",
        name="not-snake-case",
        level=Level.ERROR,
        about=TableDefinition,
        find=_not_snake_case,
        what="Names of tables, columns and indexes are in snake_case: small letters, digits, single underscores.",
        why="Whether case tells tables apart depends on the server's file system; names in one form need no quotes.",
        instead="write it in small letters with underscores",
        bad="CREATE TABLE customer (\n"
        "  id INT NOT NULL COMMENT 'Number of the customer',\n"
        "  firstName VARCHAR(40) NULL COMMENT 'As on the invoice',\n"
        "  PRIMARY KEY (id)\n) COMMENT = 'Who buys';",
        good="CREATE TABLE customer (\n"
        "  id INT NOT NULL COMMENT 'Number of the customer',\n"
        "  first_name VARCHAR(40) NULL COMMENT 'As on the invoice',\n"
        "  PRIMARY KEY (id)\n) COMMENT = 'Who buys';",
    ),
    Rule(
        code="VT102",
        name="plural-table",
        level=Level.ERROR,
        about=TableDefinition,
        find=_plural_table,
        what="Names of tables are in the singular.",
        why="A row is one customer; `customer.id` reads as it is meant, and nobody guesses plurals.",
        instead="name the table after one of its rows",
        bad="CREATE TABLE customers (id INT NOT NULL PRIMARY KEY COMMENT 'Its number') COMMENT 'Who buys';",
        good="CREATE TABLE customer (id INT NOT NULL PRIMARY KEY COMMENT 'Its number') COMMENT 'Who buys';",
    ),
    Rule(
        code="VT103",
        name="plural-column",
        level=Level.WARNING,
        about=TableDefinition,
        find=_plural_column,
        what="Names of columns are in the singular; units may stay plural (`keep_days`).",
        why="A column holds one value. A list in it cannot be indexed or joined: it wants a table of its own.",
        instead="name the column after one value, or make the list a table",
        bad="CREATE TABLE customer (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  tags VARCHAR(200) NULL COMMENT 'Separated by commas'\n) COMMENT 'Who buys';",
        good="CREATE TABLE customer_tag (\n"
        "  customer_id INT NOT NULL COMMENT 'Whose tag',\n"
        "  tag VARCHAR(4) NOT NULL COMMENT 'One of them',\n"
        "  PRIMARY KEY (customer_id, tag)\n) COMMENT 'Tags of customers';",
    ),
    Rule(
        code="VT104",
        name="reserved-word",
        level=Level.ERROR,
        about=TableDefinition,
        find=_reserved,
        what="No name is a reserved word of MySQL.",
        why="Every statement has to quote it, and one that does not fails, or means something else.",
        instead="add a word, or take another one",
        bad="CREATE TABLE `order` (id INT NOT NULL PRIMARY KEY COMMENT 'Its number') COMMENT 'What was bought';",
        good="CREATE TABLE purchase (id INT NOT NULL PRIMARY KEY COMMENT 'Its number') COMMENT 'What was bought';",
    ),
    Rule(
        code="VT105",
        name="boolean-without-is",
        level=Level.ERROR,
        about=TableDefinition,
        find=_boolean,
        what="A column of true and false (BOOL, TINYINT(1), BIT(1)) is called `is_...`, and no other one is.",
        why="MySQL has no boolean type: the name is what says that 1 means yes.",
        instead="call it is_...",
        bad="CREATE TABLE customer (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  active BOOL NOT NULL DEFAULT TRUE COMMENT 'Whether it may buy'\n) COMMENT 'Who buys';",
        good="CREATE TABLE customer (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  is_active BOOL NOT NULL DEFAULT TRUE COMMENT 'Whether it may buy'\n) COMMENT 'Who buys';",
    ),
    Rule(
        code="VT106",
        name="moment-without-at",
        level=Level.ERROR,
        about=TableDefinition,
        find=_moment,
        what="A TIMESTAMP or DATETIME is called `..._at`, and no other column is.",
        why="The name tells a moment from a day or a number of seconds.",
        instead="end its name with _at",
        bad="CREATE TABLE customer (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  creation_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP COMMENT 'First seen'\n) COMMENT 'Who buys';",
        good="CREATE TABLE customer (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP COMMENT 'First seen'\n) COMMENT 'Who buys';",
    ),
    Rule(
        code="VT107",
        name="who-without-by",
        level=Level.WARNING,
        about=TableDefinition,
        find=_who,
        what="A column that says who did something is called `..._by`.",
        why="`created_by` stands beside `created_at`, and nobody looks for `creator`, `created_user` and `author_id`.",
        instead="call it created_by, updated_by, ...",
        bad="CREATE TABLE invoice (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  creator_id INT NOT NULL COMMENT 'Who wrote it'\n) COMMENT 'Invoices';",
        good="CREATE TABLE invoice (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  created_by INT NOT NULL COMMENT 'Who wrote it'\n) COMMENT 'Invoices';",
    ),
    Rule(
        code="VT108",
        name="index-suffix",
        level=Level.ERROR,
        about=TableDefinition,
        find=_index_suffix,
        what="An index is called `..._idx`, a unique key `..._key`.",
        why="Error messages and EXPLAIN show the name alone; the suffix says whether it also refuses rows. An index "
        "without a name gets one that differs from server to server.",
        instead="give it a name that ends with _idx, or with _key where it is unique",
        bad="CREATE TABLE customer (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  email VARCHAR(100) NULL COMMENT 'For invoices',\n"
        "  UNIQUE KEY email_idx (email)\n) COMMENT 'Who buys';",
        good="CREATE TABLE customer (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  email VARCHAR(100) NULL COMMENT 'For invoices',\n"
        "  UNIQUE KEY email_key (email)\n) COMMENT 'Who buys';",
    ),
    Rule(
        code="VT109",
        name="json-without-jdoc",
        level=Level.WARNING,
        about=TableDefinition,
        find=_json_name,
        what="A JSON column is called `jdoc`, or `..._jdoc`.",
        why="Who reads a row has to parse it, and who writes a query needs other functions for it.",
        instead="call it jdoc, or ..._jdoc where there are several",
        bad="CREATE TABLE customer (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  setting JSON NULL COMMENT 'What it chose'\n) COMMENT 'Who buys';",
        good="CREATE TABLE customer (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  setting_jdoc JSON NULL COMMENT 'What it chose'\n) COMMENT 'Who buys';",
    ),
)
