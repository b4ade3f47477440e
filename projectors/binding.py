"""A declaration together with its described table: what projections and sinks work from.

`bind` decides, before anything is written, whether every declaration can work with its table as it is now, and says
everything that is wrong at once. What only the store can refuse (a table of that name that is not viewtail's) is left
to the sinks.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import orjson

from changes.errors import DeclarationError
from changes.tables import Column, Kind, Table
from ingest.charsets import ONE_TO_ONE
from projectors.bound_views import BoundView
from projectors.function_columns import Reads, columns_read
from projectors.function_source import function_source
from projectors.stores.elasticsearch.fields import check_search_index
from projectors.suggestions import nearest
from projectors.views import IndexTable, RedisHash, RedisJson, RowFunction, SearchIndex, View

Describe = Callable[[str, str], Table]

_NO_PAGES = (Kind.ENUM, Kind.SET, Kind.FLOAT, Kind.DOUBLE)
_NO_KEYS = (Kind.FLOAT, Kind.DOUBLE, Kind.JSON, Kind.GEOMETRY, Kind.VECTOR)


def bind(views: Sequence[View], describe: Describe) -> list[BoundView]:
    """Each view with its table, described by `describe(schema, table)`.

    Raises one DeclarationError, a line for each problem of any view. What `describe` raises for a table that is
    missing is one of them; its other errors pass through.
    """
    problems: list[str] = []
    tables = _tables(views, describe, problems)
    bound = []
    for view in views:
        table = tables.get(view.entity.table)
        if table is None:
            continue
        found = list(_entity_problems(view, table)) + list(_column_problems(view, table))
        if not found:
            candidate = _bound(view, table)
            found = list(_store_problems(candidate))
            bound.append(candidate)
        problems += [f"view {view.id}: {problem}" for problem in found]
    problems += _targets(views)
    if not problems:
        problems += _shared_keys(bound)
    if problems:
        raise DeclarationError("\n".join(problems))
    return bound


def _tables(views: Sequence[View], describe: Describe, problems: list[str]) -> dict[str, Table]:
    tables: dict[str, Table] = {}
    first: dict[str, View] = {}
    for view in views:
        first.setdefault(view.entity.table, view)
    for name, view in first.items():
        try:
            tables[name] = describe(*name.split("."))
        except DeclarationError as error:
            problems.append(f"view {view.id}: {error}")
    return tables


# --- The entity ---


def _entity_problems(view: View, table: Table) -> Iterator[str]:
    entity = view.entity
    names = entity.key or table.primary_key
    if not names:
        yield (
            f"{table.full_name} has no primary key, so its rows cannot be told apart. Add one, or name the columns of "
            f"a unique key that are all NOT NULL: Entity({entity.table!r}, key=...)"
        )
    columns = [table.column(name) for name in names]
    for name, column in zip(names, columns, strict=True):
        if column is None:
            yield _unknown(table, name, "key column")
        else:
            yield from _key_problems(table, column)
    if all(columns) and names:
        yield from _uniqueness(view, table, names)
        yield from _paging_problems(table)
    if entity.version is not None:
        yield from _version_problems(table, entity.version, names)


def _key_problems(table: Table, column: Column) -> Iterator[str]:
    what = f"key column {column.name} of {table.full_name}"
    if column.kind is Kind.UNSUPPORTED:
        yield _unreadable(table, column)
    elif column.kind in _NO_KEYS:
        yield (
            f"{what} is {column.declared.upper()}, whose values have no exact equality to go by; "
            "name another key: Entity(..., key=...)"
        )
    elif _is_ambiguous(column):
        yield (
            f"{what} is in the character set {column.charset}, where some characters have two codes, so that two keys "
            "could look the same; convert it to utf8mb4, or name another key: Entity(..., key=...)"
        )
    elif column.is_nullable:
        yield f"{what} may be NULL, and NULL identifies nothing; make it NOT NULL, or name another key"


def _is_ambiguous(column: Column) -> bool:
    return column.kind is Kind.TEXT and column.charset not in ONE_TO_ONE


def keys_relied_on(view: BoundView) -> Iterator[tuple[str, ...]]:
    """The unique keys, beside the primary one, without which rows would share an entity or fills would miss some."""
    key = tuple(column.name for column in view.key)
    if set(key) != set(view.table.primary_key) and not view.view.entity.append_only:
        yield key
    if not view.table.primary_key:
        yield view.table.paging_key


def _paging_problems(table: Table) -> Iterator[str]:
    names = table.paging_key
    if not names:
        yield (
            f"{table.full_name} has no primary key, and rows that share a key cannot be read in pages without losing "
            "some; add one, e.g. a BIGINT AUTO_INCREMENT"
        )
    for column in table.columns:
        if column.name in names and _is_ambiguous(column):
            yield (
                f"column {column.name} of {table.full_name} is part of the key by which the table is read in pages, "
                f"and in its character set, {column.charset}, some characters have two codes; convert it to utf8mb4"
            )
        elif column.name in names and column.kind in _NO_PAGES:
            yield (
                f"column {column.name} of {table.full_name} is {column.declared.upper()} and part of the key by which "
                "the table is read in pages: the server orders its values by one rule and compares them by another. "
                "Give the table another primary key"
            )


def _uniqueness(view: View, table: Table, names: Sequence[str]) -> Iterator[str]:
    unique = [key for key in (table.primary_key, *table.unique_keys) if key]
    if any(set(names) == set(key) for key in unique) or view.entity.append_only:
        return
    known = " or ".join(f"({', '.join(key)})" for key in unique) or "none"
    yield (
        f"key ({', '.join(names)}) is no primary key and no unique key over NOT NULL columns of {table.full_name} "
        f"(those are: {known}), so two rows could share it; where the newest row of a key counts, say "
        "Entity(..., version='COLUMN', append_only=True)"
    )


def _version_problems(table: Table, name: str, key: Sequence[str]) -> Iterator[str]:
    column = table.column(name)
    if column is None:
        yield _unknown(table, name, "version column")
        return
    what = f"version column {name} of {table.full_name}"
    if column.kind is not Kind.INTEGER or column.declared.lower().startswith(("bit", "year")):
        yield (
            f"{what} is {column.declared.upper()}; it must be an integer that rises with every change, e.g. BIGINT; "
            "a clock cannot order two changes of one moment"
        )
    elif column.is_nullable:
        yield f"{what} may be NULL, and NULL orders nothing; make it NOT NULL"
    if name in key:
        yield f"{what} is part of the key, so no key would ever have two versions; name the other columns: key=..."


# --- Columns ---


def _shown(view: View) -> tuple[str, ...]:
    """The columns that a view shows as they are; none where a function makes its content."""
    if isinstance(view, IndexTable):
        return view.values
    if isinstance(view, RedisHash):
        return view.fields
    if isinstance(view, RedisJson | SearchIndex) and view.document is None:
        return view.fields
    return ()


def named_for_functions(view: View) -> tuple[str, ...]:
    """`columns=[...]` of a declaration."""
    return view.columns if isinstance(view, RedisJson | SearchIndex) else ()


def _functions(view: View) -> list[RowFunction]:
    document = view.document if isinstance(view, RedisJson | SearchIndex) else None
    return [function for function in (view.where, document) if function is not None]


def _column_problems(view: View, table: Table) -> Iterator[str]:
    for name in dict.fromkeys((*_shown(view), *named_for_functions(view))):
        column = table.column(name)
        if column is None:
            yield _unknown(table, name, "column")
        elif column.kind is Kind.UNSUPPORTED:
            yield _unreadable(table, column)
    if named_for_functions(view) and not _functions(view):
        yield "columns=[...] is for views with document= or where=; leave it out"


def _unknown(table: Table, name: str, what: str) -> str:
    names = [column.name for column in table.columns]
    near = nearest(name, names)
    return f"{table.full_name} has no {what} {name}" + (near or f"; it has {', '.join(names)}")


def _unreadable(table: Table, column: Column) -> str:
    charset = f" in character set {column.charset}" if column.charset else ""
    return (
        f"column {column.name} of {table.full_name} is {column.declared.upper()}{charset}, which viewtail cannot read "
        "exactly. Convert the column (text: to utf8mb4), or leave it out"
        + (", with columns=[...] where a function is used" if column.charset is None else "")
    )


# --- The stores ---


def _store_problems(bound: BoundView) -> Iterator[str]:
    """What the shape of the store refuses; each rule lives with its sink, which applies it too."""
    if isinstance(bound.view, SearchIndex):
        yield from check_search_index(bound.view, bound.key, bound.values)
        return
    try:
        _shape(bound)
    except DeclarationError as error:
        yield str(error)


def _shape(bound: BoundView) -> Any:
    # The sinks' modules import this one.
    if isinstance(bound.view, IndexTable):
        from projectors.stores.index_tables.table import IndexTableShape

        return IndexTableShape("viewtail", bound)
    from projectors.stores.redis.keys import RedisKeys

    taken = [column.name for column in bound.values if column.name == "_version"]
    if taken:
        raise DeclarationError(
            "column _version has the name under which viewtail keeps its version; leave it out, or show it through a "
            "generated column of another name"
        )
    return RedisKeys(bound)


def _targets(views: Sequence[View]) -> list[str]:
    twice = [name for name, count in Counter(view.id for view in views).items() if count > 1]
    return [
        f"view {name}: two views have this store and name; give one of them another name" for name in twice
    ]


def _shared_keys(bound: Sequence[BoundView]) -> list[str]:
    """Redis views whose keys could be one another's."""
    problems = []
    for one, other in combinations([view for view in bound if view.view.store == "redis"], 2):
        try:
            _shape(one).check_apart(_shape(other))
        except DeclarationError as error:
            problems.append(f"view {one.id}: {error}")
    return problems


