"""Judges what a statement's effects (ingest/ddl.py) mean for a followed table: nothing, a table change, or a halt.

Imported with the first statement that changes a table: sqlglot's grammar takes 17 MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

from ingest import ddl
from viewtail.changes.batches import Followed, TableChangeKind
from viewtail.changes.patterns import Part
from viewtail.changes.tables import Column, full_name

# Each holds all values of those before it.
_WIDER = (
    ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT"),
    ("UTINYINT", "USMALLINT", "UMEDIUMINT", "UINT", "UBIGINT"),
    ("TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"),
    ("TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"),
)
_HOLDERS = {word: family[at:] for family in _WIDER for at, word in enumerate(family)}
_ONE_LENGTH = frozenset({"VARCHAR", "CHAR", "VARBINARY"})
_OTHER_KEY = (
    "the primary key, by which the views tell entities apart, was changed (a view in Redis or Elasticsearch needs a "
    "new name then: what it shows under keys of the old form would stay)"
)
_Loss: TypeAlias = "tuple[str, frozenset[str] | None]"  # why, and of which followed columns; None: of the whole table
Meant: TypeAlias = "tuple[TableChangeKind | None, str, frozenset[str] | None]"  # kind, why and columns of a Verdict
_UNSEEN = "values may have changed without row events"
_CONVERTED = f"the table was converted to a character set, and {_UNSEEN}"


def meant(followed: Followed, effects: list[ddl.Effect], is_strict: bool, case_tells: bool) -> Meant | None:
    """Judge what happened to a table; None: nothing did.

    Args:
        effects: with names as the server has them, where it is known what case means there.
        is_strict: the server refused lossy conversions.
        case_tells: names that differ in case are those of different tables; False: they are, or may be, the same.
    """
    near = _Near(ddl.Name(followed.table.schema, followed.table.name), case_tells)
    followed = replace(followed, table=followed.table.stored)
    meanings = [meaning for effect in effects if (meaning := _of_effect(followed, near, effect, is_strict)) is not None]
    return next((meaning for meaning in meanings if meaning[0] is None), meanings[0] if meanings else None)


def extends(followed: Followed, effects: list[ddl.Effect]) -> bool:
    """Return whether a table got a column that it had not yet when it was described."""
    own, known = ddl.Name(followed.table.schema, followed.table.name), {item.name for item in followed.table.columns}
    altered = [effect for effect in effects if isinstance(effect, ddl.Altered) and effect.table == own]
    added = [item.name for effect in altered for item in effect.changes if isinstance(item, ddl.ColumnAdded)]
    return not known.issuperset(added)


def alone_in(
    followed: Followed, effects: list[ddl.Effect], folds_names: bool | None
) -> Iterator[tuple[Part | None, Followed]]:
    """The tables that a statement may be about, each as if it alone was followed: itself, or those of a pattern.

    Of a pattern those that are there, or came; one that was made anew has its rows in the stream.
    """
    pattern = followed.table.pattern
    if pattern is None:
        yield None, followed
        return
    if pattern.only is not None:  # as any single table: where it goes, its views halt
        yield pattern.only, alone(followed, pattern.only)
        return
    for name in _present(effects):
        if (part := pattern.part(name.schema, name.name, folds_names=folds_names)) is not None:
            yield part, alone(followed, part)


def _present(effects: list[ddl.Effect]) -> Iterator[ddl.Name]:
    """The tables that a statement names and that are there behind it, each once."""
    named = [name for effect in effects for name in _names_of_present(effect)]
    left = {name for effect in effects if isinstance(effect, ddl.Renamed) for name in _left(effect)}
    return (name for name in dict.fromkeys(named) if name not in left)


def _names_of_present(effect: ddl.Effect) -> Iterator[ddl.Name]:
    match effect:
        case ddl.Truncated(table):
            yield table
        case ddl.Altered(table, changes):
            yield table
            yield from (change.other for change in changes if isinstance(change, ddl.PartitionExchanged))
        case ddl.Renamed(pairs):
            yield from (now for now, before in _after(pairs).items() if now != before)


def alone(followed: Followed, part: Part) -> Followed:
    """One table of a pattern, without the columns of the braces, which it does not have."""
    names = followed.table.of_braces
    own = replace(followed.table.without_braces(), schema=part.schema, name=part.name)
    keys = tuple(tuple(name for name in key if name not in names) for key in followed.keys)
    columns = tuple(name for name in followed.columns if name not in names)
    return Followed(own, columns, keys, followed.order, followed.forms, followed)


def gone(followed: Followed, effects: list[ddl.Effect], folds_names: bool | None) -> Iterator[tuple[Part, str]]:
    """The tables of a pattern that are gone after a statement, and how they went."""
    pattern = followed.table.pattern
    if pattern is None or pattern.only is not None:
        return
    for effect in effects:
        if isinstance(effect, ddl.DatabaseDropped):
            values = pattern.schema_values(effect.schema, folds_names=folds_names)
            if values is not None:
                yield Part(effect.schema, "", values), "the table was dropped with its database"
            continue
        for name, why in _gone(effect):
            if (part := pattern.part(name.schema, name.name, folds_names=folds_names)) is not None:
                yield part, why


def made(followed: Followed, effects: list[ddl.Effect], folds_names: bool | None) -> Iterator[Part]:
    """The tables of a pattern that a statement made: they may have other columns, or keys, than those before."""
    pattern = followed.table.pattern
    if pattern is None or pattern.only is not None:
        return
    for effect in effects:
        match effect:
            case ddl.Created(table) | ddl.Dropped(table, is_replaced=True):
                part = pattern.part(table.schema, table.name, folds_names=folds_names)
                if part is not None:
                    yield part


def _gone(effect: ddl.Effect) -> Iterator[tuple[ddl.Name, str]]:
    match effect:
        case ddl.Dropped(table):
            yield table, "the table was dropped"
        case ddl.Renamed():
            yield from ((name, "the table has another name now") for name in _left(effect))


def _left(renamed: ddl.Renamed) -> list[ddl.Name]:
    """The names that no table has any more."""
    after = _after(renamed.pairs)
    return [old for old in after.values() if old not in after]


def _after(pairs: tuple[tuple[ddl.Name, ddl.Name], ...]) -> dict[ddl.Name, ddl.Name]:
    """Of each name that a table has now, the one that it had."""
    before: dict[ddl.Name, ddl.Name] = {}
    for old, new in pairs:
        before[new] = before.pop(old, old)
    return before


@dataclass(frozen=True, slots=True)
class _Near:
    """A followed table's name, compared with others: one may be its own, or that of a table that differs in case."""

    own: ddl.Name
    case_tells: bool

    def about(
        self, name: ddl.Name, kind: TableChangeKind | None, why: str, columns: frozenset[str] | None = None
    ) -> Meant | None:
        """Give what a statement means if it names this table; the table halts where only the names' case differs."""
        if name == self.own:
            return kind, why, columns
        if not self.case_tells and _lower(name) == _lower(self.own):
            return None, f"{why}, or one whose name differs in case only", None
        return None

    def about_any(self, names: Iterable[ddl.Name], kind: TableChangeKind | None, why: str) -> Meant | None:
        meanings = (self.about(name, kind, why) for name in names)
        return next((meaning for meaning in meanings if meaning is not None), None)

    def is_in(self, schema: str) -> bool:
        """Return whether its schema is that, or may be."""
        return schema == self.own.schema or (not self.case_tells and schema.lower() == self.own.schema.lower())


