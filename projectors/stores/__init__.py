"""The seam to the stores: the protocols of sinks and swaps, the reader of a view, and `Store`, all about one store.

Each store has a folder here; projectors/stores/registry.py lists them. See README.md beside this file.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

import orjson

from projectors.related import Relations
from projectors.views import BoundView, Entity, View
from viewtail.changes.batches import Watermark
from viewtail.changes.errors import MisuseError, StoreError
from viewtail.changes.positions import Position
from viewtail.changes.rendering import render_key
from viewtail.changes.tables import Column, Table
from viewtail.changes.versions import LEAST_OF_BINLOGS, MAX_VERSION
from viewtail.changes.writes import LIVES_ON, Key, Parked, ViewWrites, Write

if TYPE_CHECKING:
    from offsets import OffsetStore
    from offsets.mysql import Session
    from projectors.stores.access import Access
    from projectors.stores.leaving import Leftover, Place, Retired, Traces
    from projectors.stores.owners import Places
    from viewtail.changes.findings import Finding
    from viewtail.servers.addresses import AddressForm
    from viewtail.servers.login import Server


T = TypeVar("T")
Item = tuple[Key, Write]
OnMissing = Callable[[frozenset[str]], object]
Meanwhile = Callable[[], Sequence[ViewWrites]]
NOT_AS_DECLARED = "is not as it is declared"  # in the reason why a place is refused that may be mended in the store


def slices(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in order, `size` at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def ignored(missing: frozenset[str]) -> None:
    """The `on_missing` of callers that are not concerned with what the store has lost."""


def nothing() -> Sequence[ViewWrites]:
    """The `meanwhile` of callers that have nothing to do while the store is busy."""
    return ()


class Unfit(Exception):
    """A store, or the form of viewtail's data there, cannot hold a write. The message says why, without the value."""


class PlaceRefusedError(StoreError):
    """The store has no place (a table, an index) for one view. Its other views go on."""


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

        `on_missing` gets the views of which the store holds nothing: new ones, and those whose place somebody removed.
        It is called before their places are made, since a place that was made no longer shows that it had been gone.
        Returns the views that the store has no place for, each with the reason and what to do: the caller halts them
        and hands over none of their writes. Raises StoreUnavailableError (try again) or StoreError for what concerns
        them all.
        """

    def write(
        self, writes: Sequence[ViewWrites], upto: Position | None, meanwhile: Meanwhile = nothing
    ) -> list[Parked]:
        """Apply the writes; return when they are durable.

        A guarded sink applies each write whose version is above the stored one; a view with a version column takes
        one of the stored version as well (see `takes_equal_versions`). A sink that keeps every change appends them.
        `upto` becomes the store's witness with them; None (backfill, a piece of a large transaction) leaves it.
        A sink that shares its connection with the offset store leaves the transaction open: `save` commits both.
        A sink may call `meanwhile` when everything is sent, before it waits for the store. It returns the writes that
        come next, as far as they are known, and the sink may prepare them.
        Returns the keys that the store refused for good. After a StoreUnavailableError nothing is known: call
        `prepare`, then this again with the same writes.
        """

    def settle(self) -> None:
        """Move a witness that trails behind what was written. Called while no changes come."""
        return

    def witness(self, offset: Position) -> Position | None:
        """The position up to which the store has kept the views that are not missing; `offset` if it shows no loss.

        None if nothing was ever written.
        """
        return offset

    def close(self) -> None:
        """Give the connection up; an open transaction is rolled back."""


@runtime_checkable
class Publisher(Sink, Protocol):
    """A sink that appends every change exactly once: the witness is written with the changes, or neither is."""

    fills: dict[str, str]  # the progress of fillings by view; durable with the next write, and read by `prepare`
    newest: int  # version of the newest change that was appended; durable and read in the same way
    most_rows: int = 6_000  # of one batch: messages are larger than the changes they are made of, and wait in memory
    gets_changes: Callable[[str], bool] = staticmethod(lambda _: True)  # whether a view gets changes now
    # The version from which on not all is appended that a change brings; watermarks above are told later.
    lacks_from: Callable[[], int] = staticmethod(lambda: MAX_VERSION)
    # By view, the version of the newest change of which that is so; and what it was, as `fills` is kept.
    unfinished: Callable[[], Mapping[str, int]] = staticmethod(dict)
    was_unfinished: Mapping[str, int] = {}

    @property
    def is_open(self) -> bool:
        """Whether changes were written that are not committed yet."""

    @property
    def is_awaited(self) -> bool:
        """Whether readers wait for the commit of what was written. They have read the rest already."""
        return True

    def incarnations(self) -> Mapping[str, str]:
        """The identity of each view's place: changes that were appended to an earlier one of its name are gone."""

    def keys(self, view: str) -> Iterator[list[tuple[Key, int]]]:
        """Pages of (key, version) of rows that were appended and not deleted; any thread may ask."""

    def is_empty(self, view: str) -> bool:
        """Return whether consumers find nothing in it; changes of aborted transactions do not count."""

    def commit(self) -> None:
        """Make durable what was written without a position; the last one stays."""

    def on_passed(self, watermarks: Sequence[Watermark]) -> None:
        """Note the watermarks in the batch whose position is written next; they become durable with it."""

    def publish_watermarks(self) -> None:
        """Publish the durable watermarks now, since consumers may be waiting for one."""