# --- What is bound ---


def named_columns(view: View) -> tuple[frozenset[str], bool]:
    """The columns that a declaration names, and whether a function of it may look at all others, too."""
    names = {*view.entity.key, *_shown(view)}
    if view.entity.version is not None:
        names.add(view.entity.version)
    read = functions_read(view)
    return read.columns | names, bool(read.why_all)


def functions_read(view: View) -> Reads:
    """What the functions of a declaration may ask for; `columns=[...]` says it in their place."""
    if named := named_for_functions(view):
        return Reads(columns=frozenset(named))
    found = [columns_read(function) for function in _functions(view)]
    return Reads(
        columns=frozenset().union(*(one.columns for one in found)),
        why_all="; ".join(one.why_all for one in found if one.why_all),
    )


def _bound(view: View, table: Table) -> BoundView:
    key = tuple(_columns(table, view.entity.key or table.primary_key))
    values = tuple(_columns(table, _shown(view)))
    named, sees_all = named_columns(view)
    needed = _needed(table, key, _readable(table) if sees_all else named)
    return BoundView(
        view=view,
        table=table,
        key=key,
        values=values,
        needed=needed,
        fingerprint=_fingerprint(view, table, key, needed),
    )


def _columns(table: Table, names: Sequence[str]) -> Iterator[Column]:
    for name in names:
        column = table.column(name)
        assert column is not None, name
        yield column