def _lower(name: ddl.Name) -> tuple[str, str]:
    return name.schema.lower(), name.name.lower()


def _of_effect(followed: Followed, near: _Near, effect: ddl.Effect, is_strict: bool) -> Meant | None:
    match effect:
        case ddl.Truncated(table):
            return near.about(table, TableChangeKind.EMPTIED, "the table was emptied")
        case ddl.Dropped(table, is_replaced):
            what = "replaced by an empty one" if is_replaced else "dropped"
            return near.about(table, None, f"the table was {what}")
        case ddl.DatabaseDropped(schema) if near.is_in(schema):
            return None, "the table was dropped with its database", None
        case ddl.Renamed(pairs):
            return _renamed(near, pairs)
        case ddl.Altered():
            return _altered(followed, near, effect, is_strict)
    return None


def _renamed(near: _Near, pairs: tuple[tuple[ddl.Name, ddl.Name], ...]) -> Meant | None:
    """A table that goes takes its rows along; one that comes in its place (gh-ost, pt-online-schema-change) brings its
    own."""
    own = near.own
    if (mention := near.about_any(chain(*pairs), None, "the table was renamed")) is None:
        return None
    before = _after(pairs)
    if before.get(own, own) != own:
        return TableChangeKind.REPLACED, "another table got this table's name", None
    gone = [new for new, old in before.items() if old == own and new != own]
    if gone:
        called = full_name(gone[0].schema, gone[0].name)
        return None, f"the table is called {called} now, and no other took its place", None
    return None if own in before else mention  # away and back; or a name in another case


