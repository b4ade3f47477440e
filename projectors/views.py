"""Declarations: what the user writes in views.py, as plain frozen data; here what every store's views share.

A view class of a store is in that store's folder (projectors/stores/*/views.py). Nothing here talks to a server;
projectors/binding.py decides whether a declaration can work with its table, and makes it a `BoundView`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Self

from projectors.related import DEFAULT_MAX_BYTES, Aggregate, Related, Relations, related_particulars, relations
from viewtail.changes.batches import Row
from viewtail.changes.bodies import CODECS
from viewtail.changes.copy_ids import copy_id, is_copy
from viewtail.changes.errors import DeclarationError
from viewtail.changes.masks import NO_SECRET, Masks, check_masks
from viewtail.changes.patterns import SOURCE, BadPatternError, Pattern, of_source, pattern_of, source_in
from viewtail.changes.tables import Column, NamePattern, Table, full_name, names_of
from viewtail.changes.writes import Key

if TYPE_CHECKING:
    from ingest.canonical.rows import ReadableRows
    from projectors.derived import DerivedRows


_MOST_CHARACTERS = 64  # of a column's name
_MOST_SECONDS = 86_400
_SOURCE_NAMES = re.compile(r"[a-z0-9_*]{1,64}")

RowFunction = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True, init=False)
class Entity:
    """A canonical table and what identifies one of its rows.

    Args:
        table: 'schema.table', a name with a dot in backticks as in SQL; or the schema alone, and `name` the table.
            Of many tables that are alike, a tenant's each: 'app.org{account_id:int}_invoice', 'tenant_{tenant}.user'.
            What is there in a table's name is a column of its rows, a whole number or a text, and their key begins
            with it. (Where it is polled, also 'schema.table_##', each # a digit: that needs `key`, each value of which
            lives in one of them.)
        name: Entity("shop", "order.line") is Entity("shop.`order.line`").
        key: one or several columns; by default the primary key.
        version: an integer column that rises with every change of a key (event-sourced and cell tables).
        append_only: rows are only ever added, a key's newest row counts; row deletes are archiving and are
            ignored. Needs `version`.
        order: its AUTO_INCREMENT column: where the source is polled, rows are read in the order of these ids. Needs
            `append_only`.
        body: the column that holds a dict, as JSON, MessagePack or a pickle, which functions of the row see decoded.
        codec: how it is kept: one of changes.bodies.CODECS.
        only: by column, the value that rows of this entity have, where a table holds rows of several (cells: the
            column's name). Other rows are as if they were in another table. Needs `append_only`.
        columns_by: of a table of cells, the column that names a cell: the view's row has the newest cell of each name
            that it asks for, None where there is none. It is read again at each change. Needs `key`, `newest`, `body`.
        newest: of the cells of a row and name the one with the largest value here counts.
        related: by name, what its row has from other tables: One, Many, Count, Sum, Min, Max. The row is read again at
            each change of any of them.
        max_bytes: the most bytes of related rows that an entity has; one with more is parked with that reason.
        at_most_every: seconds between two writings of one entity whose related rows change all the time; 0: each
            change is written.
        masked: how each of these columns is masked before any view sees it: 'hash', 'last4', 'null' or 'year'. A column
            of a related table is written 'schema.table.column'. See docs/masks.md.
        dropped: what becomes of the rows of a table of many that is dropped, or renamed to what does not match:
            'delete', or 'keep', in which case views are the archive of them.
        sources: names of servers, [sources.NAME] in the settings, that have this table each; `shard*` is all that begin
            so. The column `source` of its rows is the name, and their key begins with it. See docs/several-servers.md.
        unique_over_sources: no two of them have a row with the same key, so keys are without the source's name. A key
            that is on a second one while the first one has it is parked, until the first one's row is deleted.
    """

    table: str
    key: tuple[str, ...]  # empty: the primary key
    version: str | None
    append_only: bool
    order: str | None
    body: str | None
    codec: str | None
    only: tuple[tuple[str, str | int], ...]
    columns_by: str | None
    newest: str | None
    related: Relations
    max_bytes: int
    at_most_every: float
    masked: tuple[tuple[str, str], ...]
    dropped: str
    sources: tuple[str, ...]
    unique_over_sources: bool
    values: tuple[tuple[str, Aggregate], ...]  # of a Group

    def __init__(
        self,
        table: str,
        name: str | None = None,
        *,
        key: str | Sequence[str] = (),
        version: str | None = None,
        append_only: bool = False,
        order: str | None = None,
        body: str | None = None,
        codec: str | None = None,
        only: Mapping[str, str | int] | None = None,
        columns_by: str | None = None,
        newest: str | None = None,
        related: Mapping[str, Related] | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        at_most_every: float = 0,
        masked: Mapping[str, str] | None = None,
        dropped: str = "delete",
        sources: str | Sequence[str] = (),
        unique_over_sources: bool = False,
    ) -> None:
        where = _entity_label(self, table, name)
        if body is not None:
            (body,) = column_names((body,), f"{where}: body")
        _freeze(
            self,
            table=full_name(*_schema_and_table(table, name, where)),
            key=tuple(name for name in column_names(key, f"{where}: key") if not (sources and name == SOURCE)),
            version=version,
            append_only=append_only,
            order=order,
            body=body,
            codec=codec,
            only=_only(only, where),
            columns_by=columns_by,
            newest=newest,
            related=relations(related, where),
            max_bytes=max_bytes,
            at_most_every=_seconds(at_most_every, where),
            masked=_masked(masked, where),
            dropped=dropped,
            sources=_sources(sources, where),
            unique_over_sources=unique_over_sources,
            values=(),
        )
        for misfit in _misfits(self):
            raise DeclarationError(f"{where}: {misfit}")

    @property
    def is_of_all(self) -> bool:
        """Whether it is declared for several sources, and is not the entity as one of them has it yet."""
        return bool(self.sources) and source_in(self.schema_and_table[0]) is None

    def draws_on(self, source: str) -> bool:
        """Return whether the source of that name has rows of it."""
        return any(fnmatchcase(source, name) for name in self.sources)

    def of_source(self, source: str) -> Self:
        """The entity as that source alone has it: the name is the first column of its rows, and of their key."""
        schema, name = self.schema_and_table
        twin, own = copy(self), f"{self.table}."
        _freeze(
            twin,
            table=full_name(of_source(schema, source), name),
            key=(SOURCE, *(column for column in self.key if column != SOURCE)) if self.key else (),
            masked=tuple((column.removeprefix(own), how) for column, how in self.masked),
        )
        return twin

    @property
    def pattern(self) -> Pattern | None:
        """It draws on all tables whose names match; None: on one table."""
        return pattern_of(*self.schema_and_table)

    def is_of(self, table: str) -> bool:
        """Return whether a table, as 'schema.table', is its own, or one of its own."""
        pattern, names = self.pattern, names_of(table)
        if pattern is None or names is None:
            return self.table == table
        return pattern.part(*names) is not None

    @property
    def tables(self) -> frozenset[tuple[str, str]]:
        """Schema and name of each table that its rows are made of."""
        return frozenset({self.schema_and_table, *(name for _, of in self.related for name in of.tables)})

    @property
    def particulars(self) -> dict[str, Any]:
        """The arguments that make its rows of several; a part of the fingerprint of its views."""
        if self.related:
            return {"related": related_particulars(self.related), "max_bytes": self.max_bytes}
        if self.values:
            return {"values": related_particulars(self.values)}
        return {} if self.columns_by is None else {"cells": [self.columns_by, self.newest, self.body]}

    @property
    def is_derived(self) -> bool:
        """Whether its rows are made of several rows, perhaps of several tables."""
        return bool(self.particulars)

    @property
    def whole_masked(self) -> tuple[tuple[str, str], ...]:
        """`masked` with the table of every column: 'schema.table.column'."""
        return tuple((name if "." in name else f"{self.table}.{name}", how) for name, how in self.masked)

    @property
    def schema_and_table(self) -> tuple[str, str]:
        """'shop.user' -> ('shop', 'user')"""
        names = names_of(self.table)
        assert names is not None
        return names


class Group(Entity):
    """Rows of a table that have the same values in some columns, as one entity: its key are these values.

    Texts are the same by their bytes, whatever their collation. A row with NULL in one of the columns is in no group,
    and a group without rows is none.

    Args:
        table: 'schema.table', or as of an Entity with `name`.
        by: one or several columns.
        values: by name, numbers over the rows of the group: Count(), Sum('column'), Min('column'), Max('column'), each
            perhaps of some of the rows, where=.
        at_most_every: as of an Entity.
    """

    __slots__ = ()

    def __init__(
        self,
        table: str,
        name: str | None = None,
        *,
        by: str | Sequence[str],
        values: Mapping[str, Aggregate],
        at_most_every: float = 0,
    ) -> None:
        where = _entity_label(self, table, name)
        names = column_names(by, f"{where}: by")
        if not names:
            raise DeclarationError(f"{where}: by names one column or several")
        if pattern_of(*_schema_and_table(table, name, where)) is not None:
            raise DeclarationError(f"{where}: a group is of the rows of one table, without braces or #")
        super().__init__(table, name, key=names)
        every = _seconds(at_most_every, where)
        _freeze(self, values=_values(values, names, where), at_most_every=every)


def _entity_label(entity: Entity, table: Any, name: Any) -> str:
    return f"{type(entity).__name__}({table!r})" if name is None else f"{type(entity).__name__}({table!r}, {name!r})"


def _seconds(given: Any, where: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= _MOST_SECONDS:
        raise DeclarationError(f"{where}: at_most_every is a number of seconds, 0 to {_MOST_SECONDS:,}, not {given!r}")
    return float(given)


def _values(given: Any, by: Sequence[str], where: str) -> tuple[tuple[str, Aggregate], ...]:
    """The numbers of a group. Raises DeclarationError."""
    if not isinstance(given, Mapping) or not given:
        raise DeclarationError(f"{where}: values is a dict of names and Count(), Sum('column'), Min or Max")
    taken = {name.casefold(): name for name in by}
    for name, of in given.items():
        if not isinstance(name, str) or not 0 < len(name) <= _MOST_CHARACTERS:
            raise DeclarationError(
                f"{where}: values has names that are texts of 1 to {_MOST_CHARACTERS} characters, not {name!r}"
            )
        if not isinstance(of, Aggregate) or of.table:
            raise DeclarationError(
                f"{where}: values[{name!r}] is over the rows of the group: Count(), Sum('column'), Min('column') or "
                "Max('column'), with no table and no by="
            )
        if name.casefold() in taken:
            raise DeclarationError(f"{where}: values[{name!r}]: {taken[name.casefold()]} is there already; rename it")
        taken[name.casefold()] = name
    return tuple(given.items())


def _misfits(entity: Entity) -> Iterator[str]:
    """Which arguments of an entity cannot be together, and why."""
    if entity.append_only and entity.version is None:
        yield "append_only needs version='COLUMN', the column that says which row of a key is the newest"
    if entity.order is not None and not entity.append_only:
        yield "order needs append_only=True: only rows that are added can be polled"
    yield from _pattern_misfits(entity)
    yield from _source_misfits(entity)
    if entity.only and not entity.append_only:
        yield (
            "only needs append_only=True: a row that an update takes out of the entity, and one that it takes in, "
            "would have no order with the other rows of its key"
        )
    yield from _body_misfits(entity)
    yield from _related_misfits(entity)


def _pattern_misfits(entity: Entity) -> Iterator[str]:
    if entity.dropped not in ("delete", "keep"):
        yield f"dropped is 'delete' or 'keep', not {entity.dropped!r}"
    if (pattern := entity.pattern) is None:
        if entity.dropped == "keep":
            yield "dropped='keep' is for many tables that are one entity, with braces in their name"
        return
    names = pattern.names
    yield from _pattern_key_misfits(entity, names)
    used = {
        "version": [entity.version], "order": [entity.order], "body": [entity.body], "only": dict(entity.only),
    }  # fmt: skip
    for argument, columns in used.items():
        if given := [name for name in columns if name in names]:
            yield f"{argument}: {given[0]} is in the tables' names and in none of their columns"
    if entity.related or entity.columns_by is not None:
        yield (
            "related= and columns_by= are of the rows of one table; views of many tables are of single rows. Read the "
            "related rows of a table's own, with an entity for each, or leave the argument out"
        )


def _pattern_key_misfits(entity: Entity, names: Sequence[str]) -> Iterator[str]:
    if not names and (entity.order is None or not entity.key):
        yield (
            "# stands for a digit, so it is several tables, which are polled as one: say key=, whose values live in "
            "one of them each, and order=, their AUTO_INCREMENT column. Braces, e.g. {shard:int}, make it a column"
        )
    if entity.key and [*entity.key[: len(names)]] != [*names]:
        rest = [name for name in entity.key if name not in names]
        yield (
            f"each of its tables may have a row of any key, so the key begins with what tells them apart: "
            f"key={[*names, *rest]!r}"
        )


def _source_misfits(entity: Entity) -> Iterator[str]:
    """Why an entity cannot be drawn from several servers."""
    if not entity.sources:
        if entity.unique_over_sources:
            yield "unique_over_sources is for rows of several servers: name them with sources=, or leave it out"
        return
    if entity.unique_over_sources and (entity.append_only or entity.dropped == "keep"):
        yield (
            "unique_over_sources goes with no append_only=True and no dropped='keep': a row that is never deleted "
            "from its view keeps its key on that source for good"
        )
    if entity.related or entity.columns_by is not None:
        yield (
            "related= and columns_by= read other rows on the server of a row's own, which is not there yet for "
            "sources=; views of several servers are of single rows"
        )
    if entity.order is not None:
        yield "order= is for a source that is polled, and sources= are read by their binlogs; leave it out"
    yield from _source_name_misfits(entity)


def _source_name_misfits(entity: Entity) -> Iterator[str]:
    """Which names are in the way of the column with the source's name."""
    if entity.pattern is not None and SOURCE in map(str.lower, entity.pattern.names):
        yield f"a brace is called {SOURCE}, as the column with the sources' names is; give it another name"
    if not {*"`.#"}.isdisjoint(entity.schema_and_table[0]):
        yield "sources= needs a schema whose name has no dot, backtick or #"
    used = {"version": [entity.version], "body": [entity.body], "only": dict(entity.only)}
    for argument in (name for name, columns in used.items() if SOURCE in columns):
        yield f"{argument}: {SOURCE} is the source's name, which is in none of the table's columns"


def _body_misfits(entity: Entity) -> Iterator[str]:
    if (entity.body is None) is not (entity.codec is None):
        yield "body names a column, and codec how it is kept: give both, or neither"
    if entity.codec not in (None, *CODECS):
        yield f"codec is one of {', '.join(CODECS)}, not {entity.codec!r}"
    if (entity.columns_by is None) is not (entity.newest is None):
        yield "columns_by names cells, and newest says which of them count: give both"
    if entity.columns_by is not None and (not entity.key or entity.body is None or _has_order(entity)):
        yield (
            "columns_by needs key=, the columns that name a row of cells, body= and codec=; it goes with no version=, "
            "append_only= or order=, since a row is read again at each change"
        )


def _related_misfits(entity: Entity) -> Iterator[str]:
    if entity.related and (_has_order(entity) or entity.columns_by is not None or entity.only):
        yield (
            "related goes with no version=, append_only=, order=, only= or columns_by=, since a row is read again at "
            "each change of any of its tables"
        )
    if entity.at_most_every and not entity.related:
        yield "at_most_every goes with related=, or with a Group: other rows are written as they change"
    if not isinstance(entity.max_bytes, int) or entity.max_bytes < 1:
        yield f"max_bytes is a number of bytes, 1 or more, not {entity.max_bytes!r}"


def _has_order(entity: Entity) -> bool:
    """Whether columns of its rows order their changes."""
    return entity.version is not None or entity.order is not None


def _freeze(declared: object, **values: Any) -> None:
    """The fields of a declaration, which is frozen."""
    for name, value in values.items():
        object.__setattr__(declared, name, value)


@dataclass(frozen=True, slots=True, init=False)
class View:
    """What every view has: a name, an entity, and perhaps a condition and a function that makes its content."""

    store: ClassVar[str]  # the name of its store, as projectors/stores/registry.py knows it
    has_index: ClassVar[bool] = False  # keys are found by value in it
    needs_all_values: ClassVar[bool] = False  # and only by all values together, not by the first ones
    shows_table: ClassVar[bool] = False  # a view that names no columns shows all of them
    has_key_apart: ClassVar[bool] = False  # its key has columns of its own, which are not among those that it shows

    name: str
    entity: Entity
    where: RowFunction | None  # a row for which it is false is not in the view
    document: RowFunction | None  # makes the content from a row; None: the view shows columns
    function: ClassVar[str] = "document"  # what its argument is called
    columns: tuple[str, ...]  # all that the functions get; (): what their source asks for
    previous: View | None  # the declaration before this one, which keeps its copy up to date while this one's comes
    masked: tuple[tuple[str, str], ...]  # how columns are masked, 'schema.table.column': of its entity, and of others
    unmasked: tuple[str, ...]  # columns that it needs as they are, whatever masks them
    topic: View | None  # of derived rows: the topic of the same entity in views.py; where topics are read, it has them
    push: bool  # who writes its table shows it what was committed at once, ahead of its pipeline

    def _set(
        self,
        name: str,
        entity: Entity,
        where: RowFunction | None,
        document: RowFunction | None = None,
        columns: str | Sequence[str] = (),
        push: bool = False,
        unmasked: str | Sequence[str] = (),
    ) -> None:
        label = f"{type(self).__name__}({name!r})"
        _check_name(name, label)
        if not isinstance(entity, Entity):
            raise DeclarationError(f"{label}: the second argument must be an Entity, not {type(entity).__name__}")
        if where is not None and not callable(where):
            raise DeclarationError(f"{label}: where must be a function of the row, e.g. lambda row: row['active']")
        if document is not None and not callable(document):
            raise DeclarationError(f"{label}: {self.function} must be a function of the row")
        _check_push(push, entity, label)
        self._put(name=name, entity=entity, where=where, document=document, push=push, previous=None, topic=None)
        self._put(columns=column_names(columns, f"{label}: columns"))
        self._put(masked=entity.whole_masked, unmasked=column_names(unmasked, f"{label}: unmasked"))

    def _put(self, **values: Any) -> None:
        """Set attributes of a frozen declaration, while it is being made."""
        _freeze(self, **values)

    def kept_from(self, topic: View | None) -> Self:
        """The same declaration, whose rows that topic has."""
        twin = copy(self)
        twin._put(topic=topic)
        return twin

    def masked_as(self, masked: tuple[tuple[str, str], ...]) -> Self:
        """The same declaration, with the masks of all entities."""
        twin = copy(self)
        previous = None if self.previous is None else self.previous.masked_as(masked)
        twin._put(masked=masked, previous=previous)
        return twin

    def of_source(self, source: str) -> Self:
        """The same declaration, of the rows that one of its sources has.

        Its masks are those of all entities by then: a mask of the table, on whichever server, is one of this source's.
        """
        twin, own = copy(self), f"{self.entity.table}."
        entity, previous = self.entity.of_source(source), self.previous and self.previous.of_source(source)
        unmasked = tuple(column.removeprefix(own) for column in self.unmasked)
        masked = tuple((_in_source(name, self.entity.table, source), how) for name, how in self.masked)
        twin._put(entity=entity, previous=previous, masked=masked, unmasked=unmasked)
        return twin

    def _set_previous(self, previous: View | None) -> None:
        """Last of all: it is compared with what was set."""
        if previous is None:
            return
        label, kind = f"{type(self).__name__}({self.name!r}): previous", type(self).__name__
        if type(previous) is not type(self):
            given = type(previous).__name__
            raise DeclarationError(f"{label} is the whole declaration before this one, a {kind}, not a {given}")
        if previous.previous is not None:
            raise DeclarationError(f"{label} has a previous= itself; there is one at most, so take that one out")
        for what, now, before in (
            ("name", self.name, previous.name),
            ("entity", self.entity, previous.entity),
            ("unmasked", self.unmasked, previous.unmasked),
            *((name, value, previous.fixed[name]) for name, value in self.fixed.items()),
        ):
            if now != before:
                raise DeclarationError(
                    f"{label} has another {what}, {before!r}. Both are copies of one view, which readers find in one "
                    f"place: give it the same {what}, or leave previous= out"
                )
        object.__setattr__(self, "previous", previous)

    @property
    def fixed(self) -> dict[str, Any]:
        """What `previous` must have too, since both are the same view to readers."""
        return {}

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns that the view shows as they are; none where a function makes its content."""
        raise NotImplementedError

    @property
    def particulars(self) -> dict[str, Any]:
        """What the content depends on besides what every view has; a part of the view's fingerprint."""
        return {}

    @property
    def id(self) -> str:
        """Unique among the views of one views.py: 'store:name'."""
        return f"{self.store}:{self.name}"

    @property
    def computed(self) -> tuple[Column, ...]:
        """Columns that the view has and its table has not: `document` makes their values, see `computed_values`."""
        return ()

    def computed_values(self, made: Any) -> tuple[Any, ...] | None:
        """What `document` returned, as values of the computed columns; None: the row is not in the view.

        Raises projectors.stores.Unfit where it does not fit them.
        """
        raise NotImplementedError

    @property
    def refusing(self) -> tuple[str, ...]:
        """Arguments of the declaration, but for functions, for which a row may not do; see `Store.content`."""
        return ()

    def refuses(self, document: Mapping[str, Any]) -> str | None:
        """Why the store would not take what `document` returned, as far as the declaration tells; None: it takes it."""
        return None


@dataclass(frozen=True, slots=True)
class Move:
    """Two copies of a view change places, entity by entity, while both are written."""

    copy: int  # the number of the copy that readers get
    former: int  # and of the one that goes beside
    upto: int  # the version up to which `copy` was whole when it began: a key that it lacked was gone by then


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BoundView:
    """A declaration with its described table: what projections and stores work from.

    A view may have two copies: the live one, which readers see, and one beside it (offsets/copies.py). Each is a
    view of its own for all that writes, with another id and another place in the store.
    """

    view: View
    table: Table
    key: tuple[Column, ...]  # of the entity, in key order
    values: tuple[Column, ...]  # columns the view shows, as declared, or computed ones; () for document functions
    needed: tuple[str, ...]  # every column the projection reads: key, values, version, function's columns
    fingerprint: str  # hex; differs when the view's content would
    copy: int = 1  # the number of this copy; no two copies of a view ever have the same
    previous: BoundView | None = None  # by the declaration before this one, where there is one that fits the table
    previous_misfit: str = ""  # why that one does not
    is_beside: bool = False  # readers do not see it
    move: Move | None = None  # it is one of these two copies: whatever writes an entity has it moved first
    derived: DerivedRows | None = None  # makes the rows of `table` of canonical ones; None: `table` is canonical itself
    comes_whole: bool = False  # the stream is a topic that has the rows of `table`: `derived` reads them for all else
    masks: Masks = NO_SECRET  # what the settings say of masks, as it was bound
    paused: frozenset[Key] = frozenset()  # values of the braces of tables whose rows are left as they are shown
    is_pushed: bool = False  # what is written comes ahead of the pipeline, which has the last word on equal versions

    @property
    def id(self) -> str:
        return copy_id(self.view.id, self.copy) if self.is_beside else self.view.id

    def is_masked(self, name: str) -> bool:
        """Return whether it shows the table's column of that name masked."""
        column = None if self.view.computed else self.table.column(name)
        return column is not None and column.mask is not None

    @property
    def read_back(self) -> DerivedRows | None:
        """What reads its rows again at each change; None: the stream brings them."""
        return None if self.comes_whole else self.derived

    @property
    def canonical(self) -> Table:
        """The entity's table as it was described."""
        return self.table if self.derived is None else self.derived.parts[0].table

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of the canonical table that the view is made of."""
        return self.needed if self.derived is None else self.derived.parts[0].columns

    def described(self, schema: str, name: str) -> Table:
        """A table that the view was bound to, as it was described then. Raises DeclarationError for any other."""
        if (schema, name) == self.view.entity.schema_and_table:  # the server may spell it otherwise
            return self.canonical
        parts = [self.table] if self.derived is None else [part.table for part in self.derived.parts]
        for table in parts:
            if (table.schema, table.name) == (schema, name):
                return table
        raise DeclarationError(f"view {self.id} was not bound to {full_name(schema, name)}")

    @property
    def rows(self) -> ReadableRows:
        """How the rows of `table` are read."""
        from ingest.canonical.rows import TableRows

        return TableRows(self.table) if self.derived is None else self.derived

    @property
    def prefix(self) -> int:
        """How many of the key's first columns say which of many tables a row is in."""
        return len(self.table.of_braces)

    @property
    def source(self) -> Key:
        """What its keys begin with, where the store has keys of other sources too; else ()."""
        return () if self.table.pattern is None else self.table.pattern.source

    @property
    def is_unique_over_sources(self) -> bool:
        """Whether a key without the source's name is shown of one source at a time."""
        return bool(self.source) and self.view.entity.unique_over_sources

    def of_source(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Those of these keys that are of its source: nothing is known here of the rows of another one."""
        source = self.source
        return [key for key in keys if key[:1] == source] if source else keys

    def own(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Those of these keys that it is kept with: of its source, and of no table that is paused."""
        keys, paused, width = self.of_source(keys), self.paused, self.prefix
        return [key for key in keys if key[:width] not in paused] if paused else keys

    @property
    def bodies(self) -> tuple[str, ...]:
        """The columns whose values the entity's codec decodes."""
        if self.derived is not None:
            return self.derived.bodies
        return () if self.view.entity.body is None else (self.view.entity.body,)

    @property
    def condition(self) -> str:
        """SQL: which rows of `table` are the entity's; '' of all."""
        from viewtail.servers.literals import exactly  # a views.py needs no MySQL client

        columns = {column.name: column for column in self.table.columns}
        return " AND ".join(exactly(columns[name], value) for name, value in self.view.entity.only)

    def belongs(self, columns: Sequence[str]) -> Callable[[Row], bool] | None:
        """Whether a row of `table`, with these columns, is the entity's; None where all are."""
        pairs = [(columns.index(name), value) for name, value in self.view.entity.only]
        return (lambda row: all(row[at] == value for at, value in pairs)) if pairs else None


def _check_name(name: Any, label: str) -> None:
    if not isinstance(name, str) or not name:
        raise DeclarationError(f"{label}: the name must be a non-empty string")
    if is_copy(name):
        raise DeclarationError(f"{label}: names that end in ~ and a number are those of copies; choose another")


def _check_push(push: Any, entity: Entity, label: str) -> None:
    if not isinstance(push, bool):
        raise DeclarationError(f"{label}: push is True or False, not {push!r}")
    if push and not entity.append_only:
        raise DeclarationError(
            f"{label}: push=True needs an entity whose rows have versions of their own, and are only ever added: "
            "Entity(..., version='COLUMN', append_only=True)"
        )
    if push and entity.pattern is not None and entity.pattern.names:
        raise DeclarationError(
            f"{label}: push=True is of one table: what is pushed is read from the table that a session has just "
            "written to, which has no column of the braces. Leave push=True out; the pipeline brings the rows"
        )
    if push and entity.sources:
        raise DeclarationError(
            f"{label}: push=True is of one server: a session does not know which of sources= it is on. Leave push=True "
            "out; the pipelines bring the rows"
        )


def _schema_and_table(table: Any, name: Any, where: str) -> tuple[str, str]:
    """Take an entity's first arguments apart."""
    if isinstance(table, str) and table and isinstance(name, str) and name:
        return table, NamePattern(name) if "#" in name else name
    names = names_of(table) if isinstance(table, str) and name is None else None
    if names is None:
        raise DeclarationError(
            f"{where}: the table is written 'schema.table', e.g. Entity('shop.user'). Where a name has a dot in it, "
            "give schema and table apart, Entity('shop', 'order.line'), or in backticks: Entity('shop.`order.line`')"
        )
    _check_pattern(names, where)
    return names


def _check_pattern(names: tuple[str, str], where: str) -> None:
    try:
        pattern_of(*names)
    except BadPatternError as error:
        raise DeclarationError(f"{where}: {error}") from None
    if (source := source_in(names[0])) is not None:
        raise DeclarationError(f"{where}: the name of a source is not written there, but as sources=[{source!r}]")


def _sources(given: Any, where: str) -> tuple[str, ...]:
    names = column_names(given, f"{where}: sources")
    for name in names:
        if not _SOURCE_NAMES.fullmatch(name):
            raise DeclarationError(
                f"{where}: sources: {name!r} is no name of a source, as in [sources.eu]: small letters, digits and _, "
                "with * for any of them"
            )
    return names


def _masked(given: Any, where: str) -> tuple[tuple[str, str], ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not given:
        raise DeclarationError(f"{where}: masked is a dict of columns and their masks, e.g. {{'email': 'hash'}}")
    return tuple(sorted(check_masks(given, where).items()))


def _only(given: Mapping[str, str | int] | None, where: str) -> tuple[tuple[str, str | int], ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not given:
        raise DeclarationError(f"{where}: only is a dict of columns and their values, e.g. {{'column_name': 'users'}}")
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str | int) or isinstance(value, bool):
            raise DeclarationError(f"{where}: only has the value of a column as a text or an integer, not {value!r}")
    return tuple(sorted(given.items()))


def column_names(given: str | Sequence[str], label: str) -> tuple[str, ...]:
    """One name or several, as a tuple. Raises DeclarationError, with `label`, for what is no name or is there twice."""
    if isinstance(given, str):
        given = (given,)
    names: tuple[Any, ...] = tuple(given) if isinstance(given, Iterable) else (given,)
    for name in names:
        if not isinstance(name, str) or not name:
            raise DeclarationError(f"{label}: column names are non-empty strings, not {name!r}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DeclarationError(f"{label}: {', '.join(twice)} is named twice")
    return names


def _in_source(column: str, table: str, source: str) -> str:
    """The whole name of a column of a table, as a source has it; in whichever case, which stays, it is written."""
    of, _, name = column.rpartition(".")
    names = names_of(of)
    if names is None or of.lower() != table.lower():
        return column
    return f"{full_name(of_source(names[0], source), names[1])}.{name}"
