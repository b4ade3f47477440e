"""A declaration together with its described table: what projections and sinks work from.

`bind` decides, before anything is written, whether every declaration can work with its table as it is now, and says
everything that is wrong at once. What is true of every store is here; a store's own rules are in its folder. What only
the server can refuse (a table of that name that is not viewtail's) is left to the sinks.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from ingest.charsets import ONE_TO_ONE
from projectors.derived import DerivedRows, Part
from projectors.derived.registry import derived_rows
from projectors.function_columns import Reads, columns_read, merged
from projectors.function_source import function_source
from projectors.masking import MaskedTables, structural_problems
from projectors.related import Many, One, Relations, Uses, referring_columns
from projectors.related import columns_named as related_columns
from projectors.stores.registry import needed, store_of
from projectors.views import BoundView, RowFunction, View
from viewtail.changes.bodies import ZLIB
from viewtail.changes.errors import DeclarationError, nearest
from viewtail.changes.extras import lacking
from viewtail.changes.masks import NO_SECRET, Masks
from viewtail.changes.patterns import SOURCE, source_in
from viewtail.changes.tables import Column, Kind, Table

Describe = Callable[[str, str], Table]

_NO_PAGES = (Kind.ENUM, Kind.SET, Kind.FLOAT, Kind.DOUBLE)
_NO_KEYS = (Kind.FLOAT, Kind.DOUBLE, Kind.JSON, Kind.GEOMETRY, Kind.VECTOR)


def bind(views: Sequence[View], describe: Describe, masks: Masks = NO_SECRET) -> list[BoundView]:
    """Each view with its table, described by `describe(schema, table)`, and masked as the settings say.

    Raises one DeclarationError, a line for each problem of any view. What `describe` raises for a table that is
    missing is one of them; its other errors pass through.
    """
    problems: list[str] = []
    bound: list[BoundView] = []
    tables = _Tables(describe)
    for view in views:
        candidate, problems_of_view = _tried(view, tables, masks)
        if candidate is not None:
            bound.append(_with_previous(candidate, tables))
        problems += [f"view {view.id}: {problem}" for problem in problems_of_view]
    problems += _targets(views)
    if not problems:
        problems += _problems_between(bound)
    if problems:
        raise DeclarationError("\n".join(problems))
    return bound


class _Tables:
    """Describes each table once; that one is missing is reported once, by the first view that needs it."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._known: dict[tuple[str, str], Table | None] = {}

    def __call__(self, schema: str, name: str) -> Table:
        """Raises DeclarationError, without a text from the second time on, for a table that is missing."""
        if (schema, name) not in self._known:
            self._known[schema, name] = None
            self._known[schema, name] = self._describe(schema, name)
        table = self._known[schema, name]
        if table is None:
            raise DeclarationError("")
        return table


def _tried(view: View, describe: Describe, masks: Masks) -> tuple[BoundView | None, list[str]]:
    """The view with its table, and what is wrong with it; None where it cannot be bound at all."""
    tables = MaskedTables(view, describe, masks)
    try:
        canonical = tables(*view.entity.schema_and_table)
        names, is_any = named_columns(view)
        derived = derived_rows(view, canonical, tables, None if is_any else names)
    except DeclarationError as error:
        return None, [str(error)] if str(error) else []
    problems = [*tables.problems(), *(() if derived is None else derived.problems())]
    if not problems:
        rows = canonical if derived is None else derived.table
        problems = [*_entity_problems(view, rows, derived), *_column_problems(view, rows)]
    if problems:
        return None, problems
    bound = replace(_bound(view, rows, derived), masks=masks)
    return bound, [*tables.problems_of_use(bound), *_source_problems(bound), *store_of(view).problems(bound)]


# --- The entity ---


def _entity_problems(view: View, table: Table, derived: DerivedRows | None) -> Iterator[str]:
    entity = view.entity
    names = entity.key or table.primary_key
    if not names:
        yield (
            f"{table.full_name} has no primary key, so its rows cannot be told apart. Add one, or name the columns of "
            f"a unique key that are all NOT NULL: Entity({entity.table!r}, key=...)"
        )
    else:
        yield from _keys_problems(view, table, names)
    yield from structural_problems(view, table, names)
    if entity.version is not None:
        yield from _version_problems(table, entity.version, names)
    if entity.body is not None and entity.codec is not None:
        for body in (entity.body,) if derived is None else derived.bodies:
            yield from _body_problems(table, body, entity.codec, names)
    for name, value in entity.only:
        yield from _only_problems(table, name, value, names)


