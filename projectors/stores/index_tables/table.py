"""The shape of an IndexTable view's table, and how an existing table is brought into that shape.

A table is viewtail's own if its comment begins with one of `MARKS`; viewtail never touches another table of the same
name. Key columns keep their type; text is kept in utf8mb4 with a binary collation that does not pad, so that two keys
that differ in their bytes stay two keys. ENUM and SET are kept as VARCHAR: a label added to the source later then
fits."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import pymysql

from offsets import schema
from projectors.stores import PlaceRefusedError
from projectors.stores.index_tables.views import INVISIBLE_VERSION, MAX_NAME_LENGTH, VERSION, version_of
from projectors.views import BoundView
from viewtail.changes.errors import RETRIES, DeclarationError, StoreUnavailableError
from viewtail.changes.tables import TEXTS_IN_BINARY, Column, Kind
from viewtail.servers.facts import BINARY_COLLATIONS, MYSQL, ServerFacts
from viewtail.servers.sessions import SQL_MODE, Connection, number_of, quote

MARK = "viewtail index table of "
MARK_OF_WHOLE = "viewtail table of "  # of a view that is a whole table
MARKS = (MARK, MARK_OF_WHOLE)
INDEX = "value_idx"
LIVE_INDEX = "live_idx"  # of views in which a key is of one source at a time: see unique.py
INVISIBLE = "INVISIBLE"
SUFFIX = "__version"  # in the name of a second table, which has versions of the view
_BESIDE = "__viewtail_"  # in the table name of a copy beside the live one, before the copy's number
_OF_COPY = re.compile(f"{_BESIDE}[0-9]+$")
MAX_KEY_BYTES = 3072  # the limit of one index in InnoDB with DYNAMIC rows and 16 KiB pages

# Display widths, which only some servers print (but tinyint(1) and zerofill keep theirs).
_WIDTH = re.compile(r"^(tinyint(?!\(1\))|smallint|mediumint|int|bigint|year)\(\d+\)(?!.*zerofill)")
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_INTEGER = re.compile(r"^(?:tiny|small|medium|big)?int")
_VARYING = re.compile(r"^(varchar|varbinary)\((\d+)\)$")
_OWN_TABLES = frozenset(ddl.split("`")[1] for ddl in (*schema.STORE_TABLES, *schema.SOURCE_TABLES))
_NAME = re.compile("[a-z0-9_$]{1,64}")  # in lower case
# A type, digits of a DECIMAL, a charset or a collation that this server does not have.
_NOT_MADE = frozenset({1064, 1115, 1273, 1293, 1425, 1426, 4161})
_CHANGED_MEANWHILE = frozenset({1051, 1060, 1061, 1091})


def table_name(view: BoundView, *, is_beside: bool | None = None) -> str:
    """The name of a copy's table: the live copy has the view's name, a copy beside it has its number appended.

    Args:
        view: the copy.
        is_beside: whether to name its table beside the live one; by default as it lies now."""
    name = view.view.name
    return name_beside(name, view.copy) if (view.is_beside if is_beside is None else is_beside) else name


def name_beside(name: str, copy: int) -> str:
    """The table name of a copy that lies beside the table of this name."""
    number = f"{_BESIDE}{copy}"
    if len(name) + len(number) > MAX_NAME_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[: MAX_NAME_LENGTH - len(number) - len(digest)]}{digest}"
    return name + number


def second_of(view: BoundView, version: str = VERSION) -> BoundView:
    """The view's second table, as a view of its own, whose versions are in a column of that name."""
    named = copy.copy(view.view)
    object.__setattr__(named, "name", f"{view.view.name}{SUFFIX}")
    object.__setattr__(named, "version_column", version)
    return replace(view, view=named)


def second_name(view: BoundView, *, is_beside: bool | None = None) -> str:
    """The name that the second table has, whether or not the view has one as it is declared now."""
    return table_name(second_of(view), is_beside=is_beside)


