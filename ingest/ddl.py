"""Reads with sqlglot what a statement of MySQL's data definition language does to tables.

`read` gives effects on named tables, or raises Unread: nothing is guessed here, and what to make of either is the
caller's business. sqlglot's tokenizer takes the text apart; each specification of an ALTER TABLE is given to its parser
by itself, so that one that it cannot read hides none beside it. What its grammar of MySQL lacks (partitions, RENAME
TABLE, tablespaces) is read from its tokens. Importing this module costs 17 MiB: do it when there is a statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

from ingest.sql_words import DIALECT, Words
from ingest.sql_words import Name as Name  # what effects and errors are made of
from ingest.sql_words import Naming as Naming
from ingest.sql_words import Unread as Unread
from ingest.sql_words import as_written as as_written
from ingest.sql_words import folding as folding


@dataclass(frozen=True, slots=True)
class Truncated:
    """All rows are gone."""

    table: Name


@dataclass(frozen=True, slots=True)
class Dropped:
    """The table is gone; `is_replaced`: another one has its name (CREATE OR REPLACE TABLE of MariaDB)."""

    table: Name
    is_replaced: bool = False


@dataclass(frozen=True, slots=True)
class DatabaseDropped:
    """The database is gone, with every table of it."""

    schema: str


@dataclass(frozen=True, slots=True)
class Renamed:
    """Tables got other names, one pair after the other."""

    pairs: tuple[tuple[Name, Name], ...]


@dataclass(frozen=True, slots=True)
class Created:
    """A table is new: like another one, or with columns of its own, where the statement says so."""

    table: Name
    like: Name | None = None
    columns: tuple[tuple[str, ColumnType], ...] = ()
    key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()  # keys beside the primary one
    computed: frozenset[str] = frozenset()  # columns, as the statement writes them


@dataclass(frozen=True, slots=True)
class ColumnAdded:
    """A column is new."""

    name: str


@dataclass(frozen=True, slots=True)
class ColumnDropped:
    """A column is gone."""

    name: str


@dataclass(frozen=True, slots=True)
class ColumnRenamed:
    """A column has another name."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class ColumnDefined:
    """A column gets another definition (MODIFY, CHANGE)."""

    old: str
    new: str
    type: ColumnType
    is_computed: bool
    may_be_null: bool


@dataclass(frozen=True, slots=True)
class PrimaryKeyDropped:
    """The primary key is gone."""


@dataclass(frozen=True, slots=True)
class PrimaryKeyAdded:
    """The primary key is of these columns now."""

    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IndexGone:
    """An index, unique or not, was dropped, or has another name now."""

    name: str
    new_name: str = ""  # '': it was dropped


@dataclass(frozen=True, slots=True)
class PartitionsEmptied:
    """The rows of some partitions are gone (DROP PARTITION, TRUNCATE PARTITION)."""

    verb: str


@dataclass(frozen=True, slots=True)
class PartitionExchanged:
    """The rows of a partition and those of another table changed places."""

    other: Name


@dataclass(frozen=True, slots=True)
class Converted:
    """Every text has another character set (CONVERT TO)."""


