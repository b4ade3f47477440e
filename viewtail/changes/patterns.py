"""Patterns of table names: many tables, a tenant's each, that are one entity.

`app.org{account_id:int}_invoice` stands for every table of the schema `app` whose name is so, with a number where the
braces are. What is there is a column of each of its rows: nothing but the name has it. `#` stands for a digit of which
no column comes.

A table that several servers have is a pattern too, on each of them: `{source=eu}shop.user` is `shop.user` as the source
eu has it, and the column `source` of its rows is eu. Nobody writes it so: `of_source` does, where a declaration names
the sources of a view.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from viewtail.changes.tables import Column, Kind, NamePattern, full_name, is_pattern

SOURCE = "source"  # the column that says which source a row is of
MOST_BRACES = 2
MOST_VALUE = 2**63 - 1  # of an integer in a name
SYSTEM_SCHEMAS = frozenset({"mysql", "sys", "information_schema", "performance_schema"})
_PIECES = re.compile(r"(\{[^{}]*\}|#)")
_OF_SOURCE = re.compile(rf"\{{{SOURCE}=([^{{}}]*)\}}(.*)", re.DOTALL)
_BRACES = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(:int)?\}")
# Of a statement without comments, in which an identifier is quoted by backticks alone.
_IDENTIFIERS = re.compile(r"`(?:[^`]|``)*`|[0-9A-Za-z_$\u0080-\U0010ffff]+")
_IN_ANY_CASE = re.DOTALL | re.IGNORECASE
_INTEGER, _TEXT = "(0|[1-9][0-9]{0,18})", "(.+?)"


class BadPatternError(ValueError):
    """No pattern is written so; the message says why."""


class Part(NamedTuple):
    """One table of a pattern."""

    schema: str
    name: str
    values: tuple[Any, ...]  # of the braces, in the order in which they are written

    @property
    def place(self) -> tuple[Any, ...]:
        """By which the tables of a pattern are in order."""
        return self.values or (self.name,)

    @property
    def full_name(self) -> str:
        return full_name(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class Pattern:
    """What an entity writes for the name of its tables; `pattern_of` makes it."""

    schema: str
    name: str
    columns: tuple[Column, ...]  # of the braces: of each its name and values; the source's is the first
    source: tuple[str, ...]  # the name of the source that has these tables; () where there is one alone
    _exact: tuple[re.Pattern[str], re.Pattern[str]]  # of schema and name
    _folded: tuple[re.Pattern[str], re.Pattern[str]]  # the same of names in small letters
    _anywhere: tuple[re.Pattern[str], re.Pattern[str]]  # and whatever their case is

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def only(self) -> Part | None:
        """The one table that it stands for, where it is what one source has of that name; None: there may be many."""
        is_one = self.source and len(self.columns) == len(self.source) and not is_pattern(self.name)
        return self.of(self.source) if is_one else None

    @property
    def full_name(self) -> str:
        return full_name(self.schema, self.name)

    def part(self, schema: str, name: str, *, folds_names: bool | None = False) -> Part | None:
        """The table of that name as one of the pattern's; None where it is none of them.

        `folds_names`: the server takes names that differ in case for one, and has them in small letters.
        """
        if folds_names:
            schema, name = schema.lower(), name.lower()
        of_schema = self.schema_values(schema, folds_names=folds_names)
        match = (self._folded if folds_names else self._exact)[1].fullmatch(name)
        if of_schema is None or match is None:
            return None
        values = (*of_schema, *map(_value, match.groups(), self.columns[len(of_schema) :]))
        return Part(schema, name, values) if _are_canonical(values) else None

    def of(self, values: tuple[Any, ...], *, folds_names: bool | None = False) -> Part | None:
        """The table that has rows with these values of the braces; None where no name gives these back."""
        texts = iter(map(str, values[len(self.source) :]))
        schema, name = (
            "".join(next(texts) if piece[:1] == "{" else piece for piece in _PIECES.split(written))
            if is_pattern(written)
            else written
            for written in (without_source(self.schema), self.name)
        )
        part = self.part(schema, name, folds_names=folds_names)
        return part if part is not None and part.values == tuple(values) else None

    def schema_values(self, schema: str, *, folds_names: bool | None = False) -> tuple[Any, ...] | None:
        """The values of those braces that are in the schema's name; None where no table of the schema matches."""
        match = (self._folded if folds_names else self._exact)[0].fullmatch(schema.lower() if folds_names else schema)
        if match is None or schema.lower() in SYSTEM_SCHEMAS:
            return None
        return (*self.source, *map(_value, match.groups(), self.columns[len(self.source) :]))

    def is_named_in(self, text: str, *, schema: bool) -> bool:
        """Return whether a statement may name such a schema, or such a table, in whatever case."""
        names = (name.strip("`").replace("``", "`") for name in _IDENTIFIERS.findall(text))
        return any(self._anywhere[not schema].fullmatch(name) for name in names)

    @property
    def likes(self) -> tuple[str, str]:
        """Schema and name as LIKE takes them; more may be like them than match."""
        return _like(without_source(self.schema)), _like(self.name)

    @property
    def has_schemas(self) -> bool:
        """Return whether its tables may be in several schemas."""
        return is_pattern(without_source(self.schema))

    @property
    def sample(self) -> Part:
        """A table that would match, and that is hardly there: what may be done with it may be with any."""
        of_braces = self.columns[len(self.source) :]
        values = *self.source, *(MOST_VALUE if column.kind is Kind.INTEGER else "zzzzzz" for column in of_braces)
        part = self.of(values)
        return Part(self.schema, self.name, values) if part is None else part