def second_name_problem(view: BoundView) -> str:
    """The reason why the view's second table cannot have its name; '' if it can."""
    name, most = view.view.name, MAX_NAME_LENGTH - len(SUFFIX)
    if len(name) <= most:
        return ""
    return (
        f"there is a second table, {name}{SUFFIX}, whose name must have at most {MAX_NAME_LENGTH} characters: shorten "
        f"the view's to {most}"
    )


class Shape(NamedTuple):
    """The type of a column."""

    type: str  # as information_schema.columns.column_type prints it
    collation: str | None  # of text
    is_nullable: bool


@dataclass(frozen=True, slots=True)
class Definition:
    """One column of an index table."""

    name: str
    shape: Shape
    comment: str
    extra: str = ""  # AUTO_INCREMENT, or INVISIBLE of a number
    made_by: str = ""  # of a generated column: SQL

    @property
    def ddl(self) -> str:
        type_, collation, is_nullable = self.shape
        if self.made_by:
            return f"{quote(self.name)} {type_} AS ({self.made_by}) STORED COMMENT {_string(self.comment)}"
        text = f" COLLATE {collation}" if collation else ""
        null = "NULL" if is_nullable else "NOT NULL"
        # MariaDB wants a default of whatever an INSERT need not name.
        extra = f"{' DEFAULT 0' if self.extra == INVISIBLE else ''} {self.extra}" if self.extra else ""
        return f"{quote(self.name)} {type_}{text} {null}{extra} COMMENT {_string(self.comment[:1024])}"


@dataclass(slots=True)
class PresentTable:
    """An existing table."""

    comment: str
    columns: dict[str, Shape] = field(default_factory=dict)
    extras: dict[str, str] = field(default_factory=dict)  # of each column, in capitals
    with_default: set[str] = field(default_factory=set)  # the names of columns that have one that is not NULL
    indexes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unique: set[str] = field(default_factory=set)  # the names of unique indexes, the primary key's among them

    @property
    def is_own(self) -> bool:
        """Return whether viewtail made it."""
        return self.comment.startswith(MARKS)

    @property
    def is_second(self) -> bool:
        """Return whether it is the second table of a view, which has versions."""
        if not self.is_own or INDEX in self.indexes:
            return False
        if self.has_version(INVISIBLE_VERSION):  # of a whole table: in its rows it is invisible, in its tombstones not
            return INVISIBLE not in self.extras.get(INVISIBLE_VERSION, "")
        return self.has_version()

    def add_column(self, name: str, shape: Shape, extra: str, default: str | None) -> None:
        """Add the next column, as information_schema has it."""
        self.columns[name] = shape
        self.extras[name] = extra.upper()
        if default not in (None, "NULL"):  # MariaDB has the word where MySQL has none
            self.with_default.add(name)

    def add_to_index(self, name: str, column: str, *, is_unique: bool) -> None:
        """Add the next column of an index."""
        self.indexes[name] = (*self.indexes.get(name, ()), column)
        if is_unique:
            self.unique.add(name)

    def has_version(self, name: str = VERSION) -> bool:
        """Return whether the table has versions, in a column of that name."""
        version = self.columns.get(name)
        return version is not None and version.type == "bigint unsigned"


class RowsDoNotFitError(PlaceRefusedError):
    """The table has values that are too large for the columns as they are declared now."""


