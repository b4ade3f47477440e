"""Finds, before a migration runs, the views that its statements would break.

The judgement is that of the running viewtail (ingest/binlog/statements.py), a view at a time: what would halt a
view breaks it. A table that takes another's name is followed through the file: made LIKE it, altered, and swapped in.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import partial, reduce
from itertools import chain

from ingest import ddl
from ingest.binlog.statements import Verdict, concerned, judge, shown
from projectors.binding import Describe, bind, shown_whole, tables_named
from projectors.projection import followed_tables
from projectors.stores.registry import store_of
from projectors.views import BoundView, View
from viewtail.changes.batches import Followed, TableChangeKind
from viewtail.changes.errors import DeclarationError
from viewtail.changes.masks import ANY_SECRET
from viewtail.changes.patterns import pattern_of
from viewtail.changes.tables import Column, Kind, Table, full_name
from viewtail.operations.sql_files import Statement
from viewtail.operations.sql_forms import is_definition, why_unread
from viewtail.operations.sql_session import Session

_UNKNOWN_KEY = ("(the primary key)",)  # equal to no key that a statement names
_CHANGES_ROWS = re.compile(r"(?:INSERT|UPDATE|DELETE|REPLACE|LOAD\s+DATA|WITH)\b", re.IGNORECASE)
_WITHOUT_EVENTS = (None, TableChangeKind.EMPTIED, TableChangeKind.THINNED, TableChangeKind.REPLACED)
_TEXTS = frozenset({"CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"})
_BYTES = frozenset({"VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"})
_INTEGERS = frozenset({"TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The effect that one statement would have on one view."""

    line: int
    statement: str  # short, without its strings
    view: str
    breaks: bool  # False: the view follows by itself, which is worth knowing
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A statement that viewtail cannot read, so nobody knows what it would do."""

    line: int
    statement: str  # short, without its strings
    why: str
    may_break: bool  # False: it defines something, and names no table of a view


@dataclass(slots=True)
class _Shape:
    """A table as the file has made it so far; types that are not known are ''."""

    columns: dict[str, ddl.ColumnType]  # by name in lower case
    key: tuple[str, ...]
    unique: dict[str, tuple[str, ...]]  # by the index's name in lower case, or a number where it has none
    computed: set[str]  # columns, in lower case

    def define(self, change: ddl.ColumnDefined) -> None:
        self.columns.pop(change.old.lower(), None)
        self.columns[change.new.lower()] = change.type
        self.computed.discard(change.old.lower())
        if change.is_computed:
            self.computed.add(change.new.lower())

    def rename_index(self, name: str, new_name: str) -> None:
        """Rename an index; without a new name it is dropped."""
        unique = self.unique.pop(name.lower(), None)
        if unique and new_name:
            self.unique[new_name.lower()] = unique


def _as_stored(followed: Followed) -> Followed:
    """Statements are about columns as the table has them, masked or not."""
    return replace(followed, table=followed.table.stored)


@dataclass(slots=True)
class Contract:
    """The needs that views have of their tables.

    Args:
        views: as declared.
        describe: a table as it is now; None: nobody can be asked, and only what the views name is known.
        database: of statements that name none, until a USE.
        folds_names: whether the server takes table names that differ in case for one; None: perhaps.
        unread: of the statements that were checked.
    """

    views: Sequence[View]
    describe: Describe | None
    database: InitVar[str]
    folds_names: bool | None = None
    unread: list[Unread] = field(default_factory=list)
    session: Session = field(init=False)  # that runs the statements
    _naming: ddl.Naming = ddl.as_written
    _followed: dict[str, Sequence[Followed]] = field(default_factory=dict)  # by view; its entity's table is the first
    _joined: dict[str, frozenset[tuple[str, str]]] = field(default_factory=dict)  # by view: tables and columns
    _shapes: dict[ddl.Name, _Shape | None] = field(default_factory=dict)

    def __post_init__(self, database: str) -> None:
        self.session = Session(database)
        for view in self.views:
            self._followed[view.id] = self._of(view)
        if self.folds_names:
            tables = [followed.table for followed in self._all]
            self._naming = ddl.folding((table.schema, table.name) for table in tables)
        for followed in self._all:
            if followed.table.columns and self.describe is not None:
                self._shapes[_name(followed)] = _shape(followed.table)

    @property
    def _all(self) -> list[Followed]:
        return [*chain.from_iterable(self._followed.values())]

    def check(self, statements: Sequence[Statement]) -> Iterator[Effect]:
        """The effects on views, in the order of the statements; those that cannot be read are added to `unread`."""
        for statement in statements:
            text = self.session.text_of(statement)
            if self._note_unread(statement, text) and not is_definition(text):
                continue
            if self.session.follow(text):
                continue
            if _CHANGES_ROWS.match(text) and not self.session.is_unlogged:
                continue  # which the binlog has as rows
            for view, breaks, why in self._on_all(text):
                yield Effect(line=statement.line, statement=shown(text), view=view.id, breaks=breaks, why=why)
            self._go_on(text)

    def _note_unread(self, statement: Statement, text: str) -> bool:
        """Return whether it cannot be read; a table of the file that it may be about is unknown from then on."""
        if not (why := why_unread(text, self.session.database) or self._why_nowhere(text)):
            return False
        known = [
            Followed(Table(schema=name.schema, name=name.name, columns=(), primary_key=()), ()) for name in self._shapes
        ]
        for followed in concerned(text, self.session.database, known):
            self._shapes[_name(followed)] = None
        is_concerned = any(
            concerned(text, self.session.database or followed.table.schema, [followed]) for followed in self._all
        )
        may_break = not is_definition(text) or is_concerned
        self.unread.append(Unread(line=statement.line, statement=shown(text), why=why, may_break=may_break))
        return True

    def _why_nowhere(self, text: str) -> str:
        """Return why a statement may be about a view's table or not: names without a database are of none yet."""
        if self.session.database or not is_definition(text):
            return ""
        of_views = sorted({
            followed.table.schema
            for followed in self._all
            if concerned(text, followed.table.schema, [followed]) and not concerned(text, "", [followed])
        })  # fmt: skip
        if not of_views:
            return ""
        return (
            f"it names no database, and a view's table in {' and '.join(of_views)} may be meant. Say which: "
            "USE at the file's beginning, or --database"
        )

    def _on_all(self, text: str) -> Iterator[tuple[View, bool, str]]:
        """Halt each view of one store with the table: what concerns it as a whole for one view does for each."""
        whole: dict[tuple[str, ddl.Name], str] = {}  # by store and table: the first such view
        effects = {
            view.id: [
                effect for followed in self._followed[view.id] for effect in self._on(followed, view, text, whole)
            ]
            for view in self.views
        }
        for view in self.views:
            for breaks, why in effects[view.id]:
                yield view, breaks, why
            if not any(breaks for breaks, _ in effects[view.id]):
                firsts = (whole.get((view.store, _name(followed))) for followed in self._followed[view.id])
                if first := next(filter(None, firsts), None):
                    yield view, True, f"it halts with {first}, which shows the same table in the same store"

    def _of(self, view: View) -> Sequence[Followed]:
        if self.describe is not None:
            try:
                (bound,) = bind([view], self.describe, ANY_SECRET)
                self._joined[view.id] = _joined_by_text(bound)
                # Readers may still have the copy that the previous declaration keeps.
                tables = followed_tables(filter(None, [bound, bound.previous])).values()
                return [*map(_as_stored, tables)]
            except DeclarationError:
                pass  # the migration may be what it waits for
        named = tables_named(view)
        for name, columns in ({} if view.previous is None else tables_named(view.previous)).items():
            named[name] = named.get(name, frozenset()) | columns
        key, is_relied_on = view.entity.key, not (view.entity.append_only or view.entity.values)
        own = view.entity.schema_and_table
        return [
            _undescribed_table(name, columns, (key,) if name == own and key and is_relied_on else ())
            for name, columns in named.items()
        ]

    def _on(
        self, followed: Followed, view: View, text: str, whole: dict[tuple[str, ddl.Name], str]
    ) -> Iterator[tuple[bool, str]]:
        """Note what becomes of one view; one that halts with its table is noted in `whole`."""
        name, is_own = (followed.table.schema, followed.table.name), followed is self._followed[view.id][0]
        if (view.entity.schema_and_table if is_own else name) in shown_whole(view):
            followed = self._with_all_columns(followed, text)
        session = self.session
        for verdict in judge(text, session.database, [followed], session.sql_mode, folds_names=self.folds_names):
            if verdict.kind is None:
                if verdict.columns is None:
                    whole.setdefault((view.store, _name(followed)), view.id)
                yield True, verdict.why
            else:
                yield from self._followed_by(view, followed, verdict, text, is_own=is_own)

    def _followed_by(
        self, view: View, followed: Followed, verdict: Verdict, text: str, *, is_own: bool
    ) -> Iterator[tuple[bool, str]]:
        """What a view does by itself, or why it cannot; `is_own`: the table is the entity's."""
        match verdict.kind:
            case TableChangeKind.REPLACED:
                yield from self._replaced(verdict.table, text, verdict.why)
            case TableChangeKind.LEFT:
                yield False, f"{verdict.name}: {verdict.why}; {_left(view)}"
            case TableChangeKind.REDEFINED if view.entity.is_derived:
                yield from self._redefined(view, followed, text, verdict.why)
            case TableChangeKind.WIDENED if is_own:
                yield from self._widened(view, followed, text, verdict.why)
            case TableChangeKind.EMPTIED | TableChangeKind.THINNED if not is_own:
                yield False, f"{verdict.why}; viewtail backfills the view again by itself"
            case TableChangeKind.EMPTIED if verdict.part is not None:
                yield False, f"{verdict.name}: {verdict.why}; the view loses its rows, and no others"
            case TableChangeKind.EMPTIED:
                yield True, f"{verdict.why}; {_taken_away(view, is_emptied=True)}"
            case TableChangeKind.THINNED:
                yield False, f"{verdict.why}; {_taken_away(view, is_emptied=False)}"

    def _redefined(self, view: View, followed: Followed, text: str, why: str) -> Iterator[tuple[bool, str]]:
        """Texts are found, put in order and compared by their collation."""
        joined = self._joined.get(view.id, frozenset())
        changed = _lower([change.old for change in _defined(ddl.read(text, self.session.database, self._naming))])
        names = [name for name in changed if (followed.table.full_name, name) in joined]
        if names:
            unlike = (
                f"{why}, and rows are found by {' and '.join(names)}: where the other column of the two has another "
            )
            mend = f"collation the view halts, until that is changed too and `viewtail replay {view.id}` is run"
            yield True, unlike + mend
        else:
            yield False, f"{why}; viewtail backfills the view again by itself"

    def _with_all_columns(self, followed: Followed, text: str) -> Followed:
        """A function may look at any column, so each one that the statement changes is used."""
        if not concerned(text, self.session.database, [followed]):
            return followed
        known = {column.name.lower() for column in followed.table.columns}
        more = tuple(
            _undescribed(name) for name in _changed_columns(text, self.session.database) if name.lower() not in known
        )
        table = replace(followed.table, columns=(*followed.table.columns, *more))
        return replace(followed, table=table, columns=tuple(column.name for column in table.columns))

    def _widened(self, view: View, followed: Followed, text: str, why: str) -> Iterator[tuple[bool, str]]:
        place, table = store_of(view).typed_place, followed.table
        defined = _defined(ddl.read(text, self.session.database, self._naming))
        held = _lower([*(view.entity.key or table.primary_key), *view.shown])
        is_held = not {*held}.isdisjoint(_lower([change.old for change in defined]))
        if not place or not is_held or (view.entity.related and self.describe is None):
            return
        table = reduce(_with_lengths, defined, table)
        try:
            bind([view], partial(self._described_with, view.entity.schema_and_table, table), ANY_SECRET)
        except DeclarationError as error:
            yield True, f"{why}, but the {place} cannot be as wide: {error}"
        else:
            yield False, f"{why}; viewtail widens the {place} too, before it writes the next row"

    def _described_with(self, own: tuple[str, str], table: Table, schema: str, name: str) -> Table:
        """A table that a view is made of, where the entity's is as a statement makes it."""
        return table if self.describe is None or (schema, name) == own else self.describe(schema, name)

    def _replaced(self, followed: Followed, text: str, why: str) -> Iterator[tuple[bool, str]]:
        """Rows of another table: the view follows if that has what it uses."""
        arrived = _arrived(ddl.read(text, self.session.database, self._naming), _name(followed))
        problem = ""  # rows of an exchanged partition are of the same columns
        if arrived is not None:
            shape = self._shape_of(arrived)
            unknown = f"and {full_name(arrived.schema, arrived.name)} is not there yet: it may lack what the view uses"
            problem = unknown if shape is None else _misfit(followed, shape)
        yield bool(problem), f"{why}, {problem}" if problem else f"{why}; viewtail backfills the view again by itself"

    def _shape_of(self, name: ddl.Name) -> _Shape | None:
        if name not in self._shapes and self.describe is not None:
            try:
                self._shapes[name] = _shape(self.describe(name.schema, name.name))
            except DeclarationError:
                self._shapes[name] = None
        return self._shapes.get(name)

    def _go_on(self, text: str) -> None:
        """The tables as they are behind the statement."""
        for effect in _read(text, self.session.database, self._naming):
            match effect:
                case ddl.Created(table, like) as created:
                    model = self._shape_of(like) if like is not None else None
                    self._shapes[table] = copy.deepcopy(model) if model is not None else _made(created)
                case ddl.Renamed(pairs):
                    for old, new in pairs:
                        self._shapes[new] = self._shape_of(old)
                        self._shapes[old] = None
                case ddl.Altered(table, changes):
                    if (shape := self._shape_of(table)) is not None:
                        _change(shape, changes)