@runtime_checkable
class GuardedSink(Sink, Protocol):
    """A sink whose store keeps each key's version beside its data."""

    def incarnation(self) -> str:
        """A text that changes when the store may have lost acknowledged writes; '' if that never happens.

        The stream's writes have the witness for that. A backfill has only this, since its rows are in no stream: it
        begins again when the incarnation is another than at its beginning.
        """
        return ""

    def write_again(self, writes: Sequence[ViewWrites]) -> list[Parked]:
        """Write rows that the store probably has as they are, with older versions; the outcome is that of `write`.

        A store does so by giving such rows their version, if that costs less than writing them.
        """
        return self.write(writes, None)

    def attach(self) -> frozenset[str]:
        """Connect without changing anything; returns the views whose place is there as they need it.

        For a writer ahead of the pipeline: a place that it made would hide from the pipeline that rows were lost.
        """
        raise NotImplementedError

    def push(self, writes: Sequence[ViewWrites]) -> None:
        """Apply the writes that are newer than the stored rows; durable on return. The views are bound as `is_pushed`.

        Writes that cannot be applied now are left to the pipeline, which brings all of them.
        """
        self.write(writes, None)

    def sender(self, writes: Sequence[ViewWrites]) -> Callable[[], None] | None:
        """A function that sends these writes without waiting; any thread may call it once. None if there is none.

        After that call, `push` of the same object must be the next call: it waits for the answer. The function may
        raise a socket's errors; that `push` then raises StoreUnavailableError.
        """
        return None

    def mark_writes(self, view: str) -> int | None:
        """Begin to note this sink's writes, and return a mark for `keys_below`; None if the sink cannot.

        The next mark of a view makes an earlier one void.
        """
        return None

    def keys_below(self, view: str, version: int, since: int | None = None) -> Iterator[list[tuple[Key, int]]]:
        """Pages of (key, stored version) of the view's present (not deleted) keys with a smaller version.

        With the last mark of `mark_writes`: keys that this sink did not write since the mark; may include false
        positives. It may leave out keys that others wrote since, and keys that had a newer version than this sink's.

        A page comes after each round trip or two, empty if nothing in it is older, so that a caller can leave a sweep
        over many fresh keys between two pages.
        """

    def keys_of_part(self, view: str, values: Key, version: int) -> Iterator[list[tuple[Key, int]]]:
        """`keys_below` of those keys that begin with these values; a store may find them without reading the others."""
        for page in self.keys_below(view, version):
            yield [(key, stored) for key, stored in page if key[: len(values)] == values]

    def is_gone(self, view: str) -> bool:
        """Return whether the store holds nothing of the view, whichever pipeline keeps it. Nothing is made for it."""
        raise NotImplementedError

    def take_away(self, view: str, held: Mapping[Key, Held]) -> None:
        """Forget the versions of these keys, if the store still holds what a reader saw: the next write applies.

        For versions that no history explains: above all that were, or no versions. The guard would keep such a row for
        ever. For NOTHING_HELD, the store forgets the version that it remembers of a deleted row.
        It may wait for the next `write` (of no rows, if there are none to write). Readers find the rows until then.
        """
        raise NotImplementedError

    def leave_alone(self, views: Collection[str]) -> None:
        """Leave the places of these halted views as they are, whatever their shape."""
        return

    def fit(self, view: BoundView) -> bool:
        """Continue with a view whose table changed, bound to the present table; its column names are the same.

        False if the view needs a new place, which `prepare` makes when the pipeline restarts. Called between two
        transactions. Raises StoreError if the place cannot be changed.
        """


