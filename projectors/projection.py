"""Makes writes of rows, by pure functions that are compiled from the declarations.

A projection is compiled once per view, as Python source, so that the hot path unpacks a row and stores a write and does
nothing else. Views with `where` or `document` see the row as a dict; an exception of theirs parks the key.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import chain
from typing import Any, ClassVar

import orjson

from projectors import function_columns
from projectors.binding import keys_relied_on, uses_of
from projectors.derived import Part, Touched
from projectors.function_columns import columns_read
from projectors.stores import Unfit
from projectors.views import BoundView
from viewtail.changes import bodies
from viewtail.changes.batches import (
    DELETE,
    INSERT,
    Batch,
    Followed,
    Origin,
    Refused,
    Row,
    RowChanges,
    Unreadable,
    pairs,
    unreadable_in,
)
from viewtail.changes.errors import place_of
from viewtail.changes.rendering import Convert, render_key, row_value
from viewtail.changes.tables import Table, united
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Key, Parked, ViewWrites, Write

Apply = Callable[[list[RowChanges], dict[Key, Write], list[Parked]], None]


@dataclass(slots=True)
class Projected:
    """The coalesced writes of a batch, and the keys whose projection failed."""

    writes: list[ViewWrites]
    parked: list[Parked] = field(default_factory=list)
    touched: dict[str, Touched] = field(default_factory=dict)  # by view, the derived rows that are to be read

    def add(self, other: Projected) -> None:
        """What else is to be written with it."""
        self.writes += other.writes
        self.parked += other.parked


def writes_by_key(projected: Projected) -> dict[Key, Write]:
    """All writes of what was projected for one view."""
    return {key: write for of_view in projected.writes for key, write in of_view.writes.items()}


def followed_tables(views: Iterable[BoundView]) -> dict[tuple[str, str], Followed]:
    """Return, by (schema, table), each table the views need, with the union of their columns in ordinal order."""
    needed: dict[tuple[str, str], list[tuple[BoundView, Part]]] = {}
    for view in views:
        for part in parts_of(view):
            needed.setdefault((part.table.schema, part.table.name), []).append((view, part))
    return {name: _followed(of_table) for name, of_table in needed.items()}


def parts_of(view: BoundView) -> Sequence[Part]:
    """The tables that a view's rows are made of; the first is the entity's."""
    if view.read_back is not None:
        return view.read_back.parts
    return [Part(view.table, view.needed, tuple(keys_relied_on(view)))]


def _followed(of_views: Sequence[tuple[BoundView, Part]]) -> Followed:
    table = united([part.table for _, part in of_views])
    columns = set(chain.from_iterable(part.columns for _, part in of_views))
    table = _with_masks(table, [part for _, part in of_views])
    orders = (view.view.entity.order for view, _ in of_views)
    return Followed(
        table,
        columns=tuple(column.name for column in table.columns if column.name in columns),
        keys=tuple(dict.fromkeys(chain.from_iterable(part.keys for _, part in of_views))),
        order=next((order for order in orders if order is not None), None),
    )


def _with_masks(table: Table, parts: Sequence[Part]) -> Table:
    """A column has the mask with which it is used: views that do not use it may have another one."""
    used = {column.name: column for part in parts for column in part.table.columns if column.name in part.columns}
    if all(used.get(column.name, column).mask == column.mask for column in table.columns):
        return table
    columns = (
        used[column.name] if column.name in used and used[column.name].mask != column.mask else column
        for column in table.columns
    )
    return replace(table, columns=tuple(columns))


class Projections:
    """All projections of one pipeline."""

    _made_with: ClassVar[type[Projection]]  # set below, behind the class

    def __init__(self, views: Sequence[BoundView], followed: dict[tuple[str, str], Followed]) -> None:
        self._projections: dict[int, list[Projection]] = {}
        self._by_view: dict[str, Projection] = {}
        self._derived: dict[int, list[BoundView]] = {}
        for view in views:
            if view.read_back is not None:
                for part in view.read_back.parts:
                    table = followed[part.table.schema, part.table.name]
                    self._derived.setdefault(id(table), []).append(view)
                # What is read again says nothing of before: each row replaces what the view shows.
                self._by_view[view.id] = _NewestProjection(view, Followed(view.table, view.needed))
                continue
            table = followed[view.table.schema, view.table.name]
            # Messages of rows that are made of several do not say what they were before, either.
            projection = (_NewestProjection if view.comes_whole else self._made_with)(view, table)
            self._projections.setdefault(id(table), []).append(projection)
            self._by_view[view.id] = projection
        self._halted: set[str] = set()

    @property
    def views(self) -> frozenset[str]:
        """The ids of all views."""
        return frozenset(self._by_view)

    def halt(self, view: str) -> None:
        """Give this view no more writes."""
        self._halted.add(view)

    def is_halted(self, view: str) -> bool:
        """Return whether `halt` was called for the view: it lost changes since, so only a new run brings it back."""
        return view in self._halted

    @property
    def halted_count(self) -> int:
        """How many views were halted; only ever rises."""
        return len(self._halted)

    def views_of(self, followed: Followed) -> list[BoundView]:
        plain = [projection.view for projection in self._projections.get(id(followed), ())]
        return [*plain, *self._derived.get(id(followed), ())]

    def of(self, batch: Batch) -> Projected:
        """The writes of a batch: per view and key the newest."""
        writes: dict[str, dict[Key, Write]] = {}
        parked: list[Parked] = []
        for followed, changes in _by_table(batch.changes).items():
            for projection in self._of_table(followed):
                projection.apply(changes, writes.setdefault(projection.view.id, {}), parked)
        for refused in batch.refused:
            for projection in self._of_table(refused.followed):
                projection.refuse(refused, writes.setdefault(projection.view.id, {}), parked)
        made = [ViewWrites(view, of_view) for view, of_view in writes.items() if of_view]
        return Projected(made, parked, self._touched(batch))

    def _touched(self, batch: Batch) -> dict[str, Touched]:
        if not self._derived:
            return {}
        events: dict[str, list[RowChanges | Refused]] = {}
        all_events: list[RowChanges | Refused] = [*batch.changes, *batch.refused]
        for event in all_events:
            for view in self._derived.get(id(event.followed.described), ()):
                if view.id not in self._halted:
                    events.setdefault(view.id, []).append(event)
        touched = {}
        for name, of_view in events.items():
            derived = self._by_view[name].view.derived
            assert derived is not None
            touched[name] = derived.touched(of_view)
        return {name: keys for name, keys in touched.items() if keys}

    def of_derived(self, view: str, versions: Mapping[Key, int], rows: Mapping[Key, Row], origin: Origin) -> Projected:
        """The writes of derived rows that were read, by key; a key without one has no row now.

        `origin` is that of the change that had them read, for stores that keep every change.
        """
        by_version: dict[int, list[Row]] = {}
        into: dict[Key, Write] = {key: Write(at, None) for key, at in versions.items() if key not in rows}
        for key, row in rows.items():
            by_version.setdefault(versions[key], []).append(row)
        return self._of_versions(view, by_version, into)

    def _of_table(self, followed: Followed) -> list[Projection]:
        """The projections of a table's views that are not halted."""
        projections = self._projections.get(id(followed), ())
        return [projection for projection in projections if projection.view.id not in self._halted]

    def of_rows(self, view: str, rows: list[Row], version: int) -> Projected:
        """The writes of canonical rows read under a watermark of `version`."""
        return self._of_versions(view, {version: rows}, {})

    def _of_versions(self, view: str, by_version: Mapping[int, list[Row]], into: dict[Key, Write]) -> Projected:
        """Add the writes of rows, by their versions."""
        parked: list[Parked] = []
        projection = self._by_view[view]
        changes = [RowChanges(projection.followed, INSERT, version, rows) for version, rows in by_version.items()]
        if Unreadable.made:
            for change in changes:
                for row in change.rows:
                    if (bad := unreadable_in(row)) is not None:
                        projection.refuse(Refused(*change[:3], [row], bad.reason), into, parked)
            changes = [
                change._replace(rows=[row for row in change.rows if unreadable_in(row) is None]) for change in changes
            ]
        projection.apply(changes, into, parked)
        return Projected([ViewWrites(view, into)] if into else [], parked)