@dataclass(frozen=True, slots=True)
class RowsMoved:
    """The table may have other rows now, or other rows may be current."""

    how: str  # for the halt's reason


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type as sqlglot names it: one word, signs included, and what is in its parentheses."""

    word: str
    arguments: tuple[str, ...]
    is_unsigned: bool


UNKNOWN_TYPE = ColumnType("", (), False)

Change: TypeAlias = (
    ColumnAdded | ColumnDropped | ColumnRenamed | ColumnDefined | PrimaryKeyDropped | PrimaryKeyAdded | IndexGone
    | PartitionsEmptied | PartitionExchanged | Converted | RowsMoved
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Altered:
    """A table was altered: what bears on its rows and columns, in order. A new name is a `Renamed` of its own."""

    table: Name
    changes: tuple[Change, ...]
    algorithms: frozenset[str]  # as asked for, in capitals


Effect: TypeAlias = Truncated | Dropped | DatabaseDropped | Renamed | Created | Altered


# What CREATE, ALTER and DROP may be about besides tables, and how many words behind the verb it comes at most.
_OBJECTS = frozenset({"DATABASE", "EVENT", "FUNCTION", "INDEX", "INSTANCE", "LIBRARY", "LOGFILE", "PROCEDURE", "ROLE",
                      "SCHEMA", "SERVER", "TABLESPACE", "TRIGGER", "UNDO", "USER", "VIEW"})  # fmt: skip
_MODIFIERS = 16
_PARTITION_VERBS = frozenset({"ANALYZE", "CHECK", "COALESCE", "OPTIMIZE", "REBUILD", "REORGANIZE", "REPAIR"})


def read(statement: str, database: str, naming: Naming = as_written) -> list[Effect]:
    """Read what a CREATE, ALTER, DROP, RENAME or TRUNCATE of a table or database does, in order.

    Args:
        statement: without comments, what /*!...*/ held left in; identifiers in backticks only.
        database: the session's.
        naming: what the server calls a table that a statement names.

    Raises Unread for a statement of another kind, too.
    """
    readers = {"TRUNCATE": _truncated, "DROP": _dropped, "RENAME": _renamed, "CREATE": _created, "ALTER": _altered}
    try:
        words = Words.of(statement, database, naming)
        verb = words.take()
        if verb not in readers:
            raise Unread(f"a {verb} statement")
        return readers[verb](words)
    except (SqlglotError, LookupError, AttributeError, TypeError, ValueError, RecursionError):
        raise Unread("this form of the statement") from None  # of a library's tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlines:
    """Parts of a statement, each as its words in capitals; '?' stands for what is quoted, '()' for parentheses."""

    specifications: tuple[str, ...] = ()  # of an ALTER TABLE
    listed: tuple[str, ...] = ()  # columns and keys in parentheses, of a CREATE TABLE or an ADD
    rest: str | None = None  # of a CREATE TABLE: all behind its name
    index: str | None = None  # a CREATE INDEX as a whole


def outlines(statement: str) -> Outlines:
    """Outline an ALTER TABLE, CREATE TABLE or CREATE INDEX; other statements have no outlines."""
    words = Words.of(statement, "")
    whole = words.outline()
    verb = words.take()
    for qualifier in (("OR", "REPLACE"), ("TEMPORARY",), ("ONLINE",), ("IGNORE",)):
        words.skip(*qualifier)
    if verb == "CREATE" and "INDEX" in words.words()[:2]:
        return Outlines(index=whole)
    if verb not in ("ALTER", "CREATE") or not words.skip("TABLE"):
        return Outlines()
    if verb == "CREATE":
        words.skip("IF", "NOT", "EXISTS")
        words.name()
        words.skip_wait()
        return Outlines(listed=_listed(words), rest=words.outline())
    words.skip("IF", "EXISTS")
    words.name()
    words.skip_wait()
    return _of_specifications(list(words.specifications()))


def _of_specifications(parts: Sequence[Words]) -> Outlines:
    """Outline the specifications of an ALTER TABLE."""
    added = [definition for part in parts if part.peek() == "ADD" for definition in _listed(_behind_add(part))]
    return Outlines(specifications=tuple(filter(None, (part.outline() for part in parts))), listed=tuple(added))


def _behind_add(words: Words) -> Words:
    rest = words.behind()
    rest.skip("COLUMN")
    rest.skip("IF", "NOT", "EXISTS")
    return rest


def _listed(words: Words) -> tuple[str, ...]:
    """The parts in the parentheses that come next, if some do; they are not stepped over."""
    if words.peek() != "(":
        return ()
    return tuple(filter(None, (part.outline() for part in words.behind().inside().specifications())))


def column_type(declared: str) -> ColumnType:
    """Read a column's type as information_schema declares it."""
    try:
        type_ = exp.DataType.build(declared, dialect=DIALECT)
    except SqlglotError:
        return UNKNOWN_TYPE
    return _type(type_, declared.upper().split())


# -- whole tables ---------------------------------------------------------------------------------------------------


def _truncated(words: Words) -> list[Effect]:
    words.skip("TABLE")
    return [Truncated(words.last_name())]


def _dropped(words: Words) -> list[Effect]:
    if words.skip("TEMPORARY"):
        return []
    kind = words.peek()
    if kind not in ("DATABASE", "SCHEMA", "INDEX", "KEY", "TABLE", "TABLES"):
        return _others(words, "DROP")
    words.take()
    words.skip("IF", "EXISTS")
    if kind in ("DATABASE", "SCHEMA"):
        return [DatabaseDropped(words.identifier())]
    if kind in ("INDEX", "KEY"):
        index = words.identifier()
        if not words.skip("ON"):
            raise Unread("a DROP INDEX without ON")
        return [Altered(words.name(), (_index_dropped(index),), frozenset())]
    tables: list[Effect] = [Dropped(words.name())]
    while words.skip(","):
        tables.append(Dropped(words.name()))
    words.check_done()
    return tables


