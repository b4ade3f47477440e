"""The loop, with a scripted source and stores in memory: batches that are projected before their turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ingest.binlog.coordinates import BinlogPosition
from ingest.limits import Limits
from ingest.read_ahead import ReadAhead
from offsets.views import Event, State
from projectors.binding import bind
from projectors.dead_letters import PARKED_IN_A_ROW
from projectors.derived import Touched
from projectors.derived.reading import Slice
from projectors.look_ahead import LookAhead
from projectors.outcomes import End, Ended
from projectors.pipeline import GuardedPipeline, Pipeline
from projectors.projection import Projected, Projections, followed_tables
from projectors.publishing import PublishingPipeline
from projectors.stores import publisher
from projectors.stores.index_tables.views import IndexTable
from projectors.stores.redis.views import RedisJson
from projectors.view_life import ViewLife
from projectors.views import BoundView, Entity
from tests.support.fake_offsets import FakeOffsets, Memory
from tests.support.fake_sink import FakeSink
from tests.support.fake_source import FakeSource
from viewtail.changes.batches import INSERT, Batch, Followed, Halt, RowChanges
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.versions import MAX_VERSION

BYTES = 1000  # of each batch


def at(number: int) -> BinlogPosition:
    return BinlogPosition(epoch=1, file="binlog.000001", end=1000 + 100 * number, start=1000 + 100 * number - 50)


def view() -> BoundView:
    columns = (
        Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False),
        Column(name="name", kind=Kind.TEXT, declared="varchar(9)", is_nullable=False, charset="ascii", length=9),
    )
    table = Table(schema="shop", name="user", columns=columns, primary_key=("id",))
    return bind([IndexTable("by_name", Entity("shop.user"), value="name")], lambda schema, name: table)[0]


def batch(followed: Followed, number: int, ids: list[int], name: str = "n", kind: int = INSERT) -> Batch:
    rows: list[tuple[Any, ...]] = [(i, name) for i in ids]
    return Batch(
        changes=[RowChanges(followed, kind, at(number).version, rows)],
        end=at(number),
        row_count=len(rows),
        byte_count=BYTES,
        oldest_commit_us=0,
    )


class NoFanOuts:
    """Every row that a batch touches is told by its events."""

    oldest_us = 0

    def due_s(self, most_s: float) -> float:
        return most_s

    def begin(self, *_: Any) -> None: ...

    def come_to(self, _: Any) -> None: ...

    def unfinished(self) -> dict[str, int]:
        return {}

    def lost(self, _: Any) -> list[str]:
        return []

    def lacks_from(self) -> int:
        return MAX_VERSION

    def take(self, _: str, touched: Touched, *__: Any) -> Any:
        return touched.versions

    def passed(self, _: Batch) -> None: ...

    def note_live(self, _: float) -> None: ...

    def step(self, _: Any, *, may_wait: bool) -> None: ...


class Loop:
    """A pipeline over these batches, one row of each handed over at a time."""

    def __init__(
        self,
        bound: list[BoundView],
        followed: dict[Any, Followed],
        batches: list[Batch],
        sink: Any = None,
        projected: type[Projections] = Projections,
    ) -> None:
        self.halted: list[str] = []
        self.new: set[str] = set()  # views that were never backfilled
        self.ahead: list[bool] = []  # of each batch, whether it was projected before
        self.sink = FakeSink(bound) if sink is None else sink
        self.sink.prepare()
        self.cleared: list[Any] = []
        self.reasons: list[str] = []
        self.offsets = FakeOffsets(Memory())
        self.offsets.take()
        self.stop = threading.Event()
        self.letters: list[Any] = []
        letters: Any = SimpleNamespace(
            record=self.letters.extend,
            clear_applied=lambda writes, parked: self.cleared.append(list(writes)),
            count=0,
        )
        nothing: Any = SimpleNamespace(waiter=SimpleNamespace(on_passed=lambda marks: None, begin_again=lambda: None))
        self.reasons: list[str] = []
        states: Any = SimpleNamespace(
            lost_some=lambda: None,
            halt=lambda view, reason: (self.halted.append(view), self.reasons.append(reason)),
            read=lambda view: SimpleNamespace(state=State.NEW if view in self.new else State.FILLED),
            move=lambda event, views, **chosen: [],
            lost=lambda views, **chosen: [],
        )
        self.life = ViewLife(
            views={view.id: view for view in bound},
            held_back=frozenset(),
            left_out=[],
            states=states,
            projections=projected(bound, followed),
            misfit=lambda view: None,
            fits_from={},
        )
        self.source = FakeSource(at(0), batches)
        self.last = batches[-1].end
        make: Any = GuardedPipeline if publisher(self.sink) is None else PublishingPipeline
        self.pipeline: Pipeline = make(
            fan_outs=NoFanOuts(),
            source=self.source,
            sink=self.sink,
            offsets=self.offsets,
            life=self.life,
            dead_letters=letters,
            watermarks=nothing,
            open_source=nothing,
            derived=SimpleNamespace(trouble=None),
            raise_epoch_above=lambda epoch: epoch + 1,
            stop=self.stop,
            check_lease=lambda: None,
            limits=Limits(batch_rows=1, waiting_bytes=1 << 20),
            tick_s=0.01,
        )

    def run(self) -> None:
        thread = threading.Thread(target=self.pipeline.run, args=(at(0),))
        thread.start()
        deadline = time.monotonic() + 20
        while self.pipeline.vitals.position != self.last and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        self.stop.set()
        self.source.interrupt()
        thread.join(20)
        assert self.pipeline.vitals.position == self.last

    def names(self) -> dict[int, Any]:
        """What the view shows."""
        shown = self.sink.store.shown("mysql:by_name")
        return {key[0]: write[1][0] for key, write in shown.items() if write[1] is not None}


def slow_down(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reader be ahead, and note what was projected before its turn."""
    taken = LookAhead.projected

    def projected(ahead: LookAhead, turn: Batch) -> Projected:
        loop.ahead.append(ahead._ahead is turn)
        return taken(ahead, turn)

    monkeypatch.setattr(LookAhead, "projected", projected)
    loop.sink.faults.slow(0.01)