def _needed(table: Table, key: Sequence[Column], names: Collection[str]) -> tuple[str, ...]:
    """In the table's order: the key, and those of the names that it has and that can be read."""
    wanted = {column.name for column in key}.union(_readable(table) & set(names))
    return tuple(column.name for column in table.columns if column.name in wanted)


def _readable(table: Table) -> set[str]:
    return {column.name for column in table.columns if column.kind is not Kind.UNSUPPORTED}


def earlier_fingerprint(bound: BoundView) -> str:
    """The one that was stored while each view with a function counted as using every column of its table."""
    is_narrow = bool(_functions(bound.view)) and not named_for_functions(bound.view)
    needed = _needed(bound.table, bound.key, _readable(bound.table)) if is_narrow else bound.needed
    return _fingerprint(bound.view, bound.table, bound.key, needed)


def declaration_hash(view: View) -> str:
    """SHA-256 of the declaration alone: equal where only the table changed."""
    return _sha256(_declaration(view))


def _fingerprint(view: View, table: Table, key: Sequence[Column], needed: Sequence[str]) -> str:
    """SHA-256 over everything that the view's content is made from: declaration, column types, functions' source."""
    bound = {
        "table": table.full_name,
        "key": [column.name for column in key],
        "columns": [_type(column) for column in _columns(table, needed)],
    }
    return _sha256({**_declaration(view), **bound})


def _declaration(view: View) -> dict[str, Any]:
    told: dict[str, Any] = {
        "kind": type(view).__name__,
        "name": view.name,
        "table": view.entity.table,
        "key": list(view.entity.key),
        "version": view.entity.version,
        "append_only": view.entity.append_only,
        "shown": _shown(view),
        "where": function_source(view.where),
    }
    if isinstance(view, RedisHash | RedisJson):
        told["template"] = view.key
    if isinstance(view, RedisJson | SearchIndex):
        told["document"] = function_source(view.document)
    if isinstance(view, SearchIndex):
        told["mapping"] = _plain(view.mapping)
        told["fields"] = view.fields
    return told


def _sha256(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(told, option=orjson.OPT_SORT_KEYS, default=repr)).hexdigest()


def _type(column: Column) -> list[Any]:
    return [column.name, column.declared, column.charset, column.is_nullable]


def _plain(mapping: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {field: dict(given) for field, given in mapping.items()}