def _renamed(words: Words) -> list[Effect]:
    if not (words.skip("TABLE") or words.skip("TABLES")):
        raise Unread(f"RENAME {words.peek()}")
    words.skip("IF", "EXISTS")
    pairs: list[tuple[Name, Name]] = []
    while not pairs or words.skip(","):
        old = words.name()
        words.skip_wait()
        if not words.skip("TO"):
            raise Unread("a RENAME without TO")
        pairs.append((old, words.name()))
    words.check_done()
    return [Renamed(tuple(pairs))]


def _replaced(words: Words) -> list[Effect]:
    """Read what stands behind CREATE OR REPLACE."""
    if words.skip("TEMPORARY"):
        return []
    if "INDEX" in words.words()[:2]:
        return [_index_replaced(words)]
    if words.peek() in ("DATABASE", "SCHEMA"):
        words.take()
        return [DatabaseDropped(words.identifier())]
    if not words.skip("TABLE"):
        return _others(words, "CREATE")
    words.skip("IF", "NOT", "EXISTS")
    return [Dropped(words.name(), is_replaced=True)]


def _created(words: Words) -> list[Effect]:
    if words.skip("OR", "REPLACE"):
        return _replaced(words)
    if words.skip("TEMPORARY"):
        return []
    if not words.skip("TABLE"):
        return _others(words, "CREATE")
    words.skip("IF", "NOT", "EXISTS")
    table = words.name()
    has_parenthesis = words.skip("(")
    if words.skip("LIKE"):
        return [Created(table, like=words.name())]
    has_parenthesis = has_parenthesis and words.peek() not in ("(", "SELECT", "WITH", "TABLE", "VALUES")  # of a query
    return [_with_columns(table, words.inside()) if has_parenthesis else Created(table)]


def _index_replaced(words: Words) -> Altered:
    """CREATE OR REPLACE [UNIQUE] INDEX name ... ON table, of MariaDB: one of that name is dropped before."""
    while not words.skip("INDEX"):
        words.take()
    index = words.identifier()
    while not words.skip("ON"):
        if words.is_done():
            raise Unread("a CREATE INDEX without ON")
        words.take()
    return Altered(words.name(), (_index_dropped(index),), frozenset())


def _with_columns(table: Name, words: Words) -> Created:
    columns: list[tuple[str, ColumnType]] = []
    key: tuple[str, ...] = ()
    unique: list[tuple[str, ...]] = []
    computed: set[str] = set()
    for part in words.specifications():
        is_primary, is_unique = _has_primary_key(part), "UNIQUE" in part.words()
        if part.peek() in _KEY_WORDS:
            named = _key_columns(part)
        else:
            definition = part.text()
            name = part.identifier()
            columns.append((name, _defined_type(f"ADD COLUMN {definition}", part.words())))
            named = (name,)
            is_primary = is_primary or _is_key(part.words())
            if _is_computed(part.words()):
                computed.add(name)
        if is_primary:
            key = named
        if is_unique:
            unique.append(named)
    return Created(table, None, tuple(columns), key, tuple(unique), frozenset(computed))


def _is_key(attributes: Sequence[str]) -> bool:
    """Say whether a column is the key: KEY alone is PRIMARY KEY (MySQL manual, "CREATE TABLE Statement")."""
    return any(word == "KEY" and before != "UNIQUE" for before, word in pairwise(attributes))


def _is_computed(definition: Sequence[str]) -> bool:
    return bool({"AS", "GENERATED"} & set(definition))


def _defined_type(specification: str, words: Sequence[str]) -> ColumnType:
    """The type in an ADD COLUMN, MODIFY or CHANGE. One that sqlglot does not know is found equal to no other."""
    try:
        action = next(iter(_parsed(specification).args.get("actions") or []), None)
    except Unread:
        return UNKNOWN_TYPE
    column = action.this if isinstance(action, exp.ModifyColumn) else action
    kind = column.args.get("kind") if isinstance(column, exp.ColumnDef) else None
    return _type(kind, words) if isinstance(kind, exp.DataType) else UNKNOWN_TYPE


def _others(words: Words, verb: str) -> list[Effect]:
    """Nothing, for objects that hold no rows; options like DEFINER come between the verb and the kind."""
    if _OBJECTS & set(words.words()[:_MODIFIERS]):
        return []
    raise Unread(f"{verb} {words.peek()}")


# -- ALTER TABLE ----------------------------------------------------------------------------------------------------


