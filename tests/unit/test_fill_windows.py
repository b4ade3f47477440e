"""Filling in the order of the stream: which rows of a chunk are published when their watermark comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from projectors import publishing
from projectors.binding import bind
from projectors.every_change import EveryChange
from projectors.fills import windows
from projectors.fills.windows import Window, Windows
from projectors.projection import Projected, followed_tables
from projectors.stores.topics.views import Topic
from projectors.views import BoundView, Entity
from tests.support.fake_publisher import Broker, FakePublisher
from tests.support.running import wait_for
from tests.unit.test_pipeline import Loop, NoFanOuts, at
from viewtail.changes.batches import (
    INSERT,
    UNKNOWN,
    UPDATE,
    Batch,
    Row,
    RowChanges,
    TableChange,
    TableChangeKind,
    Watermark,
)
from viewtail.changes.errors import SourceError, StopRequested, StoreUnavailableError
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import KeptChange, Parked, ViewWrites

COLUMNS = (
    Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False),
    Column(name="name", kind=Kind.TEXT, declared="varchar(9)", is_nullable=True, charset="utf8mb4", length=9),
    Column(name="rev", kind=Kind.INTEGER, declared="int", is_nullable=False),
)
TABLE = Table(schema="shop", name="user", columns=COLUMNS, primary_key=("id",))
VIEW = "kafka:user"


class Scene:
    """A pipeline of one topic view, whose steps the test takes one by one."""

    def __init__(self, entity: Entity | None = None) -> None:
        self.views: list[BoundView] = bind([Topic("user", entity or Entity("shop.user"))], lambda *_: TABLE)
        self.view = self.views[0]
        self.followed = followed_tables(self.views)
        self.table = self.followed["shop", "user"]
        self.projections = EveryChange(self.views, self.followed)
        self.broker = Broker()
        self.sink = FakePublisher(self.views, self.broker)
        self.sink.prepare()
        self.windows = Windows(self.sink, self.projections.is_halted)
        self.number = 0

    def batch(self, *rows: Row, marks: tuple[str, ...] = (), is_piece: bool = False) -> Batch:
        """An update of each of these rows from another name, and watermarks behind them."""
        self.number += 1
        version = at(self.number).version
        updates = [row for new in rows for row in ((new[0], "old", new[2]), new)]
        changes = [RowChanges(self.table, UPDATE, version, updates)] if rows else []
        seen = [Watermark(token, version + 1) for token in marks]
        end = None if is_piece else at(self.number)
        return Batch(changes=changes, end=end, row_count=len(rows), byte_count=1, oldest_commit_us=7, watermarks=seen)

    def pass_(self, batch: Batch, parked: tuple[Parked, ...] = ()) -> Projected:
        """As the pipeline does."""
        projected = self.projections.of(batch)
        projected.parked.extend(parked)
        self.windows.take_part(batch, projected)
        self.sink.write(projected.writes, batch.end)
        if batch.end is not None:
            self.windows.written()
        return projected

    def offer(self, window: Window, token: str, *rows: Row, note: str = "a note") -> None:
        """As a fill does with a chunk."""
        self.windows.offer(window, token, self.projections.of_rows(VIEW, list(rows), 1), note)

    def fails(self, is_kept: bool) -> None:
        """The next commit breaks off; the pipeline prepares the sink and begins again."""
        (self.sink.faults.fail_after_write if is_kept else self.sink.faults.fail_before_write)()

    def restart(self) -> None:
        self.sink.prepare()
        self.windows.begin_again()

    def read(self) -> list[tuple[int, str]]:
        """The rows that were published as such."""
        return [(one.key[0], one.after[1]) for one in self.broker.of(VIEW) if one.op == "read"]  # type: ignore[misc]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def is_done(scene: Scene, window: Window) -> bool:
    """Whether the fill need not read the chunk again; its answer is there at once."""
    found: list[bool] = []
    wait = scene.windows.wait
    thread = threading.Thread(target=lambda: found.append(wait(window, threading.Event())), daemon=True)
    thread.start()
    thread.join(5)
    assert found, "the fill still waits"
    return found[0]


def test_rows_come_at_their_watermark_with_its_version_and_behind_the_changes_of_its_batch(scene: Scene) -> None:
    window = scene.windows.open(scene.view)
    scene.offer(window, "second", (1, "a", 0), (2, "b", 0))
    scene.pass_(scene.batch((9, "x", 0), marks=("another",)))
    assert scene.read() == []
    scene.pass_(scene.batch((8, "y", 0), marks=("second",)))
    assert scene.read() == [(1, "a"), (2, "b")]
    changes = scene.broker.of(VIEW)
    assert [one.op for one in changes] == ["update", "update", "read", "read"]
    assert {one.version for one in changes[2:]} == {at(2).version + 1}
    assert {one.origin.committed_us for one in changes[2:]} == {7}
    assert is_done(scene, window)
    assert scene.broker.fills == {VIEW: "a note"}


@pytest.mark.parametrize("when", ["before the first watermark", "between", "in the batch of the second"])
def test_a_row_whose_key_changed_since_the_window_was_opened_is_left_to_its_change(scene: Scene, when: str) -> None:
    window = scene.windows.open(scene.view)
    scene.pass_(scene.batch(*[(1, "new", 0)] * (when == "before the first watermark"), marks=("first",)))
    scene.offer(window, "second", (1, "as it was read", 0), (2, "b", 0))
    if when == "between":
        scene.pass_(scene.batch((1, "new", 0)))
    scene.pass_(scene.batch(*[(1, "new", 0)] * (when == "in the batch of the second"), marks=("second",)))
    assert scene.read() == [(2, "b")]
    assert [one.after for one in scene.broker.of(VIEW) if one.key == (1,)] == [(1, "new", 0)]


def test_a_change_in_a_piece_of_a_large_transaction_counts_and_the_rows_wait_for_its_end(scene: Scene) -> None:
    window = scene.windows.open(scene.view)
    scene.offer(window, "second", (1, "as it was read", 0), (2, "b", 0))
    scene.pass_(scene.batch((1, "new", 0), is_piece=True))
    scene.pass_(scene.batch(marks=("second",)))
    assert scene.read() == [(2, "b")]


def test_a_change_before_the_window_was_opened_does_not_count(scene: Scene) -> None:
    scene.pass_(scene.batch((1, "earlier", 0)))
    window = scene.windows.open(scene.view)
    scene.offer(window, "second", (1, "earlier", 0))
    scene.pass_(scene.batch(marks=("second",)))
    assert scene.read() == [(1, "earlier")]


def test_a_window_that_is_opened_again_forgets_what_changed_and_the_offer_before(scene: Scene) -> None:
    first = scene.windows.open(scene.view)
    scene.offer(first, "first", (1, "a", 0))
    scene.pass_(scene.batch((1, "new", 0)))
    second = scene.windows.open(scene.view)
    scene.offer(second, "second", (1, "new", 0))
    scene.pass_(scene.batch(marks=("first", "second")))
    assert scene.read() == [(1, "new")]


def test_a_key_that_was_parked_meanwhile_is_left_out(scene: Scene) -> None:
    window = scene.windows.open(scene.view)
    scene.offer(window, "second", (1, "a", 0), (2, "b", 0))
    scene.pass_(scene.batch(), parked=(Parked(VIEW, "1", 5, "it cannot be read"),))
    scene.pass_(scene.batch(marks=("second",)))
    assert scene.read() == [(2, "b")]


def test_rows_that_cannot_be_projected_are_parked_with_the_batch_unless_they_changed_since(scene: Scene) -> None:
    window = scene.windows.open(scene.view)
    refused = [Parked(VIEW, "1", 1, "why"), Parked(VIEW, "2", 1, "why")]
    rows = [ViewWrites(VIEW, None, [KeptChange((3,), 1, "read", None, (3, "c", 0))])]
    scene.windows.offer(window, "second", Projected(rows, refused), "a note")
    assert scene.pass_(scene.batch((2, "mended", 0))).parked == []
    assert [letter.key for letter in scene.pass_(scene.batch(marks=("second",))).parked] == ["1"]
    assert scene.read() == [(3, "c")]


def test_with_a_version_column_a_row_keeps_its_own_version() -> None:
    scene = Scene(Entity("shop.user", version="rev"))
    window = scene.windows.open(scene.view)
    scene.offer(window, "second", (1, "a", 21))
    scene.pass_(scene.batch(marks=("second",)))
    assert [one.version for one in scene.broker.of(VIEW)] == [42]


def test_a_chunk_that_shows_nothing_moves_the_note_all_the_same(scene: Scene) -> None:
    window = scene.windows.open(scene.view)
    scene.offer(window, "second")
    scene.pass_(scene.batch(marks=("second",)))
    assert is_done(scene, window)
    assert scene.broker.fills == {VIEW: "a note"}
    assert scene.read() == []


def test_rows_that_were_not_committed_are_read_again(scene: Scene) -> None:
    window = scene.windows.open(scene.view)
    scene.offer(window, "second", (1, "a", 0))
    scene.fails(is_kept=False)
    with pytest.raises(StoreUnavailableError):
        scene.pass_(scene.batch(marks=("second",)))
    scene.restart()
    assert not is_done(scene, window)
    assert scene.read() == []
    assert scene.windows.fill_of(VIEW) == ""


def test_rows_that_were_committed_without_an_answer_are_not_read_again(scene: Scene) -> None:
    window = scene.windows.open(scene.view)
    scene.offer(window, "second", (1, "a", 0))
    scene.fails(is_kept=True)
    with pytest.raises(StoreUnavailableError):
        scene.pass_(scene.batch(marks=("second",)))
    scene.restart()
    assert is_done(scene, window)
    assert scene.read() == [(1, "a")]
    assert scene.windows.fill_of(VIEW) == "a note"


def test_a_restart_between_the_offer_and_its_watermark_voids_the_window(scene: Scene) -> None:
    # What changed before the pipeline began again is not known any more.
    window = scene.windows.open(scene.view)
    scene.offer(window, "second", (1, "a", 0))
    scene.restart()
    assert not is_done(scene, window)


def test_a_restart_before_the_offer_voids_the_window_too(scene: Scene) -> None:
    window = scene.windows.open(scene.view)
    scene.restart()
    scene.offer(window, "second", (1, "a", 0))
    assert not is_done(scene, window)


def test_a_voided_window_is_not_written_when_its_watermark_comes(scene: Scene) -> None:
    window = scene.windows.open(scene.view)
    scene.pass_(scene.batch((1, "new", 0)))
    scene.restart()
    scene.offer(window, "second", (2, "as it was read", 0))
    scene.pass_(scene.batch(marks=("second",)))
    assert scene.read() == []


def test_a_window_opened_since_another_knows_what_changed_in_both(scene: Scene) -> None:
    first = scene.windows.open(scene.view)
    scene.pass_(scene.batch((1, "new", 0)), parked=(Parked(VIEW, "2", 5, "it cannot be read"),))
    second = scene.windows.open(scene.view, first)
    scene.offer(second, "second", (1, "a", 0), (2, "b", 0), (3, "c", 0))
    scene.pass_(scene.batch(marks=("second",)))
    assert scene.read() == [(3, "c")]


def test_a_window_that_was_waited_for_in_vain_is_not_written_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The fill reads the chunk again, so its rows would come twice.
    monkeypatch.setattr(windows, "WRITE_AGAIN_AFTER_S", 0.0)
    window = scene.windows.open(scene.view)
    scene.offer(window, "second", (1, "a", 0))
    assert not is_done(scene, window)
    scene.pass_(scene.batch(marks=("second",)))
    assert scene.read() == []


def test_a_window_that_is_being_written_is_waited_for_however_long(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "WRITE_AGAIN_AFTER_S", 0.0)
    window = scene.windows.open(scene.view)
    scene.offer(window, "second", (1, "a", 0))
    batch = scene.batch(marks=("second",))
    projected = scene.projections.of(batch)
    scene.windows.take_part(batch, projected)
    waiting = threading.Thread(target=scene.windows.wait, args=(window, threading.Event()), daemon=True)
    waiting.start()
    waiting.join(0.6)
    assert waiting.is_alive()
    scene.sink.write(projected.writes, batch.end)
    scene.windows.written()
    waiting.join(5)
    assert not waiting.is_alive()
    assert window.is_written


def test_a_halted_view_gets_no_rows(scene: Scene) -> None:
    window = scene.windows.open(scene.view)
    scene.offer(window, "second", (1, "a", 0))
    scene.projections.halt(VIEW)
    scene.pass_(scene.batch(marks=("second",)))
    assert scene.read() == []
    assert not is_done(scene, window)


def test_a_stop_ends_the_wait(scene: Scene) -> None:
    window, stop = scene.windows.open(scene.view), threading.Event()
    stop.set()
    with pytest.raises(StopRequested):
        scene.windows.wait(window, stop)


def test_a_closed_window_takes_no_part(scene: Scene) -> None:
    window = scene.windows.open(scene.view)
    scene.offer(window, "second", (1, "a", 0))
    scene.windows.close(VIEW)
    scene.pass_(scene.batch(marks=("second",)))
    assert scene.read() == []


# --- The pipeline around it ---


@contextmanager
def no_idle_pause() -> Iterator[None]:
    """The offset of a quiet stream is due at each look."""
    from projectors import pipeline

    before, pipeline.IDLE_SAVE_S = pipeline.IDLE_SAVE_S, 0.0
    try:
        yield
    finally:
        pipeline.IDLE_SAVE_S = before


def looped(scene: Scene, *batches: Batch) -> Loop:
    return Loop(scene.views, scene.followed, list(batches), scene.sink, EveryChange)


def test_a_batch_that_was_committed_is_not_waiting_where_the_answer_was_lost_and_nothing_follows(scene: Scene) -> None:
    """It does not come again: nothing else would say that it is not waiting any more, and the lag would grow."""
    loop = looped(scene, scene.batch((1, "a", 0)))
    pipeline = loop.pipeline
    scene.broker.witness = at(0)
    scene.fails(is_kept=True)
    running = threading.Thread(target=pipeline.run, args=(at(0),), daemon=True)
    running.start()
    try:
        wait_for("it begins again", lambda: pipeline.vitals.store_retry_count == 1 and scene.broker.fence == 4)
        wait_for("nothing waits", lambda: not pipeline.vitals.oldest_waiting_us)
    finally:
        loop.stop.set()
        loop.source.interrupt()
        running.join(20)
    assert len(scene.broker.of(VIEW)) == 1, "it was published once"


def commits_of(scene: Scene) -> list[tuple[int, int]]:
    """From now on: the version of each committed position, and how many changes were published by then."""
    found: list[tuple[int, int]] = []
    write = scene.sink.write

    def noted(writes: list[ViewWrites], upto: Any, *more: Any) -> list[Parked]:
        letters = write(writes, upto)
        if upto is not None:
            found.append((upto.version, len(scene.broker.of(VIEW))))
        return letters

    scene.sink.write = noted  # type: ignore[method-assign, assignment]
    return found


def test_a_piece_of_a_large_transaction_is_never_committed_with_an_older_position(scene: Scene) -> None:
    quiet = Batch(changes=[], end=at(1), row_count=0, byte_count=1, oldest_commit_us=0)
    scene.number = 1
    loop = looped(scene, quiet, scene.batch((1, "a", 0)))
    pipeline = loop.pipeline
    committed = commits_of(scene)
    pipeline._pass(quiet)
    pipeline._apply(scene.batch((2, "b", 0), is_piece=True))
    with no_idle_pause():
        pipeline._save_when_idle()
        pipeline.save_now()
    assert committed == []
    pipeline._apply(scene.batch((3, "c", 0)))
    assert committed == [(at(scene.number).version, 2)]


class Pages(NoFanOuts):
    """One page of a fan-out at each moment in which there may be one."""

    def __init__(self, page: Projected) -> None:
        self._page = page
        self.come_to_versions: list[int] = []

    def come_to(self, changes: Any) -> None:
        self.come_to_versions.append(changes.version)

    def lacks_from(self) -> int:
        return 12

    def step(self, write: Callable[[Projected], None], **_: bool) -> None:
        write(self._page)


def test_a_page_of_a_fan_out_is_committed_without_a_position_and_a_filling_leaves_its_rows_out(scene: Scene) -> None:
    loop = looped(scene, scene.batch((1, "a", 0)))
    pages: Any = Pages(scene.projections.of_derived(VIEW, {(7,): at(1).version}, {(7,): (7, "page", 0)}, UNKNOWN))
    loop.pipeline.fan_outs = pages
    scene.sink.write([], at(0))
    windows: Windows = loop.pipeline.windows  # type: ignore[attr-defined]
    window = windows.open(scene.view)
    loop.pipeline._between_batches(is_idle=True)
    assert window.changed == {(7,)}
    assert [change.key for change in scene.broker.of(VIEW)] == [(7,)] and scene.broker.witness == at(0)


def test_no_page_is_committed_with_a_piece_of_a_transaction_of_the_source(scene: Scene) -> None:
    loop = looped(scene, scene.batch((1, "a", 0)))
    pages: Any = Pages(scene.projections.of_derived(VIEW, {(7,): 1}, {(7,): (7, "page", 0)}, UNKNOWN))
    loop.pipeline.fan_outs = pages
    scene.sink.write([], at(0))
    loop.pipeline._apply(scene.batch((2, "b", 0), is_piece=True))
    loop.pipeline._between_batches(is_idle=True)
    assert scene.broker.of(VIEW) == []
    loop.pipeline._apply(scene.batch((3, "c", 0)))
    loop.pipeline._between_batches(is_idle=True)
    assert [change.key for change in scene.broker.of(VIEW)] == [(2,), (3,), (7,)]


def test_pages_are_told_of_what_is_read_again_and_was_published_before_alone(scene: Scene) -> None:
    loop = looped(scene, scene.batch((1, "a", 0)))
    loop.pipeline.fan_outs = pages = Pages(Projected([], []))  # type: ignore[assignment]
    scene.sink.write([], at(0))
    again = scene.batch((2, "b", 0))
    scene.sink.newest = version = again.changes[-1].version
    loop.pipeline._apply(again)
    assert pages.come_to_versions == [version] and scene.broker.of(VIEW) == []
    loop.pipeline._apply(scene.batch((3, "c", 0)))
    assert pages.come_to_versions == [version]
    assert [change.key for change in scene.broker.of(VIEW)] == [(3,)]


def test_consumers_are_told_of_a_watermark_once_the_loop_has_no_fan_out_from_before_it(scene: Scene) -> None:
    loop = looped(scene, scene.batch((1, "a", 0)))
    assert scene.sink.lacks_from == loop.pipeline.fan_outs.lacks_from


def test_while_more_waits_batches_are_committed_together_up_to_a_bound(scene: Scene) -> None:
    batches = [scene.batch((number, "x", 0)) for number in range(1, 6)]
    pipeline = looped(scene, *batches).pipeline
    pipeline._most_open_rows = 3
    committed = commits_of(scene)
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        pipeline._next.following = MagicMock(return_value=following)
        pipeline._apply(batch)
    assert committed == [(at(3).version, 3), (at(5).version, 5)]
    assert pipeline.vitals.position == at(5) and pipeline.vitals.row_count == 5


def slowly(write: Any) -> Any:
    def written(*arguments: Any) -> Any:
        time.sleep(0.02)
        return write(*arguments)

    return written


def test_a_stop_while_a_transaction_is_open_comes_behind_the_batch_that_ends_it(scene: Scene) -> None:
    loop = looped(scene, *[scene.batch((number, "x", 0)) for number in range(1, 9)])
    pipeline = loop.pipeline
    pipeline._most_open_rows = 8
    committed = commits_of(scene)
    save_rows = pipeline.offsets.save_rows

    def stopped() -> None:
        loop.stop.set()
        save_rows()

    pipeline.offsets.save_rows = stopped  # type: ignore[method-assign]
    scene.sink.write = slowly(scene.sink.write)  # type: ignore[method-assign]  # the reader is ahead by then
    loop.last = at(2)
    loop.run()
    assert committed[1:] == [(at(2).version, 2)] and pipeline.vitals.row_count == 2


@pytest.mark.parametrize("what", ["nothing", "no change", "a piece", "a statement", "a watermark here", "a stop"])
def test_a_batch_is_committed_at_once_where_the_next_might_not_be(scene: Scene, what: str) -> None:
    batch = scene.batch((1, "x", 0), marks=("token",) * (what == "a watermark here"))
    following = scene.batch(*[(2, "x", 0)] * (what != "no change"), is_piece=what == "a piece")
    if what == "a statement":
        following.table_changes = [TableChange(scene.table, 9, TableChangeKind.WIDENED, "ALTER TABLE")]
    pipeline = looped(scene, batch).pipeline
    pipeline._most_open_rows = 3
    committed = commits_of(scene)
    pipeline._next.following = MagicMock(return_value=None if what == "nothing" else following)
    if what == "a stop":
        pipeline.stop.set()
    pipeline._apply(batch)
    assert committed[:1] == [(at(1).version, 1)]


# --- Where readers do not wait for commits ---


def held(scene: Scene, *batches: Batch) -> tuple[Loop, list[tuple[int, int]]]:
    """A loop whose changes are read at once, with a transaction that is open; and what it commits."""
    scene.sink.delivers_at_once = True
    loop = looped(scene, *batches)
    loop.pipeline._most_open_rows = 100  # type: ignore[attr-defined]
    return loop, commits_of(scene)


def test_a_transaction_that_nobody_waits_for_stays_open_and_is_committed_in_time_with_the_last_position(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [scene.batch((number, "x", 0)) for number in range(1, 4)]
    loop, committed = held(scene, *batches)
    pipeline = loop.pipeline
    pipeline._idle_saved_at = float("-inf")  # nothing came for long: the time begins with the first that is held
    for batch in batches:
        pipeline._apply(batch)
        pipeline._save_when_idle()
    assert committed == [] and pipeline.vitals.position is None
    assert pipeline.vitals.row_count == 3 and not pipeline.vitals.oldest_waiting_us, "they are read"
    monkeypatch.setattr(publishing, "HELD_S", 0.0)
    pipeline._save_when_idle()
    assert committed == [(at(3).version, 3)] and pipeline.vitals.position == at(3) and not scene.sink.is_open
    pipeline._save_when_idle()
    assert len(committed) == 1, "nothing is open, so nothing is due"


@pytest.mark.parametrize("what", ["a watermark", "a statement", "a stop", "a fan-out", "as many rows as there may be"])
def test_what_must_be_durable_at_once_ends_a_transaction_that_nobody_waits_for(scene: Scene, what: str) -> None:
    first, second = scene.batch((1, "x", 0)), scene.batch((2, "x", 0), marks=("token",) * (what == "a watermark"))
    loop, committed = held(scene, first, second)
    pipeline: Any = loop.pipeline
    pipeline._apply(first)
    assert committed == []
    if what == "a statement":
        second.table_changes = [TableChange(scene.table, 9, TableChangeKind.WIDENED, "ALTER TABLE")]
        pipeline._table_changes = SimpleNamespace(prepare=lambda changes: None, apply=lambda changes: True)
    elif what == "a stop":
        pipeline.stop.set()
    elif what == "a fan-out":
        pipeline.fan_outs = Pages(Projected([], []))
    elif what == "as many rows as there may be":
        pipeline._most_open_rows = 1
    pipeline._apply(second)
    assert committed[-1] == (at(2).version, 2)
    assert committed[0] == ((at(1).version, 1) if what == "a statement" else (at(2).version, 2))
    assert not scene.sink.is_open


def test_a_statement_that_has_the_pipeline_taken_again_finds_all_before_it_committed(scene: Scene) -> None:
    first, second = scene.batch((1, "x", 0)), scene.batch()
    loop, committed = held(scene, first, second)
    pipeline: Any = loop.pipeline
    pipeline._apply(first)
    second.table_changes = [TableChange(scene.table, 9, TableChangeKind.WIDENED, "ALTER TABLE")]
    pipeline._table_changes = SimpleNamespace(prepare=MagicMock(side_effect=StopRequested))
    with pytest.raises(StopRequested):
        pipeline._apply(second)
    assert committed == [(at(1).version, 1)]


def test_a_statement_that_could_not_be_applied_as_a_whole_leaves_the_position_before_it(scene: Scene) -> None:
    batch = scene.batch((1, "x", 0))
    loop, committed = held(scene, batch)
    batch.table_changes = [TableChange(scene.table, 9, TableChangeKind.WIDENED, "ALTER TABLE")]
    applied: Any = SimpleNamespace(prepare=lambda changes: None, apply=lambda changes: False)
    loop.pipeline._table_changes = applied
    loop.pipeline._apply(batch)
    assert committed == [] and loop.pipeline.vitals.position is None


def test_another_server_is_judged_by_all_that_was_read_and_not_by_what_was_committed(scene: Scene) -> None:
    first = scene.batch((1, "x", 0))
    loop, committed = held(scene, first)
    scene.broker.witness = at(0)

    def read(after: Any) -> Iterator[Batch]:
        yield first
        raise SourceError("it is another server")

    loop.source.read = read  # type: ignore[method-assign]
    with pytest.raises(SourceError):
        loop.pipeline.run(at(0))
    assert committed == [(at(1).version, 1)] and loop.pipeline.vitals.position == at(1)


def test_a_source_that_is_lost_amid_a_transaction_is_judged_by_all_that_was_read_before_it(scene: Scene) -> None:
    first, piece = scene.batch((1, "x", 0)), scene.batch((2, "y", 0))
    piece.end = None
    loop, committed = held(scene, first)
    scene.broker.witness = at(0)

    def read(after: Any) -> Iterator[Batch]:
        yield first
        yield piece
        raise SourceError("it is another server")

    loop.source.read = read  # type: ignore[method-assign]
    with pytest.raises(SourceError):
        loop.pipeline.run(at(0))
    assert committed == [(at(1).version, 1)] and loop.pipeline.vitals.position == at(1)


def test_a_stop_while_nothing_comes_ends_the_loop_with_what_is_held_to_be_saved(scene: Scene) -> None:
    first = scene.batch((1, "x", 0))
    loop, committed = held(scene, first)
    scene.broker.witness = at(0)
    running = threading.Thread(target=loop.pipeline.run, args=(at(0),), daemon=True)
    running.start()
    wait_for("it is written", lambda: loop.pipeline.vitals.batch_count)
    loop.stop.set()
    loop.source.interrupt()
    running.join(20)
    assert not running.is_alive() and committed == []
    loop.pipeline.save_now()
    assert committed == [(at(1).version, 1)]


def test_a_statement_beside_a_watermark_is_committed_with_the_position_behind_both(scene: Scene) -> None:
    first = scene.batch((1, "a", 0))
    loop = looped(scene, first)
    loop.run()
    both = scene.batch((2, "b", 0), marks=("token",))
    both.table_changes = [TableChange(scene.table, both.end.version, TableChangeKind.WIDENED, "ALTER TABLE")]  # type: ignore[union-attr]
    applied: Any = SimpleNamespace(prepare=lambda changes: None, apply=lambda changes: True)
    loop.pipeline._table_changes = applied
    positions: list[int] = []
    commit = scene.sink._commit

    def noted(upto: object) -> None:
        positions.append(upto.version)  # type: ignore[attr-defined]
        commit(upto)  # type: ignore[arg-type]

    scene.sink._commit = noted  # type: ignore[method-assign]
    loop.pipeline._apply(both)
    assert set(positions) == {both.end.version}  # type: ignore[union-attr]
    assert scene.broker.watermarks == {"token": both.watermarks[0].version}


def test_dead_letters_are_recorded_before_the_batch_is_committed(scene: Scene) -> None:
    scene.sink.faults.reject(VIEW, (1,), "too large")
    loop = looped(scene, scene.batch((1, "a", 0), (2, "b", 0)))
    at_commit: list[int] = []
    commit = scene.sink._commit

    def noted(upto: object) -> None:
        at_commit.append(len(loop.letters))
        commit(upto)  # type: ignore[arg-type]

    scene.sink._commit = noted  # type: ignore[method-assign]
    loop.run()
    assert at_commit[0] == 0, "the witness of a new store"
    assert at_commit[1] == 1
    assert [letter.key for letter in loop.letters] == ["1"]


def test_a_batch_whose_commit_was_not_answered_is_published_once(scene: Scene) -> None:
    first, second = scene.batch((1, "a", 0)), scene.batch((2, "b", 0))
    loop = looped(scene, first, second)
    scene.sink.write([], at(0))  # a store that was used before
    scene.sink.faults.fail_after_write()
    loop.run()
    assert [one.key for one in scene.broker.of(VIEW)] == [(1,), (2,)]
    assert loop.pipeline.vitals.store_retry_count == 1


def test_a_witness_ahead_of_the_offset_is_where_reading_begins(scene: Scene) -> None:
    first, second = scene.batch((1, "a", 0)), scene.batch((2, "b", 0))
    scene.sink.write(scene.projections.of(first).writes, first.end)
    loop = looped(scene, first, second)
    loop.run()  # from the offset before both
    assert [one.key for one in scene.broker.of(VIEW)] == [(1,), (2,)]


def test_a_witness_behind_the_offset_has_the_changes_between_read_again(scene: Scene) -> None:
    first, second, third = (scene.batch((key, "a", 0)) for key in (1, 2, 3))
    scene.sink.write([], first.end)
    loop = looped(scene, first, second, third)
    loop.pipeline.vitals.position = second.end
    thread = threading.Thread(target=loop.pipeline.run, args=(second.end,))
    thread.start()
    deadline = time.monotonic() + 10
    while len(scene.broker.of(VIEW)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    loop.stop.set()
    loop.source.interrupt()
    thread.join(10)
    assert [one.key for one in scene.broker.of(VIEW)] == [(2,), (3,)]


def test_a_row_event_of_inserts_is_no_reason_to_leave_other_rows_out(scene: Scene) -> None:
    window = scene.windows.open(scene.view)
    scene.offer(window, "second", (1, "a", 0))
    batch = scene.batch(marks=("second",))
    batch.changes = [RowChanges(scene.table, INSERT, at(1).version, [(5, "e", 0)])]
    scene.pass_(batch)
    assert scene.read() == [(1, "a")]
