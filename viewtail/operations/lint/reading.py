"""Reads what a statement says of tables: their columns, indexes and options, as MySQL and MariaDB define them.

sqlglot's tokenizer takes the text apart (ingest/sql_words.py). Whether a statement has a form of the servers is judged
before (viewtail/operations/sql_forms.py); a form that cannot be read here all the same raises Unread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from sqlglot.errors import SqlglotError

from ingest.ddl import goes_on, list_in
from ingest.sql_words import Name, Unread, Words
from viewtail.operations.lint.schema import (
    Change,
    ColumnDefinition,
    ColumnDropped,
    ColumnRedefined,
    ColumnRenamed,
    ColumnsAdded,
    ConstraintDropped,
    DatabaseDropped,
    Default,
    DefaultSet,
    ForeignKeyAdded,
    ForeignKeyDefinition,
    IndexAdded,
    IndexDefinition,
    IndexDropped,
    IndexRenamed,
    OptionsSet,
    Part,
    Place,
    Program,
    ProgramCreated,
    RowsChanged,
    TableCreated,
    TableDefinition,
    TablesDropped,
    TablesRenamed,
    TableTouched,
    TemporaryTableCreated,
    TemporaryTablesDropped,
    Type,
)

_READ = ("CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE", "UPDATE", "DELETE", "WITH")
_PROGRAMS = ("TRIGGER", "PROCEDURE", "FUNCTION", "EVENT")
_OTHERS = ("TABLE", "VIEW", "USER", "ROLE", "DATABASE", "SCHEMA", "SERVER", "SEQUENCE", "TABLESPACE")
_INDEX_KINDS = ("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR")
_KEY_WORDS = frozenset({"INDEX", "KEY", "PRIMARY KEY", "FOREIGN KEY", "CONSTRAINT", "CHECK", *_INDEX_KINDS[:3]})
# Words that may be names, too, and what comes behind them where they are none.
_WITH_NEXT = {"VECTOR": ("INDEX", "KEY"), "PERIOD": ("FOR",), "SYSTEM": ("VERSIONING",), "PARTITION": None}
_LONGER_TYPES = ("NATIONAL", "NCHAR", "LONG", "CHAR", "CHARACTER")  # CHAR VARYING, LONG VARBINARY
_TYPE_GOES_ON = ("VARYING", "VARCHAR", "VARBINARY", "VARCHARACTER", "CHAR", "CHARACTER")
_MODIFIERS = 16  # words at most between CREATE and TRIGGER: DEFINER = ...
_OPTIONS = {"ENGINE": "ENGINE", "COMMENT": "COMMENT", "CHARSET": "CHARSET", "CHARACTER SET": "CHARSET"}

Placed = Callable[[int], Place]  # of a line of the statement, from 1


def read(text: str, database: str, placed: Placed) -> list[Change]:
    """Read what a statement does, in order; nothing of a kind that no rule is about.

    Args:
        text: as Session.text_of gives it.
        database: the session's.

    Raises Unread.
    """
    verb = text.lstrip("( \n\t")[:8].upper()
    if not verb.startswith(_READ):
        return []
    try:
        words = Words.of(text, database)
        while words.skip("("):
            pass
        return [*_Reader(words, placed).read(words.take())]
    except (SqlglotError, LookupError, AttributeError, TypeError, ValueError, RecursionError):
        raise Unread("this form of the statement") from None  # of a library's tokens


@dataclass(slots=True)
class _Reader:
    words: Words
    placed: Placed

    def read(self, verb: str) -> Iterator[Change]:
        words = self.words
        match verb:
            case "CREATE":
                yield from self._created()
            case "ALTER":
                for qualifier in ("ONLINE", "IGNORE"):
                    words.skip(qualifier)
                if words.skip("TABLE"):
                    yield from self._altered()
            case "DROP":
                yield from self._dropped()
            case "RENAME":
                if words.skip("TABLE") or words.skip("TABLES"):
                    words.skip("IF", "EXISTS")
                    yield TablesRenamed(tuple(self._renamed(words)))
            case "TRUNCATE":
                words.skip("TABLE")
                yield TableTouched(words.name())
            case _:
                yield from _rows_changed(verb, words)

    def _created(self) -> Iterator[Change]:
        words = self.words
        words.skip("OR", "REPLACE")
        if words.skip("TABLE"):
            is_if_absent = words.skip("IF", "NOT", "EXISTS")
            yield replace(self._table(), is_if_absent=is_if_absent)
            return
        if words.skip("TEMPORARY", "TABLE"):
            words.skip("IF", "NOT", "EXISTS")
            yield TemporaryTableCreated(words.name())
            return
        ahead = words.words()[:_MODIFIERS]
        if "INDEX" in ahead[:3]:
            yield self._index()
            return
        at = _created_kind(ahead)
        if (kind := ahead[at] if ahead else "") in _PROGRAMS:
            for _ in range(at + 1):
                words.take()
            words.skip("IF", "NOT", "EXISTS")
            yield ProgramCreated(Program(kind=kind.lower(), name=words.name(), place=self.placed(1)))

    def _table(self) -> TableCreated:
        words = self.words
        table = TableDefinition(name=words.name(), place=self.placed(words.line))
        words.skip_wait()
        if words.peek() == "(":
            inner = words.enclosed()
            if inner.skip("LIKE"):
                return TableCreated(table, like=inner.name())
            if inner.peek() not in ("(", "SELECT", "WITH", "TABLE", "VALUES"):  # a query has no columns here
                _Columns(table, self.placed).read(inner)
        elif words.skip("LIKE"):
            return TableCreated(table, like=words.name())
        table.options = _options(words)
        return TableCreated(table)

    def _index(self) -> IndexAdded:
        words = self.words
        kind = words.take() if words.peek() in _INDEX_KINDS else ""
        place = self.placed(1)
        while not words.skip("INDEX"):
            words.take()
        words.skip("IF", "NOT", "EXISTS")
        name = words.identifier()
        while not words.skip("ON"):
            words.take()
        table = words.name()
        index = IndexDefinition(name=name, kind=kind, parts=_parts(words.enclosed()), place=place)
        return IndexAdded(table, index, is_own_statement=True)

    def _dropped(self) -> Iterator[Change]:
        words = self.words
        is_temporary = words.skip("TEMPORARY")
        kind = words.take()
        is_if_there = words.skip("IF", "EXISTS")
        if kind in ("TABLE", "TABLES"):
            names = tuple(_names(words))
            yield TemporaryTablesDropped(names) if is_temporary else TablesDropped(names, is_if_there=is_if_there)
        elif kind in ("DATABASE", "SCHEMA"):
            yield DatabaseDropped(words.identifier())
        elif kind in ("INDEX", "KEY"):
            index = words.identifier()
            words.skip("ON")
            yield IndexDropped(words.name(), index, is_own_statement=True)

    def _renamed(self, words: Words) -> Iterator[tuple[Name, Name]]:
        is_first = True
        while is_first or words.skip(","):
            is_first, old = False, words.name()
            words.skip_wait()
            words.skip("TO")
            yield old, words.name()

    def _altered(self) -> Iterator[Change]:
        words = self.words
        words.skip("IF", "EXISTS")
        table = words.name()
        words.skip_wait()
        list_of, changes = "", list[Change]()
        for specification in words.specifications():
            if specification.is_done() or goes_on(list_of, specification.words()):
                continue
            list_of = list_in(specification.words())
            changes += _Specification(table, specification, self.placed).read()
        # A new name is the last that it gets: all other parts are about the old one.
        yield from sorted(changes, key=lambda change: isinstance(change, TablesRenamed))
        if not changes:
            yield TableTouched(table)


@dataclass(slots=True)
class _Specification:
    """One part of an ALTER TABLE."""

    table: Name
    words: Words
    placed: Placed

    def read(self) -> Iterator[Change]:
        readers: Mapping[str, Callable[[], Iterator[Change]]] = {
            "ADD": self._added, "DROP": self._dropped, "MODIFY": self._modified, "CHANGE": self._modified,
            "RENAME": self._renamed, "ALTER": self._set,
        }  # fmt: skip
        if (reader := readers.get(self.words.peek())) is not None:
            return reader()
        return self._with_options()

    def _with_options(self) -> Iterator[Change]:
        if options := _options(self.words):
            yield OptionsSet(self.table, options)

    def _added(self) -> Iterator[Change]:
        words = self.words
        words.take()
        if _begins(words, "PARTITION", "SYSTEM"):
            return
        words.skip("COLUMN")
        words.skip("IF", "NOT", "EXISTS")
        made = TableDefinition(name=self.table, place=self.placed(words.line))
        columns = _Columns(made, self.placed)
        if words.peek() == "(":
            columns.read(words.enclosed())
        else:
            columns.read_one(words)
        if made.columns:
            yield ColumnsAdded(self.table, tuple(made.columns))
        for index in made.indexes:
            yield IndexAdded(self.table, index)
        for key in made.foreign_keys:
            yield ForeignKeyAdded(self.table, key)

    def _modified(self) -> Iterator[Change]:
        words = self.words
        verb = words.take()
        words.skip("COLUMN")
        words.skip("IF", "EXISTS")
        made = TableDefinition(name=self.table, place=self.placed(words.line))
        old = words.identifier() if verb == "CHANGE" else ""
        _Columns(made, self.placed).read_one(words, is_column=True)
        (column,) = made.columns
        yield ColumnRedefined(self.table, old or column.name, column)
        for index in made.indexes:
            yield IndexAdded(self.table, index)

    def _dropped(self) -> Iterator[Change]:
        words = self.words
        words.take()
        kind = words.peek()
        if _begins(words, "PARTITION", "SYSTEM", "PERIOD"):
            return
        if words.skip("PRIMARY KEY"):
            yield IndexDropped(self.table, "PRIMARY")
            return
        if kind in ("COLUMN", "INDEX", "KEY", "FOREIGN KEY", "CONSTRAINT", "CHECK"):
            words.take()
        words.skip("IF", "EXISTS")
        name = words.identifier()
        if kind in ("INDEX", "KEY"):
            yield IndexDropped(self.table, name)
        elif kind in ("FOREIGN KEY", "CONSTRAINT", "CHECK"):
            yield ConstraintDropped(self.table, name)
        else:
            yield ColumnDropped(self.table, name)

    def _renamed(self) -> Iterator[Change]:
        words = self.words
        words.take()
        ahead = words.words()[1:2]
        kind = words.take() if words.peek() in ("COLUMN", "INDEX", "KEY") and ahead != [] else ""
        if not kind:
            for word in ("TO", "AS", "="):
                words.skip(word)
            yield TablesRenamed(((self.table, words.name()),))
            return
        words.skip("IF", "EXISTS")
        old = words.identifier()
        words.skip("TO")
        new = words.identifier()
        yield ColumnRenamed(self.table, old, new) if kind == "COLUMN" else IndexRenamed(self.table, old, new)

    def _set(self) -> Iterator[Change]:
        """ALTER COLUMN ... SET DEFAULT, DROP DEFAULT; what is about indexes and constraints is left out."""
        words = self.words
        words.take()
        if "DEFAULT" not in words.words():
            return
        words.skip("COLUMN")
        words.skip("IF", "EXISTS")
        name = words.identifier()
        is_set = words.take() == "SET"
        words.skip("DEFAULT")
        yield DefaultSet(self.table, name, _default(words) if is_set else None)


@dataclass(slots=True)
class _Columns:
    """Reads columns and keys into a table."""

    table: TableDefinition
    placed: Placed

    def read(self, words: Words) -> None:
        for part in words.specifications():
            if not part.is_done():
                self.read_one(part)

    def read_one(self, words: Words, *, is_column: bool = False) -> None:
        if not is_column and (words.peek() in _KEY_WORDS or _begins(words, "VECTOR", "PERIOD")):
            self._key(words)
        else:
            self._column(words)

    def _column(self, words: Words) -> None:
        place = self.placed(words.line)
        name = words.identifier()
        type_ = _type(words)
        column = ColumnDefinition(name=name, type=type_, place=place, is_json=type_.word == "JSON")
        attributes = _Attributes(words, column)
        attributes.read()
        self.table.columns.append(attributes.column)
        for kind in attributes.keys:
            index = "PRIMARY" if kind == "PRIMARY" else ""
            self.table.indexes.append(IndexDefinition(name=index, kind=kind, parts=(Part(name.lower()),), place=place))
        if attributes.actions is not None:
            self.table.foreign_keys.append(
                ForeignKeyDefinition(name="", columns=(name.lower(),), place=place, **attributes.actions)
            )

    def _key(self, words: Words) -> None:
        place = self.placed(words.line)
        constraint = _constraint(words)
        kind = words.take()
        if kind in ("CHECK", "PERIOD"):
            return
        if kind in _INDEX_KINDS and not words.skip("INDEX"):
            words.skip("KEY")
        name = _key_name(words)
        parts = _parts(words.enclosed())
        if kind == "FOREIGN KEY":
            columns = tuple(part.column for part in parts)
            actions = _actions(words.words())
            key = ForeignKeyDefinition(name=constraint or name, columns=columns, place=place, **actions)
            self.table.foreign_keys.append(key)
        else:
            kind = {"PRIMARY KEY": "PRIMARY", "INDEX": "", "KEY": ""}.get(kind, kind)
            name = "PRIMARY" if kind == "PRIMARY" else name or constraint
            self.table.indexes.append(IndexDefinition(name=name, kind=kind, parts=parts, place=place))


def _names(words: Words) -> Iterator[Name]:
    yield words.name()
    while words.skip(","):
        yield words.name()


def _created_kind(words: Sequence[str]) -> int:
    """Where a CREATE says what it makes; behind = and @ there are values (DEFINER = event@localhost)."""
    for at, (before, word) in enumerate(pairwise(("", *words))):
        if word in (*_PROGRAMS, *_OTHERS) and before not in ("=", "@"):
            return at
    return 0


def _begins(words: Words, *of: str) -> bool:
    """Return whether one of these words comes next, and is no name."""
    word, following = (*words.words()[:2], "", "")[:2]
    return word in of and (_WITH_NEXT[word] is None or following in (_WITH_NEXT[word] or ()))


def _key_name(words: Words) -> str:
    """The name of a key, up to the parenthesis with its columns; '' where it has none."""
    words.skip("IF", "NOT", "EXISTS")
    name = "" if words.peek() in ("(", "USING", "TYPE") else words.identifier()
    while words.peek() != "(" and not words.is_done():
        words.take()
    return name


def _constraint(words: Words) -> str:
    """The name behind CONSTRAINT; '' where there is none."""
    if not words.skip("CONSTRAINT"):
        return ""
    words.skip("IF", "NOT", "EXISTS")
    return "" if words.peek() in _KEY_WORDS else words.identifier()


@dataclass(slots=True)
class _Attributes:
    """Reads what comes behind a column's type."""

    words: Words
    column: ColumnDefinition
    keys: list[str] = field(default_factory=list)
    actions: dict[str, str] | None = None  # of a REFERENCES

    def read(self) -> None:
        while not self.words.is_done():
            if self.words.peek() == "(":
                is_json = self.words.enclosed().peek() == "JSON_VALID"
                self._set(is_json=is_json or self.column.is_json)
            elif not self.words.peek():
                self.words.value()
            else:
                self._one(self.words.take())
        if "PRIMARY" in self.keys:
            self._set(is_nullable=False)

    def _set(self, **changed: object) -> None:
        self.column = replace(self.column, **changed)  # type: ignore[arg-type]  # each is a field of it

    def _one(self, word: str) -> None:
        words = self.words
        match word:
            case "NOT":
                if words.skip("NULL"):
                    self._set(is_nullable=False)
            case "DEFAULT":
                self._set(default=_default(words))
            case "COMMENT":
                words.skip("=")
                self._set(comment=words.value())
            case "AUTO_INCREMENT":
                self._set(is_auto_increment=True)
            case "UNSIGNED" | "ZEROFILL":
                self._set(type=replace(self.column.type, is_unsigned=True))
            case "AS" | "GENERATED":
                self._set(is_generated=True)
            case "REFERENCES":
                self.actions = _actions(words.words())
            case _:
                self._key_or_charset(word)

    def _key_or_charset(self, word: str) -> None:
        words = self.words
        if word == "UNIQUE":
            words.skip("KEY")
            self.keys.append("UNIQUE")
        elif word in ("PRIMARY KEY", "PRIMARY", "KEY"):
            self.keys.append("PRIMARY")
        elif word in ("CHARSET", "COLLATE", "CHARACTER SET") or (word in ("CHARACTER", "CHAR") and words.skip("SET")):
            words.skip("=")
            self._set(charset=words.value().lower())
        elif word in ("ON", "COLUMN_FORMAT", "STORAGE", "AFTER"):
            words.value()  # a name or a word that could be taken for an attribute


