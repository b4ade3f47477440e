"""The seam to the stores: what a sink promises, what a guarded one can besides, what a reader gives, what a store is.

Each store has a folder here; projectors/stores/registry.py lists them. See README.md beside this file.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from projectors.views import BoundView, Entity, View
from viewtail.changes.batches import Watermark
from viewtail.changes.errors import StoreError
from viewtail.changes.positions import Position
from viewtail.changes.rendering import render_key
from viewtail.changes.tables import Column, Table
from viewtail.changes.writes import Key, Parked, ViewWrites, Write

if TYPE_CHECKING:
    from offsets import OffsetStore
    from offsets.mysql import Session
    from projectors.stores.access import Access
    from projectors.stores.leaving import Leftover, Place, Retired, Traces
    from projectors.stores.owners import Places
    from viewtail.changes.findings import Finding
    from viewtail.servers.addresses import AddressForm
    from viewtail.servers.login import Server


Item = tuple[Key, Write]
OnMissing = Callable[[frozenset[str]], object]
Meanwhile = Callable[[], Sequence[ViewWrites]]
NOT_AS_DECLARED = "is not as it is declared"  # in the reason why a view's place is refused that may be mended there


def ignored(missing: frozenset[str]) -> None:
    """The `on_missing` of whoever is not concerned with what the store has lost."""


def nothing() -> Sequence[ViewWrites]:
    """The `meanwhile` of whoever has nothing to do while the store is busy."""
    return ()


class Unfit(Exception):
    """A write that a store, or the form in which viewtail keeps it there, cannot hold; says why, without the value."""


class PlaceRefusedError(StoreError):
    """The store has no place for one view (its table, its index); the store's other views are not concerned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCopy:
    """A changed declaration cannot have a copy beside the one that readers have."""

    why: str
    mend: str

    def __str__(self) -> str:
        return f"{self.why}. {self.mend}"


class Sink(Protocol):
    """The writer of one store. Not thread-safe: a pipeline and each backfill have their own."""

    def prepare(self, on_missing: OnMissing = ignored) -> dict[str, str]:
        """Connect, and create what is missing in the store. Idempotent.

        `on_missing` gets the views of which the store holds nothing, new ones and those whose place somebody took away,
        before anything is made for them: behind that, nothing may show any more that the place was empty.
        Returns the views that the store has no place for, and why, with what to do: the caller halts them and hands
        over none of their writes. Raises StoreUnavailableError (try again) or StoreError for what concerns them all.
        """

    def write(
        self, writes: Sequence[ViewWrites], upto: Position | None, meanwhile: Meanwhile = nothing
    ) -> list[Parked]:
        """Apply the writes; return when they are durable.

        A guarded sink applies each write whose version is above the stored one; a view with a version column takes
        one of the stored version as well (see `takes_equal_versions`). A sink that keeps every change appends them.
        `upto` becomes the store's witness with them; None (backfill, a piece of a large transaction) leaves it.
        A sink that shares its connection with the offset store leaves the transaction open: `save` commits both.
        A sink may call `meanwhile` when all is under way, before it waits for the store; it gets the writes that come
        next, as far as they are known, and may prepare them.
        Returns the keys that the store refused for good. On StoreUnavailableError nothing is assumed; call again
        with the same writes after `prepare`.
        """

    def settle(self) -> None:
        """Called when nothing happens: a witness that may trail behind what was written catches up."""
        return

    def witness(self, offset: Position) -> Position | None:
        """How far the store has kept the views that are not missing: `offset` where it shows no loss.

        None where nothing was ever written.
        """
        return offset

    def close(self) -> None:
        """Give the connection up; an open transaction is rolled back."""


@runtime_checkable
class Publisher(Sink, Protocol):
    """A sink that appends every change exactly once, since the witness is written with the changes, or not at all."""

    fills: dict[str, str]  # by view, how far its filling has come; durable with the next write, and read by `prepare`
    newest: int  # version of the newest change that was appended; durable and read in the same way
    most_rows: int = 6_000  # of one batch: what a sink makes of every change is larger than the change, and waits
    gets_changes: Callable[[str], bool] = staticmethod(lambda _: True)  # whether a view does: of others nothing is told

    def incarnations(self) -> Mapping[str, str]:
        """By view, which place it is: what was appended to an earlier one of its name is gone."""

    def keys(self, view: str) -> Iterator[list[tuple[Key, int]]]:
        """Pages of (key, version) of what was appended and not deleted; asked in any thread."""

    def is_empty(self, view: str) -> bool:
        """Whether nothing is to be read in it; what was written and taken back does not count."""

    def on_passed(self, watermarks: Sequence[Watermark]) -> None:
        """The batch whose position is written next holds these watermarks; they become durable with it."""

    def publish_watermarks(self) -> None:
        """Publish the durable watermarks now: consumers of what is appended may be waiting for one."""