def missed(text: str, session: Session, tables: Iterable[ddl.Name]) -> Iterator[tuple[ddl.Name, str]]:
    """The tables whose rows a statement changes, or takes away, without row events, and how: any reader misses that."""
    if not is_definition(text) and not (session.is_unlogged and _CHANGES_ROWS.match(text)):
        return
    followed = [
        Followed(Table(schema=name.schema, name=name.name, columns=(), primary_key=_UNKNOWN_KEY), ()) for name in tables
    ]
    for verdict in judge(text, session.database, followed, session.sql_mode):
        if verdict.kind in _WITHOUT_EVENTS:
            yield _name(verdict.followed), verdict.why


def _taken_away(view: View, *, is_emptied: bool) -> str:
    """What a view does where rows of its entity's table went without a change for each: projectors/table_changes.py."""
    if view.entity.append_only:
        return "the view keeps what it shows: it takes that for archiving"
    if store_of(view).keeps_every_change or (view.entity.is_derived and not is_emptied):
        return "viewtail backfills the view again by itself"
    return f"viewtail {'empties the view' if is_emptied else 'removes them from the view'} too"


def _joined_by_text(view: BoundView) -> frozenset[tuple[str, str]]:
    """Tables and columns, in lower case, by which related rows are found that are texts."""
    if view.derived is None or not view.view.entity.related:
        return frozenset()
    columns = [(of.table.full_name, column) for of in view.derived.looked_up for column in of.columns]
    return frozenset((table, column.name.lower()) for table, column in columns if column.kind is Kind.TEXT)


