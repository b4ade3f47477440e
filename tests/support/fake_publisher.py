"""A publisher in memory: what topics promise, without a broker. It passes the contract of the real one.

What survives is in `Broker`; two sinks of one broker are two processes of one pipeline.

    sink.faults.fail_before_write()   # the next commit does nothing and breaks off
    sink.faults.fail_after_write()    # the next commit is kept, but breaks off before it says so
    broker.delete(view)               # somebody deletes the view's topic
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from projectors.stores import Meanwhile, OnMissing, Publisher, ignored, nothing
from projectors.views import BoundView
from projectors.watermark_rows import forget_oldest
from tests.support.fake_sink import Faults
from viewtail.changes.batches import Watermark
from viewtail.changes.errors import FencedError, StoreUnavailableError
from viewtail.changes.positions import Position
from viewtail.changes.rendering import render_key
from viewtail.changes.writes import KeptChange, Parked, ViewWrites

Entry = tuple[str, KeptChange]


@dataclass(slots=True)
class Broker:
    """What is durable, and committed."""

    entries: list[Entry] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)  # by view, the number of its topic
    made_count: int = 0
    witness: Position | None = None
    fills: dict[str, str] = field(default_factory=dict)
    unfinished: dict[str, int] = field(default_factory=dict)
    newest: int = 0
    watermarks: dict[str, int] = field(default_factory=dict)  # told to consumers
    untold: dict[str, int] = field(default_factory=dict)
    told: Position | None = None  # of the newest progress
    commit_count: int = 0
    fence: int = 0

    def of(self, view: str) -> list[KeptChange]:
        return [change for name, change in self.entries if name == view]

    def delete(self, view: str) -> None:
        """Somebody deletes the topic."""
        self.places.pop(view, None)
        self.entries = [entry for entry in self.entries if entry[0] != view]


class FakePublisher(Publisher):
    """See the module."""

    def __init__(self, views: Sequence[BoundView], broker: Broker) -> None:
        self.broker = broker
        self.faults = Faults()
        self.fills: dict[str, str] = {}
        self.newest = 0
        self._views = {view.id: view for view in views}
        self._fence: int | None = None
        self._pending: list[Entry] = []
        self._kept: Position | None = None
        self._seen: dict[str, int] = {}
        self.delivers_at_once = False  # readers have the pending entries

    def prepare(self, on_missing: OnMissing = ignored) -> dict[str, str]:
        missing = frozenset(self._views.keys() - self.broker.places.keys())
        if missing:
            on_missing(missing)
        self.broker.fence += 1
        self._fence, self._pending = self.broker.fence, []
        for view in sorted(missing):
            self.broker.made_count += 1
            self.broker.places[view] = self.broker.made_count
        self._kept, self.fills, self._seen = self.broker.witness, dict(self.broker.fills), {}
        self.was_unfinished = dict(self.broker.unfinished)
        self.newest = self.broker.newest
        return {}

    def incarnations(self) -> Mapping[str, str]:
        return {view: str(number) for view, number in self.broker.places.items() if view in self._views}

    def is_empty(self, view: str) -> bool:
        return not self.broker.of(view)

    def witness(self, offset: Position) -> Position | None:
        return self._kept

    def write(
        self, writes: Sequence[ViewWrites], upto: Position | None, meanwhile: Meanwhile = nothing
    ) -> list[Parked]:
        self._require_ownership()
        parked = []
        for of_view in writes:
            for change in of_view.changes:
                reason = self.faults.reason(of_view.view, change.key)
                if reason is None:
                    self._pending.append((of_view.view, change))
                else:
                    key = render_key(change.key, self._views[of_view.view].key)
                    parked.append(Parked(of_view.view, key, change.version, reason))
        if upto is not None:
            meanwhile()
            self._commit(upto)
        return parked

    def _commit(self, upto: Position) -> None:
        broker = self.broker
        try:
            self.faults.before()
            self._require_ownership()
            if any(view not in broker.places for view, _ in self._pending):
                raise StoreUnavailableError("fake broker: a topic is not there")
            broker.entries += self._pending
            told = self._tellable()
            broker.watermarks.update(told)
            broker.untold = {token: at for token, at in {**broker.untold, **self._seen}.items() if token not in told}
            forget_oldest(broker.untold)
            if self._kept is not None:
                broker.told = self._kept
            broker.witness, broker.fills, broker.newest = upto, dict(self.fills), self.newest
            broker.unfinished = dict(self.unfinished())
            broker.commit_count += 1
            self.faults.after()
        except StoreUnavailableError:
            self._fence = None
            raise
        self._kept, self._pending, self._seen = upto, [], {}

    @property
    def is_open(self) -> bool:
        return bool(self._pending)

    @property
    def is_awaited(self) -> bool:
        return not (self._pending and self.delivers_at_once)

    def commit(self) -> None:
        self.write([], self._kept)

    def on_passed(self, watermarks: Sequence[Watermark]) -> None:
        self._seen.update({mark.token: mark.version for mark in watermarks})

    def _tellable(self) -> dict[str, int]:
        return {token: at for token, at in self.broker.untold.items() if at < self.lacks_from()}

    def publish_watermarks(self) -> None:
        if self._tellable():
            assert self._kept is not None
            self.write([], self._kept)

    def settle(self) -> None:
        is_due = self._kept != self.broker.told or self._tellable()
        if self._kept is not None and is_due and not self._pending:
            self.write([], self._kept)

    def close(self) -> None:
        self._fence, self._pending = None, []

    def _require_ownership(self) -> None:
        if self._fence is None:
            raise StoreUnavailableError("fake broker: not connected; call prepare()")
        if self._fence != self.broker.fence:
            raise FencedError("fake broker: another sink took the pipeline over")
