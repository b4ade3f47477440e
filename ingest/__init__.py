"""The seam to the sources: what a kind of source is, its present history, and what reads it."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from viewtail.changes.batches import Batch, Followed
from viewtail.changes.errors import HistoryGoneError
from viewtail.changes.findings import Finding
from viewtail.changes.pipelines import DEFAULT_SOURCE, PipelineId
from viewtail.changes.positions import Position
from viewtail.changes.tables import ForeignKey

if TYPE_CHECKING:  # settings are pydantic models, which who only declares views does not load
    from ingest.limits import Limits
    from viewtail.servers.addresses import AddressForm
    from viewtail.servers.login import Server
    from viewtail.servers.sessions import Connection, MySQLAddress

Tables: TypeAlias = Sequence[tuple[str, str]]  # (schema, table); of streams also ('', TOPIC)
Parts: TypeAlias = Sequence[tuple[str, int]]  # (source, part)
TakeParts: TypeAlias = Callable[[Parts], None]
FollowedTables: TypeAlias = Mapping[tuple[str, str], Followed]
Versions: TypeAlias = Mapping[tuple[str, str], int]  # by (schema, table)
Orders: TypeAlias = Mapping[tuple[str, str], Collection[str]]  # what entities say of a table: `Followed.order`


@dataclass(slots=True, kw_only=True)
class Progress:
    """A source reports here while it is read. Its thread writes, other threads read."""

    is_at_end: bool = False  # nothing was waiting on the socket when everything received had been delivered
    reconnect_count: int = 0
    trouble: str | None = None  # why it is not reading at the moment
    # XA transactions that hold the offset back; when the oldest was prepared, us
    prepared: tuple[int, int] = (0, 0)
    received_at: float = field(default_factory=time.monotonic)  # when bytes last came, heartbeats included
    clock_ahead_us: int = 0  # how far the clock that stamps commits is before this process's

    def age_s(self, committed_us: int) -> float:
        """Return a change's age, however far the two clocks are apart."""
        return max(0.0, time.time() + (self.clock_ahead_us - committed_us) / 1e6)


@dataclass(frozen=True, slots=True)
class GoOn:
    """Read on after this position.

    `kept` is the version up to which the store shows its writes: a backfill that ended above it is lost there. None:
    the witness does not tell.
    """

    position: Position
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """The store lost writes that the offset says are durable: read again after this position. `kept` as in GoOn."""

    position: Position
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class BackfillAgain:
    """The store lost writes that the source no longer has: backfill its views, and read on after this position."""

    position: Position
    reason: str
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """The store holds another server's writes, which this server continues: begin an epoch above that one."""

    above: int


Resuming: TypeAlias = GoOn | ReadAgain | BackfillAgain | BeginEpoch


def check_epochs(kept: Position, offset: Position, epoch: int) -> None:
    """Raise HistoryGoneError where the store holds writes of a later epoch than viewtail's own tables know of."""
    if kept.epoch > max(offset.epoch, epoch):
        raise HistoryGoneError(
            f"the store holds writes of epoch {kept.epoch}, the offset is of {offset.epoch}: viewtail's own tables "
            "were lost, or are of another deployment, and the store would refuse every change as older. Point viewtail "
            "at the database it had, or begin a new history: viewtail replay --new-history"
        )


class Source(Protocol):
    """An ordered stream of changes from one server."""

    progress: Progress

    def now(self) -> Position:
        """The server's present end of stream, as a place to begin from."""

    def beginning(self, shown: Position | None = None) -> Position | None:
        """Return the position from which reading all of the source fills a view; None: the rows of its table fill it.

        `shown`: up to where other views show the source by then. A read gives the watermark STREAM_END once it has
        passed what was the end as it began. Raises SourceError where the source no longer keeps all that it takes.
        """

    def is_compacted(self) -> bool:
        """Return whether changes of a key may be missing that are followed by a newer one."""

    def read(self, after: Position) -> Iterator[Batch]:
        """Whole committed transactions after `after`, in order, until `interrupt`; reconnects by itself.

        Raises SourceError when the stream cannot be continued without losing changes.
        """

    def check(self, after: Position) -> None:
        """Raises HistoryGoneError when the changes after a position are no longer there to be read."""

    def resume(self, offset: Position, kept: Position) -> Resuming:
        """Decide where to go on when the offset is `offset`, and the store shows that it kept all up to `kept`.

        Raises HistoryGoneError where this source does not continue what the store holds.
        """

    def interrupt(self) -> None:
        """Called from another thread: the read in progress ends soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Changes that were read: the transactions that they are of, and the version of the last one."""

    gtids: frozenset[str | None]  # None: one has none
    version: int