def _made(created: ddl.Created) -> _Shape | None:
    if not created.columns:
        return None
    return _Shape(
        columns={name.lower(): type_ for name, type_ in created.columns},
        key=created.key,
        unique={str(number): key for number, key in enumerate(created.unique)},
        computed={name.lower() for name in created.computed},
    )


def _with_lengths(table: Table, defined: ddl.ColumnDefined) -> Table:
    return replace(table, columns=tuple(_with_length(column, defined) for column in table.columns))


def _with_length(column: Column, defined: ddl.ColumnDefined) -> Column:
    """A text or bytes column of the length that it gets; other types take no more room in an index."""
    match defined.type:
        case ddl.ColumnType("CHAR" | "VARCHAR" | "VARBINARY" as word, (length,)) if length.isdecimal():
            if column.name.lower() == defined.old.lower():
                return replace(column, length=int(length), declared=f"{word.lower()}({length})")
    return column


def _undescribed(name: str) -> Column:
    return Column(name=name, kind=Kind.UNSUPPORTED, declared="", is_nullable=True)


def _undescribed_table(name: tuple[str, str], columns: frozenset[str], keys: tuple[tuple[str, ...], ...]) -> Followed:
    """A table of which only the columns are known that the view names."""
    pattern = pattern_of(*name)
    of_braces = () if pattern is None else pattern.columns
    names = sorted(columns.difference(column.name for column in of_braces))
    known = (*of_braces, *map(_undescribed, names))
    key = (*(column.name for column in of_braces), *_UNKNOWN_KEY)
    table = Table(schema=name[0], name=name[1], columns=known, primary_key=key, pattern=pattern)
    return Followed(table, tuple(column.name for column in known), keys)