def _keys_problems(view: View, table: Table, names: Sequence[str]) -> Iterator[str]:
    columns = [table.column(name) for name in names]
    for name, column in zip(names, columns, strict=True):
        if column is None:
            yield unknown_column(table, name, "key column")
        else:
            yield from _key_problems(table, column)
    if all(columns):
        yield from _uniqueness(view, table, names)
        yield from paging_problems(table)
    if table.pattern is not None and not table.of_braces and set(names) == set(table.primary_key):
        yield (
            f"key ({', '.join(names)}) is the primary key of each of the tables {table.full_name}, which give out the "
            "same numbers; name the column whose values live in one of them each: Entity(..., key=...)"
        )


def _key_problems(table: Table, column: Column) -> Iterator[str]:
    what = f"key column {column.name} of {table.full_name}"
    if column.kind is Kind.UNSUPPORTED:
        yield _unreadable(table, column)
    elif column.kind in _NO_KEYS:
        yield (
            f"{what} is {column.type_name}, whose values have no exact equality to go by; "
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
    """The unique keys, beside the primary one, without which rows share an entity or backfills miss some."""
    key = tuple(column.name for column in view.key)
    if view.derived is not None:
        yield from view.derived.parts[0].keys
        return
    if set(key) != set(view.table.primary_key) and not view.view.entity.append_only:
        yield key
    if not view.table.primary_key:
        yield view.table.paging_key


def paging_problems(table: Table) -> Iterator[str]:
    """Why a table cannot be read in pages by its key."""
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
                f"column {column.name} of {table.full_name} is {column.type_name} and part of the key by which "
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
        yield unknown_column(table, name, "version column")
        return
    what = f"version column {name} of {table.full_name}"
    if column.kind is not Kind.INTEGER or column.declared.lower().startswith(("bit", "year")):
        yield (
            f"{what} is {column.type_name}; it must be an integer that rises with every change, e.g. BIGINT; "
            "a clock cannot order two changes of one moment"
        )
    elif column.is_nullable:
        yield f"{what} may be NULL, and NULL orders nothing; make it NOT NULL"
    if name in key:
        yield f"{what} is part of the key, so no key would ever have two versions; name the other columns: key=..."


def _body_problems(table: Table, name: str, codec: str, key: Sequence[str]) -> Iterator[str]:
    column = table.column(name)
    if column is None:
        yield unknown_column(table, name, "body column")
        return
    what = f"body column {name} of {table.full_name}"
    if column.kind is Kind.UNSUPPORTED:
        yield _unreadable(table, column)
    elif column.kind not in (Kind.BYTES, Kind.TEXT, Kind.JSON) or column.declared.startswith("binary("):
        yield f"{what} is {column.type_name}; a body is kept in a BLOB, VARBINARY, text or JSON column"
    elif column.kind is not Kind.BYTES and codec.startswith(ZLIB):
        yield f"{what} is {column.type_name}, which holds texts, and {codec} makes bytes; make it a BLOB"
    if name in key:
        yield f"{what} is part of the key; name the other columns: key=..."


def _only_problems(table: Table, name: str, value: str | int, key: Sequence[str]) -> Iterator[str]:
    column = table.column(name)
    if column is None:
        yield unknown_column(table, name, "column")
        return
    what = f"only: column {name} of {table.full_name} is {column.type_name}"
    is_text = column.kind in (Kind.TEXT, Kind.ENUM)
    if not is_text and column.kind is not Kind.INTEGER:
        yield f"{what}; rows are told apart by texts and integers"
    elif is_text != isinstance(value, str):
        yield (
            f"{what}, so it never has the value {value!r}; write {str(value)!r}"
            if is_text
            else (f"{what}, so it never has the value {value!r}; write an integer")
        )
    elif isinstance(value, str) and not _holds(column, value):
        yield f"{what}, which cannot hold {value!r}, so no row is ever in the view"
    if name in key:
        yield f"only: column {name} of {table.full_name} is part of the key; one of the two is enough"


def _holds(column: Column, value: str) -> bool:
    if column.kind is Kind.ENUM:
        return value in column.labels
    is_cut = column.declared.lower().startswith("char(") and value.endswith(" ")  # the server gives it without
    return not is_cut and not 0 < column.length < len(value)


def _source_problems(view: BoundView) -> Iterator[str]:
    if view.is_unique_over_sources and (why := store_of(view.view).no_unique_keys(view.view)):
        yield (
            f"unique_over_sources=True: {why}. Leave it out, and keys begin with the source's name; or keep these keys "
            "in an IndexTable, a RedisHash, a RedisJson or a SearchIndex"
        )


# --- Columns ---


def _functions(view: View) -> list[RowFunction]:
    return [function for function in (view.where, view.document) if function is not None]


def _column_problems(view: View, table: Table) -> Iterator[str]:
    for name in dict.fromkeys((*_shown(view, table), *view.columns)):
        column = table.column(name)
        if column is None:
            yield unknown_column(table, name, "column")
        elif column.kind is Kind.UNSUPPORTED:
            yield _unreadable(table, column)
    if view.columns and not _functions(view):
        yield "columns=[...] is for views with document= or where=; leave it out"


def _shown(view: View, table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns) if shows_all(view) else view.shown


def shows_all(view: View) -> bool:
    """Whether it shows whatever columns its table has."""
    return view.shows_table and not view.shown and not view.computed


def unknown_column(table: Table, name: str, what: str) -> str:
    """The message that a table has no such column."""
    names = [column.name for column in table.columns]
    if (why := table.lacking.get(name)) is not None:
        return f"{table.full_name} are read as one, and {what} {name} is not the same in all of them: {why}"
    return f"{table.full_name} has no {what} {name}" + (nearest(name, names) or f"; it has {', '.join(names)}")


def _unreadable(table: Table, column: Column) -> str:
    charset = f" in character set {column.charset}" if column.charset else ""
    return (
        f"column {column.name} of {table.full_name} is {column.type_name}{charset}, which viewtail cannot read "
        "exactly. Convert the column (text: to utf8mb4), or leave it out"
        + (", with columns=[...] where a function is used" if column.charset is None else "")
    )


# --- The stores ---


def _problems_between(views: Sequence[BoundView]) -> Iterator[str]:
    """Two views of one store that could be in each other's way there."""
    for store in needed(view.view for view in views):
        of_store = [view for view in views if view.view.store == store.name]
        if why := lacking(store.client):
            yield f"view {of_store[0].id}: {why}"
        yield from (f"view {view.id}: {problem}" for view, problem in store.problems_between(of_store))


def _targets(views: Sequence[View]) -> list[str]:
    twice = [name for name, count in Counter(view.id for view in views).items() if count > 1]
    return [f"view {name}: two views have this store and name; give one of them another name" for name in twice]


# --- What is bound ---


def named_columns(view: View) -> tuple[frozenset[str], bool]:
    """The columns that a declaration names, and whether a function of it may look at all others, too."""
    read = functions_read(view)
    return read.columns | _declared(view), bool(read.why_all) or shows_all(view)


def uses_of(view: View) -> Uses | None:
    """What a declaration asks of its rows, and of their related rows; None: anything."""
    read = functions_read(view)
    return None if read.why_all or shows_all(view) else merged((read.uses, dict.fromkeys(_declared(view))))


def _declared(view: View) -> set[str]:
    """The columns that are named beside the functions."""
    names = {*view.entity.key, *view.shown}
    if view.entity.version is not None:
        names.add(view.entity.version)
    names.update(name for name, _ in view.entity.only)
    return names


def columns_named(view: View) -> frozenset[str]:
    """The columns of the entity's table that a declaration names; what its conditions name, only the table tells."""
    entity = view.entity
    if entity.values:
        return frozenset({*entity.key, *(of.column for _, of in entity.values if of.column is not None)})
    names, _ = named_columns(view)
    return names.difference(dict(entity.related)) | referring_columns(entity.related, uses_of(view))


def tables_named(view: View) -> dict[tuple[str, str], frozenset[str]]:
    """The same of each table that the view draws on, by schema and name; the entity's is the first."""
    named = {view.entity.schema_and_table: columns_named(view)}
    for name, columns in related_columns(view.entity.related, uses_of(view)):
        named[name] = named.get(name, frozenset()) | columns
    return named


def shows_new_columns(view: View) -> bool:
    """Return whether a column that the table gets would be in the content: what a group has is declared."""
    return named_columns(view)[1] and not view.entity.values


def shown_whole(view: View) -> frozenset[tuple[str, str]]:
    """The tables, by schema and name, of which a column that they get would be in the content."""
    own = [view.entity.schema_and_table] if shows_new_columns(view) else []
    return frozenset([*own, *_related_whole(view.entity.related, uses_of(view))])


def _related_whole(related: Relations, uses: Uses | None) -> Iterator[tuple[str, str]]:
    for name, of in related:
        if not isinstance(of, One | Many) or (uses is not None and name not in uses):
            continue
        asked = None if uses is None else uses[name]
        if asked is None and not of.columns:
            yield of.schema_and_table
        yield from _related_whole(of.related, asked)


def functions_read(view: View) -> Reads:
    """Return the columns that the functions of a declaration may ask for; `columns=[...]` says it in their place."""
    if view.columns:
        return Reads(uses=dict.fromkeys(view.columns))
    reads = [columns_read(function, view.entity.related) for function in _functions(view)]
    why_all = "; ".join(read.why_all for read in reads if read.why_all)
    return Reads(uses=merged(read.uses for read in reads), why_all=why_all)


def _bound(view: View, table: Table, derived: DerivedRows | None) -> BoundView:
    """`table` has the rows that the view sees."""
    key = _key_of(view, tuple(_columns(table, view.entity.key or table.primary_key)))
    values = view.computed or tuple(column.in_store for column in _columns(table, _shown(view, table)))
    if view.has_key_apart and not view.computed:
        names_of_key = {column.name for column in key}
        values = tuple(column for column in values if column.name not in names_of_key)
    names, is_any = named_columns(view)
    needed = _needed(table, key, None if is_any else names)
    fingerprint = _fingerprint(view, table, key, needed, derived)
    return BoundView(
        view=view, table=table, key=key, values=values, needed=needed, fingerprint=fingerprint, derived=derived
    )


def _key_of(view: View, columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """The columns of the key; the source's name is no part of its text where a key is on one of them at a time."""
    if not view.entity.unique_over_sources:
        return columns
    source = source_in(view.entity.schema_and_table[0])
    return tuple(replace(column, constant=source) if column.name == SOURCE else column for column in columns)


def _with_previous(bound: BoundView, describe: Describe) -> BoundView:
    """One that the table does not fit any more, whose columns are gone, must not keep the present one from running."""
    before = bound.view.previous
    if before is None:
        return bound
    previous, problems = _tried(before, describe, bound.masks)
    return replace(bound, previous_misfit="; ".join(problems)) if problems else replace(bound, previous=previous)


def made_by(view: BoundView, declaration: str) -> BoundView | None:
    """The view by the declaration of that hash, in the same place: it or its previous one; None: neither is that."""
    if declaration == declaration_hash(view.view):
        return view
    previous = view.previous
    if previous is None or declaration != declaration_hash(previous.view):
        return None
    return replace(previous, copy=view.copy, is_beside=view.is_beside, move=view.move)


def _columns(table: Table, names: Sequence[str]) -> Iterator[Column]:
    for name in names:
        column = table.column(name)
        assert column is not None, name
        yield column


def _needed(table: Table, key: Sequence[Column], names: Collection[str] | None) -> tuple[str, ...]:
    """Name the key and the readable columns of these names, in the table's order; None: all that can be read."""
    return tuple(
        column.name
        for column in table.columns
        if column in key or (column.kind is not Kind.UNSUPPORTED and (names is None or column.name in names))
    )


def declaration_hash(view: View) -> str:
    """SHA-256 of the declaration alone: equal where only the table changed."""
    return _sha256(_declaration(view))


def _fingerprint(
    view: View, table: Table, key: Sequence[Column], needed: Sequence[str], derived: DerivedRows | None
) -> str:
    """SHA-256 over everything that the view's content is made from: declaration, column types, functions' source.

    Rows of several tables depend on columns that they do not show, and on which texts are equal: by collation.
    """
    of_table: dict[str, Any] = {
        "table": table.full_name,
        "key": [column.name for column in key],
        "columns": list(map(_type, _columns(table, needed))),
    }
    if derived is not None:
        of_table["parts"] = list(map(_part, derived.parts))
    return _sha256({**_declaration(view), **of_table})


def _part(part: Part) -> list[Any]:
    types = [[*_type(column), column.collation] for column in _columns(part.table, part.columns)]
    return [part.table.full_name, part.table.primary_key, types]


def _type(column: Column) -> list[Any]:
    own = [column.name, column.declared, column.charset, column.is_nullable]
    if column.mask is None:
        return own
    # Another secret makes other hashes. The fingerprint is kept, and says nothing of it.
    secret = hashlib.sha256(b"viewtail masks" + column.mask.secret).hexdigest()
    return [*own, column.mask.how, _type(column.mask.of), secret]


def _declaration(view: View) -> dict[str, Any]:
    declared: dict[str, Any] = {
        "kind": type(view).__name__,
        "name": view.name,
        "table": view.entity.table,
        "key": list(view.entity.key),
        "version": view.entity.version,
        "append_only": view.entity.append_only,
        "shown": view.shown,
        "where": function_source(view.where),
        **view.particulars,
        **view.entity.particulars,
    }
    if view.entity.only:
        declared["only"] = view.entity.only
    if view.entity.unique_over_sources:
        declared["unique_over_sources"] = True
    if view.entity.masked or view.unmasked:
        declared["masks"] = [view.entity.masked, view.unmasked]
    if "document" in declared:
        declared["document"] = function_source(view.document)
    if view.entity.body is not None and _functions(view):  # other views show the column as it is
        declared["body"] = [view.entity.body, view.entity.codec]
    return declared


def _sha256(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS, default=repr)).hexdigest()