@runtime_checkable
class GuardedSink(Sink, Protocol):
    """A sink whose store keeps each key's version beside its data."""

    def incarnation(self) -> str:
        """Changes when the store may have lost writes that it acknowledged; '' where it never does.

        The stream's writes have the witness for that. A backfill has only this: its rows are in no stream, so one that
        meets another incarnation than it began with begins again.
        """
        return ""

    def write_again(self, writes: Sequence[ViewWrites]) -> list[Parked]:
        """`write` without a position, of rows that are expected to be there as they are, with older versions.

        The outcome is the same. A store where it costs less to give such rows their version than to write them does so.
        """
        return self.write(writes, None)

    def attach(self) -> frozenset[str]:
        """Connect, and make or change nothing: the views whose place is there as they need it.

        For who writes ahead of the pipeline: a place that it made would hide from the pipeline that rows were lost.
        """
        raise NotImplementedError

    def push(self, writes: Sequence[ViewWrites]) -> None:
        """Apply what is newer than what is stored; durable on return. Of views that are bound for it (`is_pushed`).

        What cannot be applied now is left to the pipeline, which brings all of it.
        """
        self.write(writes, None)

    def sender(self, writes: Sequence[ViewWrites]) -> Callable[[], None] | None:
        """What sends these writes without waiting; any thread may call it once. None where the store has none.

        Once it was called, the `push` of the same object is the next thing that is asked: it waits for the answer. The
        call may raise what a socket does; that `push` raises StoreUnavailableError, then.
        """
        return None

    def mark_writes(self, view: str) -> int | None:
        """A mark for `keys_below`: what this sink writes from now on can be told from what was there before.

        None where it cannot. The next mark of a view makes an earlier one void.
        """
        return None

    def keys_below(self, view: str, version: int, since: int | None = None) -> Iterator[list[tuple[Key, int]]]:
        """Pages of (key, stored version) of the view's present (not deleted) keys with a smaller version.

        With the last mark of `mark_writes`, those that this sink did not write since, and perhaps a few that it did.
        What others wrote since may be left out too, and a key for which this sink had an older version than is there.

        A page comes after each round trip or two, empty where nothing in it is older, so that a caller can leave a
        sweep over many fresh keys between two pages.
        """

    def is_gone(self, view: str) -> bool:
        """Whether the store holds nothing of the view; nothing is made for it. Asked by who does not keep it."""
        raise NotImplementedError

    def take_away(self, view: str, found: Mapping[Key, Held]) -> None:
        """Forget the versions of these keys, where the store holds still what was `found`: the next write applies.

        For what no history explains: a version above all that were, or none at all. The guard would keep it for ever.
        Of a key that nothing is held of (NOTHING_HELD), a version that the store remembers of what was there.
        It may wait for the next `write`, of no rows where none are to be written. What the keys show stays until then.
        """
        raise NotImplementedError

    def leave_alone(self, views: Collection[str]) -> None:
        """These views are halted: their places stay as they are, whatever their shape."""
        return

    def fit(self, view: BoundView) -> bool:
        """Go on with a view whose table changed, bound to the table as it is now; its column names are the same.

        False where only a new place would do: `prepare` makes it when the pipeline restarts. Called between two
        transactions. Raises StoreError where the place cannot be changed.
        """


class Swapping(Protocol):
    """What a store can whose views may have a second copy. Each method, cut off anywhere and called again, finishes.

    Nothing writes either copy while `swap` runs, nor `beside` while `drop` runs: then the live one is written. Readers
    read on. Raises StoreUnavailableError (call again), or StoreError when nothing was changed.
    """

    def swap(self, live: BoundView, beside: BoundView, upto: int) -> bool:
        """Readers get `beside` from now on, and `live` lies where the copy of its number lies beside another.

        No reader finds the view empty, or in part. `upto` is the version up to which `beside` is whole: a key that it
        lacks was gone by then. Returns False where that is only prepared: see GradualSwapping.
        """

    def is_swapped(self, live: BoundView, beside: BoundView) -> bool:
        """Whether readers have `beside` already: a `swap` was cut off before anybody noted that it was done."""

    def drop(self, live: BoundView, beside: BoundView) -> None:
        """Nothing stays of a copy that readers do not see; they see `live`."""

    def close(self) -> None:
        """Give the connection up."""