def _left(view: View) -> str:
    """What a view does with the rows of one of many tables that is gone."""
    return "the view keeps its rows" if view.entity.dropped == "keep" else "the view loses its rows, and no others"


def _name(followed: Followed) -> ddl.Name:
    return ddl.Name(followed.table.schema, followed.table.name)


def _shape(table: Table) -> _Shape:
    return _Shape(
        columns={column.name.lower(): ddl.column_type(column.declared) for column in table.columns},
        key=table.primary_key,
        unique={name.lower(): key for name, key in zip(table.unique_names, table.unique_keys, strict=True)},
        computed={column.name.lower() for column in table.columns if column.is_generated},
    )


def _read(text: str, database: str, naming: ddl.Naming = ddl.as_written) -> list[ddl.Effect]:
    """Read a statement; return None of one that cannot be read."""
    try:
        return ddl.read(text, database, naming)
    except ddl.Unread:
        return []


def _changed_columns(text: str, database: str) -> Iterator[str]:
    """The columns that an ALTER TABLE drops or redefines."""
    for change in _altered(_read(text, database)):
        match change:
            case ddl.ColumnDropped(name) | ddl.ColumnRenamed(name) | ddl.ColumnDefined(name):
                yield name


def _altered(effects: Sequence[ddl.Effect]) -> Iterator[ddl.Change]:
    for effect in effects:
        if isinstance(effect, ddl.Altered):
            yield from effect.changes


