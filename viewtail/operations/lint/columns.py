"""VT2xx: comments, types and defaults of columns."""

from __future__ import annotations

import re
from collections.abc import Iterator

from viewtail.operations.lint.rules import Level, Problem, Rule
from viewtail.operations.lint.schema import ColumnDefinition, Place, TableDefinition

_TAGS = re.compile(r"(?:#\w+\s+|[a-z]\w*:\s+)*")  # `#PPI Email`, `viewtail: The views`
_NUMBERS = frozenset({"TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT"})
_KIND_OF_THING = re.compile(r"(?:\A|_)(?:status|state|type|kind|mode|stage|gender|role|category|severity)\Z")
_LEGEND = re.compile(r"\b\d+\s*(?:=|:|-|is|means)\s*['\"]?[a-z]", re.IGNORECASE)
_UUID_NAME = re.compile(r"(?:\A|_)(?:uuid|guid)(?:_|\Z)")
_TEXTS = frozenset({"CHAR", "VARCHAR", "BINARY", "VARBINARY"})
_UUID_TEXT_LENGTH = 36
_UUID_1 = re.compile(r"(?<![\w])UUID\s*\(", re.IGNORECASE)
_ID = re.compile(r"(?:\A|_)id\Z")
_DATES = frozenset({"DATE", "DATETIME", "TIMESTAMP"})
_FAKE_DATE = re.compile(r"(?:0000|1900|1970|2038|9999)-\d\d-\d\d")


def _comments(table: TableDefinition) -> Iterator[tuple[str, str, str, Place]]:
    yield "table", table.options.get("COMMENT", ""), table.full_name, table.option_places.get("COMMENT", table.place)
    for column in table.columns:
        yield "column", column.comment, table.named(column.name), column.place


def _no_comment(table: TableDefinition) -> Iterator[Problem]:
    for kind, comment, full, place in _comments(table):
        if not comment.strip():
            yield Problem(place, full, f"the {kind} has no comment")


def _small_comment(table: TableDefinition) -> Iterator[Problem]:
    for kind, comment, full, place in _comments(table):
        begin = _TAGS.sub("", comment.strip(), count=1)[:1]
        if begin and begin.islower():
            yield Problem(place, full, f"the {kind}'s comment does not begin with a capital letter")


def _magic_number(table: TableDefinition) -> Iterator[Problem]:
    for column in table.columns:
        if column.type.word not in _NUMBERS or column.type.is_boolean:
            continue
        if _KIND_OF_THING.search(column.name.lower()) or len(_LEGEND.findall(column.comment)) > 1:
            why = f"the column is {column.type.declared}, and its numbers stand for words"
            yield Problem(column.place, table.named(column.name), why)


def _uuid_type(table: TableDefinition) -> Iterator[Problem]:
    for column in table.columns:
        if column.type.word == "BINARY" and column.type.length == 16:
            continue
        is_called = _UUID_NAME.search(column.name.lower()) is not None
        is_text = column.type.word in _TEXTS and column.type.length == _UUID_TEXT_LENGTH
        if is_called or is_text or column.type.word == "UUID":
            why = f"the column holds a UUID, and is {column.type.declared}"
            yield Problem(column.place, table.named(column.name), why)


def _uuid_version(table: TableDefinition) -> Iterator[Problem]:
    for column in table.columns:
        if column.default is not None and column.default.is_expression and _UUID_1.search(column.default.text):
            why = "the column's default is a UUID of version 1, whose order is not that of time"
            yield Problem(column.place, table.named(column.name), why)


def _fake_default(table: TableDefinition) -> Iterator[Problem]:
    for column in table.columns:
        if (what := _fake(column)) and column.default is not None:
            why = f"the column's default, {column.default.text or repr('')}, is {what}"
            yield Problem(column.place, table.named(column.name), why)


def _fake(column: ColumnDefinition) -> str:
    """Return what a default pretends to be; '' where it is honest."""
    if column.default is None or column.default.is_expression:
        return ""
    if _ID.search(column.name.lower()):
        return "the id of nothing"
    is_date = column.type.word in _DATES and _FAKE_DATE.match(column.default.text)
    return "no date of anything" if is_date else ""