@runtime_checkable
class GradualSwapping(Swapping, Protocol):
    """Some copies change places entity by entity: `swap` only prepares it. Both are written meanwhile, with `move`."""

    def move(self, beside: BoundView, stop: threading.Event, rest: Callable[[int], None]) -> bool:
        """Exchange what is left of two copies that move (`beside.move`); `beside` is the former one.

        `rest` is called after each step, with the entities that it moved. Returns False where it was stopped.
        """


def guarded(sink: Sink) -> GuardedSink | None:
    """The sink as a guarded one; None for others."""
    return sink if isinstance(sink, GuardedSink) else None


def publisher(sink: Sink) -> Publisher | None:
    """The sink as one that appends every change exactly once; None for others."""
    return sink if isinstance(sink, Publisher) else None


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One entity as a view has it."""

    key: Key
    version: int
    content: dict[str, Any]  # index table: value columns; Redis hash: fields as bytes; else the document


@dataclass(frozen=True, slots=True)
class Held:
    """What a store holds for one entity, shown or not, in the form that `ViewReader.form_of` gives as well."""

    version: int | None  # None: nothing that is a version
    content: Any  # None: a tombstone, or a row that shows nothing; UNREADABLE
    fault: str = ""  # why it is nothing that viewtail wrote; '' where it may be
    mark: Any = None  # tells the store whether this is still what it holds
    is_foreign: bool = False  # another program's, under a name that readers know: the guard parks what comes for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One document of a search."""

    id: str  # the rendered key
    score: float | None
    version: int
    document: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    """One page of what was found, best first."""

    total: int  # exact
    took_ms: int  # as the store counts
    hits: list[Hit]


NOTHING_HELD = Held(None, None)
UNREADABLE = "?"  # a `content` that no row has


MOST_FOREIGN = 20  # names that are told of


