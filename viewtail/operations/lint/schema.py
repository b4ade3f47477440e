"""Tables as definitions say, and what statements make of them.

A definition that the server shows and one in a file are the same here. Each part knows the place that it was defined
at, so that a migration answers for what it defines, and not for what was there before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ingest.sql_words import Name
from viewtail.changes.tables import full_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of a file, and the line at which its statement begins."""

    file: str  # '': it is on a server
    line: int
    statement: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Type:
    """A column's type as it is written."""

    word: str  # in capitals: VARCHAR, ENUM, DOUBLE PRECISION
    arguments: tuple[str, ...] = ()
    is_unsigned: bool = False
    declared: str = ""  # its text in small letters, labels as they are

    @property
    def length(self) -> int:
        """The number in its parentheses; 0 where there is none."""
        first = self.arguments[0] if self.arguments else ""
        return int(first) if first.isdecimal() else 0

    @property
    def is_boolean(self) -> bool:
        is_of_one = self.word in ("TINYINT", "BIT") and self.length == 1
        return self.word in ("BOOL", "BOOLEAN") or is_of_one or (self.word == "BIT" and not self.arguments)

    @property
    def is_moment(self) -> bool:
        return self.word in ("TIMESTAMP", "DATETIME")


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """What a column has where an INSERT names it not."""

    text: str  # a literal without its quotes, or an expression
    is_expression: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDefinition:
    """One column."""

    name: str
    type: Type
    place: Place
    is_nullable: bool = True
    default: Default | None = None  # None: there is none, or it is NULL
    comment: str = ""
    is_auto_increment: bool = False
    is_generated: bool = False
    is_json: bool = False  # by its type, or by CHECK (JSON_VALID(...)), as MariaDB keeps it
    charset: str = ""  # or collation; '': the table's


@dataclass(frozen=True, slots=True)
class Part:
    """A column of an index, or an expression."""

    column: str  # in small letters; '' for an expression
    length: int = 0  # of a prefix; 0: all of it
    is_descending: bool = False
    expression: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDefinition:
    """One index; a primary key has the name PRIMARY."""

    name: str  # '': the server chooses it
    kind: str  # PRIMARY, UNIQUE, FULLTEXT, SPATIAL, VECTOR, or '' for any other
    parts: tuple[Part, ...]
    place: Place

    @property
    def shown(self) -> str:
        """Its name, or its columns where it has none."""
        return self.name or f"({', '.join(part.column or '...' for part in self.parts)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyDefinition:
    """A constraint that refers to another table."""

    name: str
    columns: tuple[str, ...]
    on_delete: str  # '' for none
    on_update: str
    place: Place

    @property
    def shown(self) -> str:
        """Its name, or its columns where it has none."""
        return self.name or f"({', '.join(self.columns)})"

    @property
    def changes_rows(self) -> bool:
        """Return whether the server deletes or changes rows of this table by it."""
        return bool({"CASCADE", "SET NULL", "SET DEFAULT"} & {self.on_delete, self.on_update})


@dataclass(slots=True, kw_only=True)
class TableDefinition:
    """One table."""

    name: Name
    place: Place
    columns: list[ColumnDefinition] = field(default_factory=list)
    indexes: list[IndexDefinition] = field(default_factory=list)
    foreign_keys: list[ForeignKeyDefinition] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)  # ENGINE, CHARSET, COMMENT
    option_places: dict[str, Place] = field(default_factory=dict)  # of those that an ALTER TABLE set
    name_place: Place | None = None  # where it was renamed
    key_place: Place | None = None  # where its primary key went

    @property
    def full_name(self) -> str:
        return full_name(self.name.schema, self.name.name) if self.name.schema else self.name.name

    @property
    def primary_key(self) -> IndexDefinition | None:
        return next((index for index in self.indexes if index.kind == "PRIMARY"), None)

    def column(self, name: str) -> ColumnDefinition | None:
        return next((column for column in self.columns if column.name.lower() == name.lower()), None)

    def named(self, part: str) -> str:
        """The full name of one of its parts."""
        return f"{self.full_name}.{part}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A trigger, procedure, function or event."""

    kind: str  # in small letters
    name: Name
    place: Place


# -- what a statement does ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableCreated:
    """A CREATE TABLE."""

    definition: TableDefinition
    like: Name | None = None
    is_if_absent: bool = False  # IF NOT EXISTS


@dataclass(frozen=True, slots=True)
class TemporaryTableCreated:
    """A CREATE TEMPORARY TABLE: until the file ends, or drops it, its name is that of no other table."""

    name: Name