def _by_table(changes: list[RowChanges]) -> dict[Followed, list[RowChanges]]:
    """Each table's changes, in order. A view draws on one table, so the order between tables does not matter."""
    tables: dict[Followed, list[RowChanges]] = {}
    last: Followed | None = None
    of_last: list[RowChanges] = []
    for change in changes:
        followed = change[0]
        if followed is not last:
            last = followed
            of_last = tables.setdefault(followed, [])
        of_last.append(change)
    return tables


class Projection:
    """One view's projection; `apply` puts the writes of row events into a dict."""

    def __init__(self, view: BoundView, followed: Followed) -> None:
        self.view = view
        self.followed = followed
        columns, declared = followed.columns, view.view
        self._key_at = [columns.index(column.name) for column in view.key]
        self._needed_at = [columns.index(name) for name in view.needed]
        self._belongs = view.belongs(columns)
        is_plain = declared.entity.version is None and declared.where is None and declared.document is None
        apply = self._plain(view, columns) if is_plain else self._row_by_row(view, columns)
        self.apply: Apply = self._of_others(apply) if view.paused else apply

    @staticmethod
    def _plain(view: BoundView, columns: tuple[str, ...]) -> Apply:
        return _compile_plain(view, columns, "if pick(before) == pick(after): continue")

    @staticmethod
    def _row_by_row(view: BoundView, columns: tuple[str, ...]) -> Apply:
        return RowByRow(view, columns).apply

    def _is_paused(self, row: Row) -> bool:
        return tuple([row[at] for at in self._key_at[: self.view.prefix]]) in self.view.paused

    def _of_others(self, apply: Apply) -> Apply:
        """Drop the rows of tables that are paused in the view, whoever read them: the one place for that."""

        def of_others(changes: list[RowChanges], into: dict[Key, Write], parked: list[Parked]) -> None:
            kept = [
                change._replace(rows=[row for row in change.rows if not self._is_paused(row)]) for change in changes
            ]
            apply([change for change in kept if change.rows], into, parked)

        return of_others

    def refuse(self, refused: Refused, into: dict[Key, Write], parked: list[Parked]) -> None:
        """Rows with values that could not be read: the key is parked if this view needs such a value of the new row.

        Of the old row only the key matters, so a row that is mended or deleted reaches the view.
        """
        if self.view.paused and self._is_paused(refused.rows[0]):
            return
        ((before, after),) = pairs(refused.kind, refused.rows)
        new, alone = self._known_key(after), dict[Key, Write]()
        if before is not None and self._known_key(before) not in (None, new):
            self.apply([RowChanges(refused.followed, DELETE, refused.version, [before])], alone, parked)
        if after is not None and self._may_belong(after):
            self._refuse_new(refused, after, new, alone, parked)
        into.update((key, write) for key, write in alone.items() if key not in into or into[key][0] <= write[0])

    def _refuse_new(
        self, refused: Refused, row: Row, key: Key | None, alone: dict[Key, Write], parked: list[Parked]
    ) -> None:
        version = refused.version
        if key is None or unreadable_in([row[at] for at in self._needed_at]) is not None:
            name = key_name(self._key_of(row), self.view, version)
            parked.append(Parked(self.view.id, name, version, refused.reason))
            return
        parked_before = len(parked)
        self.apply([RowChanges(refused.followed, INSERT, version, [row])], alone, parked)
        if key not in alone and len(parked) == parked_before:
            alone[key] = Write(version, None)  # `where` leaves it out; whether it did before cannot be told

    def _may_belong(self, row: Row) -> bool:
        """Return whether the row is the entity's, or what decides that cannot be read."""
        if self._belongs is None or self._belongs(row):
            return True
        decides = [row[self.followed.columns.index(name)] for name, _ in self.view.view.entity.only]
        return unreadable_in(decides) is not None

    def _known_key(self, row: Row | None) -> Key | None:
        """The key of a row that may be the entity's; None where it cannot be read."""
        if row is None or not self._may_belong(row) or unreadable_in(self._key_of(row)) is not None:
            return None
        return self._key_of(row)

    def _key_of(self, row: Row) -> Key:
        return tuple([row[at] for at in self._key_at])