class IndexTableShape:
    """The table of one view, compared with the existing one. Raises DeclarationError for a view that can have none."""

    mark = MARK
    computing = "of=lambda row: ..."  # how a declaration does
    unique_indexes: ClassVar[frozenset[str]] = frozenset()  # the names of those of `indexes` that are unique
    # The column that says which of several sources wrote a row, where another one's row may be met; see unique.py.
    writer_name: ClassVar[str | None] = None

    def __init__(
        self, database: str, view: BoundView, server: str = MYSQL, present: PresentTable | None = None
    ) -> None:
        self.view = view
        self._present = present
        self._server, self._collation = server, BINARY_COLLATIONS[server]
        self._label = f"{type(view.view).__name__}({view.view.name!r})"
        self._check_name()
        self._check_columns()
        self.table = quote(database, table_name(view))
        self._key = [self._with_others(self._key_column(column)) for column in view.key]
        self._values = [self._with_others(self._value_column(column)) for column in view.values]
        self._version = self._version_column()
        self.comment = (
            f"{self.mark}{view.table.title}; written by viewtail alone and made from the entity again at any time"
        )
        self.key_names = tuple(definition.name for definition in self._key)
        self.value_names = tuple(definition.name for definition in self._values)
        self.version_name = self._version.name
        self._lay_out()
        if sum(map(_max_bytes, self._indexed)) > MAX_KEY_BYTES:
            raise self._too_long()
        if view.source and present is not None:
            self._check_like_others(present)

    def _check_like_others(self, present: PresentTable) -> None:
        if present.is_own and present.indexes.get("PRIMARY") != self.primary:
            primary = ", ".join(present.indexes.get("PRIMARY", ()))
            raise self._unlike_others(f"its key is ({', '.join(self.primary)})", f"({primary})")
        if LIVE_INDEX in set(present.indexes).difference(self.indexes):
            raise self._unlike_others("its keys begin with the source's name", "unique_over_sources=True")

    def _with_others(self, definition: Definition) -> Definition:
        """The column as the rows of all sources need it: one of them may have a wider one than another."""
        present = None if self._present is None else self._present.columns.get(definition.name)
        if not self.view.source or present is None or _takes_all(definition.shape, present):
            return definition
        if not _takes_all(present, definition.shape):
            raise self._unlike_others(f"column {definition.name} is {definition.shape.type}", present.type)
        return replace(definition, shape=present)

    def _unlike_others(self, here: str, there: str) -> DeclarationError:
        return self._wrong(
            f"in the source {self.view.source[0]} {here}, and its table, {self.table}, was made with {there}: by "
            "another source, or as the view was declared before. Give the tables of all sources the same columns; if "
            f"the declaration changed, give the view another name. Or, when all agree: DROP TABLE "
            f"{self.table}, which each source then fills again"
        )

    def _key_column(self, column: Column) -> Definition:
        comment = f"Entity key, {self.view.table.title}.{column.name}"
        return Definition(column.name, Shape(*self._type_of(column), False), comment)

    def _value_column(self, column: Column) -> Definition:
        entity = self.view.table.title
        made = f"Indexed value, made of a row of {entity}" if self.view.view.computed else ""
        comment = f"{made or f'Indexed value, {entity}.{column.name}'}; NULL where there is none or the entity is gone"
        return Definition(column.name, Shape(*self._type_of(column), True), comment)

    def _version_column(self) -> Definition:
        comment = "Version of the change that this row is from; only newer ones apply"
        return Definition(version_of(self.view), Shape("bigint unsigned", None, False), comment)

    def _lay_out(self) -> None:
        self.columns = [*self._key, *self._values, self._version]  # in the order of a statement's values
        self.layout = self.columns  # in the order of the table
        self.primary = self.key_names
        self._indexed = [*self._values, *self._key]  # the columns of `INDEX`; empty if the table has no such index

    @property
    def indexes(self) -> dict[str, tuple[str, ...]]:
        """The columns of each index beside the primary key."""
        return {INDEX: tuple(definition.name for definition in self._indexed)} if self._indexed else {}

    @property
    def is_there(self) -> bool:
        """Return whether the table exists."""
        return self._present is not None

    @property
    def is_as_declared(self) -> bool:
        """Return whether the table exists, and `ensure` has nothing to change in it."""
        return self._present is not None and not self._changes(self._present)

    @property
    def is_whole(self) -> bool:
        """Return whether the table exists with all its columns, so that its rows can be trusted."""
        wanted = {definition.name: definition.shape for definition in self.layout}
        present = self._present
        if present is None or self._is_anew(present):
            return False
        return present.columns == wanted or (bool(self.view.source) and self._is_wide(present))

    def _is_wide(self, present: PresentTable) -> bool:
        """Return whether its columns need no more than to become wider, as those of another source."""
        wanted = {definition.name: definition.shape for definition in self.layout}
        return present.columns.keys() == wanted.keys() and all(
            _takes_all(shape, present.columns[name]) for name, shape in wanted.items()
        )

    @property
    def to_come(self) -> str:
        """The change that readers of existing rows would notice after `ensure`; '' if there is none."""
        present = self._present
        changes = [] if present is None else self._changes(present)
        if present is None or not changes:
            return ""
        if len(changes) > 1:
            return f"its table {self.table} is dropped and made again: readers find it empty until that is done"
        new = [name for name in self.value_names if name not in present.columns]
        if not new:
            return ""
        names = f"column {new[0]}" if len(new) == 1 else f"columns {', '.join(new)}"
        return (
            f"{names} of its table {self.table} will be new: NULL in each row, so found by nobody, until that is done"
        )

    def make_ready(self, connection: Connection) -> None:
        """Run `ensure`; values that do not fit any more are cut, since a backfill follows: of one source, so not where
        there are several."""
        try:
            self.ensure(connection)
        except RowsDoNotFitError:
            if self.view.source:
                raise
            connection.query("SET SESSION sql_mode = ''")
            try:
                self.ensure(connection)
            finally:
                connection.query(f"SET SESSION sql_mode = '{SQL_MODE}'")

    def ensure(self, connection: Connection) -> None:
        """Create the table, or bring it into shape. Raises PlaceRefusedError for a table that is not viewtail's."""
        self.check_own()
        self._run(connection, [self._create()] if self._present is None else self._changes(self._present))

    def create_anew(self, connection: Connection) -> None:
        """Replace whatever exists by an empty table."""
        self._run(connection, [f"DROP TABLE IF EXISTS {self.table}", self._create()])

    def check_own(self) -> None:
        """Raise PlaceRefusedError for a table that viewtail did not create."""
        if self._present is not None and not self._present.is_own:
            raise PlaceRefusedError(
                f"{self._label}: {self.table} exists and was not made by viewtail (its comment does not begin with "
                f"'{self.mark}'); it is left alone. Rename that table, or give the view another name, or take the "
                f"table over: viewtail adopt {self.view.view.id}"
            )

    def _run(self, connection: Connection, statements: Sequence[str]) -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                try:
                    cursor.execute(statement)
                except pymysql.err.MySQLError as error:
                    raise self.failure(error) or error from None

    def _create(self) -> str:
        lines = [definition.ddl for definition in self.layout]
        lines.append(f"PRIMARY KEY ({', '.join(map(quote, self.primary))})")
        lines += [self._index(name, columns) for name, columns in self.indexes.items()]
        return (
            f"CREATE TABLE IF NOT EXISTS {self.table} (\n  " + ",\n  ".join(lines) + "\n) ENGINE=InnoDB "
            f"DEFAULT CHARSET=utf8mb4 COLLATE={self._collation} COMMENT={_string(self.comment)}"
        )

    def _changes(self, present: PresentTable) -> list[str]:
        """The statements that turn the existing table into the declared one."""
        if self._is_anew(present):
            # Rows under another key are of no use: the backfill begins with an empty table.
            return [f"DROP TABLE {self.table}", self._create()]
        return self._alter(present)

    def _is_anew(self, present: PresentTable) -> bool:
        """Return whether the table has another key, or is of another entity, so that it is dropped and made again."""
        is_same_key = present.indexes.get("PRIMARY") == self.primary and all(
            _takes_all(definition.shape, present.columns.get(definition.name))
            for definition in self.columns
            if definition not in self._values
        )
        return not is_same_key or present.comment.split(";")[0] != self.comment.split(";")[0]

    def adopting(self, present: PresentTable) -> str:
        """The statement that makes a table with the same columns viewtail's."""
        parts = [*self._parts(present), f"COMMENT = {_string(self.comment)}"]
        return f"ALTER TABLE {self.table} {', '.join(parts)}"

    def _alter(self, present: PresentTable) -> list[str]:
        parts = self._parts(present)
        return [f"ALTER TABLE {self.table} " + ", ".join(parts)] if parts else []

    def _parts(self, present: PresentTable) -> list[str]:
        wanted = [definition.name for definition in self.layout]
        parts = [f"DROP COLUMN {quote(name)}" for name in present.columns if name not in wanted]
        behind = "FIRST"
        for definition in self.layout:
            shape = present.columns.get(definition.name)
            if shape is None:
                parts.append(f"ADD COLUMN {definition.ddl} {behind}")
            elif shape != definition.shape or definition.extra not in present.extras.get(definition.name, ""):
                parts.append(f"MODIFY COLUMN {definition.ddl}")
            behind = f"AFTER {quote(definition.name)}"
        return [*parts, *self._index_changes(present)]

    def _index_changes(self, present: PresentTable) -> Iterator[str]:
        for name, columns in self.indexes.items():
            if present.indexes.get(name) != columns or (name in self.unique_indexes and name not in present.unique):
                if name in present.indexes:
                    yield f"DROP INDEX {quote(name)}"
                yield f"ADD {self._index(name, columns)}"

    def _index(self, name: str, columns: Sequence[str]) -> str:
        unique = "UNIQUE " if name in self.unique_indexes else ""
        return f"{unique}INDEX {quote(name)} ({', '.join(map(quote, columns))})"

    def failure(self, error: pymysql.err.MySQLError) -> Exception | None:
        """The error of the view for one that changing its table raised; None for any other."""
        number = number_of(error)
        if number in _CHANGED_MEANWHILE:
            return StoreUnavailableError(
                f"{self._label}: somebody else changed {self.table} at the same time; {RETRIES}"
            )
        if number in (1071, 1118):
            return self._too_long()
        if number == 1070:
            return self._wrong(
                f"its index has {len(self._indexed)} columns, those of the key among them, which is more than this "
                "server allows (MySQL 16, MariaDB 32); name fewer value columns"
            )
        if number in _NOT_MADE:
            return PlaceRefusedError(
                f"{self._label}: the server that has the view's tables cannot make {self.table} with the types of the "
                f"entity's table ({number}: {error.args[-1]}). Keep both on one kind of server, or compute the column "
                f"otherwise, as a type that both have: {self.computing}"
            )
        if number in (1062, 1264, 1265, 1292, 1366, 1406):
            return RowsDoNotFitError(
                f"{self._label}: {self.table} holds values that do not fit the columns as they are declared now "
                f"(MySQL error {number}). DROP TABLE {self.table}, then run: viewtail replay {self.view.id}"
            )
        return None

    def _type_of(self, column: Column) -> tuple[str, str | None]:
        """The type and collation that can hold a column's values."""
        kind, declared = column.kind, plain_type(column.declared)
        if (length := _length_as_text(column)) is not None:
            return f"varchar({length})", self._collation
        if kind is Kind.TEXT and declared.startswith(("char(", "varchar(")):
            return declared, self._collation
        if column.fields:
            raise self._wrong(
                f"{column.name} is what related tables have, which an index cannot hold; compute from it what the "
                "table is to show: values={...}, of=lambda row: ..."
            )
        is_long = kind in (Kind.TEXT, Kind.BYTES) and not declared.startswith(("binary", "varbinary"))
        if is_long or kind in (Kind.JSON, Kind.GEOMETRY, Kind.VECTOR, Kind.UNSUPPORTED):
            name = column.name
            of_list = " If it holds a list, index its values: each='VARCHAR(100)'." if kind is Kind.JSON else ""
            raise self._wrong(
                f"column {name} is {column.type_name}, which an index cannot hold whole.{of_list} Index a generated "
                f"column of bounded length instead, e.g. ALTER TABLE {self._canonical} "
                f"ADD {quote(name[:58] + '_start')} VARCHAR(100) AS (LEFT({quote(name)}, 100)) STORED"
            )
        return declared, None

    def _check_name(self) -> None:
        name = self.view.view.name
        if len(name) > MAX_NAME_LENGTH or name.endswith(" ") or "\0" in name:
            raise self._wrong("the name becomes a table: 1 to 64 characters, no blank at its end")
        if name == "new" or name.lower() in _OWN_TABLES:
            raise self._wrong(f"viewtail needs the table name {name} itself; choose another")
        if _OF_COPY.search(name):
            raise self._wrong(f"names that end in {_BESIDE} and a number are those of copies; choose another")

    def _check_columns(self) -> None:
        keys = {column.name.lower() for column in self.view.key}
        if computed := self.view.view.computed:
            self._check_computed([column.name.lower() for column in computed], keys)
            return
        for column in (*self.view.key, *self.view.values):
            if column.name.lower() == version_of(self.view):
                raise self._wrong(
                    f"column {column.name} has the name under which an index table keeps its versions; rename it, or "
                    f"index a generated column: ALTER TABLE {self._canonical} "
                    f"ADD {quote(column.name[:58] + '_value')} {column.type_name} AS ({quote(column.name)}) STORED"
                )
        for column in self.view.values:
            if column.name.lower() in keys:
                raise self._wrong(
                    f"column {column.name} is a key column, which each index table has anyway; take it out of "
                    "value=[...]"
                )

    def _check_computed(self, names: Sequence[str], keys: Collection[str]) -> None:
        for name in names:
            if name in keys or name == VERSION or names.count(name) > 1 or not _NAME.fullmatch(name):
                raise self._wrong(
                    f"value column {name} needs another name: letters, digits, _ and $, at most 64; neither "
                    f"{VERSION}, nor one of the key's columns, nor that of another value column"
                )

    @property
    def _canonical(self) -> str:
        """The canonical table, for statements."""
        return quote(self.view.table.schema, self.view.table.name)

    def _wrong(self, why: str) -> DeclarationError:
        return DeclarationError(f"{self._label}: {why}")

    def _too_long(self) -> DeclarationError:
        longest = max(self._indexed, key=_max_bytes)
        kind = "value" if longest in self._values else "key"
        return self._wrong(
            f"its index over ({', '.join(definition.name for definition in self._indexed)}) needs up to "
            f"{sum(map(_max_bytes, self._indexed))} bytes, InnoDB allows {MAX_KEY_BYTES}. The longest is {kind} column "
            f"{longest.name}, {longest.shape.type.upper()}, {_max_bytes(longest)} bytes in utf8mb4: shorten it, or "
            "use a shorter column (a generated one, e.g. its first 100 characters or a hash)"
        )