@pytest.fixture
def bound() -> BoundView:
    return view()


def loop_of(bound: BoundView, *made: tuple[list[int], str, int], halt_at: int | None = None) -> Loop:
    followed = followed_tables([bound])
    table = followed["shop", "user"]
    batches = [batch(table, number, *one) for number, one in enumerate(made, 1)]
    if halt_at is not None:
        batches[halt_at].halts.append(Halt(table, at(halt_at + 1).version, "it cannot be read"))
    return Loop([bound], followed, batches)


def test_batches_are_projected_while_the_store_is_busy_and_come_in_order(
    bound: BoundView, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loop_of(bound, *[([number, 100], "n", INSERT) for number in range(50)])
    slow_down(loop, monkeypatch)
    loop.run()
    assert sum(loop.ahead) > 40, loop.ahead
    assert loop.names() == dict.fromkeys([*range(50), 100], "n")
    assert loop.sink.store.shown("mysql:by_name")[100,][0] == at(50).version


def test_a_store_that_refuses_the_same_batch_again_and_again_is_said_until_it_takes_it(
    bound: BoundView, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loop_of(bound, ([1], "n", INSERT))
    said: list[tuple[str, str | None]] = []
    write = loop.sink.write

    def noting(*given: Any) -> Any:
        if given[0]:
            said.append((loop.pipeline.vitals.state, loop.pipeline.vitals.error))
            loop.sink.faults.fail_before_write(len(said) < 3)
        return write(*given)

    monkeypatch.setattr(loop.sink, "write", noting)
    loop.run()
    error = "fake store: broke off before the write"
    assert said == [("running", None), ("running", error), ("running", error)]
    assert loop.pipeline.vitals.error is None and loop.names() == {1: "n"}


def test_what_was_projected_for_a_view_that_is_halted_since_is_not_written(
    bound: BoundView, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = list(range(PARKED_IN_A_ROW)), [1000, 1001]
    loop = loop_of(bound, ([500], "n", INSERT), (bad, "n", INSERT), (good, "n", INSERT), ([1002], "n", INSERT))
    for key in bad:
        loop.sink.faults.reject("mysql:by_name", (key,))
    slow_down(loop, monkeypatch)
    loop.run()
    assert loop.ahead[2], "the batch behind the refusals was not projected before them"
    assert loop.halted == ["mysql:by_name"] and len(loop.letters) == PARKED_IN_A_ROW
    assert loop.names() == {500: "n"}


def test_a_batch_that_halts_a_view_is_not_projected_before_its_turn(
    bound: BoundView, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loop_of(bound, ([1], "n", INSERT), ([2], "n", INSERT), ([3], "n", INSERT), halt_at=1)
    slow_down(loop, monkeypatch)
    loop.run()
    assert not loop.ahead[1]
    assert loop.halted == ["mysql:by_name"] and loop.names() == {1: "n"}


@pytest.mark.parametrize(
    ("columns", "not_filled", "halted", "held_back"),
    [
        (None, "", "name mail", None),
        ("mail", "", "mail", ""),
        ("id", "", "name mail", None),
        ("nobody's", "", "name mail", None),
        ("mail", "mail", "", "mail"),
        ("mail", "name", "mail", ""),
        ("id", "name", "", "name"),
        (None, "name mail", "", None),
    ],
)
def test_a_column_that_is_gone_halts_its_views_and_has_the_others_read_again(
    columns: str | None, not_filled: str, halted: str, held_back: str | None
) -> None:
    """Those that are not filled yet wait for their fill instead, where others need the table read before it."""
    table = view().table
    table = replace(table, columns=(*table.columns, replace(table.columns[1], name="mail")))
    made = [bind([IndexTable(name, Entity("shop.user"), value=name)], lambda *_: table)[0] for name in ("name", "mail")]
    followed = followed_tables(made)
    gone = batch(followed["shop", "user"], 1, [])
    gone.halts = [Halt(followed["shop", "user"], 1, "gone", None if columns is None else frozenset({columns}))]
    loop = Loop(made, followed, [gone])
    loop.new = ids(not_filled)
    begun_again: list[str] = []

    def moved(event: Event, views: list[str], *, floor: int) -> list[str]:
        """One that began meanwhile: had it begun after this, it would have found that the view gets no changes."""
        assert event is Event.INTERRUPTED and floor == 1 and all(map(loop.life.projections.is_halted, views))
        begun_again.extend(views)
        return views

    loop.life.states.move = moved  # type: ignore[method-assign,assignment]
    if held_back is None:
        loop.life.cannot_read(gone.halts)
    else:
        with pytest.raises(Ended) as ended:
            loop.life.cannot_read(gone.halts)
        assert ended.value.outcome.end is End.AGAIN and (ended.value.outcome.held_back or set()) == ids(held_back)
    assert set(loop.halted) == ids(halted)
    concerned = {columns} & {"name", "mail"} or {"name", "mail"}
    assert set(begun_again) == ids(not_filled) & ids(" ".join(concerned))


def ids(names: str) -> set[str]:
    return {f"mysql:{name}" for name in names.split()}


def test_the_following_batch_is_the_one_that_comes_next(bound: BoundView) -> None:
    table = followed_tables([bound])["shop", "user"]
    source = FakeSource(at(0), [batch(table, number, [number]) for number in range(1, 21)])
    with ReadAhead(source, at(0), Limits(batch_rows=1, waiting_bytes=1 << 20), tick_s=lambda: 0.01) as batches:
        time.sleep(0.1)
        foretold, came = None, []
        for found in batches:
            if found is None:
                break
            assert foretold is None or found is foretold
            foretold = batches.following()
            came.append(found.changes[0][3][0][0])
        assert came == list(range(1, 21)) and batches.following() is None


def test_pieces_of_a_large_transaction_are_joined_among_themselves_and_with_nothing_else(
    bound: BoundView,
) -> None:
    table = followed_tables([bound])["shop", "user"]
    made = [batch(table, number, [number]) for number in range(1, 11)]
    for piece in made[3:8]:
        piece.end = None  # 4 to 8 are pieces of a transaction that ends with 9

    class Pieces(FakeSource):
        def read(self, after: BinlogPosition) -> Iterator[Batch]:
            yield from made
            self._interrupted.wait()

    with ReadAhead(Pieces(at(0), []), at(0), Limits(batch_rows=4), tick_s=lambda: 0.01) as batches:
        time.sleep(0.1)
        came = []
        for found in batches:
            if found is None:
                break
            came.append(([change.rows[0][0] for change in found.changes], found.end is None))
    assert came == [([1, 2, 3], False), ([4, 5, 6, 7], True), ([8], True), ([9, 10], False)]


def test_batches_that_are_joined_are_as_old_as_the_first_change_among_them(bound: BoundView) -> None:
    table = followed_tables([bound])["shop", "user"]
    made = [replace(batch(table, number, [number]), oldest_commit_us=100 * number) for number in range(1, 4)]
    made[0] = replace(made[0], changes=[], is_quiet=True)
    with ReadAhead(FakeSource(at(0), made), at(0), Limits(), tick_s=lambda: 0.01) as batches:
        time.sleep(0.1)
        found = next(iter(batches))
    assert found is not None and (found.oldest_commit_us, len(found.changes), found.is_quiet) == (200, 2, False)


class Slices:
    """Rows that are read again, two keys at a time, and what the store had before each slice."""

    trouble: str | None = "the server is away"

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.before: list[tuple[int, Any]] = []

    def slices(self, derived: Any, needed: Any, touched: dict[Any, int], changes: Any) -> Iterator[Slice]:
        keys = list(touched)
        for first in range(0, len(keys), 2):
            store, some = self._loop.sink.store, keys[first : first + 2]
            self.before.append((len(store.shown("redis:person")), store.witness))
            versions = {key: touched[key] for key in some}
            yield Slice(versions, {key: (*key, '{"n": 1}') for key in some}, is_last=first + 2 >= len(keys))


def test_rows_that_are_read_again_are_written_slice_by_slice_and_the_position_with_the_last() -> None:
    names = ("row", "name", "ref", "body")
    text = Column(name="row", kind=Kind.TEXT, declared="varchar(9)", is_nullable=False, charset="utf8mb4", length=9)
    number = Column(name="ref", kind=Kind.INTEGER, declared="int", is_nullable=False)
    columns = tuple(number if name == "ref" else replace(text, name=name) for name in names)
    unique = (("row", "name", "ref"),)
    table = Table(schema="shop", name="cell", columns=columns, primary_key=("row", "name", "ref"), unique_keys=unique)
    person = Entity("shop.cell", key="row", columns_by="name", newest="ref", body="body", codec="json")
    bound = bind([RedisJson("person", person, document=lambda row: row["a"])], lambda *_: table)
    followed = followed_tables(bound)
    cells = followed["shop", "cell"]
    changes = [RowChanges(cells, INSERT, at(1).version, [(f"r{key}", "a", 1, "{}") for key in range(5)])]
    found = Batch(changes=changes, end=at(1), row_count=5, byte_count=BYTES, oldest_commit_us=0)
    loop = Loop(bound, followed, [found])
    again: Any = Slices(loop)
    loop.pipeline.derived = again
    loop.run()
    assert [count for count, _ in again.before] == [0, 2, 4] and at(1) not in {end for _, end in again.before}
    assert len(loop.sink.store.shown("redis:person")) == 5 and loop.sink.store.witness == at(1)
    assert loop.pipeline.vitals.write_count == 5
    assert loop.pipeline.trouble == "the server is away"