def key_name(key: Key, view: BoundView, version: int) -> str:
    """Name a key as its dead letter does; one that cannot be read is told apart by the version."""
    is_readable = unreadable_in(key) is None
    return render_key(key, view.key) if is_readable else f"(unreadable key, version {version})"


def _compile_plain(view: BoundView, columns: tuple[str, ...], first: str) -> Apply:
    """Source, compiled: unpack, key, write. No version column, condition or function.

    `first` is a statement for each update.
    """
    names = [f"c{at}" for at in range(len(columns))]
    at = {column.name: columns.index(column.name) for column in (*view.key, *view.values)}
    key = "".join(f"c{at[column.name]}, " for column in view.key)
    values = "".join(f"c{at[column.name]}, " for column in view.values)
    pick = f"lambda row: ({''.join(f'row[{at[column.name]}], ' for column in (*view.key, *view.values))})"
    key_of = f"lambda row: ({''.join(f'row[{at[column.name]}], ' for column in view.key)})"
    source = f"""
def apply(changes, into, parked):
    for _, kind, version, rows, _, _ in changes:
        if kind == 0:
            for {", ".join(names)}, in rows:
                into[({key})] = (version, ({values}))
        elif kind == 2:
            for row in rows:
                into[key_of(row)] = (version, None)
        else:
            for at in range(0, len(rows), 2):
                before, after = rows[at], rows[at + 1]
                {first}
                old = key_of(before)
                {", ".join(names)}, = after
                new = ({key})
                if old != new:
                    into[old] = (version, None)
                into[new] = (version, ({values}))

pick = {pick}
key_of = {key_of}
"""
    namespace: dict[str, Any] = {}
    exec(compile(source, f"<projection {view.id}>", "exec"), namespace)
    apply: Apply = namespace["apply"]
    return apply