@dataclass(frozen=True, slots=True)
class TemporaryTablesDropped:
    """A DROP TEMPORARY TABLE."""

    names: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class TablesDropped:
    """A DROP TABLE."""

    names: tuple[Name, ...]
    is_if_there: bool = False  # IF EXISTS


@dataclass(frozen=True, slots=True)
class DatabaseDropped:
    """A DROP DATABASE."""

    schema: str


@dataclass(frozen=True, slots=True)
class TablesRenamed:
    """A RENAME TABLE, or the RENAME of an ALTER TABLE."""

    pairs: tuple[tuple[Name, Name], ...]


@dataclass(frozen=True, slots=True)
class ColumnsAdded:
    """Columns that an ALTER TABLE adds."""

    table: Name
    columns: tuple[ColumnDefinition, ...]


@dataclass(frozen=True, slots=True)
class ColumnRedefined:
    """A MODIFY or CHANGE of an ALTER TABLE."""

    table: Name
    old: str
    column: ColumnDefinition


@dataclass(frozen=True, slots=True)
class ColumnDropped:
    """A DROP COLUMN."""

    table: Name
    column: str


@dataclass(frozen=True, slots=True)
class ColumnRenamed:
    """A RENAME COLUMN."""

    table: Name
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class DefaultSet:
    """An ALTER COLUMN ... SET DEFAULT, or DROP DEFAULT."""

    table: Name
    column: str
    default: Default | None


@dataclass(frozen=True, slots=True)
class IndexAdded:
    """An index that an ALTER TABLE or a CREATE INDEX adds."""

    table: Name
    index: IndexDefinition
    is_own_statement: bool = False  # CREATE INDEX


@dataclass(frozen=True, slots=True)
class IndexDropped:
    """An index that an ALTER TABLE or a DROP INDEX drops; PRIMARY: the primary key."""

    table: Name
    index: str
    is_own_statement: bool = False  # DROP INDEX


@dataclass(frozen=True, slots=True)
class IndexRenamed:
    """A RENAME INDEX."""

    table: Name
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class ForeignKeyAdded:
    """A foreign key that an ALTER TABLE adds."""

    table: Name
    key: ForeignKeyDefinition


@dataclass(frozen=True, slots=True)
class ConstraintDropped:
    """A foreign key, or another constraint, that an ALTER TABLE drops."""

    table: Name
    name: str


@dataclass(frozen=True, slots=True)
class OptionsSet:
    """Options that an ALTER TABLE sets."""

    table: Name
    options: dict[str, str]


@dataclass(frozen=True, slots=True)
class TableTouched:
    """A TRUNCATE, or an ALTER TABLE that changes nothing a rule is about: its partitions, say."""

    table: Name


@dataclass(frozen=True, slots=True)
class ProgramCreated:
    """A CREATE TRIGGER, PROCEDURE, FUNCTION or EVENT."""

    program: Program


@dataclass(frozen=True, slots=True)
class RowsChanged:
    """An UPDATE or DELETE."""

    verb: str
    is_bounded: bool  # it has a WHERE that leaves rows out, or a LIMIT


Change: TypeAlias = (
    TableCreated | TablesDropped | DatabaseDropped | TablesRenamed | ColumnsAdded | ColumnRedefined | ColumnDropped
    | ColumnRenamed | DefaultSet | IndexAdded | IndexDropped | IndexRenamed | ForeignKeyAdded | ConstraintDropped
    | OptionsSet | ProgramCreated | RowsChanged | TableTouched | TemporaryTableCreated | TemporaryTablesDropped
)  # fmt: skip


