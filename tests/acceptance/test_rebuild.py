"""What `viewtail rebuild` promises: readers never see an empty or half view, and there is a way back."""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from projectors.failpoints import RUN_STEPS
from projectors.stores.index_tables.store import IndexTablesStore
from projectors.throttle import LiveTrafficThrottle
from stack import Server
from tests.support.copies import LISTS, STORES, TABLES, VIEWS, Lists, Shop, declared, kept, placed, rebuilt
from tests.support.running import Run, addresses, in_this_process, running, wait_for
from viewtail.commands import rebuild as commands
from viewtail.servers.sessions import Connection
from viewtail.shards import one

pytestmark = pytest.mark.one_in(2)

ROWS = 1_000
AT_ONCE = IndexTablesStore.unhurried_rows


@pytest.fixture
def shop(mysql_server: Server) -> Shop:
    return Shop(mysql_server, ROWS)


@pytest.mark.parametrize("store", [*STORES, LISTS, TABLES, pytest.param("sets", marks=pytest.mark.redis)])
def test_a_rebuild_takes_away_what_is_wrong_and_a_rollback_brings_the_former_copy_back(
    store: str, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, store, shop, tmp_path) as (place, run):
        place.damage(7, "damaged")
        place.damage(99_999, "extra")
        assert rebuilt(run)["live_copy"] == 2
        assert place.shown() == shop.wanted()
        assert place.copies() == {1}
        shop.execute("UPDATE shop.user SET email = 'later' WHERE id = 9", "DELETE FROM shop.user WHERE id = 10")
        wait_for("both are kept", lambda: place.shown()[9] == place.copy(1)[9] == "later" and 10 not in place.copy(1))
        assert 10 not in place.shown()
        assert rebuilt(run, "--rollback")["live_copy"] == 1
        assert place.shown() == {**shop.wanted(), 7: "damaged", 99_999: "extra"}
        wait_for("the newer one is kept", lambda: place.copy(2) == shop.wanted())
        assert rebuilt(run, "--rollback")["live_copy"] == 1, "given again, it changes nothing"
        assert rebuilt(run)["live_copy"] == 2
        assert rebuilt(run)["live_copy"] == 2, "given again, it changes nothing"
        shop.execute("UPDATE shop.user SET email = 'at last' WHERE id = 7")
        wait_for("it is followed", lambda: place.shown() == shop.wanted())
        done = run.command("rebuild", "people", "--abort", "--yes")
        assert done.returncode == 0, done.stderr
        assert place.copies() == set()
        assert shop.states() == {f"{place.store}:people": "filled"}
        assert rebuilt(run)["live_copy"] == 3, "no number comes twice"
        assert place.shown() == shop.wanted()