RULES = (
    Rule(
        code="VT201",
        name="no-comment",
        level=Level.WARNING,
        about=TableDefinition,
        find=_no_comment,
        what="Every table and every column has a comment.",
        why="The comment is where the unit, the owner and the exceptions are found by who reads the table years later.",
        instead="say what it holds: COMMENT '...'",
        bad="CREATE TABLE customer (id INT NOT NULL PRIMARY KEY) COMMENT 'Who buys';",
        good="CREATE TABLE customer (id INT NOT NULL PRIMARY KEY COMMENT 'Its number') COMMENT 'Who buys';",
    ),
    Rule(
        code="VT202",
        name="comment-in-small-letters",
        level=Level.WARNING,
        about=TableDefinition,
        find=_small_comment,
        what="A comment begins with a capital letter, behind its tags (`#PPI`, `billing:`).",
        why="Comments are sentences for people; tags stay apart from them.",
        instead="begin it with a capital letter",
        bad="CREATE TABLE customer (id INT NOT NULL PRIMARY KEY COMMENT 'its number') COMMENT 'Who buys';",
        good="CREATE TABLE customer (id INT NOT NULL PRIMARY KEY COMMENT '#PPI Its number') COMMENT 'shop: Who buys';",
    ),
    Rule(
        code="VT203",
        name="magic-number",
        level=Level.WARNING,
        about=TableDefinition,
        find=_magic_number,
        what="Numbers that stand for words are an ENUM: a column called status, state, type, kind ..., or one whose "
        "comment is a legend (`1 = paid, 2 = sent`).",
        why="`state = 3` says nothing in a query, a log or a topic; an ENUM takes one byte, too, and refuses what is "
        "no state.",
        instead="make it an ENUM with these words",
        bad="CREATE TABLE invoice (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  status TINYINT UNSIGNED NOT NULL COMMENT 'How far it is'\n) COMMENT 'Invoices';",
        good="CREATE TABLE invoice (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  status ENUM('draft', 'sent', 'paid') NOT NULL COMMENT 'How far it is'\n) COMMENT 'Invoices';",
    ),
    Rule(
        code="VT204",
        name="uuid-not-binary",
        level=Level.ERROR,
        about=TableDefinition,
        find=_uuid_type,
        what="A UUID is BINARY(16).",
        why="As text it takes 36 characters, in the table and in each of its indexes.",
        instead="make it BINARY(16), with UUID_TO_BIN and BIN_TO_UUID around it",
        bad="CREATE TABLE invoice (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  uuid CHAR(36) NOT NULL COMMENT 'For links'\n) COMMENT 'Invoices';",
        good="CREATE TABLE invoice (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  uuid BINARY(16) NOT NULL COMMENT 'For links'\n) COMMENT 'Invoices';",
    ),
    Rule(
        code="VT205",
        name="uuid-not-version-7",
        level=Level.WARNING,
        about=TableDefinition,
        find=_uuid_version,
        what="A UUID is of version 7, which the application makes; `UUID()` gives version 1.",
        why="Version 7 begins with the time, so that new rows go to the end of the index instead of all over it.",
        instead="let the application give a UUID of version 7, and drop the default",
        bad="CREATE TABLE invoice (\n"
        "  id BINARY(16) NOT NULL DEFAULT (UUID_TO_BIN(UUID())) COMMENT 'Made by the server',\n"
        "  PRIMARY KEY (id)\n) COMMENT 'Invoices';",
        good="CREATE TABLE invoice (\n"
        "  id BINARY(16) NOT NULL COMMENT 'UUID of version 7, made by the application',\n"
        "  PRIMARY KEY (id)\n) COMMENT 'Invoices';",
    ),
    Rule(
        code="VT206",
        name="fake-default",
        level=Level.ERROR,
        about=TableDefinition,
        find=_fake_default,
        what="No default pretends to be a value: an id of 0 or -1, an empty id, 0000-00-00, 1970-01-01, 9999-12-31.",
        why="Joins, sums and foreign readers take it for one. What is not known is NULL.",
        instead="let it be NULL, or have no default",
        bad="CREATE TABLE invoice (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  customer_id INT NOT NULL DEFAULT 0 COMMENT 'Who pays'\n) COMMENT 'Invoices';",
        good="CREATE TABLE invoice (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  customer_id INT NULL COMMENT 'Who pays; NULL: nobody yet'\n) COMMENT 'Invoices';",
    ),
)
