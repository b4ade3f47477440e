"""What belongs to the rows of a table in other tables, as a first declaration of it.

Foreign keys say it, columns that are called `<table>_id`, and columns that are called as another table's primary key.
Each relation was bound to its tables, so it works; which of them a view is to have, the user knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

from projectors.binding import bind
from projectors.derived.look_ups import look_ups
from projectors.related import Count, Many, One, Related
from projectors.stores import Choice
from projectors.stores.registry import STORES
from projectors.views import BoundView
from viewtail.changes.errors import DeclarationError
from viewtail.changes.masks import ANY_SECRET
from viewtail.changes.tables import Table
from viewtail.servers.sessions import Connection

MOST = 4  # relations of each kind
BELOW = 2  # of the rows of a Many
MOST_LISTED = 100  # rows on average; of more there is a number
_LEFT_OVER = re.compile(r"_.+_(?:gho|ghc|del|old|new)", re.IGNORECASE)  # by gh-ost and pt-online-schema-change
_KEYS = (
    "SELECT table_name, constraint_name, column_name, referenced_table_name, referenced_column_name "
    "FROM information_schema.key_column_usage WHERE table_schema = %s AND referenced_table_schema = %s "
    "ORDER BY table_name, constraint_name, ordinal_position"
)


@dataclass(frozen=True, slots=True)
class Reference:
    """Columns of a table that hold a key of another one."""

    table: str
    columns: tuple[str, ...]
    parent: str
    referenced: tuple[str, ...]

    @property
    def name(self) -> str:
        """The row that is referred to, as its column names it."""
        column = self.columns[0]
        is_named = len(self.columns) == 1 and column.lower().endswith("_id") and len(column) > len("_id")
        return column[: -len("_id")] if is_named else self.parent


def references(connection: Connection, schema: str, tables: Mapping[str, Table]) -> list[Reference]:
    """The references among some tables of a schema, by name: those that foreign keys declare first."""
    keys = [each for each in _foreign_keys(connection, schema) if {each.table, each.parent} <= tables.keys()]
    known = {(each.table, each.columns) for each in keys}
    named = [each for table in tables.values() for each in _named(table, tables)]
    return [*dict.fromkeys(keys), *(each for each in named if (each.table, each.columns) not in known)]


def _foreign_keys(connection: Connection, schema: str) -> Iterator[Reference]:
    of_key: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    with connection.cursor() as cursor:
        cursor.execute(_KEYS, (schema, schema))
        for table, key, column, parent, referenced in cursor.fetchall():
            of_key.setdefault((table, key, parent), []).append((column, referenced))
    for (table, _, parent), pairs in of_key.items():
        columns, referenced = zip(*pairs, strict=True)
        yield Reference(table, columns, parent, referenced)


def _named(table: Table, tables: Mapping[str, Table]) -> Iterator[Reference]:
    """References by columns that are called as a table is, with _id behind, or as another table's primary key is."""
    if _LEFT_OVER.fullmatch(table.name):
        return
    tables = {name: other for name, other in tables.items() if not _LEFT_OVER.fullmatch(name)}
    of_columns: dict[tuple[str, ...], Reference] = {}
    for each in (*_called_as_a_table(table, tables), *_called_as_a_key(table, tables)):
        of_columns.setdefault(each.columns, each)
    yield from of_columns.values()


def _called_as_a_key(table: Table, tables: Mapping[str, Table]) -> Iterator[Reference]:
    """By the columns of a primary key that one table has, and that is no word for any key, as `id` is."""
    own = {column.name.lower(): column.name for column in table.columns}
    parents: dict[tuple[str, ...], list[Table]] = {}
    for other in tables.values():
        parents.setdefault(_lower(other.primary_key), []).append(other)
    for key, having in parents.items():
        if _is_telling(key) and len(having) == 1 and {*key} != {*_lower(table.primary_key)} and own.keys() >= {*key}:
            yield Reference(table.name, tuple(own[name] for name in key), having[0].name, having[0].primary_key)


def _is_telling(key: Sequence[str]) -> bool:
    return any(name.endswith("id") for name in key) and all(len(name) > len("id") for name in key)


def _lower(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.lower() for name in names)


def _called_as_a_table(table: Table, tables: Mapping[str, Table]) -> Iterator[Reference]:
    by_name = {name.lower(): other for name, other in reversed([*tables.items()])}
    for column in table.columns:
        stem = column.name.lower().removesuffix("_id")
        if stem == column.name.lower() or not stem:
            continue
        parent = next((by_name[name] for name in _forms(stem) if name in by_name), None)
        if parent is not None and len(parent.primary_key) == 1 and parent.primary_key != (column.name,):
            yield Reference(table.name, (column.name,), parent.name, parent.primary_key)


def _forms(stem: str) -> Iterator[str]:
    """What a table of such rows may be called."""
    yield from (stem, f"{stem}s", f"{stem}es")
    if stem.endswith("y"):
        yield f"{stem[:-1]}ies"