class Swapping(Protocol):
    """Swaps and drops second copies of views. A method that was cut off anywhere finishes when it is called again.

    Nothing writes either copy while `swap` runs, nor `beside` while `drop` runs; then only the live one is written.
    Readers read on. Raises StoreUnavailableError (call again), or StoreError if nothing was changed.
    """

    def swap(self, live: BoundView, beside: BoundView, upto: int, *, is_adopting: bool = False) -> bool:
        """Lead readers to `beside`, and move `live` to where a copy of its number lies beside the live one.

        No reader finds the view empty, or in part. `upto` is the version up to which `beside` is whole: a key that it
        lacks was gone by then. `is_adopting`: an adopt asked for the copy, so what another tool keeps may lose its
        place. Returns False if the swap is only prepared: see GradualSwapping.
        """

    def is_swapped(self, live: BoundView, beside: BoundView) -> bool:
        """Return whether readers have `beside` already, because a `swap` was cut off before it was recorded as done."""

    def drop(self, live: BoundView, beside: BoundView) -> None:
        """Remove the copy `beside`, which readers do not see; they see `live`."""

    def close(self) -> None:
        """Give the connection up."""


class Adoption(ABC):
    """Makes what another tool keeps in a view's place the view's own, where it is: readers read on.

    A row of it has a version below all of viewtail's then, and what viewtail writes replaces it. Every method raises
    StoreUnavailableError (try again) or StoreError.
    """

    @abstractmethod
    def refusal(self, *, drops_extra: bool) -> str | None:
        """The reason why it cannot be, and what to do instead; None if it can, or is the view's own by now.

        `drops_extra`: what no row is for may go.
        """

    def beside(self) -> str | None:
        """The reason why what is there cannot become the view's, so that a copy of the view is to take its place.

        None: it can. After `take`, the store's Swapping leads readers of this place to a copy.
        """
        return None

    @abstractmethod
    def steps(self) -> list[str]:
        """What `take` would change, a sentence each; empty where nothing is left to do."""

    @abstractmethod
    def take(self, *, is_beside: bool) -> None:
        """Do that, up to what needs a copy. It finishes what was cut off.

        `is_beside`: a copy of the view is to take its place, as `beside` said.
        """

    @abstractmethod
    def close(self) -> None:
        """Give the connection up."""


class Release(ABC):
    """Hands the place of a view over to an application. Every method raises StoreUnavailableError or StoreError."""

    @property
    @abstractmethod
    def place(self) -> str:
        """The place for people."""

    @abstractmethod
    def released_at(self) -> str | None:
        """When the place was handed over, for people; None if it was not."""

    @abstractmethod
    def content(self) -> str:
        """A text that changes with each write of an entity. It reads all of the place."""

    @abstractmethod
    def remarks(self) -> Sequence[str]:
        """What an operator should know before, a sentence each."""

    @abstractmethod
    def obstacles(self) -> Sequence[str]:
        """What must be mended in the place before it is handed over, a sentence each."""

    @abstractmethod
    def release(self, at_least: int) -> None:
        """Hand it over, in one step. `at_least`: new rows get no smaller number, where they get any."""

    @abstractmethod
    def clear(self) -> None:
        """Remove what viewtail needed beside it; also after that was cut off."""

    @abstractmethod
    def close(self) -> None:
        """Give the connection up."""


@runtime_checkable
class GradualSwapping(Swapping, Protocol):
    """Swaps some copies entity by entity: `swap` only prepares that, and both are written while `move` runs."""

    def move(self, beside: BoundView, stop: threading.Event, rest: Callable[[int], None]) -> bool:
        """Exchange the remaining entities of two copies that move (`beside.move`); `beside` is the former one.

        `rest` is called after each step, with the number of entities that it moved. Returns False if it was stopped.
        """