def _defined(effects: Sequence[ddl.Effect]) -> list[ddl.ColumnDefined]:
    return [change for change in _altered(effects) if isinstance(change, ddl.ColumnDefined)]


def _arrived(effects: Sequence[ddl.Effect], name: ddl.Name) -> ddl.Name | None:
    """Return which table has the name after these renames."""
    before: dict[ddl.Name, ddl.Name] = {}
    for effect in effects:
        for old, new in effect.pairs if isinstance(effect, ddl.Renamed) else ():
            before[new] = before.pop(old, old)
    return before.get(name)


def _change(shape: _Shape, changes: Sequence[ddl.Change]) -> None:
    for change in changes:
        match change:
            case ddl.ColumnAdded(name):
                shape.columns[name.lower()] = ddl.UNKNOWN_TYPE
            case ddl.ColumnDropped(name):
                shape.columns.pop(name.lower(), None)
            case ddl.ColumnRenamed(old, new):
                shape.columns[new.lower()] = shape.columns.pop(old.lower(), ddl.UNKNOWN_TYPE)
            case ddl.ColumnDefined():
                shape.define(change)
            case ddl.PrimaryKeyAdded(columns):
                shape.key = columns
            case ddl.PrimaryKeyDropped() if not any(isinstance(other, ddl.PrimaryKeyAdded) for other in changes):
                shape.key = ()
            case ddl.IndexGone(name, new_name):
                shape.rename_index(name, new_name)


def _misfit(followed: Followed, shape: _Shape) -> str:
    """Return why a table cannot take the place of the followed one; '' where it can."""
    key = followed.table.primary_key
    if key != _UNKNOWN_KEY and _lower(key) != _lower(shape.key):
        return f"and its primary key is ({', '.join(shape.key)})" if shape.key else "and it has no primary key"
    keys = [set(_lower(each)) for each in (shape.key, *shape.unique.values())]
    for wanted in followed.keys:
        if set(_lower(wanted)) not in keys:
            return f"and it has no unique key ({', '.join(wanted)})"
    problems = (_column_misfit(followed.table.column(name), name, shape) for name in followed.columns)
    return next(filter(None, problems), "")


def _lower(names: Sequence[str]) -> list[str]:
    return [name.lower() for name in names]


def _column_misfit(before: Column | None, name: str, shape: _Shape) -> str | None:
    now = shape.columns.get(name.lower())
    if now is None:
        return f"and it has no column {name}"
    if before is None or not before.declared:
        return None
    if not _is_like(ddl.column_type(before.declared), now):
        return f"and its column {name} is of another type than {before.declared}"
    if before.is_generated != (name.lower() in shape.computed):
        what = "no longer" if before.is_generated else "now"
        return f"and its column {name} is {what} computed from others"
    return None


def _is_like(before: ddl.ColumnType, now: ddl.ColumnType) -> bool:
    """Return whether values mean the same in both: sizes may differ, since viewtail backfills the view again."""
    if "" in (before.word, now.word):
        return True
    for family in (_TEXTS, _BYTES):
        if before.word in family:
            return now.word in family
    if before.word.removeprefix("U") in _INTEGERS:
        return now.word.removeprefix("U") in _INTEGERS and now.is_unsigned == before.is_unsigned
    if before.word == now.word == "DECIMAL":
        return before.arguments[1:] == now.arguments[1:]
    if before.word in ("ENUM", "SET"):
        return now.word == before.word and now.arguments[: len(before.arguments)] == before.arguments
    return (before.word, before.arguments) == (now.word, now.arguments)