def _type(words: Words) -> Type:
    word = words.take()
    while word.split()[0] in _LONGER_TYPES and words.peek() in _TYPE_GOES_ON and words.words()[1:2] != ["SET"]:
        word = f"{word} {words.take()}"
    declared = word.lower()
    if words.peek() != "(":
        return Type(word=word, declared=declared)
    inner = words.enclosed()
    arguments = tuple(part.value() for part in inner.specifications())
    return Type(word=word, arguments=arguments, declared=f"{declared}({inner.text()})")


def _default(words: Words) -> Default | None:
    """Read what comes behind DEFAULT; None for NULL."""
    if words.peek() == "(":
        return Default(text=words.enclosed().text(), is_expression=True)
    if not words.peek():
        return Default(text=words.value())
    sign = words.value() if words.peek() in ("-", "+") else ""
    text = words.value()
    if text.startswith("_") and not words.peek() and not words.is_done():  # an introducer: _utf8mb4 'x'
        return Default(text=words.value())
    if words.peek() == "(":
        return Default(text=f"{text}({words.enclosed().text()})", is_expression=True)
    if text.upper() == "NULL":
        return None
    is_word = text[:1].isalpha() and text.upper() not in ("TRUE", "FALSE")
    return Default(text=f"{sign.replace('+', '')}{text}", is_expression=is_word)