def guarded(sink: Sink) -> GuardedSink | None:
    """The sink if it is a guarded one, else None."""
    return sink if isinstance(sink, GuardedSink) else None


def publisher(sink: Sink) -> Publisher | None:
    """The sink if it appends every change exactly once, else None."""
    return sink if isinstance(sink, Publisher) else None


@dataclass(frozen=True, slots=True)
class StoredRow:
    """The row of an entity in a view."""

    key: Key
    version: int
    content: dict[str, Any]  # index table: value columns; Redis hash: fields as bytes; else the document


@dataclass(frozen=True, slots=True)
class Held:
    """The state of one entity in a store, shown or not, in the form that `ViewReader.form_of` gives as well."""

    version: int | None  # None: nothing that is a version
    content: Any  # None: a tombstone, or a row that shows nothing; UNREADABLE
    fault: str = ""  # why viewtail cannot have written it; '' if it may have
    mark: Any = None  # tells the store whether this is still what it holds
    is_foreign: bool = False  # another program's, under a name that readers know: the guard parks writes to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A document that a search found."""

    id: str  # the rendered key
    score: float | None
    version: int
    document: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    """A page of the documents that a search found, best first."""

    total: int  # exact
    took_ms: int  # as the store counts
    hits: list[Hit]
    searched: tuple[str, ...]  # the fields, by their full names, as they were asked for


NOTHING_HELD = Held(None, None)
UNREADABLE = "?"  # a `content` that no row has


MOST_FOREIGN = 20  # names that a reader keeps