@lru_cache(typed=True)  # a name that only looks like a pattern is another one
def pattern_of(schema: str, name: str) -> Pattern | None:
    """The pattern that these names are; None where they name one table. Raises BadPatternError."""
    if not (is_pattern(schema) or is_pattern(name)):
        return None
    whole, source = schema, _source(schema)
    schema = without_source(schema)
    columns = [_column(SOURCE, is_integer=False) for _ in source]
    of_schema, of_name = (_compiled(written, columns, is_folded=False) for written in (schema, name))
    folded = (_compiled(schema, [], is_folded=True), _compiled(name, [], is_folded=True))
    _check(schema, name, [column.name.lower() for column in columns[len(source) :]])
    anywhere = (re.compile(of_schema.pattern, _IN_ANY_CASE), re.compile(of_name.pattern, _IN_ANY_CASE))
    return Pattern(whole, name, tuple(columns), source, (of_schema, of_name), folded, anywhere)


def _check(schema: str, name: str, names: Sequence[str]) -> None:
    """Raise BadPatternError; `names` are those of the braces."""
    if len(names) > MOST_BRACES:
        raise BadPatternError(f"it has {len(names)} braces; {MOST_BRACES} at most")
    if len({*names}) < len(names):
        raise BadPatternError(f"two braces are called {names[0]}; give each a name of its own")
    if names and "#" in f"{schema}{name}":
        raise BadPatternError("it has braces and #; write braces for each of them")
    if "#" in schema:
        raise BadPatternError("# stands for a digit of a table's name; in a schema's write {name:int}")


def of_source(schema: str, source: str) -> NamePattern:
    """A schema's name, perhaps with braces, as that source has it."""
    return NamePattern(f"{{{SOURCE}={source}}}{schema}")


def source_in(schema: str) -> str | None:
    """Return the source that a schema's name is of; None where `of_source` did not make it."""
    return next(iter(_source(schema)), None)


def _source(schema: str) -> tuple[str, ...]:
    match = _OF_SOURCE.fullmatch(schema) if is_pattern(schema) else None
    return () if match is None else (match[1],)


def without_source(schema: str) -> str:
    """A schema's name as it is on the server, perhaps with braces."""
    match = _OF_SOURCE.fullmatch(schema) if is_pattern(schema) else None
    if match is None:
        return schema
    return NamePattern(match[2]) if _PIECES.search(match[2]) else match[2]


def _compiled(written: str, columns: list[Column], *, is_folded: bool) -> re.Pattern[str]:
    text = written.lower() if is_folded else written
    return re.compile(_regex(text, columns) if is_pattern(written) else re.escape(text), re.DOTALL)


def _regex(written: str, columns: list[Column]) -> str:
    """The regular expression of a name; the columns of its braces are added."""
    pieces = _PIECES.split(written)
    if not any(pieces[::2]):
        raise BadPatternError(f"{written} would be every name there is; write what all of them have in common, too")
    if "" in pieces[2:-1:2] and "#" not in written:
        raise BadPatternError(f"{written} has braces behind braces, and nothing says where one value ends")
    return "".join(_piece(piece, columns) for piece in pieces)


def _piece(piece: str, columns: list[Column]) -> str:
    if piece == "#":
        return "[0-9]"
    if piece[:1] != "{":
        return re.escape(piece)
    match = _BRACES.fullmatch(piece)
    if match is None:
        raise BadPatternError(
            f"{piece} is no column: write {{account_id:int}}, or {{tenant}} for a text; letters, digits and _. "
            "Braces that are part of a name stand in backticks: Entity('shop.`a{b}`')"
        )
    is_integer = match[2] is not None
    columns.append(_column(match[1], is_integer=is_integer))
    return _INTEGER if is_integer else _TEXT


def _column(name: str, *, is_integer: bool) -> Column:
    if is_integer:
        return Column(name=name, kind=Kind.INTEGER, declared="bigint", is_nullable=False)
    return Column(
        name=name,
        kind=Kind.TEXT,
        declared="varchar(64)",
        is_nullable=False,
        charset="utf8mb4",
        collation="utf8mb4_bin",
        length=64,
    )


def _are_canonical(values: tuple[Any, ...]) -> bool:
    return not any(isinstance(value, int) and value > MOST_VALUE for value in values)


def _value(text: str, column: Column) -> Any:
    return int(text) if column.kind is Kind.INTEGER else text


def _like(written: str) -> str:
    if not is_pattern(written):
        return re.sub(r"([\\_%])", r"\\\1", written)
    pieces = _PIECES.split(written)
    return "".join("_" if piece == "#" else "%" if piece[:1] == "{" else _like(str(piece)) for piece in pieces)