class ViewReader(ABC):
    """Reads one view from its store; deleted keys are not shown. Not thread-safe.

    Every method raises StoreUnavailableError (try again) or StoreError.
    """

    view: BoundView
    foreign: list[str]  # names in the view's place that are no keys, as far as `shown_keys` met them
    has_strays = False  # whether readers may find an entity elsewhere too than `held` looks

    @abstractmethod
    def rows(self, keys: Sequence[Key]) -> list[StoredRow]:
        """Of these keys, those that the view shows, in their order; as of the last acknowledged write."""

    @abstractmethod
    def pages(self, after: Key | None = None) -> Iterator[list[StoredRow]]:
        """Every row that the view shows, a page at a time, in the store's own order.

        An index table's order is that of its keys, and `after` begins behind a key; other stores take none.
        """

    def held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        """Of these keys, all that the store holds anything of, tombstones too; as of the last acknowledged write.

        Of a store that keeps versions: see GuardedSink.
        """
        raise NotImplementedError

    def form_of(self, key: Key, values: tuple[Any, ...] | bytes) -> Any:
        """The `content` of a row that was written with these values; None where it shows nothing.

        Raises Unfit, ValueError or TypeError where the store cannot hold them.
        """
        raise NotImplementedError

    def shown_keys(self) -> Iterator[list[Key]]:
        """Pages of the keys of all that the view shows, in the store's own order; a key may come twice.

        Names that look like a key's, and are none's, are added to `foreign`: the first MOST_FOREIGN.
        """
        raise NotImplementedError

    def pointer_problem(self) -> str:
        """Why readers are not led to what this reads, where something leads them, and what to do; '': they are."""
        return ""

    def orphans(self) -> Iterator[list[Key]]:
        """Pages of keys that readers find elsewhere too than `held` looks; from then on `held` looks there as well.

        Adds to `foreign` as `shown_keys` does.
        """
        return iter(())

    @property
    def has_order(self) -> bool:
        """Whether the store keeps keys in the order in which the table is read, so that `between` can be asked."""
        return False

    def between(self, after: Key | None, upto: Key | None, newest: int) -> tuple[dict[Key, Any], dict[Key, int]]:
        """The `content` of all that the view shows behind a key, up to another one; None: from or to its end.

        And the versions of these, and of what it holds there besides that is above `newest`.
        """
        raise NotImplementedError

    def unequal(self, wanted: Mapping[Key, Write]) -> list[Key]:
        """Those of these keys that the store shows otherwise than these writes would, or has a newer version of."""
        held = self.held(list(wanted))
        return [key for key, write in wanted.items() if self.is_unequal(key, write, held.get(key, NOTHING_HELD))]

    def is_unequal(self, key: Key, write: Write, there: Held) -> bool:
        """Whether this is shown otherwise than the write would be, or is newer."""
        newest, values = write
        try:
            is_equal = there.content == (None if values is None else self.form_of(key, values))
        except (Unfit, ValueError, TypeError):
            is_equal = False
        return bool(there.fault) or not is_equal or (there.version or 0) > newest

    @abstractmethod
    def close(self) -> None:
        """Give the connection up."""

    def keys_with(self, values: Sequence[Any], limit: int) -> list[Key]:
        """The keys with these values of the view's first indexed columns, in key order; see `Store.indexed`."""
        raise NotImplementedError

    def search(self, query: str, *, fields: Sequence[str] | None, page: int, size: int) -> SearchPage:
        """One page of the documents that match a simple query string; where the store `has_search`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The table that the examples of `viewtail init` are over, and the columns of each."""

    table: Table
    indexed: Column | None  # what people look rows up by
    is_looked_up: bool  # the table has an index of its own on that column
    shown: tuple[Column, ...]
    searched: tuple[Column, ...]

    @property
    def entity(self) -> Entity:
        """The table, as the examples declare it."""
        return Entity(self.table.full_name)

    @property
    def name(self) -> str:
        """The table's name, as far as each store takes it for a name of its own."""
        return plain(self.table.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A first view of that table, as Python and as text."""

    view: View
    declaration: str  # over a variable `entity`
    comment: str


MIXED = "until that is done readers find what the former declaration made beside what the new one does"


def plain(name: str) -> str:
    """The name with _ for all but ASCII letters and digits, - and _."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).lstrip("_-") or "rows"


class Store(ABC):
    """Everything that is known about one store. Light: no client is imported before a method needs it."""

    name: ClassVar[str]  # in ids of views, in [name] and VIEWTAIL_NAME__*, in messages and metrics
    title: ClassVar[str]  # for people
    view_classes: ClassVar[tuple[type[View], ...]]
    section: ClassVar[type[Server]]  # its settings
    address: ClassVar[AddressForm]
    default_address: ClassVar[str] = ""  # what serves where no address is set; '': one must be set
    has_own_tables: ClassVar[bool] = False  # viewtail's own tables are on its server
    keeps_every_change: ClassVar[bool] = False  # its sink is given every change, not the newest writes
    has_search: ClassVar[bool] = False  # its readers find documents by a query
    typed_place: ClassVar[str] = ""  # what holds columns of the table's types, and widens with them
    needs_place: ClassVar[bool] = False  # a view's name alone does not tell where it is
    # Of a copy that nobody waits for (measured: bench/operators.py, docs/performance.md).
    unhurried_rows: ClassVar[int] = 100  # in a chunk: more at once, and live changes wait longer
    unhurried_rest: ClassVar[float] = 2.0  # behind it, times as long as it took

    @abstractmethod
    def problems(self, view: BoundView) -> Iterable[str]:
        """Why the store cannot hold the view, a sentence each; no server is asked."""

    def surprises(self, view: BoundView) -> Iterable[tuple[str, str, str]]:
        """What works and may be meant otherwise: what it is, why that matters, and what to do."""
        return ()

    def problems_between(self, views: Sequence[BoundView]) -> Iterable[tuple[BoundView, str]]:
        """Views that collide with another in the store, and why; each can be held alone."""
        return ()

    @abstractmethod
    def sink(self, access: Access, views: Sequence[BoundView], pipeline: str) -> Sink:
        """A new writer of these views of one pipeline, not connected yet."""

    def with_offsets(self, access: Access, views: Sequence[BoundView], pipeline: str) -> tuple[Sink, OffsetStore]:
        """A pipeline's sink, and where its offset is kept: a moment later, on a session of its own."""
        return self.sink(access, views, pipeline), access.background_offsets(pipeline)

    def for_backfill(self, access: Access, view: BoundView, pipeline: str, session: Session) -> tuple[Sink, Session]:
        """A sink for the backfill of one view, and the session on which the progress is saved behind its rows."""
        return self.sink(access, [view], pipeline), session

    def for_push(self, access: Access, views: Sequence[BoundView], pipeline: str) -> Sink:
        """A sink for who writes these views ahead of the pipeline."""
        return self.sink(access, views, pipeline)

    def no_copies(self, view: View) -> str:
        """Why it keeps no second copy of the view, and what to do; '': it does, see `swapping`."""
        return "viewtail keeps no second copy in its store"

    def while_refilled(self, access: Access, view: BoundView) -> str:
        """What readers find while a view whose declaration changed is backfilled in place; its server may be asked.

        Raises ViewtailError. Nothing is written.
        """
        return MIXED

    def swapping(self, access: Access) -> Swapping | None:
        """What swaps two copies of a view; None: its views have no second copy."""
        return None

    def reader(self, access: Access, view: BoundView) -> ViewReader:
        """A reader of one view, over a connection of its own."""
        return self.reader_over(self.connection(access), access, view)

    def connection(self, access: Access) -> Any:
        """A session or client for readers; `close` of a reader closes it, and so for all others over it."""
        raise NotImplementedError

    def reader_over(self, connection: Any, access: Access, view: BoundView) -> ViewReader:
        """A reader of one view, over what `connection` gave."""
        raise NotImplementedError

    def as_stored(self, access: Access, view: BoundView) -> BoundView | None:
        """The view with the columns that its place has now, whatever declaration made it; None where there is none."""
        return view

    def content(self, view: BoundView, key: Key, values: tuple[Any, ...] | bytes) -> dict[str, Any] | None:
        """What a terminal shows of a write's values: `printable` of what a reader gives for them; None for nothing.

        Raises Unfit where the store cannot hold them.
        """
        raise NotImplementedError

    @abstractmethod
    def checks(self, access: Access, views: Sequence[View]) -> Iterable[Finding]:
        """What its server and the places of these views must be like; a server that is away is a finding too."""

    def grants(self, access: Access, views: Sequence[View]) -> Iterable[str]:
        """The statements that grant what viewtail needs there for these views, behind comments that name the server."""
        return ()

    def beside(self, access: Access, view: View, name: str) -> View:
        """The same view of that name, in a place like the one that it has; of a store that keeps every change."""
        raise NotImplementedError

    def sink_beside(self, access: Access, view: BoundView) -> Publisher:
        """A writer of such a view that is no pipeline's, and does not get in the way of one."""
        raise NotImplementedError

    def example(self, choice: Choice) -> Example | None:
        """A first view of a table, for `viewtail init`."""
        return None

    @abstractmethod
    def left_behind(self, name: str, database: str) -> str:
        """What a view of that name leaves in the store when nobody declares it any more, and how to drop it."""

    def indexed(self, view: BoundView) -> Sequence[Column]:
        """The columns by whose values its readers find keys, as the user gives them; of a view that `has_index`."""
        return view.values

    def leads_to(self, view: BoundView, row: Mapping[str, Any], wanted: Sequence[Any]) -> bool:
        """Whether a canonical row has these values of the first indexed columns."""
        return all(row[column.name] == value for column, value in zip(self.indexed(view), wanted, strict=False))

    def place(self, view: BoundView) -> Place:
        """What tells where the view is when nobody declares it any more, besides its name. Kept in viewtail's table."""
        return {}

    def no_copy_from(self, view: BoundView, before: Place) -> NoCopy | None:
        """Why the copy of a changed declaration cannot take the place that is `before`; None: it can."""
        return None

    @abstractmethod
    def leftover(self, access: Access, retired: Retired) -> Leftover:
        """What a view that nobody declares any more left in the store; where the store `needs_place`, it is known."""

    def places(self, access: Access, view: str) -> Places | None:
        """Whose the places of views are, for who asks that of the view of that id.

        None where no other deployment can reach them.
        """
        return None

    @abstractmethod
    def traces(self, access: Access, view: BoundView) -> Traces:
        """What the view holds of single entities, deleted ones too."""

    def schemas(self, access: Access, view: BoundView) -> Mapping[str, Any]:
        """JSON Schemas of the `key` and the `value` of its messages; none where the store has no messages."""
        return {}

    def printable(self, view: BoundView, content: dict[str, Any]) -> dict[str, Any]:
        """A row's content as a terminal shows it."""
        return content


def parked(view: BoundView, item: Item, reason: str) -> Parked:
    """The dead letter of a write that the store refuses for good."""
    key, (version, _) = item
    return Parked(view.id, render_key(key, view.key), version, reason)


def takes_equal_versions(view: BoundView) -> bool:
    """Whether a write of the version that the store has applies too, instead of changing nothing.

    With a version column a row has one version for good. A new backfill, after the declaration changed or the store was
    repaired, brings the version that is there, and must replace what an earlier declaration made of the row. There
    equal versions are the same row; its delete is one above it. Elsewhere a backfill has a version of its own, and an
    equal one is a change that was applied already. What is pushed may be made by a declaration that the pipeline has
    left behind a moment ago: it never replaces what the pipeline made of the row, and the pipeline replaces it.
    """
    return view.view.entity.version is not None and not view.is_pushed