class ViewReader(ABC):
    """Reads one view from its store; deleted keys are not shown. Not thread-safe.

    Every method raises StoreUnavailableError (try again) or StoreError.
    """

    view: BoundView
    foreign: list[str]  # names in the view's place that are no keys, as far as `shown_keys` met them
    has_orphans = False  # whether readers may find an entity in places where `held` does not look

    @abstractmethod
    def rows(self, keys: Sequence[Key]) -> list[StoredRow]:
        """The rows that the view shows of these keys, in their order; as of the last acknowledged write."""

    @abstractmethod
    def pages(self, after: Key | None = None) -> Iterator[list[StoredRow]]:
        """Every row that the view shows, a page at a time, in the store's own order.

        An index table's order is that of its keys, and `after` begins behind a key; other stores take none.
        """

    def held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        """The keys of these that the store holds anything of, tombstones too; as of the last acknowledged write.

        Only for stores that keep versions: see GuardedSink.
        """
        raise NotImplementedError

    def form_of(self, key: Key, values: tuple[Any, ...] | bytes) -> Any:
        """The `content` of a row that was written with these values; None if it shows nothing.

        Raises Unfit, ValueError or TypeError if the store cannot hold them.
        """
        raise NotImplementedError

    def shown_keys(self) -> Iterator[list[Key]]:
        """Pages of the keys of all that the view shows, in the store's own order; a key may come twice.

        Names that look like a key's, and are none's, are added to `foreign`: the first MOST_FOREIGN.
        """
        raise NotImplementedError

    def pointer_problem(self) -> str:
        """The reason why readers are not led to this copy, if something leads them, and what to do; '' if they are."""
        return ""

    def orphans(self) -> Iterator[list[Key]]:
        """Pages of keys that readers find in places where `held` does not look; afterwards `held` looks there as well.

        Adds to `foreign` as `shown_keys` does.
        """
        return iter(())

    @property
    def has_order(self) -> bool:
        """Return whether the store keeps keys in the order in which the table is read, so that `between` works."""
        return False

    def between(self, after: Key | None, upto: Key | None, newest: int) -> tuple[dict[Key, Any], dict[Key, int]]:
        """The `content` of all that the view shows behind a key, up to another one; None means from or to its end.

        Also their versions, and those of other rows in that range that are above `newest`.
        """
        raise NotImplementedError

    def unequal(self, wanted: Mapping[Key, Write]) -> list[Key]:
        """The keys that the store shows otherwise than these writes would, or has a newer version of."""
        held = self.held(list(wanted))
        return [key for key, write in wanted.items() if self.is_unequal(key, write, held.get(key, NOTHING_HELD))]

    def is_unequal(self, key: Key, write: Write, there: Held) -> bool:
        """Return whether the store shows the key otherwise than the write would, or has a newer version."""
        newest, values = write
        try:
            is_equal = there.content == (None if values is None else self.form_of(key, values))
        except (Unfit, ValueError, TypeError):
            is_equal = False
        return bool(there.fault) or not is_equal or (there.version or 0) > newest

    def members(self, content: Any) -> Mapping[str, Any]:
        """The values of a `content`, by the names of its fields; none of UNREADABLE, and of None."""
        if isinstance(content, bytes):
            made: dict[str, Any] = orjson.loads(content)
            return made
        return content if isinstance(content, Mapping) else {}

    def close(self) -> None:
        """Give the connection up, where one is kept between two calls."""
        return

    def owners(self, keys: Sequence[Key]) -> dict[Key, str]:
        """By key, the source whose row the view shows of it; for views that are unique over sources."""
        raise NotImplementedError

    def keys_with(self, values: Sequence[Any], limit: int) -> list[Key]:
        """The keys with these values of the view's first indexed columns, in key order; see `Store.indexed`."""
        raise NotImplementedError

    def search(self, query: str, *, fields: Sequence[str] | None, page: int, size: int) -> SearchPage:
        """A page of the documents that match a simple query string; for stores with `has_search`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedPlace:
    """The place of a view, with what another tool keeps there: it is read, and nothing is made or written."""

    title: str  # for people
    reader: ViewReader  # its `held` has no version, and of a row only what the declaration names
    undeclared: dict[str, None]  # the fields that `reader` met besides; more are known later
    remarks: tuple[str, ...] = ()  # what of the place, not of a row, is not as viewtail would make it


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The table that the examples of `viewtail init` are over, and the columns of each."""

    table: Table
    indexed: Column | None  # what people look rows up by
    is_looked_up: bool  # the table has an index of its own on that column
    shown: tuple[Column, ...]
    searched: tuple[Column, ...]
    related: Relations = ()  # what belongs to a row in other tables
    missing: tuple[str, ...] = ()  # statements for the indexes by which that is found

    @property
    def entity(self) -> Entity:
        """The table, as the examples declare it."""
        return Entity(self.table.full_name, related=dict(self.related))

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
    """Everything that is known about one store. No client is imported before a method needs it."""

    name: ClassVar[str]  # in ids of views, in [name] and VIEWTAIL_NAME__*, in messages and metrics
    title: ClassVar[str]  # for people
    view_classes: ClassVar[tuple[type[View], ...]]
    section: ClassVar[type[Server]]  # its settings
    address: ClassVar[AddressForm]
    default_address: ClassVar[str] = ""  # the server that is used if no address is set; '': one must be set
    has_own_tables: ClassVar[bool] = False  # viewtail's own tables are on its server
    keeps_every_change: ClassVar[bool] = False  # its sink is given every change, not the newest writes
    has_copies: ClassVar[bool] = False  # a view may have a second one, see `no_copies` and `swapping`
    has_search: ClassVar[bool] = False  # its readers find documents by a query
    shares_places: ClassVar[bool] = False  # a place that one pipeline makes again hides its loss from the others
    typed_place: ClassVar[str] = ""  # the word for a place with columns of the table's types, which widens with them
    client: ClassVar[str] = ""  # the package of its client, where that is of an extra
    needs_place: ClassVar[bool] = False  # a view's name alone does not tell where it is
    # Files of its server that keep what was written over or deleted, and until when; '' where its traces tell of them.
    files: ClassVar[tuple[str, str]] = ("", "")
    # Of a copy that nobody waits for (measured: bench/operators.py, docs/performance.md).
    unhurried_rows: ClassVar[int] = 100  # in a chunk: more at once, and live changes wait longer
    unhurried_rest: ClassVar[float] = 2.0  # behind it, times as long as it took

    @abstractmethod
    def problems(self, view: BoundView) -> Iterable[str]:
        """The reasons why the store cannot hold the view, a sentence each. Asks no server."""

    def surprises(self, view: BoundView) -> Iterable[tuple[str, str, str]]:
        """Declarations that work and may be meant otherwise: what it is, why that matters, and what to do."""
        return ()

    def problems_between(self, views: Sequence[BoundView]) -> Iterable[tuple[BoundView, str]]:
        """Views that collide with another one in the store, each with the reason."""
        return ()

    def names_of_tables(self, view: View) -> Iterable[str]:
        """Names of tables that the view may have in viewtail's database, those of copies too."""
        return ()

    @abstractmethod
    def sink(self, access: Access, views: Sequence[BoundView], pipeline: str) -> Sink:
        """A new writer of these views of one pipeline, not connected yet."""

    def with_offsets(self, access: Access, views: Sequence[BoundView], pipeline: str) -> tuple[Sink, OffsetStore]:
        """A pipeline's sink and its offset store; by default one that saves a moment later, on a session of its own."""
        return self.sink(access, views, pipeline), access.background_offsets(pipeline)

    def for_backfill(self, access: Access, view: BoundView, pipeline: str, session: Session) -> tuple[Sink, Session]:
        """A sink for the backfill of one view, and the session on which the progress is saved behind its rows."""
        return self.sink(access, [view], pipeline), session

    def for_push(self, access: Access, views: Sequence[BoundView], pipeline: str) -> Sink:
        """A sink that writes these views ahead of the pipeline."""
        return self.sink(access, views, pipeline)

    def no_copies(self, view: View) -> str:
        """The reason why it keeps no second copy of the view, and what to do; '' if it does, see `swapping`."""
        if not self.has_copies:
            return "viewtail keeps no second copy in its store"
        if view.entity.dropped == "keep":
            return (
                "it is the archive of tables that were dropped (dropped='keep'), and a copy would have none of their "
                "rows. Change it in place"
            )
        return ""

    def while_refilled(self, access: Access, view: BoundView) -> str:
        """The effect on readers while a view whose declaration changed is backfilled in place. May ask the server.

        Raises ViewtailError. Writes nothing.
        """
        return MIXED

    def no_unique_keys(self, view: View) -> str:
        """The reason why its guard does not tell the sources of one key apart; '' if it does (`ViewReader.owners`)."""
        return f"a {type(view).__name__} in {self.title} does not note which source a key is of"

    def swapping(self, access: Access) -> Swapping | None:
        """An object that swaps two copies of a view; None if its views have no second copy."""
        return None

    def release(self, access: Access, view: BoundView) -> Release | None:
        """What hands the view's place over to an application; None if the view is of no use without viewtail."""
        return None

    def reader(self, access: Access, view: BoundView) -> ViewReader:
        """A reader of one view, over a connection of its own."""
        return self.reader_over(self.connection(access), access, view)

    def connection(self, access: Access) -> Any:
        """A session or client for readers; `close` of a reader closes it, and so for all others over it."""
        raise NotImplementedError

    def reader_over(self, connection: Any, access: Access, view: BoundView) -> ViewReader:
        """A reader of one view, over a session or client from `connection`."""
        raise NotImplementedError

    def audited(self, access: Access, view: BoundView) -> AuditedPlace:
        """The place of a view that viewtail has not written. `close` of its reader closes the connection.

        Raises MisuseError for a view that another tool's rows are not compared with, StoreError where nothing is there.
        """
        raise MisuseError(
            f"{view.id}: what another tool keeps in {self.title} for a {type(view.view).__name__} is not compared with "
            "a table. Declare it under a new name, let `viewtail run` fill it, and lead the readers there"
        )

    def adoption(self, access: Access, view: BoundView) -> Adoption:
        """What takes over what another tool keeps in the view's place. Raises MisuseError where viewtail does not."""
        raise MisuseError(
            f"{view.id}: what another tool keeps in {self.title} for a {type(view.view).__name__} is not taken over. "
            "Declare it under a new name, let `viewtail run` fill it, and lead the readers there"
        )

    def as_stored(self, access: Access, view: BoundView) -> BoundView | None:
        """The view with the columns that its place has now, whatever declaration made it; None if there is no place."""
        return view

    def content(self, view: BoundView, key: Key, values: tuple[Any, ...] | bytes) -> dict[str, Any] | None:
        """The `printable` content that a reader gives after a write of these values; None if the view shows nothing.

        Raises Unfit if the store cannot hold them.
        """
        raise NotImplementedError

    @abstractmethod
    def checks(self, access: Access, views: Sequence[View]) -> Iterable[Finding]:
        """Check its server and the places of these views; an unreachable server is a finding too."""

    def grants(self, access: Access, views: Sequence[View]) -> Iterable[str]:
        """The statements that grant what viewtail needs there for these views, behind comments that name the server."""
        return ()

    def beside(self, access: Access, view: View, name: str) -> View:
        """The same view under that name, in a place like the one that it has; for stores that keep every change."""
        raise NotImplementedError

    def sink_beside(self, access: Access, view: BoundView) -> Publisher:
        """A writer of such a view that is independent of all pipelines."""
        raise NotImplementedError

    def example(self, choice: Choice) -> Example | None:
        """A first view of a table, for `viewtail init`."""
        return None

    def document_example(self, choice: Choice) -> Example | None:
        """A first view of a table with what belongs to its rows in others; None where nothing does."""
        return None

    @abstractmethod
    def left_behind(self, name: str, database: str) -> str:
        """The data that a view of that name leaves when nobody declares it any more, and how to drop it."""

    def indexed(self, view: BoundView) -> Sequence[Column]:
        """The columns by whose values its readers find keys, as the user gives them; for views that `has_index`."""
        return view.values

    def leads_to(self, view: BoundView, row: Mapping[str, Any], wanted: Sequence[Any]) -> bool:
        """Return whether a canonical row has these values of the first indexed columns."""
        return all(row[column.name] == value for column, value in zip(self.indexed(view), wanted, strict=False))

    def place(self, view: BoundView) -> Place:
        """The data by which the view is found when nobody declares it any more, besides its name."""
        return {}

    def no_copy_from(self, view: BoundView, before: Place) -> NoCopy | None:
        """The reason why the copy of a changed declaration cannot take the place `before`; None if it can."""
        return None

    @abstractmethod
    def leftover(self, access: Access, retired: Retired) -> Leftover:
        """The data that a view left when nobody declares it any more; stores with `needs_place` get its place."""

    def places(self, access: Access, view: str) -> Places | None:
        """The owners of views' places, for a caller that asks about the view of that id.

        None if no other deployment can reach the places.
        """
        return None

    @abstractmethod
    def traces(self, access: Access, view: BoundView) -> Traces:
        """The places where the view holds something of single entities, deleted ones too."""

    def schemas(self, access: Access, view: BoundView) -> Mapping[str, Any]:
        """JSON Schemas of the `key` and the `value` of its messages; empty for stores without messages."""
        return {}

    def printable(self, view: BoundView, content: dict[str, Any]) -> dict[str, Any]:
        """A row's content as a terminal shows it."""
        return content