@runtime_checkable
class ReadableBack(Protocol):
    """A source whose rows can be read again for a change, on the server that it reads."""

    def shows(self, cursor: Any, changes: Committed) -> bool:
        """Return whether the snapshot that the cursor's transaction has from now on shows these, and all before them.

        Raises SourceError where nobody can tell.
        """

    def committed_at(self, position: Position) -> Committed:
        """All changes up to a position of this source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a source that can be read by itself."""

    begin: Position
    byte_count: int
    begun_us: int  # microseconds since 1970


@runtime_checkable
class TimedSource(Source, Protocol):
    """A source that knows when its changes were committed."""

    def since(self, committed_us: int) -> Position:
        """A place before all that was committed at a time or later, microseconds since 1970.

        Raises HistoryGoneError, with what is there, when some of that may be gone.
        """

    def place(self, text: str) -> tuple[Position, int]:
        """A place that an operator writes as `str` of a position shows it: where to begin reading, and its version.

        Changes up to that version come first. Raises ValueError for what is no place, HistoryGoneError for one that is
        gone.
        """

    def newest_first(self) -> Iterator[Part]:
        """All that the source has by now, in parts, from its end on backwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAccess:
    """A kind of source makes its readers, checks and grants with this."""

    section: Any  # the settings [source], of its `section` class or like it
    limits: Limits
    # Asked for each session: a password file may hold another password by then.
    address: Callable[[], MySQLAddress]  # of the server with the canonical rows
    primary: Callable[[], MySQLAddress]  # where watermarks are written
    own: MySQLAddress  # of viewtail's own tables
    own_database: str
    is_cleaned: bool = False  # whether a cleaner looks for what the source does not tell
    deployment: str = ""  # its id; '' where that does not matter, or is not known
    name: str = DEFAULT_SOURCE  # which of several sources it is
    count: int = 1  # of the sources whose pipelines share viewtail's own tables


class History(Protocol):
    """A source as it is now: one history of one server. Its text tells it from others."""

    @property
    def epoch(self) -> int:
        """The number that viewtail gave it; 0: none yet."""

    def at(self, epoch: int) -> History:
        """The same, with the number that viewtail gave it."""

    def check_continues(self, after: Position, before: str) -> None:
        """Raises HistoryGoneError where this does not go on behind a position of a history whose text was another."""

    def reader(self, followed: FollowedTables, fits_from: Versions) -> Source:
        """A reader for the pipeline, not connected yet."""

    def unlogged_keys(self, tables: Tables) -> Sequence[ForeignKey]:
        """The foreign keys, up to the tables that all begins with, that change rows of these and do not say so."""

    def open_session(self) -> Connection:
        """A session on the server whose changes are read; raises AnotherServerError where the address leads elsewhere.

        Rows of another server do not belong to the versions of this history.
        """


@runtime_checkable
class Settling(Protocol):
    """A history that tells when what was begun is over, and has every row from the first one on."""

    def settled(self, followed: Iterable[Followed], within_s: float) -> Position:
        """Wait until nothing that is begun by now is open any more; return the position behind all of it.

        Raises SourceError where that takes longer.
        """

    def from_first_rows(self, followed: Iterable[Followed]) -> Position:
        """Return the position before all rows that these tables have."""


class Members(Protocol):
    """This process as one of those that share out the parts of a source among themselves."""

    trouble: str | None  # why nothing is heard of the others
    rebalance_count: int  # how often this process got its share anew

    def run(self, stop: threading.Event, positions: Callable[[], Sequence[Position]]) -> None:
        """Be one of them until `stop` is set; `positions` are those that the parts taken have come to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharer:
    """One of those that share out the parts of a source, as the source itself says."""

    store: str
    process: str | None  # the name that viewtail has for it; None: it is another program
    client: str  # what it calls itself, and where it is
    parts: tuple[tuple[str, int], ...]
    is_of_another: bool = False  # it says itself that it is of another deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """How long the source still has what a pipeline needs next, at least: it removes old changes when it next looks."""

    left_s: float  # until the source may remove that; 0: it may now, or did
    keeps_s: float  # how long it keeps a change that is written now
    limit: str  # the setting that says so

    @property
    def is_low(self) -> bool:
        return self.left_s < self.keeps_s * LOW_BELOW

    @property
    def ratio(self) -> float:
        """What is left of the time that the source keeps a change, from 0 to 1."""
        return min(1.0, self.left_s / self.keeps_s) if self.keeps_s else 0.0