def with_related(
    choice: Choice, tables: Mapping[str, Table], known: Sequence[Reference], row_counts: Mapping[str, int]
) -> Choice:
    """The choice with what belongs to its rows, and the statements for indexes that are missing for that."""
    taken = {column.name.lower() for column in choice.table.columns}
    related: list[tuple[str, Related]] = []
    for wanted, of in _proposed(choice.table, tables, known, row_counts):
        name = next(name for name in _names(wanted) if name.lower() not in taken)
        if _bound(replace(choice, related=((name, of),)), tables) is not None:
            taken.add(name.lower())
            related.append((name, of))
    chosen = replace(choice, related=tuple(related))
    bound = _bound(chosen, tables)
    if bound is None:
        return choice
    return replace(chosen, missing=tuple(each.create_index for each in look_ups([bound]) if each.index is None))


def _names(wanted: str) -> Iterator[str]:
    yield from (wanted, f"{wanted}_row")
    yield from (f"{wanted}_{number}" for number in count(2))


def _bound(choice: Choice, tables: Mapping[str, Table]) -> BoundView | None:
    """The first example that shows the relations; None where they do not fit their tables."""
    try:
        documents = (store.document_example(choice) for store in STORES)
        views = [document.view for document in documents if document is not None]
        return bind(views[:1], lambda _, name: tables[name], ANY_SECRET)[0] if views else None
    except DeclarationError:
        return None


def _proposed(
    table: Table, tables: Mapping[str, Table], known: Sequence[Reference], row_counts: Mapping[str, int]
) -> Iterator[tuple[str, Related]]:
    own = (each for each in known if each.table == table.name)
    yield from ((each.name, _one(each, tables)) for each in islice(own, MOST))
    rows = max(1, row_counts.get(table.name, 0))
    for reference in islice(_to(table, known), MOST):
        child = tables[reference.table]
        if row_counts.get(child.name, 0) / rows > MOST_LISTED:
            yield f"{child.name}_count", Count(child.full_name, by=reference.columns)
        else:
            yield _listed(child, reference, tables, known)


def _to(table: Table, known: Sequence[Reference]) -> Iterator[Reference]:
    """The references of other tables to the primary key of a table."""
    for each in known:
        if each.parent == table.name != each.table and {*each.referenced} == {*table.primary_key}:
            yield each


def _listed(
    child: Table, reference: Reference, tables: Mapping[str, Table], known: Sequence[Reference]
) -> tuple[str, Related]:
    """The rows that refer to a row, with those that they refer to; or these alone, at the other side of a pair."""
    further = [each for each in known if each.table == child.name and each.columns != reference.columns]
    if (between := _between(child, reference, further, tables)) is not None:
        return between
    below = [(each.name, _one(each, tables)) for each in further if each.parent != reference.parent]
    fitting = [each for each in below if _bound(_plain_choice(child, each), tables) is not None]
    return child.name, Many(child.full_name, by=reference.columns, related=dict(fitting[:BELOW]))


def _plain_choice(table: Table, *related: tuple[str, Related]) -> Choice:
    return Choice(table=table, indexed=None, is_looked_up=False, shown=(), searched=(), related=related)


def _one(reference: Reference, tables: Mapping[str, Table]) -> One:
    parent = tables[reference.parent]
    to = () if reference.referenced == parent.primary_key else reference.referenced
    return One(parent.full_name, on=reference.columns, to=to)


def _between(
    child: Table, reference: Reference, further: Sequence[Reference], tables: Mapping[str, Table]
) -> tuple[str, Related] | None:
    """The rows at the other side of a table that holds pairs of keys."""
    for other in further:
        parent = tables[other.parent]
        is_pair = {*child.primary_key} == {*reference.columns, *other.columns}
        if is_pair and other.referenced == parent.primary_key:
            through = child.full_name
            return parent.name, Many(parent.full_name, through=through, by=reference.columns, to=other.columns)
    return None


def declared(of: Related, indent: str) -> str:
    """A relation as it is written in views.py."""
    arguments = [repr(of.table)]
    if isinstance(of, One):
        arguments += [f"on={_plain(of.on)}", *([f"to={_plain(of.to)}"] if of.to else [])]
    elif isinstance(of, Many):
        arguments += [f"through={of.through!r}"] if of.through else []
        arguments += [f"by={_plain(of.by)}", *([f"to={_plain(of.to)}"] if of.to else [])]
    else:
        assert isinstance(of, Count)
        arguments.append(f"by={_plain(of.by)}")
    related = of.related if isinstance(of, One | Many) else ()
    if related:
        below = "".join(f"{indent}    {name!r}: {declared(each, indent + '    ')},\n" for name, each in related)
        arguments.append(f"related={{\n{below}{indent}}}")
    return f"{of.kind}({', '.join(arguments)})"


def _plain(names: Sequence[str]) -> str:
    return repr(names[0] if len(names) == 1 else [*names])