class TwoTables:
    """Two tables of one view, compared with those that exist: the rows of one mean nothing without the other's."""

    def __init__(self, view: BoundView, *both: IndexTableShape) -> None:
        self.view = view
        self._both = both

    @property
    def is_there(self) -> bool:
        return all(shape.is_there for shape in self._both)

    @property
    def is_whole(self) -> bool:
        return all(shape.is_whole for shape in self._both)

    @property
    def to_come(self) -> str:
        """See `IndexTableShape.to_come`."""
        return next(filter(None, (shape.to_come for shape in self._both)), "")

    def make_ready(self, connection: Connection) -> None:
        """Run `ensure`; if values do not fit any more, empty both tables, since the view is backfilled anyway: by one
        source, so not where there are several."""
        try:
            self.ensure(connection)
        except RowsDoNotFitError:
            if self.view.source:
                raise
            self._begin_again(connection)

    def ensure(self, connection: Connection) -> None:
        """Create the tables, or bring them into shape. Raises PlaceRefusedError for a table that is not viewtail's."""
        for shape in self._both:
            shape.check_own()
        if len({shape.is_there for shape in self._both}) > 1:
            self._begin_again(connection)
            return
        for shape in self._both:
            shape.ensure(connection)

    def _begin_again(self, connection: Connection) -> None:
        for shape in self._both:
            shape.create_anew(connection)