def _altered(words: Words) -> list[Effect]:
    words.skip("ONLINE")
    is_ignoring = words.skip("IGNORE")
    if not words.skip("TABLE"):
        return _others(words, "ALTER")
    words.skip("IF", "EXISTS")
    table = words.name()
    words.skip_wait()
    # Rows that a new key does not allow go.
    changes: list[Change] = [RowsMoved("ALTER IGNORE TABLE dropped rows that a new key does not allow")] * is_ignoring
    algorithms: set[str] = set()
    new_names: list[Name] = []
    list_of = ""
    if not words.is_done():
        for specification in words.specifications():
            if goes_on(list_of, specification.words()):
                continue
            list_of = list_in(specification.words())
            if specification.skip("ALGORITHM"):
                specification.skip("=")
                algorithms.add(specification.take())
            elif (name := _new_name(specification)) is not None:
                new_names.append(name)
            else:
                changes += _specified(specification)
    effects: list[Effect] = [Altered(table, tuple(changes), frozenset(algorithms))]
    if new_names:
        effects.append(Renamed(((table, new_names[-1]),)))
    return effects


def list_in(words: Sequence[str]) -> str:
    """Tell which list, parted by commas, a specification's first words begin: 'PARTITION', 'ORDER BY', or ''."""
    if list(words[1:2]) == ["PARTITION"]:
        return "PARTITION"
    return "ORDER BY" if " ".join(words[:2]).startswith("ORDER BY") else ""


def goes_on(list_of: str, words: Sequence[str]) -> bool:
    """Return whether these are one more of such a list: a partition, the last one that is reorganized, or a column."""
    if list_of == "PARTITION":
        return list(words[1:2]) in ([], ["INTO"], ["TABLESPACE"])
    return bool(list_of) and (len(words) == 1 or list(words[1:]) in (["ASC"], ["DESC"]))


def _new_name(words: Words) -> Name | None:
    if words.peek() != "RENAME" or {"COLUMN", "INDEX", "KEY"} & set(words.words()[1:2]):
        return None
    words.take()
    if not (words.skip("TO") or words.skip("AS")):
        words.skip("=")
    return words.last_name()


def _specified(words: Words) -> Sequence[Change]:
    """Read what one specification of an ALTER TABLE does."""
    all_words = words.words()
    verb, following = (*all_words[:2], "", "")[:2]
    if ("SYSTEM", "VERSIONING") in pairwise(all_words):
        return [RowsMoved("SYSTEM VERSIONING changed which rows it has")]
    if verb == "ADD" and following in _KEY_WORDS:
        return [PrimaryKeyAdded(_key_columns(words))] if _has_primary_key(words) else []
    known = _BY_WORDS.get((verb, following), _BY_WORDS.get((verb, None)))
    if known is not None:
        return known
    return _READERS.get(verb, _options)(words)


_TABLESPACE = [RowsMoved("DISCARD or IMPORT TABLESPACE removed or brought rows")]
_BY_WORDS: Mapping[tuple[str, str | None], Sequence[Change]] = {
    ("CONVERT", "PARTITION"): [RowsMoved("CONVERT PARTITION changed which rows it has")],
    ("CONVERT", "TABLE"): [RowsMoved("CONVERT TABLE changed which rows it has")],
    ("CONVERT", "TO"): [Converted()],
    # Every row stays: the server refuses a division that has no place for one.
    **{(verb, "PARTITION"): [] for verb in ("ADD", *_PARTITION_VERBS)},
    **{(verb, "PARTITION"): [PartitionsEmptied(f"{verb} PARTITION")] for verb in ("DROP", "TRUNCATE")},
    **{(verb, of): _TABLESPACE for verb in ("DISCARD", "IMPORT") for of in ("PARTITION", "TABLESPACE")},
    **{pair: [] for pair in (("REMOVE", "PARTITIONING"), ("ENABLE", "KEYS"), ("DISABLE", "KEYS"))},
    # With any word behind:
    **{(verb, None): [] for verb in ("LOCK", "WITH", "WITHOUT", "FORCE", "PARTITION BY")},
}


def _exchanged(words: Words) -> list[Change]:
    words.skip("EXCHANGE", "PARTITION")
    words.identifier()
    if not words.skip("WITH", "TABLE"):
        raise Unread("an EXCHANGE PARTITION without WITH TABLE")
    return [PartitionExchanged(words.name())]


def _part_dropped(words: Words) -> list[Change]:
    words.take()
    if _has_primary_key(words):
        return [PrimaryKeyDropped()]
    kind = words.take() if words.peek() in (*_KEY_WORDS, "COLUMN") else "COLUMN"
    words.skip("IF", "EXISTS")
    name = words.identifier()
    words.check_done()
    if kind == "COLUMN":
        return [ColumnDropped(name)]
    return [] if kind in ("FOREIGN KEY", "CHECK") else [_index_dropped(name)]