@dataclass(slots=True)
class Schema:
    """All tables and programs, as the statements so far left them. Names that differ in case are those of one table."""

    _tables: dict[tuple[str, str], TableDefinition] = field(default_factory=dict)
    programs: list[Program] = field(default_factory=list)

    def __iter__(self) -> Iterator[TableDefinition]:
        return iter([*self._tables.values()])

    def table(self, name: Name) -> TableDefinition | None:
        return self._tables.get(key_of(name))

    def lacks(self, name: Name) -> bool:
        """Return whether a table is known not to be there: others of its database are known, or none at all are."""
        is_known = not self._tables or any(schema == name.schema.lower() for schema, _ in self._tables)
        return is_known and self.table(name) is None

    def makes(self, created: TableCreated) -> bool:
        """Return whether a CREATE TABLE makes a table; with IF NOT EXISTS it leaves one alone that is there."""
        return not created.is_if_absent or self.table(created.definition.name) is None

    def apply(self, change: Change, place: Place) -> None:
        """Make of the schema what a statement makes of it; what it says of unknown tables is left out."""
        match change:
            case TableCreated():
                if self.makes(change):
                    self._create(change, place)
            case TablesDropped() | DatabaseDropped():
                self._drop(change)
            case TablesRenamed(pairs):
                for old, new in pairs:
                    self._rename(old, new, place)
            case ProgramCreated(program):
                self.programs.append(program)
            case RowsChanged() | TemporaryTableCreated() | TemporaryTablesDropped():
                pass
            case _ if (table := self.table(change.table)) is not None:
                _alter(table, change, place)

    def _create(self, created: TableCreated, place: Place) -> None:
        definition = created.definition
        if created.like is not None and (model := self.table(created.like)) is not None:
            definition = TableDefinition(name=definition.name, place=place, columns=[*model.columns],
                                         indexes=[*model.indexes], options={**model.options})  # fmt: skip
        self._tables[key_of(definition.name)] = definition

    def _drop(self, dropped: TablesDropped | DatabaseDropped) -> None:
        if isinstance(dropped, TablesDropped):
            gone = {key_of(name) for name in dropped.names}
        else:
            gone = {key for key in self._tables if key[0] == dropped.schema.lower()}
        self._tables = {key: table for key, table in self._tables.items() if key not in gone}

    def _rename(self, old: Name, new: Name, place: Place) -> None:
        if (table := self._tables.pop(key_of(old), None)) is not None:
            table.name, table.name_place = new, place
            self._tables[key_of(new)] = table


def key_of(name: Name) -> tuple[str, str]:
    """A table's name where case does not tell names apart."""
    return name.schema.lower(), name.name.lower()


def _alter(table: TableDefinition, change: Change, place: Place) -> None:
    match change:
        case ColumnsAdded(_, columns):
            table.columns += columns
        case ColumnRedefined(_, old, column):
            table.columns = [column if each.name.lower() == old.lower() else each for each in table.columns]
            _rename_in_indexes(table, old, column.name)
        case ColumnDropped(_, name):
            _drop_column(table, name.lower())
        case ColumnRenamed(_, old, new):
            _change_column(table, old, name=new, place=place)
            _rename_in_indexes(table, old, new)
        case DefaultSet(_, name, default):
            _change_column(table, name, default=default, place=place)
        case _:
            _alter_constraint(table, change, place)


def _change_column(table: TableDefinition, of: str, /, **changed: Any) -> None:
    if (column := table.column(of)) is not None:
        table.columns[table.columns.index(column)] = replace(column, **changed)


def _alter_constraint(table: TableDefinition, change: Change, place: Place) -> None:
    match change:
        case ForeignKeyAdded(_, key):
            table.foreign_keys.append(key)
        case ConstraintDropped(_, name):
            table.foreign_keys = [key for key in table.foreign_keys if key.name.lower() != name.lower()]
        case OptionsSet(_, options):
            table.options |= options
            table.option_places |= dict.fromkeys(options, place)
        case _:
            _alter_index(table, change, place)


def _alter_index(table: TableDefinition, change: Change, place: Place) -> None:
    match change:
        case IndexAdded(_, index):
            table.indexes.append(index)
        case IndexDropped(_, name):
            table.indexes = [index for index in table.indexes if index.name.lower() != name.lower()]
            table.key_place = place if name.upper() == "PRIMARY" else table.key_place
        case IndexRenamed(_, old, new):
            table.indexes = [
                replace(index, name=new, place=place) if index.name.lower() == old.lower() else index
                for index in table.indexes
            ]


def _drop_column(table: TableDefinition, name: str) -> None:
    """Drop a column, which goes out of its indexes, too; one that has no other column goes with it."""
    table.columns = [column for column in table.columns if column.name.lower() != name]
    shorter = (
        replace(index, parts=tuple(part for part in index.parts if part.column != name)) for index in table.indexes
    )
    table.indexes = [index for index in shorter if index.parts]


def _rename_in_indexes(table: TableDefinition, old: str, new: str) -> None:
    if old.lower() == new.lower():
        return
    table.indexes = [
        replace(index, parts=tuple(replace(part, column=new.lower()) if part.column == old.lower() else part
                                   for part in index.parts))
        for index in table.indexes
    ]  # fmt: skip