def parked(view: BoundView, item: Item, reason: str) -> Parked:
    """The dead letter of a write that the store refuses for good."""
    key, (version, _) = item
    return Parked(view.id, render_key(key, view.key), version, reason)


def lives_elsewhere(view: BoundView, item: Item, owner: str | None) -> Parked:
    """The dead letter of a row whose key is another source's; None: it was that of one which gave it up meanwhile."""
    (own,) = view.source
    mend = (
        "It goes in by itself when the row is deleted there. If both rows are to stay, give one of them another key, "
        "or declare the view under another name without unique_over_sources"
    )
    return parked(view, item, f"{LIVES_ON}{owner or 'that wrote it first'}, and this row is on {own}. {mend}")


def is_anothers(view: BoundView, version: int | None) -> bool:
    """Return whether a row with that version was there before viewtail adopted the place, and was not written since."""
    return version is not None and version < LEAST_OF_BINLOGS and view.view.entity.version is None


def takes_equal_versions(view: BoundView) -> bool:
    """Return whether a write of the stored version applies too, instead of changing nothing.

    With a version column a row has one version for good. A new backfill, after the declaration changed or the store was
    repaired, brings the stored version, and must replace what an earlier declaration made of the row. Equal versions
    are the same row there; its delete is one above it. Elsewhere a backfill has a version of its own, and an equal
    version is a change that was applied already. A pushed row may come from a declaration that the pipeline has just
    left behind: it never replaces the pipeline's row, and the pipeline replaces it.
    """
    return view.view.entity.version is not None and not view.is_pushed