# -- ALTER TABLE ----------------------------------------------------------------------------------------------------


def _altered(followed: Followed, near: _Near, altered: ddl.Altered, is_strict: bool) -> Meant | None:
    exchanged = [change.other for change in altered.changes if isinstance(change, ddl.PartitionExchanged)]
    why = "the table's rows were exchanged for a partition's"
    if (meaning := near.about_any(exchanged, TableChangeKind.REPLACED, why)) is not None:
        return meaning
    meaning = _lost(followed, altered, is_strict) or _moved(altered) or _widened(followed, altered)
    meaning = meaning or _redefined(followed, altered)
    return None if meaning is None else near.about(altered.table, *meaning)


def _lost(followed: Followed, altered: ddl.Altered, is_strict: bool) -> Meant | None:
    losses = _Losses(followed, altered, is_strict)
    lost = [loss for change in altered.changes if (loss := losses.of(change))]
    if not lost:
        return None
    if whole := [why for why, columns in lost if columns is None]:
        return None, whole[0], None
    why = ", and ".join(dict.fromkeys(why for why, _ in lost))
    return None, why, frozenset().union(*(columns or () for _, columns in lost))


def _moved(altered: ddl.Altered) -> Meant | None:
    """Rows that came or went with their partitions."""
    for change in altered.changes:
        match change:
            case ddl.PartitionExchanged():
                return TableChangeKind.REPLACED, "a partition's rows were exchanged for a table's", None
            case ddl.PartitionsEmptied(verb):
                return TableChangeKind.THINNED, f"{verb} took rows away", None
    return None


def _widened(followed: Followed, altered: ddl.Altered) -> Meant | None:
    """A store may have room for the values of before only."""
    used = {name.lower() for name in followed.columns}
    for change in altered.changes:
        if isinstance(change, ddl.ColumnDefined) and change.old.lower() in used:
            column = next(item for item in followed.table.columns if item.name.lower() == change.old.lower())
            if _is_other(ddl.column_type(column.declared), change.type):
                return TableChangeKind.WIDENED, f"column {column.name}, {column.declared} before, was made wider", None
    return None


def _redefined(followed: Followed, altered: ddl.Altered) -> Meant | None:
    """The values stay, but a SELECT made before may read them wrongly, or a backfill's next page begin elsewhere."""
    used = {name.lower() for name in (*followed.columns, *followed.table.paging_key)}
    for change in altered.changes:
        match change:
            case ddl.ColumnDefined(name) | ddl.ColumnRenamed(name) | ddl.ColumnDropped(name) if name.lower() in used:
                return TableChangeKind.REDEFINED, f"column {name} was changed", None
            case ddl.PrimaryKeyAdded() | ddl.PrimaryKeyDropped():
                return TableChangeKind.REDEFINED, "the primary key was changed", None
            case ddl.Converted():
                return TableChangeKind.REDEFINED, "the table was converted to a character set", None
    return None


def _is_other(before: ddl.ColumnType, now: ddl.ColumnType) -> bool:
    """Display widths of integers are no difference."""
    if before.word == now.word and before.word in (*_WIDER[0], *_WIDER[1]):
        return False
    return (before.word, before.arguments) != (now.word, now.arguments)