def present_tables(
    connection: Connection, facts: ServerFacts, database: str, names: Sequence[str]
) -> dict[str, PresentTable]:
    """The tables that exist; one request for many costs little more than one for a single table."""
    tables: dict[str, PresentTable] = {}

    def ask(columns: str, of: str, order: str) -> Iterator[tuple[Any, ...]]:
        for group in facts.lookups(names):
            cursor.execute(
                f"SELECT table_name, {columns} FROM information_schema.{of} "
                f"WHERE table_schema = %s AND table_name IN %s ORDER BY {order}",
                (database, group),
            )
            yield from (row for row in cursor.fetchall() if of == "tables" or row[0] in tables)

    with connection.cursor() as cursor:
        for table, comment in ask("table_comment", "tables", "1"):
            tables[table] = PresentTable(comment or "")
        described = "column_name, column_type, collation_name, is_nullable, extra, column_default"
        for table, name, type_, collation, null, extra, default in ask(described, "columns", "ordinal_position"):
            tables[table].add_column(name, Shape(plain_type(type_), collation, null == "YES"), extra, default)
        for table, name, column, is_plain in ask("index_name, column_name, non_unique", "statistics", "seq_in_index"):
            tables[table].add_to_index(name, column, is_unique=not is_plain)
    # Some servers keep names in lower case.
    lower = {table: present for table, present in tables.items() if table not in names}
    return {name: present for name in names if (present := tables.get(name) or lower.get(name.lower()))}