LOW_BELOW = 0.5  # of the time that the source keeps a change


class SourceKind(ABC):
    """Everything that is known about one kind of source."""

    section: ClassVar[type[Server]]  # its settings: [source]
    address: ClassVar[AddressForm]
    before_all: ClassVar[Position]  # a position before all of every history
    is_shared_out: ClassVar[bool] = False  # processes are `members`, and share its parts; else one process reads it
    has_rows: ClassVar[bool] = True  # the server that is read has the canonical rows, too
    has_watermarks: ClassVar[bool] = True  # they are written into it; else it reads them from viewtail's own tables

    can_read_back: ClassVar[bool] = False  # rows of the tables can be read again for a change
    brings_whole_rows: ClassVar[bool] = False  # rows that are made of several come as rows of a stream of their own
    can_check_offsets: ClassVar[bool] = False  # a reader beside the pipelines can tell what is gone behind an offset
    has_patterns: ClassVar[bool] = False  # tables by a pattern are read as one: those with braces, see `polls`
    polls: ClassVar[bool] = False  # tables by their ids; a pattern may have # for a digit there

    @abstractmethod
    def read_position(self, text: str | bytes) -> Position:
        """A position from its text; raises ValueError."""

    @abstractmethod
    def history(self, access: SourceAccess, pipeline: PipelineId, number: int) -> History:
        """The source's present history, for a pipeline; `number` tells the deployment's readers of it apart."""

    def parts(self, access: SourceAccess, streams: Tables) -> Parts:
        """The sources, and the parts of each as it is now, that hold the changes of these streams."""
        return [(access.name, 0)]

    def keeps(self, source: str, pipeline: str) -> bool:
        """Return whether the pipeline of that name reads the source of that name, or a topic where topics are read."""
        of_pipeline = PipelineId.parse(pipeline).source
        return of_pipeline != DEFAULT_SOURCE if self.is_shared_out else of_pipeline == source

    def streams_in(self, access: SourceAccess, source: str, streams: Tables) -> Tables:
        """Pick the streams whose changes a source holds."""
        return streams

    def members(
        self, access: SourceAccess, store: str, streams: Tables, taken: TakeParts, given_up: TakeParts
    ) -> Members:
        """This process as one of those that write a store; for a kind that `is_shared_out`.

        It says which parts are this process's from now on, and which are not any more: they go to another one when
        `given_up` returns.
        """
        raise NotImplementedError

    def waiting(self, access: SourceAccess, positions: Mapping[str, Position]) -> dict[str, int]:
        """Count, by name, the changes behind a position, where the source can count them."""
        return {}

    def ages(self, access: SourceAccess, positions: Mapping[str, Position]) -> dict[str, float]:
        """Return, by name, how many seconds ago the first change behind a position was committed, where known."""
        return {}

    def margins(
        self, access: SourceAccess, positions: Mapping[str, Position], lags_s: Mapping[str, float]
    ) -> dict[str, Margin]:
        """Return, by name, how long the source keeps what is behind a position; none where it removes nothing itself.

        `lags_s` has the lag of each pipeline, as far as it is known.
        """
        return {}

    def is_filled_from_stream(self, access: SourceAccess, stream: tuple[str, str]) -> bool:
        """Return whether new views get the rows of a stream's table from the stream itself, from its beginning."""
        return False

    def why_missing(self, access: SourceAccess, watermark: str) -> str | None:
        """Say why the watermark of that name cannot come, though it was committed, and what to do. None: it may."""
        return None

    def is_filtered(self, access: SourceAccess) -> bool:
        """Return whether statements that put other rows into tables may be missing from what is read."""
        return False

    def sharers(self, access: SourceAccess, stores: Sequence[str]) -> Sequence[Sharer] | None:
        """The `members` of these stores that there are now; None where a source is not shared out."""
        return None

    @abstractmethod
    def checks(self, access: SourceAccess, tables: Tables, orders: Orders, streams: Tables) -> Iterable[Finding]:
        """Check what the source needs of its servers, and of the tables that views are of; they follow the streams."""

    def ended(self, access: SourceAccess, tables: Tables) -> None:  # noqa: B027
        """Called once a process has ended all its pipelines; `tables` are those that its views are of."""

    def risk(self, access: SourceAccess) -> str | None:
        """Say in a sentence what may be lost because the settings accept it; None: nothing."""
        return None

    @abstractmethod
    def grants(self, access: SourceAccess, tables: Tables, streams: Tables) -> Iterable[str]:
        """The statements that grant what it needs, behind comments that name the servers; no server is asked."""