class _Losses:
    """Finds whether an ALTER TABLE may change values of followed columns although the next table map looks as before.

    A column that goes counts, for one of that name may come back before the next row event. A conversion does unless
    the server was asked to convert nothing (ALGORITHM=INPLACE or INSTANT, which it refuses where it must), or refuses
    what loses something and the new type only holds more.
    """

    def __init__(self, followed: Followed, altered: ddl.Altered, is_strict: bool) -> None:
        self._followed, self._is_strict = followed, is_strict
        self._converts_nothing = bool(altered.algorithms) and altered.algorithms <= {"INPLACE", "INSTANT"}
        added = [change.columns for change in altered.changes if isinstance(change, ddl.PrimaryKeyAdded)]
        self._new_key = tuple(map(str.lower, added[0])) if added else ()

    def of(self, change: ddl.Change) -> _Loss | None:
        """Say what may be lost, for messages."""
        if why := self._of_table(change):
            return why, None
        match change:
            case ddl.ColumnDropped(name):
                return self._of_columns(f"column {name} was dropped", name)
            case ddl.ColumnRenamed(old, new) | ddl.ColumnDefined(old, new) if old.lower() != new.lower():
                return self._of_columns(f"column {old} was renamed to {new}", old, new)
            case ddl.ColumnDefined(name) if not self._keeps_values(change):
                return self._of_columns(f"column {name} was redefined, and {_UNSEEN}", name, *self._made_from(name))
            case ddl.Converted() if not self._converts_nothing:
                return self._of_columns(_CONVERTED, *self._followed.columns)
        return None

    def _made_from(self, name: str) -> set[str]:
        """The generated columns whose values follow from a column's; one of which it is not known counts."""
        names, last = {name.lower()}, 0
        while last < len(names):  # one may be made from another
            last = len(names)
            names |= {
                column.name.lower()
                for column in self._followed.table.columns
                if column.is_generated and (column.made_from is None or names & {*map(str.lower, column.made_from)})
            }
        return names

    def _of_columns(self, why: str, *names: str) -> _Loss | None:
        """The loss of those that are followed."""
        wanted = {name.lower() for name in names}
        used = frozenset(name for name in self._followed.columns if name.lower() in wanted)
        return (why, used) if used else None

    def _of_table(self, change: ddl.Change) -> str | None:
        match change:
            case ddl.ColumnDefined(name) if change.may_be_null:
                return self._of_null(name)
            case ddl.PrimaryKeyDropped() if self._new_key != tuple(map(str.lower, self._followed.table.primary_key)):
                return _OTHER_KEY
            case ddl.IndexGone(name, new_name) if (unique := _relied_on(self._followed, name)) is not None:
                return (
                    f"index {name} was {'renamed' if new_name else 'dropped'}, and views rely on the unique key "
                    f"({', '.join(unique)}): without it rows could share an entity, and backfills could miss some"
                )
            case ddl.RowsMoved(how):
                return how
            case ddl.Converted() if not self._converts_nothing and self._followed.forms is None:
                return _CONVERTED
        return None

    def _of_null(self, name: str) -> str | None:
        unique = next((key for key in self._followed.keys if name.lower() in map(str.lower, key)), None)
        why = f"column {name} may be NULL from then on, and views rely on the unique key"
        return None if unique is None else f"{why} ({', '.join(unique)}): NULL identifies nothing"

    def _keeps_values(self, defined: ddl.ColumnDefined) -> bool:
        columns = self._followed.table.columns
        column = next((item for item in columns if item.name.lower() == defined.old.lower()), None)
        if defined.is_computed or column is None:
            return False  # computed: another expression gives other values, whatever the type
        if column.is_nullable and not defined.may_be_null and not self._is_strict:
            return False  # MariaDB makes something of each NULL, in place [M, 10.11]
        return self._converts_nothing or (self._is_strict and only_widens(column, defined.type))


def _relied_on(followed: Followed, index: str) -> tuple[str, ...] | None:
    """The key that the views rely on and that this index makes unique, or may where nobody described the indexes."""
    table = followed.table
    if not table.unique_names:
        return next(iter(followed.keys), None)
    for name, columns in zip(table.unique_names, table.unique_keys, strict=True):
        if name.lower() == index.lower() and any(set(columns) == set(key) for key in followed.keys):
            return columns
    return None


def only_widens(column: Column, new: ddl.ColumnType) -> bool:
    """Return whether a type holds at least what the described one did.

    The character set is not asked for: a server that is strict converts to another exactly or not at all.
    """
    old = ddl.column_type(column.declared)
    if new.is_unsigned != column.is_unsigned:
        return False
    if old.word in _HOLDERS:
        return new.word in _HOLDERS[old.word]
    return new.word == old.word and _arguments_hold(column, old, new)


def _arguments_hold(column: Column, old: ddl.ColumnType, new: ddl.ColumnType) -> bool:
    """Say whether the new one of two types of one word holds what the old one did."""
    numbers = [int(argument) for argument in new.arguments if argument.isdecimal()]
    if new.word in _ONE_LENGTH and numbers:
        return numbers[0] >= column.length
    if new.word in ("ENUM", "SET"):
        return new.arguments[: len(old.arguments)] == old.arguments
    if new.word.removeprefix("U") == "DECIMAL":
        precision, scale = (*(numbers or [10]), 0)[:2]
        return precision >= column.precision and scale == column.scale
    return new.arguments == old.arguments