def _index_dropped(name: str) -> Change:
    return PrimaryKeyDropped() if name.upper() == "PRIMARY" else IndexGone(name)


def _part_altered(words: Words) -> list[Change]:
    """A column's default, whether a column or an index is visible, whether a constraint or an index counts."""
    all_words = words.words()
    if "DEFAULT" in all_words or not {"VISIBLE", "INVISIBLE", "ENFORCED", "IGNORED"}.isdisjoint(all_words):
        return []
    raise Unread(_begin(words.text()))


def _part_renamed(words: Words) -> list[Change]:
    words.take()
    kind = words.take()
    words.skip("IF", "EXISTS")
    old = words.identifier()
    if not words.skip("TO"):
        raise Unread(f"RENAME {kind}: {words.peek() or 'the end'} where TO should be")
    new = words.last_name().name
    return [ColumnRenamed(old, new) if kind == "COLUMN" else IndexGone(old, new)]


_KEY_WORDS = frozenset({"INDEX", "KEY", "PRIMARY", "PRIMARY KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "CONSTRAINT",
                        "FOREIGN", "FOREIGN KEY", "CHECK"})  # fmt: skip


def _has_primary_key(words: Words) -> bool:
    return "PRIMARY KEY" in " ".join(words.words())


def _key_columns(words: Words) -> tuple[str, ...]:
    """The names in the first parentheses, without their lengths and directions; '' for an expression."""
    while words.take() != "(":
        if words.is_done():
            return ()
    parts = words.inside().specifications()
    return tuple("" if part.peek() == "(" else part.identifier() for part in parts)


def _added(words: Words) -> list[Change]:
    """Added columns, whatever their definitions hold: no value that is there changes by one. A key may come with it."""
    words.take()
    words.skip("COLUMN")
    words.skip("IF", "NOT", "EXISTS")
    changes: list[Change] = []
    for part in words.inside().specifications() if words.skip("(") else [words]:
        if part.peek() in _KEY_WORDS:
            if _has_primary_key(part):
                changes.append(PrimaryKeyAdded(_key_columns(part)))
            continue
        name = part.identifier()
        changes.append(ColumnAdded(name))
        if _has_primary_key(part):
            changes.append(PrimaryKeyAdded((name,)))
    return changes


def _options(words: Words) -> list[Change]:
    """Options of the table; all that sqlglot reads take no row away, but for one engine."""
    alter = _parsed(words.text())
    if alter.args.get("actions"):
        raise Unread(_begin(words.text()))
    engines = [
        option.name.upper() for option in alter.args.get("options") or [] if isinstance(option, exp.EngineProperty)
    ]
    return [RowsMoved("its engine is BLACKHOLE now, which keeps no rows")] if "BLACKHOLE" in engines else []


def _parsed(specification: str) -> exp.Alter:
    try:
        statements = DIALECT.parse(f"ALTER TABLE t {specification}", error_level=ErrorLevel.RAISE)
    except SqlglotError:
        raise Unread(_begin(specification)) from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Alter):
        raise Unread(_begin(specification))
    return statements[0]


def _begin(specification: str) -> str:
    return " ".join(specification.split()[:2]).upper()


def _defined(words: Words) -> list[Change]:
    """MODIFY and CHANGE."""
    specification, definition = words.text(), words.words()
    verb = words.take()
    words.skip("COLUMN")
    words.skip("IF", "EXISTS")
    old = new = words.identifier()
    if verb == "CHANGE":
        new = words.identifier()
    type_, may_be_null = _defined_type(specification, definition), ("NOT", "NULL") not in pairwise(definition)
    return [ColumnDefined(old, new, type_, _is_computed(definition), may_be_null)]


_READERS: Mapping[str, Callable[[Words], list[Change]]] = {
    "ADD": _added, "DROP": _part_dropped, "RENAME": _part_renamed, "MODIFY": _defined, "CHANGE": _defined,
    "EXCHANGE": _exchanged, "ALTER": _part_altered,
}  # fmt: skip


def _type(type_: exp.DataType, words: Sequence[str]) -> ColumnType:
    name = type_.this.name if isinstance(type_.this, exp.DType) else str(type_.this)
    arguments = tuple(part.name for part in type_.expressions)
    return ColumnType(name, arguments, "UNSIGNED" in words or "ZEROFILL" in words)