def _parts(words: Words) -> tuple[Part, ...]:
    return tuple(_part(part) for part in words.specifications())


def _part(words: Words) -> Part:
    if words.peek() == "(":
        expression = words.enclosed().text()
        return Part("", expression=expression, is_descending=words.peek() == "DESC")
    column = words.identifier().lower()
    length = words.enclosed().value() if words.peek() == "(" else "0"
    return Part(column, length=int(length), is_descending=words.peek() == "DESC")


def _actions(words: Sequence[str]) -> dict[str, str]:
    """What a foreign key does as its parent's row goes or changes; words as in `ON DELETE SET NULL`."""
    found = {"on_delete": "", "on_update": ""}
    for at, pair in enumerate(pairwise(words)):
        if pair in (("ON", "DELETE"), ("ON", "UPDATE")):
            action = words[at + 2 : at + 4]
            is_long = bool(action) and action[0] in ("SET", "NO")
            found[f"on_{pair[1].lower()}"] = " ".join(action if is_long else action[:1])
    return found


def _options(words: Words) -> dict[str, str]:
    """The options of a table that rules are about; the rest of a CREATE TABLE behind them is left out."""
    options: dict[str, str] = {}
    while not words.is_done() and words.peek() not in (
        "PARTITION BY",
        "PARTITION",
        "SELECT",
        "AS",
        "WITH",
        "ALGORITHM",
    ):
        if words.peek() == "(":
            words.enclosed()
            continue
        word = words.take()
        word = "CHARACTER SET" if word == "CHARACTER" and words.skip("SET") else word
        if (option := _OPTIONS.get(word)) is not None:
            words.skip("=")
            options[option] = words.value()
    return options


def _rows_changed(verb: str, words: Words) -> Iterator[Change]:
    """An UPDATE or DELETE; one behind WITH too."""
    outside = _outside_of_parentheses(words.words())
    if verb == "WITH":
        verb = next((word for word in outside if word in ("UPDATE", "DELETE", "SELECT")), "")
    if verb not in ("UPDATE", "DELETE"):
        return
    where = outside[outside.index("WHERE") + 1 :] if "WHERE" in outside else []
    is_chosen = bool(where) and not _is_always_true(where)
    yield RowsChanged(verb, is_bounded=is_chosen or "LIMIT" in outside)


def _outside_of_parentheses(words: Sequence[str]) -> list[str]:
    depth, outside = 0, list[str]()
    for word in words:
        depth += (word == "(") - (word == ")")
        if not depth or (depth == 1 and word == "("):
            outside.append(word)
    return outside


def _is_always_true(where: Sequence[str]) -> bool:
    """Return whether it is as `WHERE 1 = 1`: names no column."""
    return all(word.isdecimal() or word in ("=", "TRUE") for word in where)