class RowByRow:
    """Views with a version column, a condition or a document function: one row at a time."""

    def __init__(self, view: BoundView, columns: tuple[str, ...]) -> None:
        entity = view.view.entity
        self._view = view
        self._where = view.view.where
        self._document = view.view.document
        self._is_append_only = entity.append_only
        self._belongs = view.belongs(columns)
        self._key_at = list(map(columns.index, (column.name for column in view.key)))
        shown = () if view.view.computed else view.values
        self._values_at = list(map(columns.index, (column.name for column in shown)))
        self._needed_at = list(map(columns.index, view.needed))
        self._version_at = None if entity.version is None else columns.index(entity.version)
        self._bodies = [name for name in view.bodies if name in view.needed]
        self._row_items = list(zip(view.needed, self._needed_at, self._conversions(), strict=True))
        self._row_type = function_columns.row_type(view)
        if entity.codec is not None:
            self._decode = bodies.decoder(entity.codec)
        self._where_sees_body = _asks_for_any(self._where, self._bodies)

    def _conversions(self) -> list[Convert | None]:
        """Functions get each needed column through one of these; bodies are decoded apart."""
        columns = {column.name: column for column in self._view.table.columns}
        uses = uses_of(self._view.view)
        watches = {} if uses is None else function_columns.watches(self._view.view.entity.related, uses)
        converted = {name: row_value(columns[name]) for name in self._view.needed if name not in self._bodies}
        return [_watching(converted.get(name), watches.get(name)) for name in self._view.needed]

    def apply(self, changes: list[RowChanges], into: dict[Key, Write], parked: list[Parked]) -> None:
        project = self._unversioned if self._version_at is None else self._versioned
        for _, kind, version, rows, _, _ in changes:
            for before, after in pairs(kind, rows):
                try:
                    if self._belongs is not None and not self._is_own(before, after):
                        continue
                    project(before, after, version, into)
                except RowRefusedError as refusal:
                    parked.append(self.parked(before, after, version, refusal))

    def _is_own(self, before: Row | None, after: Row | None) -> bool:
        """Raises RowRefusedError for an update that takes a row out of the entity, or into it."""
        assert self._belongs is not None
        answers = {self._belongs(row) for row in (before, after) if row is not None}
        if len(answers) > 1:
            assert after is not None  # it is an update
            names = ", ".join(name for name, _ in self._view.view.entity.only)
            reason = f"an update changed {names}, which says what entity the row is of"
            raise RowRefusedError(reason, self.version(after))
        return answers == {True}

    def parked(self, before: Row | None, after: Row | None, version: int, refusal: RowRefusedError) -> Parked:
        """The dead letter of a row that cannot be projected."""
        row = after if after is not None else before
        assert row is not None
        name = key_name(self.key(row), self._view, version)
        return Parked(self._view.id, name, refusal.version or version, refusal.reason)

    def _unversioned(self, before: Row | None, after: Row | None, version: int, into: dict[Key, Write]) -> None:
        if after is None:
            assert before is not None
            into[self.key(before)] = (version, None)  # type: ignore[assignment]
            return
        former = before
        if before is not None:
            if self._is_same(before, after):
                return
            if (old := self.key(before)) != self.key(after):
                into[old] = (version, None)  # type: ignore[assignment]
                former = None
        key, values = self.key(after), self.values(after, version)
        # It leaves the view, unless it was outside before: then nothing is there to take away.
        if values is not None or self._may_show(former, version):
            into[key] = (version, values)  # type: ignore[assignment]

    def _may_show(self, row: Row | None, version: int) -> bool:
        """Return whether the row was in the view; one that could not be projected left there what was before it."""
        try:
            return row is not None and self.values(row, version) is not None
        except RowRefusedError:
            return True

    def _versioned(self, before: Row | None, after: Row | None, _: int, into: dict[Key, Write]) -> None:
        if after is None:
            self._delete(before, into)
            return
        key, version = self.key(after), self.version(after)
        if before is not None:
            if self._is_same(before, after):
                return
            if self.key(before) != key:
                self._delete(before, into)
            else:
                self.require_raised(version, before)
        _newest(into, key, version, self.values(after, version))

    def _delete(self, row: Row | None, into: dict[Key, Write]) -> None:
        if row is not None and not self._is_append_only:  # there it is archiving
            _newest(into, self.key(row), self.version(row) + 1, None)

    def require_raised(self, version: int, before: Row) -> None:
        """Raises RowRefusedError for an update that cannot be ordered."""
        if version <= self.version(before):
            column = self._view.view.entity.version
            raise RowRefusedError(f"an update did not raise the version column {column}, so it has no order", version)

    def version(self, row: Row) -> int:
        """Read the row's version from its version column."""
        assert self._version_at is not None
        value = row[self._version_at]
        if not isinstance(value, int) or not 0 <= value <= MAX_VERSION >> 1:
            raise RowRefusedError(f"version column {self._view.view.entity.version} is not between 0 and 2^62 - 1", 0)
        return 2 * value

    def values(self, row: Row, version: int) -> tuple[Any, ...] | bytes | None:
        """What the view shows of a row; None when the row is not in the view."""
        record = {} if self._where is None and self._document is None else self._record(row)
        if self._where is not None:
            if self._where_sees_body:
                self._decode_body(record, version)
            if not self._call(self._where, record, "where", version):
                return None
        if self._document is None:
            return tuple([row[at] for at in self._values_at])
        if self._bodies and not self._where_sees_body:  # of a row that is in the view alone
            self._decode_body(record, version)
        return self._made(record, version)

    def _made(self, record: dict[str, Any], version: int) -> tuple[Any, ...] | bytes | None:
        """Call the view's function for a row."""
        assert self._document is not None
        what = self._view.view.function
        document = self._call(self._document, record, what, version)
        if self._view.view.computed:
            try:
                return self._view.view.computed_values(document)
            except Unfit as misfit:
                raise RowRefusedError(f"{what} returned what the view cannot hold: {misfit}", version) from None
            except Exception as error:  # a value of a class of the user's own may do anything
                reason = f"{what} returned a value that raised {type(error).__name__} when it was read"
                raise RowRefusedError(reason, version) from None
        if document is None:
            return None
        if not isinstance(document, dict):
            raise RowRefusedError(f"document returned {type(document).__name__}, not a dict or None", version)
        try:
            # A copy: what orjson returns keeps 4 KiB, however little is in it, and many documents wait at a time.
            return b"%b" % orjson.dumps(document, default=_json_default)
        except TypeError as error:
            raise RowRefusedError(f"document returned something that JSON cannot hold ({error})", version) from None

    def _record(self, row: Row) -> dict[str, Any]:
        return self._row_type({
            name: row[at] if convert is None or row[at] is None else convert(row[at])
            for name, at, convert in self._row_items
        })  # fmt: skip

    def _decode_body(self, record: dict[str, Any], version: int) -> None:
        for name in self._bodies:
            if record[name] is None:
                continue
            try:
                record[name] = self._decode(record[name])
            except bodies.BodyRefusedError as refusal:
                codec = self._view.view.entity.codec
                reason = f"the body in column {name} cannot be read as {codec}: {refusal}"
                raise RowRefusedError(reason, version) from None

    def _call(self, function: Callable[..., Any], record: dict[str, Any], what: str, version: int) -> Any:
        try:
            return function(record)
        except function_columns.UnforeseenColumn as error:
            reason = f"{what} asked for {error.reason(self._view.table.full_name)}"
            raise RowRefusedError(reason, version) from None
        except Exception as error:  # the user's own code: whatever it raises parks the key, without its values
            place = place_of(error, beside=function_columns.__file__)  # the row's own code raises for the function's
            raised = type(error).__name__
            written = getattr(getattr(function, "__code__", None), "co_consts", ())
            if isinstance(error, KeyError) and error.args and error.args[0] in written:
                raised += f" for {error.args[0]!r}"  # the function itself says the name; others may be a row's values
            raise RowRefusedError(f"{what} raised {raised}{place}", version) from None

    def key(self, row: Row) -> Key:
        return tuple([row[at] for at in self._key_at])

    def _is_same(self, before: Row, after: Row) -> bool:
        return all(before[at] == after[at] for at in self._needed_at)