@pytest.mark.parametrize("store", [*STORES, LISTS, TABLES])
def test_readers_and_writers_go_on_during_a_rebuild_and_a_rollback(  # noqa: C901
    store: str, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """0 failed reads; what a reader finds is never older than what it found before, and never nothing."""
    with kept(request, store, shop, tmp_path) as (place, run):
        place.damage(900, "damaged")  # the copies differ: a reader of tables of both would see it
        stop = threading.Event()
        failures: list[str] = []
        reads = [0, 0]

        def read_one() -> None:
            read, last = place.one(1), 0
            while not stop.is_set():
                found = read()
                number = int((found or "e-1").lstrip("e"))
                if number < last:
                    failures.append(f"key 1 was {last} and then {found}")
                last, reads[0] = max(last, number), reads[0] + 1
                time.sleep(0.001)

        def read_all() -> None:
            while not stop.wait(0.001):
                if store != "redis":  # which has no way to read all keys at one moment
                    count = len(place.shown())
                    if count != ROWS:
                        failures.append(f"{count} rows")
                reads[1] += 1
                time.sleep(0.005)

        def watched(work: object) -> None:
            try:
                work()  # type: ignore[operator]
            except Exception as error:
                failures.append(repr(error))

        def write() -> None:
            connection, number = shop.connect(), 10
            with connection.cursor() as cursor:
                while not stop.is_set():
                    number += 1
                    cursor.execute(f"UPDATE shop.user SET email = 'e{number}' WHERE id = 1")
                    cursor.execute(f"UPDATE shop.user SET n = n + 1, email = 'w{number}' WHERE id = 2 + {number % 800}")
                    time.sleep(0.003)

        threads = [threading.Thread(target=watched, args=(work,)) for work in (read_one, read_all, write)]
        for thread in threads:
            thread.start()
        try:
            rebuilt(run)
            rebuilt(run, "--rollback")
            rebuilt(run)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert failures == []
        assert min(reads) > 20
        wait_for("it is as its table", lambda: place.shown() == shop.wanted())
        wait_for("the former copy too", lambda: place.copy(1) == {**shop.wanted(), 900: "damaged"})


def test_a_held_rebuild_changes_nothing_for_readers_until_it_is_asked_for_again(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, "mysql", shop, tmp_path) as (place, run):
        place.damage(7, "damaged")
        assert rebuilt(run, "--hold") == {
            "view": "mysql:people", "stage": "building", "live_copy": 1, "copy_beside": 2, "kept_s": None,
        }  # fmt: skip
        assert place.shown()[7] == "damaged" and place.copy(2) == shop.wanted()
        assert shop.states() == {"mysql:people": "filled", "mysql:people~2": "filled"}
        refused = run.command("rebuild", "people", "--rollback")
        assert refused.returncode == 2 and "nothing to go back to" in refused.stderr
        rebuilt(run)
        assert place.shown() == shop.wanted()


@pytest.mark.parametrize("store", STORES)
def test_a_rebuild_that_was_killed_as_it_compared_its_copy_is_finished_by_the_same_command(
    store: str, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The command compares; tests/faults/test_rebuild_faults.py kills the process that fills and swaps."""
    with kept(request, store, shop, tmp_path) as (place, run):
        place.damage(7, "damaged")
        for step in RUN_STEPS:
            killed = run.background("rebuild", "people", VIEWTAIL_FAILPOINT=step)
            killed.communicate(timeout=60)
            assert killed.returncode == -signal.SIGKILL, step
            assert place.shown()[7] == "damaged" and place.copies() == {2}, "readers have the view as it was"
            assert [one["state"] for one in comparisons(run)] == ["stopped"], "it went on, but for the first"
        assert rebuilt(run)["live_copy"] == 2
        assert place.shown() == shop.wanted()
        assert [one["state"] for one in comparisons(run)] == ["done"]


def test_ctrl_c_leaves_the_copy_and_the_same_command_goes_on(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, "mysql", shop, tmp_path) as (place, run):
        rebuilt(run, "--hold")
        assert run.command("pause", "--all").returncode == 0
        wait_for("it stands still", lambda: "pipeline paused" in run.log)
        command = run.background("rebuild", "people")
        wait_for("it compares once more, and waits for the pipeline", lambda: len(comparisons(run)) == 2)
        command.send_signal(signal.SIGINT)
        out, errors = command.communicate(timeout=20)
        assert (command.returncode, out) == (130, "") and "The same command goes on" in errors
        assert place.copies() == {2} and [one["state"] for one in comparisons(run)] == ["stopped", "done"]
        assert run.command("resume", "--all").returncode == 0
        assert rebuilt(run)["live_copy"] == 2
        assert [one["state"] for one in comparisons(run)] == ["done", "done"]


def test_within_gives_up_in_time_and_says_where_it_stands(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Without a running viewtail nothing of it would ever be done; what was asked for stays."""

    def given_up(*options: str) -> str:
        began_at = time.monotonic()
        done = run.command("rebuild", "people", *options, "--within", "1.5")
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        assert time.monotonic() - began_at < 15
        assert "not done within 1.5 s while" in done.stderr and "no viewtail runs pipeline mysql" in done.stderr
        return done.stderr

    with kept(request, "mysql", shop, tmp_path) as (place, run):
        place.damage(7, "damaged")
        assert run.stop() == 0
        assert "while building" in given_up() and "--abort" in given_up()
        assert place.shown()[7] == "damaged" and place.copies() == set()
        run.start()
        assert rebuilt(run, "--within", "60")["live_copy"] == 2
        assert run.stop() == 0
        assert "while swapping" in given_up("--rollback")
        assert place.shown() == shop.wanted()
        run.start()
        assert rebuilt(run, "--rollback")["live_copy"] == 1
        assert run.stop() == 0
        assert "while dropping" in given_up("--abort", "--yes") and place.copies() == {2}
        run.start()
        wait_for("it is dropped all the same", lambda: place.copies() == set())


def comparisons(run: Run) -> list[dict[str, object]]:
    """Of copies with their tables, as they are recorded."""
    told: list[dict[str, object]] = json.loads(run.command("replays", "--json").stdout)
    return [one for one in told if one["kind"] == "rebuild"]


@pytest.mark.parametrize("store", STORES[:2])
def test_a_paused_view_keeps_its_pause_and_what_it_shows(
    store: str, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, store, shop, tmp_path) as (place, run):
        first, live, copy = f"First: viewtail resume {store}:people", f"{store}:people", f"{store}:people~2"
        rebuilt(run, "--hold")
        assert run.command("pause", "people").returncode == 0
        count = itertools.count()

        def is_left_out() -> bool:
            email = f"missed {next(count)}"
            shop.execute(f"UPDATE shop.user SET email = '{email}' WHERE id = 9")
            wait_for("the copy beside gets changes", lambda: place.copy(2)[9] == email)
            return place.shown()[9] != email

        wait_for("the process has seen it", is_left_out)
        kept_email = place.shown()[9]
        for options in ([], ["--hold"], ["--hurry"]):
            refused = run.command("rebuild", "people", *options)
            assert refused.returncode == 1 and first in refused.stderr
        shop.execute("UPDATE viewtail.rebuild SET stage = 'swapping'")  # as it was when an earlier viewtail ended
        wait_for("it is refused", lambda: first in (shop.rows("SELECT note FROM viewtail.rebuild")[0][0] or ""))
        assert place.shown()[9] == kept_email and shop.states() == {live: "paused", copy: "filled"}
        assert first in run.command("status").stdout
        assert run.command("resume", "people").returncode == 0
        assert rebuilt(run)["live_copy"] == 2
        assert place.shown() == shop.wanted()


def test_a_view_is_not_paused_while_its_copies_change_places(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, "mysql", shop, tmp_path) as (_, run):
        rebuilt(run)
        assert run.command("pause", "--all").returncode == 0
        wait_for("it stands still", lambda: "pipeline paused" in run.log)
        for stage in ("swapping", "returning", "moving"):
            shop.execute(f"UPDATE viewtail.rebuild SET stage = '{stage}', moved_upto = 0")
            refused = run.command("pause", "people")
            assert refused.returncode == 1 and "its two copies are about to change places" in refused.stderr
        shop.execute("UPDATE viewtail.rebuild SET stage = 'kept'")
        assert {*shop.states().values()} == {"filled"}
        assert run.command("resume", "--all").returncode == 0
        wait_for("all is well", run.is_well)


def test_the_former_copy_is_dropped_when_its_time_is_over(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, "mysql", shop, tmp_path) as (place, run):
        rebuilt(run, "--keep", "1s")
        wait_for("it is dropped", lambda: place.copies() == set())
        wait_for("and forgotten", lambda: shop.states() == {"mysql:people": "filled"})
        refused = run.command("rebuild", "people", "--rollback")
        assert refused.returncode == 2 and "has no copy beside it" in refused.stderr


def test_a_view_is_kept_while_its_former_copy_is_dropped(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The drop waits for whoever uses that copy's place; the pipeline does not."""
    with kept(request, "mysql", shop, tmp_path) as (place, run):
        rebuilt(run)
        with shop.connect() as long, long.cursor() as cursor:
            long.begin()
            cursor.execute("SELECT COUNT(*) FROM viewtail.people__viewtail_1")
            command = run.background("rebuild", "people", "--abort", "--yes")
            waits = (
                "SELECT 1 FROM information_schema.processlist WHERE info LIKE 'DROP TABLE%' AND state LIKE 'Waiting%'"
            )
            wait_for("the drop waits", lambda: shop.rows(waits))
            shop.execute("UPDATE shop.user SET email = 'meanwhile' WHERE id = 8")
            wait_for("the view is kept meanwhile", lambda: place.shown()[8] == "meanwhile")
            assert shop.rows(waits) and place.copies() == {1}
            long.rollback()
        assert command.wait(60) == 0
        assert place.copies() == set() and shop.states() == {"mysql:people": "filled"}


def test_a_long_transaction_over_the_table_keeps_the_swap_waiting_and_no_other_reader(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, "mysql", shop, tmp_path) as (place, run):
        place.damage(7, "damaged")
        long = shop.connect()
        long.begin()
        with long.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM viewtail.people")
        ended = threading.Event()
        slowest = [0.0]

        def read() -> None:
            one = place.one(7)
            while not ended.is_set():
                began = time.monotonic()
                assert one() == "damaged"
                slowest[0] = max(slowest[0], time.monotonic() - began)
                time.sleep(0.002)

        reader = threading.Thread(target=read)
        reader.start()
        told: list[dict[str, object]] = []
        command = threading.Thread(target=lambda: told.append(rebuilt(run)))
        command.start()
        try:
            wait_for(
                "the reason is noted",
                lambda: "transaction" in (shop.rows("SELECT note FROM viewtail.rebuild")[0][0] or ""),
                60,
            )
            shop.execute("UPDATE shop.user SET email = 'meanwhile' WHERE id = 8")
            wait_for("the view is kept meanwhile", lambda: place.shown()[8] == "meanwhile")
        finally:
            ended.set()
            reader.join()
            long.close()
            command.join()
        assert told[0]["live_copy"] == 2
        assert slowest[0] < 0.9  # 50 ms, on a machine with nothing else to do; 1 s where nobody ends the wait
        assert place.shown() == shop.wanted()


def test_a_transaction_that_is_older_than_the_copy_finds_the_view_as_it_was(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its snapshot has nothing of the copy: the swap waits for it, though it has not read the view yet."""
    with kept(request, "mysql", shop, tmp_path) as (place, run):
        place.damage(7, "damaged")
        old = shop.connect()
        with old.cursor() as cursor:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        told: list[dict[str, object]] = []
        command = threading.Thread(target=lambda: told.append(rebuilt(run)))
        command.start()
        try:
            wait_for(
                "the reason is noted",
                lambda: "before the copy was filled" in (shop.rows("SELECT note FROM viewtail.rebuild")[0][0] or ""),
                60,
            )
            with old.cursor() as cursor:
                cursor.execute("SELECT COUNT(*) FROM viewtail.people WHERE email IS NOT NULL")
                assert cursor.fetchone() == (ROWS,)
        finally:
            old.close()
            command.join()
        assert told[0]["live_copy"] == 2
        assert place.shown() == shop.wanted()


def test_a_copy_that_is_not_as_its_table_is_not_swapped(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, "mysql", shop, tmp_path) as (place, run):
        rebuilt(run, "--hold")
        shop.execute(
            "UPDATE viewtail.people__viewtail_2 SET email = 'wrong' WHERE id = 3",
            "DELETE FROM viewtail.people__viewtail_2 WHERE id = 4",
        )
        refused = run.command("rebuild", "people")
        assert refused.returncode == 1
        assert "1 entity is missing; 1 entity is wrong; such as keys 3, 4" in refused.stderr
        assert place.shown() == shop.wanted() and place.copies() == {2}
        assert run.command("rebuild", "people", "--abort").returncode == 2, "nobody can be asked"
        assert run.command("rebuild", "people", "--abort", "--yes").returncode == 0
        assert rebuilt(run)["live_copy"] == 3


def test_a_copy_that_lacks_keys_which_readers_have_is_not_swapped_until_an_operator_accepts_that(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place, at = placed(request, "mysql", shop)
    refusing = ', where=lambda row: str(row["id"]) not in open("refused").read().split() or 1 / 0)'
    (tmp_path / "refused").write_text("9")
    with running(tmp_path, declared("mysql").replace(VIEWS["mysql"], VIEWS["mysql"][:-1] + refusing), at) as run:
        wait_for("the view is filled", lambda: place.shown().keys() == shop.wanted().keys() - {9})
        (tmp_path / "refused").write_text("7 8 9")
        refused = run.command("rebuild", "people")
        assert refused.returncode == 1
        assert "2 keys are parked in the copy and not in what readers have" in refused.stderr
        assert "7, 8" in refused.stderr or "8, 7" in refused.stderr
        for command in ("dead-letters list mysql:people~2", "people --accept-parked", "people --abort"):
            assert command in refused.stderr
        listed = json.loads(run.command("dead-letters", "list", "mysql:people~2", "--json").stdout)
        assert {letter["key"] for letter in listed["letters"]} == {"7", "8", "9"}
        (tmp_path / "refused").write_text("7 9")
        shop.execute("UPDATE shop.user SET email = 'mended' WHERE id = 8")
        wait_for("it is in the copy", lambda: place.copy(2).get(8) == "mended")
        refused = run.command("rebuild", "people", "--hold")
        assert refused.returncode == 1 and "1 key is parked in the copy" in refused.stderr
        assert place.copies() == {2} and place.shown()[7] == "e7"
        assert rebuilt(run, "--accept-parked")["live_copy"] == 2
        assert place.shown().keys() == shop.wanted().keys() - {7, 9}


@pytest.mark.parametrize("store", ["mysql", "generations", "elasticsearch"])
def test_a_swap_that_was_cut_off_is_noted_though_the_view_was_marked_meanwhile(
    store: str, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Readers have the new copy, and viewtail's own tables do not say so yet."""
    with kept(request, store, shop, tmp_path) as (place, run):
        place.damage(7, "damaged")
        rebuilt(run, "--hold")
        assert run.stop() == 0  # a killed one may not have told Elasticsearch of the fill, and fills the copy again
        run.start(VIEWTAIL_FAILPOINT="after swapping:1", VIEWTAIL_CLEANER__SHARE="0")
        first = wait_for("the pipeline's process runs", lambda: run.workers().get(place.store))
        shop.execute("UPDATE viewtail.rebuild SET stage = 'swapping'")
        wait_for("it is killed", lambda: run.workers().get(place.store) != first)
        run.kill()
        assert place.shown() == shop.wanted(), "the store swapped them"
        assert shop.rows("SELECT stage FROM viewtail.rebuild") == [("swapping",)]
        assert run.command("replay", "people", "--yes").returncode == 0
        run.start()
        wait_for("it is noted", lambda: shop.rows("SELECT stage FROM viewtail.rebuild") == [("kept",)])
        wait_for("all is well", lambda: run.is_well() and set(shop.states().values()) == {"filled"})
        assert rebuilt(run)["live_copy"] == 2 and place.copies() == {1}
        assert place.shown() == shop.wanted()
        done = run.command("rebuild", "people", "--abort", "--yes")
        assert done.returncode == 0, done.stderr
        assert place.copies() == set() and place.shown() == shop.wanted()


def test_a_copy_whose_table_somebody_dropped_is_not_taken_for_one_that_was_swapped(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, "mysql", shop, tmp_path) as (place, run):
        place.damage(7, "damaged")
        rebuilt(run, "--hold")
        run.kill()
        shop.execute("DROP TABLE viewtail.people__viewtail_2", "UPDATE viewtail.rebuild SET stage = 'swapping'")
        run.start(VIEWTAIL_CLEANER__SHARE="0")
        wait_for(
            "the reason is noted",
            lambda: "somebody dropped it" in (shop.rows("SELECT note FROM viewtail.rebuild")[0][0] or ""),
        )
        wait_for("it is filled again", lambda: place.copies() == {2} and place.copy(2) == shop.wanted())
        assert place.shown()[7] == "damaged" and shop.rows("SELECT stage FROM viewtail.rebuild") == [("building",)]


@pytest.mark.parametrize("store", STORES)
def test_what_is_repaired_or_replayed_after_a_swap_is_the_copy_that_readers_have(
    store: str, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, store, shop, tmp_path) as (place, run):
        rebuilt(run)
        assert run.command("rebuild", "people", "--abort", "--yes").returncode == 0
        place.damage(7, "damaged")
        done = run.command("verify", "people", "--repair")
        assert done.returncode == 0, done.stdout + done.stderr
        assert place.shown() == shop.wanted() and place.copies() == set()
        place.damage(8, "damaged")
        done = run.command("replay", "people", "--key", "8")
        assert done.returncode == 0, done.stdout + done.stderr
        wait_for("it is mended", lambda: place.shown() == shop.wanted())
        assert place.copies() == set()


def test_the_backfill_of_a_copy_waits_while_the_pipeline_is_late(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "viewtail.toml").write_text("[run]\nchunk_rows = 5\n")
    with kept(request, "mysql", shop, tmp_path) as (place, run):
        command = run.background("rebuild", "people", "--hold")
        wait_for("the copy is being filled", lambda: _filled(shop) > 0)
        live, copy = (_holding(shop, table) for table in ("people", "people__viewtail_2"))
        shop.execute("UPDATE shop.user SET email = 'late' WHERE id = 1")
        time.sleep(2)  # it is late from the first second on
        before = _filled(shop)
        copy.rollback()
        time.sleep(2)
        assert _filled(shop) == before + 5 < ROWS, "behind a chunk that took two seconds it waits up to ten"
        live.rollback()
        assert command.wait(60) == 0
        assert place.copy(2) == shop.wanted()

        rested = []
        monkeypatch.setattr(LiveTrafficThrottle, "after", lambda self, rows: rested.append(rows))
        in_this_process(run, monkeypatch)
        catalog, view = commands._deployed(one(None), "people")
        copy = replace(view, copy=2, is_beside=True)
        assert commands._prove(catalog, copy, threading.Event(), is_hurried=True) == []
        assert rested == []
        assert commands._prove(catalog, copy, threading.Event(), is_hurried=False) == []
        assert len(rested) >= ROWS / AT_ONCE, "the comparison before the swap gives way too"


def test_a_hurried_rebuild_gives_no_way(mysql_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Its copy is filled by one chunk, where one that gives way takes two, and the process is killed behind those."""
    shop = Shop(mysql_server, AT_ONCE + 100)
    with kept(request, "mysql", shop, tmp_path) as (place, run):
        for options, chunks in (((), 2), (("--hurry",), 1)):
            run.kill()
            run.start(VIEWTAIL_FAILPOINT="after chunk:2")
            first = wait_for("the pipeline's process runs", lambda: run.workers().get("mysql"))
            rebuilt(run, *options, "--hold")
            assert (run.workers().get("mysql") != first) == (chunks == 2)
            assert _is_hurried(run) == bool(options)
            done = run.command("rebuild", "people", "--abort", "--yes")
            assert done.returncode == 0, done.stderr
        rebuilt(run, "--hold")
        assert not _is_hurried(run)
        rebuilt(run, "--hurry")
        assert _is_hurried(run), "asked for later it hurries from then on"
        assert place.shown() == shop.wanted()


def _is_hurried(run: Run) -> bool:
    found = json.loads(run.command("status", "--json").stdout)
    return bool(found["rebuilds"][0]["is_hurried"])


def _holding(shop: Shop, table: str) -> Connection:
    """A session that lets nobody write the view's table."""
    session = shop.connect()
    session.begin()
    with session.cursor() as cursor:
        cursor.execute(f"SELECT * FROM viewtail.{table} FOR UPDATE")
    return session


def _filled(shop: Shop) -> int:
    found = shop.rows("SELECT fill_row_count FROM viewtail.view WHERE name = 'mysql:people~2'")
    return found[0][0] if found else 0


@pytest.mark.parametrize("store", STORES)
def test_an_entity_is_erased_from_both_copies(
    store: str, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, store, shop, tmp_path) as (place, run):
        rebuilt(run)
        shop.execute("DELETE FROM shop.user WHERE id = 7")
        done = run.command("forget", "shop.user", "7", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        looked = json.loads(done.stdout)["looked"]
        assert {one["view"] for one in looked} == {f"{store}:people", f"{store}:people~1"}
        assert any(one["found"].startswith("a tombstone") for one in looked if one["view"] == f"{store}:people~1")
        assert place.copies() == {1} and place.shown() == shop.wanted() == place.copy(1)


REFUSED = {
    ("--hold", "--rollback"): "one of --hold, --rollback and --abort",
    ("--accept-parked", "--rollback"): "no effect with --rollback",
    ("--accept-parked", "--abort", "--yes"): "no effect with --rollback",
    ("--keep", "soon"): "such as 24h",
    ("--abort", "--yes"): "has no copy beside it",
    ("--abort",): "has no copy beside it",
}


def test_what_cannot_be_asked_for_is_refused(shop: Shop, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with kept(request, "mysql", shop, tmp_path) as (_, run):
        for arguments, says in REFUSED.items():
            refused = run.command("rebuild", "people", *arguments)
            assert refused.returncode == 2 and says in refused.stderr
        for key, says in (("abc", "does not fit column id"), ("7", "its row is still in shop.user")):
            refused = run.command("forget", "shop.user", key)
            assert refused.returncode == 2 and says in refused.stderr and "waiting" not in refused.stderr


def test_a_topic_is_not_rebuilt(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "views.py").write_text(
        'from viewtail import Entity, Topic\nviews = [Topic("people", Entity("shop.user"))]\n'
    )
    run = Run(tmp_path, (tmp_path / "views.py").read_text(), addresses(shop.server))
    refused = run.command("rebuild", "people")
    assert refused.returncode == 2 and "into a new topic" in refused.stderr


@pytest.mark.parametrize("store", STORES)
def test_a_changed_declaration_is_built_beside_while_readers_have_the_old_copy(
    store: str, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    before = shop.wanted()
    even = {key: email for key, email in before.items() if key % 2 == 0}
    with kept(request, store, shop, tmp_path) as (place, run):
        assert run.stop() == 0
        only_even = VIEWS[store][:-1] + ', where=lambda row: row["id"] % 2 == 0)'
        (tmp_path / "views.py").write_text(declared(store).replace(VIEWS[store], only_even))
        run.start(VIEWTAIL_RUN__ON_CHANGE="beside", VIEWTAIL_FAILPOINT="after chunk:1:SIGSTOP")
        names = {f"{store}:people": "halted", f"{store}:people~2": "filling"}
        wait_for("its copy is being filled", lambda: shop.states() == names)
        assert place.shown() == before
        told = run.command("status")
        assert told.returncode == 1 and "it gets no changes since" in told.stdout
        run.kill()
        assert place.shown() == before
        run.start(VIEWTAIL_RUN__ON_CHANGE="beside")
        wait_for("readers have the new one", lambda: place.shown() == even)
        wait_for("the old one is gone", lambda: place.copies() == set())
        wait_for("all is well", run.is_well)
        shop.execute("DELETE FROM shop.user WHERE id = 4", "UPDATE shop.user SET email = 'later' WHERE id IN (5, 6)")
        wait_for("it is followed", lambda: place.shown() == {k: v for k, v in shop.wanted().items() if k % 2 == 0})
        assert shop.states() == {f"{store}:people": "filled"}


def test_a_view_that_becomes_one_over_a_list_and_back_is_swapped_with_the_tables_that_it_has(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One of the four names is missing each time, and nothing is left of what it had."""
    lists = Lists(shop)
    with kept(request, "mysql", shop, tmp_path) as (plain, run):
        _declare(run, "list")
        wait_for("readers have the list", lambda: lists.shown() == shop.wanted())
        wait_for("the old one is gone", lambda: lists.copies() == set())
        shop.execute("UPDATE shop.user SET email = 'later' WHERE id = 5")
        wait_for("it is followed", lambda: lists.shown() == shop.wanted())
        assert rebuilt(run)["live_copy"] == 3
        assert lists.shown() == shop.wanted() == lists.copy(2)
        shop.execute("DELETE FROM shop.user WHERE id = 7")
        done = run.command("forget", "shop.user", "7", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        looked = [one["place"].rpartition(".")[2].strip("`") for one in json.loads(done.stdout)["looked"]]
        assert sorted(looked) == [
            "people", "people__version", "people__version__viewtail_2", "people__viewtail_2",
        ], "of both copies"  # fmt: skip
        _declare(run, "mysql")
        wait_for("readers have the column", lambda: plain.shown() == shop.wanted())
        names = "SHOW TABLES FROM viewtail LIKE 'people%'"
        wait_for("nothing else is left", lambda: shop.rows(names) == [("people",)])
        wait_for("all is well", run.is_well)


def _declare(run: Run, store: str) -> None:
    assert run.stop() == 0
    (run.folder / "views.py").write_text(declared(store))
    run.start(VIEWTAIL_RUN__ON_CHANGE="beside")


def test_a_former_copy_makes_room_for_that_of_a_changed_declaration(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, "mysql", shop, tmp_path) as (place, run):
        rebuilt(run)
        assert place.copies() == {1}
        assert run.stop() == 0
        only_few = VIEWS["mysql"][:-1] + ', where=lambda row: row["id"] < 10)'
        (tmp_path / "views.py").write_text(declared("mysql").replace(VIEWS["mysql"], only_few))
        run.start(VIEWTAIL_RUN__ON_CHANGE="beside")
        wait_for("readers have the new one", lambda: len(place.shown()) == 10)
        wait_for("no other copy is there", lambda: place.copies() == set())
        wait_for("all is well", run.is_well)
        assert shop.rows("SELECT name, copy FROM viewtail.view") == [("mysql:people", 3)]