def _takes_all(wanted: Shape, present: Shape | None) -> bool:
    """Return whether a key column can be changed to the wanted shape in place, since only its size differs and does not
    shrink."""
    if present is None or wanted[1:] != present[1:]:
        return False
    (family, size), (family_before, size_before) = _sized(wanted.type), _sized(present.type)
    return family == family_before and size >= size_before


def _sized(type_: str) -> tuple[str, int]:
    """A type split into its family and its size."""
    if match := _INTEGER.match(type_):
        return f"int{type_[match.end() :]}", _INTEGERS.index(match[0])
    if match := _VARYING.match(type_):
        return match[1], int(match[2])
    return type_, 0


def _length_as_text(column: Column) -> int | None:
    """How many characters the values take that MySQL has in a form of its own; None where they keep their type."""
    if column.kind is Kind.ENUM:
        return max(1, *map(len, column.labels))
    if column.kind is Kind.SET:
        return max(1, len(",".join(column.labels)))
    return column.length if plain_type(column.declared) in TEXTS_IN_BINARY else None


def plain_type(declared: str) -> str:
    """The type without what only some servers print. Labels of ENUM and SET are left as they are."""
    if declared[:5].lower() in ("enum(", "set('"):
        return declared
    return _WIDTH.sub(r"\1", declared.lower())


def _max_bytes(definition: Definition) -> int:
    if match := re.match(r"(?:var)?(char|binary)\((\d+)\)", definition.shape.type):
        return int(match[2]) * (4 if match[1] == "char" else 1)  # in utf8mb4
    match = re.match(r"decimal\((\d+)", definition.shape.type)
    return int(match[1]) // 2 + 4 if match else 8


def _string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
