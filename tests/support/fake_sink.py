"""A sink in memory, with the faults that stores have, by name.

It keeps the whole promise of the Sink protocol (the contract suite runs over it too), so that a pipeline's tests can
use it instead of a server. What survives is in `FakeStore`; several sinks may write to one.

    sink.faults.reject("redis:user", (7,), "because")   # this key is parked from now on
    sink.faults.fail_before_write()                     # the next write does nothing and breaks off
    sink.faults.fail_after_write()                      # the next write is kept, but breaks off before it says so
    sink.faults.slow(0.01)                              # every write takes so much longer, in seconds
    store.lose()                                        # the server came back empty
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from projectors.stores import Held, Meanwhile, OnMissing, StoredRow, ViewReader, ignored, nothing, takes_equal_versions
from projectors.views import BoundView
from viewtail.changes.errors import StoreUnavailableError
from viewtail.changes.positions import Position
from viewtail.changes.rendering import render_key
from viewtail.changes.writes import Key, Parked, ViewWrites, Write

PAGE = 3  # small, so that tests meet several pages


@dataclass(slots=True)
class FakeStore:
    """What is durable."""

    rows: dict[str, dict[Key, Write]] = field(default_factory=dict)
    witness: Position | None = None
    write_count: int = 0  # calls of write that were kept
    no_place: dict[str, str] = field(default_factory=dict)  # views that it cannot make a place for, and why

    def lose(self) -> None:
        """As a server that comes back without its data."""
        self.rows.clear()
        self.witness = None

    def shown(self, view: str) -> dict[Key, Write]:
        """What a reader sees: no tombstones."""
        return {key: write for key, write in self.rows.get(view, {}).items() if write.values is not None}


class Faults:
    """What is to go wrong. Safe to call from another thread than the sink's."""

    def __init__(self) -> None:
        self._rejected: dict[tuple[str, Key], str] = {}
        self._before = self._after = 0
        self._slow_s = 0.0

    def reject(self, view: str, key: Key, reason: str = "rejected by the test") -> None:
        self._rejected[view, key] = reason

    def accept(self, view: str, key: Key) -> None:
        del self._rejected[view, key]

    def fail_before_write(self, times: int = 1) -> None:
        self._before = times

    def fail_after_write(self, times: int = 1) -> None:
        self._after = times

    def slow(self, seconds: float) -> None:
        self._slow_s = seconds

    def before(self) -> None:
        if self._slow_s:
            time.sleep(self._slow_s)
        if self._before:
            self._before -= 1
            raise StoreUnavailableError("fake store: broke off before the write")

    def after(self) -> None:
        if self._after:
            self._after -= 1
            raise StoreUnavailableError("fake store: broke off after the write")

    def reason(self, view: str, key: Key) -> str | None:
        return self._rejected.get((view, key))


class FakeSink:
    """See the module; the Sink protocol's own words hold."""

    def __init__(self, views: Sequence[BoundView], store: FakeStore | None = None) -> None:
        self.store = FakeStore() if store is None else store
        self.faults = Faults()
        self._views = {view.id: view for view in views}
        self._is_connected = False

    def prepare(self, on_missing: OnMissing = ignored) -> dict[str, str]:
        self._is_connected = True
        if self.store.witness is None:
            on_missing(frozenset(self._views))
        return {name: why for name, why in self.store.no_place.items() if name in self._views}

    def write(
        self, writes: Sequence[ViewWrites], upto: Position | None, meanwhile: Meanwhile = nothing
    ) -> list[Parked]:
        self._require_connection()
        try:
            self.faults.before()
            meanwhile()
            parked = [letter for of_view in writes for letter in self._apply(of_view)]
            self.store.witness = upto or self.store.witness
            self.store.write_count += 1
            self.faults.after()
        except StoreUnavailableError:
            self._is_connected = False
            raise
        return parked

    def write_again(self, writes: Sequence[ViewWrites]) -> list[Parked]:
        return self.write(writes, None)

    def attach(self) -> frozenset[str]:
        self.prepare()
        return frozenset() if self.store.witness is None else frozenset(self._views)

    def push(self, writes: Sequence[ViewWrites]) -> None:
        self.write(writes, None)

    def is_gone(self, view: str) -> bool:
        return self.store.witness is None

    def incarnation(self) -> str:
        return ""

    def settle(self) -> None:
        pass

    def witness(self, offset: Position) -> Position | None:
        self._require_connection()
        return self.store.witness

    def mark_writes(self, view: str) -> int | None:
        return None

    def keys_below(self, view: str, version: int, since: int | None = None) -> Iterator[list[tuple[Key, int]]]:
        self._require_connection()
        shown = [(key, write.version) for key, write in self.store.shown(view).items()]
        for start in range(0, len(shown) + 1, PAGE):
            yield [pair for pair in shown[start : start + PAGE] if pair[1] < version]

    def keys_of_part(self, view: str, values: Key, version: int) -> Iterator[list[tuple[Key, int]]]:
        for page in self.keys_below(view, version):
            yield [pair for pair in page if pair[0][: len(values)] == values]

    def take_away(self, view: str, found: Mapping[Key, Held]) -> None:
        self._require_connection()
        rows = self.store.rows.get(view, {})
        for key, held in found.items():
            if key in rows and rows[key].version == held.version:
                del rows[key]

    def leave_alone(self, views: Collection[str]) -> None:
        """Nothing to do."""

    def fit(self, view: BoundView) -> bool:
        return True

    def close(self) -> None:
        self._is_connected = False

    def _apply(self, of_view: ViewWrites) -> Iterator[Parked]:
        rows = self.store.rows.setdefault(of_view.view, {})
        takes_equal = takes_equal_versions(self._views[of_view.view])
        for key, (version, values) in of_view.writes.items():
            reason = self.faults.reason(of_view.view, key)
            if reason is not None:
                rendered = render_key(key, self._views[of_view.view].key)
                yield Parked(of_view.view, rendered, version, reason)
            elif key not in rows or version > rows[key].version or (takes_equal and version == rows[key].version):
                rows[key] = Write(version, values)

    def _require_connection(self) -> None:
        if not self._is_connected:
            raise StoreUnavailableError("fake store: not connected; call prepare()")


class FakeReader(ViewReader):
    """Reads a view of a `FakeStore`."""

    def __init__(self, store: FakeStore, view: BoundView) -> None:
        self.view = view
        self._store = store

    def rows(self, keys: Sequence[Key]) -> list[StoredRow]:
        shown = self._store.shown(self.view.id)
        return [self._row(key, shown[key]) for key in keys if key in shown]

    def pages(self, after: Key | None = None) -> Iterator[list[StoredRow]]:
        shown = list(self._store.shown(self.view.id).items())
        for start in range(0, len(shown), PAGE):
            yield [self._row(*one) for one in shown[start : start + PAGE]]

    def held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        rows = self._store.rows.get(self.view.id, {})
        return {key: Held(rows[key].version, rows[key].values) for key in keys if key in rows}

    def close(self) -> None:
        pass

    def _row(self, key: Key, write: Write) -> StoredRow:
        names = [column.name for column in self.view.values]
        values = zip(names, write.values or (), strict=True)
        return StoredRow(key, write.version, {name: value for name, value in values if value is not None})
