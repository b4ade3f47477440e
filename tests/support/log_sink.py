"""A sink in memory that keeps every change, in order and with before and after images, as a topic does.

It only prepares, writes and closes: no guard, no witness, no sweep. What survives is in `Log`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from projectors.stores import Meanwhile, OnMissing, Sink, Store, ViewReader, ignored, nothing
from projectors.stores.access import Access
from projectors.stores.leaving import Leftover, Retired, Traces
from projectors.stores.redis.store import REDIS, RedisSettings
from projectors.stores.redis.views import RedisHash
from projectors.views import BoundView, View
from tests.support.fake_sink import Faults
from viewtail.changes.errors import MisuseError, StoreUnavailableError
from viewtail.changes.findings import Finding, ok
from viewtail.changes.positions import Position
from viewtail.changes.rendering import render_key
from viewtail.changes.writes import KeptChange, Key, Parked, ViewWrites


@dataclass(slots=True)
class Log:
    """What is durable: (view, change), in the order of the stream."""

    entries: list[tuple[str, KeptChange]] = field(default_factory=list)
    no_place: dict[str, str] = field(default_factory=dict)  # views that it cannot make a place for, and why

    def of(self, view: str) -> list[KeptChange]:
        return [change for name, change in self.entries if name == view]

    def newest(self, view: str) -> dict[Key, KeptChange]:
        """What a reader knows who keeps the newest change of each key, and no deleted key."""
        found: dict[Key, KeptChange] = {}
        for change in self.of(view):
            if change.key not in found or found[change.key].version <= change.version:
                found[change.key] = change
        return {key: change for key, change in found.items() if change.after is not None}


class LogSink(Sink):
    """See the module."""

    def __init__(self, views: Sequence[BoundView], log: Log) -> None:
        self.log = log
        self.faults = Faults()
        self._views = {view.id: view for view in views}
        self._is_connected = False

    def prepare(self, on_missing: OnMissing = ignored) -> dict[str, str]:
        self._is_connected = True
        return {name: why for name, why in self.log.no_place.items() if name in self._views}

    def write(
        self, writes: Sequence[ViewWrites], upto: Position | None, meanwhile: Meanwhile = nothing
    ) -> list[Parked]:
        if not self._is_connected:
            raise StoreUnavailableError("log: not connected; call prepare()")
        parked = []
        try:
            self.faults.before()
            meanwhile()
            for of_view in writes:
                for change in of_view.changes:
                    reason = self.faults.reason(of_view.view, change.key)
                    if reason is None:
                        self.log.entries.append((of_view.view, change))
                    else:
                        rendered = render_key(change.key, self._views[of_view.view].key)
                        parked.append(Parked(of_view.view, rendered, change.version, reason))
            self.faults.after()
        except StoreUnavailableError:
            self._is_connected = False
            raise
        return parked

    def close(self) -> None:
        self._is_connected = False


class LogView(RedisHash):
    """A view of the log; declared as a Redis hash is."""

    store = "log"


class LogSettings(RedisSettings):
    """The log's settings, [log]."""


class LogStore(Store):
    """A whole store in one place, as a new one would be."""

    name = "log"
    title = "the log"
    view_classes = (LogView,)
    section = LogSettings
    address = REDIS
    keeps_every_change = True

    def __init__(self) -> None:
        self.log = Log()

    def problems(self, view: BoundView) -> Iterable[str]:
        if view.view.name.startswith("no"):
            yield "the log takes no name that begins with 'no'"

    def sink(self, access: Access, views: Sequence[BoundView], pipeline: str) -> LogSink:
        return LogSink(views, self.log)

    def left_behind(self, name: str, database: str) -> str:
        return "its list"

    def connection(self, access: Access) -> None:
        raise MisuseError("a log is not read by key")

    def reader_over(self, connection: None, access: Access, view: BoundView) -> ViewReader:
        raise MisuseError("a log is not read by key")

    def leftover(self, access: Access, retired: Retired) -> Leftover:
        raise MisuseError("a log is never dropped")

    def traces(self, access: Access, view: BoundView) -> Traces:
        raise MisuseError("a log is not read by key")

    def checks(self, access: Access, views: Sequence[View]) -> Iterable[Finding]:
        return [ok("log", "reachable", "yes")]

    def grants(self, access: Access, views: Sequence[View]) -> Iterable[str]:
        return ["-- On the log: nothing to grant"]
