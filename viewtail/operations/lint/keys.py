"""VT3xx: primary keys, indexes, foreign keys, and programs in the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from viewtail.operations.lint.rules import Level, Problem, Rule
from viewtail.operations.lint.schema import ColumnDefinition, IndexDefinition, Part, Program, TableDefinition

_COMPACT_BYTES = 32  # two UUIDs, or four BIGINTs
_SIZES = {
    "TINYINT": 1, "BOOL": 1, "BOOLEAN": 1, "YEAR": 1, "SMALLINT": 2, "MEDIUMINT": 3, "DATE": 3, "TIME": 3, "INT": 4,
    "INTEGER": 4, "FLOAT": 4, "TIMESTAMP": 4, "ENUM": 2, "DATETIME": 5, "BIGINT": 8, "SERIAL": 8, "DOUBLE": 8,
    "DOUBLE PRECISION": 8, "REAL": 8, "SET": 8, "DECIMAL": 8, "NUMERIC": 8, "BIT": 8, "UUID": 16, "INET6": 16,
    "INET4": 4,
}  # fmt: skip
_ONE_BYTE = ("ascii", "latin", "cp", "koi8", "hebrew", "greek", "binary", "tis620", "armscii", "macce", "macroman")


def _no_key(table: TableDefinition) -> Iterator[Problem]:
    if table.primary_key is None and table.columns:
        yield Problem(table.key_place or table.place, table.full_name, "the table has no primary key")


def _wide_key(table: TableDefinition) -> Iterator[Problem]:
    if (key := table.primary_key) is None:
        return
    size = sum(_bytes(table, part) for part in key.parts)
    if size > _COMPACT_BYTES:
        why = f"the primary key takes {size} bytes, more than {_COMPACT_BYTES}, and every index holds it again"
        yield Problem(key.place, table.full_name, why)


def _bytes(table: TableDefinition, part: Part) -> int:
    column = table.column(part.column)
    if column is None:
        return 0
    if (size := _SIZES.get(column.type.word)) is not None:
        return size
    length = (
        part.length or column.type.length or (1 if "CHAR" in column.type.word or "BINARY" in column.type.word else 255)
    )
    return length * _character_bytes(table, column)


def _character_bytes(table: TableDefinition, column: ColumnDefinition) -> int:
    if "BINARY" in column.type.word or "BLOB" in column.type.word:
        return 1
    charset = column.charset or table.options.get("CHARSET", "").lower()
    return 1 if charset.startswith(_ONE_BYTE) else 4


def _foreign_key(table: TableDefinition) -> Iterator[Problem]:
    for key in table.foreign_keys:
        yield Problem(key.place, table.named(key.shown), "a foreign key")


def _redundant(table: TableDefinition) -> Iterator[Problem]:
    plain = [index for index in table.indexes if index.kind in ("PRIMARY", "UNIQUE", "")]
    for at, index in enumerate(plain):
        covering = [*_covering(plain[:at], index, is_first=True), *_covering(plain[at + 1 :], index, is_first=False)]
        if covering:
            called = "the primary key" if covering[0].kind == "PRIMARY" else f"index {covering[0].shown}"
            why = f"{called} finds everything that this index finds"
            yield Problem(index.place, table.named(index.shown), why, "drop it")


def _covering(others: Sequence[IndexDefinition], index: IndexDefinition, *, is_first: bool) -> list[IndexDefinition]:
    return [other for other in others if _covers(other, index, is_first=is_first)]


def _covers(other: IndexDefinition, index: IndexDefinition, *, is_first: bool) -> bool:
    """Return whether an index is of no use beside another: it is the beginning of it, and refuses no row by itself."""
    if index.kind == "PRIMARY" or not _begins(index.parts, other.parts):
        return False
    if index.parts != other.parts:
        return index.kind != "UNIQUE"
    # Of two that are equal, the one that refuses more rows stays, or the first.
    ranks = {"PRIMARY": 2, "UNIQUE": 1, "": 0}
    return (ranks[other.kind], is_first) > (ranks[index.kind], not is_first)


def _begins(parts: Sequence[Part], of: Sequence[Part]) -> bool:
    return len(parts) <= len(of) and all(map(_holds, of, parts))


def _holds(longer: Part, part: Part) -> bool:
    """A prefix is in the whole column, and in a longer prefix."""
    if (longer.column, longer.expression, longer.is_descending) != (part.column, part.expression, part.is_descending):
        return False
    return not longer.length or 0 < part.length <= longer.length


def _program(program: Program) -> Iterator[Problem]:
    name = f"{program.name.schema}.{program.name.name}" if program.name.schema else program.name.name
    articles = {"trigger": "a", "event": "an"}
    yield Problem(program.place, name, f"{articles.get(program.kind, 'a stored')} {program.kind}")


RULES = (
    Rule(
        code="VT301",
        name="no-primary-key",
        level=Level.ERROR,
        about=TableDefinition,
        find=_no_key,
        what="Every table has a primary key.",
        why="Without one a replica finds each changed row by reading the whole table, and no reader of changes can "
        "tell two equal rows apart.",
        instead="declare one: an AUTO_INCREMENT number, a UUID, or the columns that tell rows apart",
        bad="CREATE TABLE visit (page VARCHAR(100) NOT NULL COMMENT 'Which') COMMENT 'Visits';",
        good="CREATE TABLE visit (\n"
        "  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'Its number',\n"
        "  page VARCHAR(100) NOT NULL COMMENT 'Which',\n"
        "  PRIMARY KEY (id)\n) COMMENT 'Visits';",
    ),
    Rule(
        code="VT302",
        name="wide-primary-key",
        level=Level.WARNING,
        about=TableDefinition,
        find=_wide_key,
        what=f"A primary key is compact: {_COMPACT_BYTES} bytes at most (four for each character, unless its character "
        "set has fewer).",
        why="InnoDB keeps it in every entry of every other index.",
        instead="take a number or a UUID for the key, and make this a unique key",
        bad="CREATE TABLE customer (\n"
        "  email VARCHAR(100) NOT NULL COMMENT 'For invoices',\n"
        "  PRIMARY KEY (email)\n) COMMENT 'Who buys';",
        good="CREATE TABLE customer (\n"
        "  id INT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'Its number',\n"
        "  email VARCHAR(100) NOT NULL COMMENT 'For invoices',\n"
        "  PRIMARY KEY (id),\n"
        "  UNIQUE KEY email_key (email)\n) COMMENT 'Who buys';",
    ),
    Rule(
        code="VT303",
        name="foreign-key",
        level=Level.ERROR,
        about=TableDefinition,
        find=_foreign_key,
        what="No foreign keys.",
        why="They lock rows of other tables, keep tables from moving to another server or shard, and stand in the way "
        "of online schema changes.",
        instead="let the application keep the reference, and put an index on the column",
        bad="CREATE TABLE invoice (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  customer_id INT NOT NULL COMMENT 'Who pays',\n"
        "  KEY customer_idx (customer_id),\n"
        "  CONSTRAINT customer_fk FOREIGN KEY (customer_id) REFERENCES customer (id)\n) COMMENT 'Invoices';",
        good="CREATE TABLE invoice (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  customer_id INT NOT NULL COMMENT 'Who pays: customer.id',\n"
        "  KEY customer_idx (customer_id)\n) COMMENT 'Invoices';",
    ),
    Rule(
        code="VT304",
        name="redundant-index",
        level=Level.ERROR,
        about=TableDefinition,
        find=_redundant,
        what="No index is the beginning of another one of its table, or equal to it.",
        why="Every write keeps it, and no query needs it.",
        instead="drop it",
        bad="CREATE TABLE invoice (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  customer_id INT NOT NULL COMMENT 'Who pays',\n"
        "  due_on DATE NOT NULL COMMENT 'Until when',\n"
        "  KEY customer_idx (customer_id),\n"
        "  KEY customer_due_idx (customer_id, due_on)\n) COMMENT 'Invoices';",
        good="CREATE TABLE invoice (\n"
        "  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',\n"
        "  customer_id INT NOT NULL COMMENT 'Who pays',\n"
        "  due_on DATE NOT NULL COMMENT 'Until when',\n"
        "  KEY customer_due_idx (customer_id, due_on)\n) COMMENT 'Invoices';",
    ),
    Rule(
        code="VT305",
        name="program",
        level=Level.ERROR,
        about=Program,
        find=_program,
        what="No triggers, stored procedures, functions or events.",
        why="They run where nobody looks: not in the application's repository, tests or logs. Their load is the "
        "database's.",
        instead="do it in the application, or in a consumer of the table's changes",
        bad="CREATE TRIGGER customer_changed AFTER UPDATE ON customer FOR EACH ROW\n"
        "  INSERT INTO audit (customer_id) VALUES (NEW.id);",
        good="INSERT INTO audit (customer_id) VALUES (7);",
    ),
)