# --- Where only the newest change of a key is sure to come ---


class _Upserts(RowByRow):
    """Ignores what a change says of before: each write replaces what the view shows, whatever that is.

    A row that `where` leaves out is a tombstone.
    """

    def _unversioned(self, before: Row | None, after: Row | None, version: int, into: dict[Key, Write]) -> None:
        if before is not None and (after is None or self.key(before) != self.key(after)):
            into[self.key(before)] = Write(version, None)
        if after is not None:
            into[self.key(after)] = Write(version, self.values(after, version))

    def _versioned(self, before: Row | None, after: Row | None, _: int, into: dict[Key, Write]) -> None:
        if after is None or (before is not None and self.key(before) != self.key(after)):
            self._delete(before, into)
        if after is not None:
            version = self.version(after)
            _newest(into, self.key(after), version, self.values(after, version))


class _NewestProjection(Projection):
    """Skips no update."""

    @staticmethod
    def _plain(view: BoundView, columns: tuple[str, ...]) -> Apply:
        return _compile_plain(view, columns, "pass")

    @staticmethod
    def _row_by_row(view: BoundView, columns: tuple[str, ...]) -> Apply:
        return _Upserts(view, columns).apply


Projections._made_with = Projection


class NewestOnly(Projections):
    """All projections of a pipeline whose source may lack changes of a key that are followed by a newer one."""

    _made_with = _NewestProjection


class RowRefusedError(Exception):
    """This row cannot be projected."""

    def __init__(self, reason: str, version: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.version = version


def _watching(convert: Convert | None, watch: function_columns.Watch | None) -> Convert | None:
    """`convert`, whose related rows tell when a function asks them for a column that was not read for it."""
    if convert is None or watch is None:
        return convert
    return lambda value: watch([convert(value)])[0]


def _asks_for_any(function: Callable[..., Any] | None, columns: Sequence[str]) -> bool:
    """Return whether a function may look at one of these columns, whatever its declaration says of others."""
    if function is None or not columns:
        return False
    read = columns_read(function)
    return bool(read.why_all) or not read.columns.isdisjoint(columns)


def _newest(into: dict[Key, Write], key: Key, version: int, values: tuple[Any, ...] | bytes | None) -> None:
    present = into.get(key)
    if present is None or present[0] <= version:
        into[key] = (version, values)  # type: ignore[assignment]


def _json_default(value: Any) -> Any:
    """Encode what orjson does not know by itself: Decimal as exact text, bytes as base64."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a value of type {type(value).__name__}")
