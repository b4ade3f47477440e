"""What a changed declaration promises with `on_change = "beside"`: compared before it is swapped, and a way back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stack import Server
from tests.support.copies import STORES, VIEWS, Place, Rows, Shop, declared, kept, rebuilt
from tests.support.running import Run, wait_for

pytestmark = pytest.mark.one_in(2)

ROWS = 400
BUSY = 2  # the key that changes all the time; both declarations show it
NO_CLEANER = {"VIEWTAIL_CLEANER__SHARE": "0"}  # it would mend what is planted here
BESIDE = {"VIEWTAIL_RUN__ON_CHANGE": "beside", **NO_CLEANER}

IN_PLACE = {"VIEWTAIL_RUN__ON_CHANGE": "in_place"}

# Another content in other columns: the even rows.
ONLY_EVEN = {
    "mysql": 'IndexTable("people", Entity("shop.user"), value=["email", "n"], where=lambda row: row["id"] % 2 == 0',
    "redis": 'RedisHash("people", Entity("shop.user"), fields=["email", "n"], where=lambda row: row["id"] % 2 == 0',
    "elasticsearch": 'SearchIndex("people", Entity("shop.user"), fields={"email": "keyword", "n": "integer"}, '
    'where=lambda row: row["id"] % 2 == 0',
}
NEW = ONLY_EVEN["mysql"] + ")"


@pytest.fixture
def shop(mysql_server: Server) -> Shop:
    return Shop(mysql_server, ROWS)


def changed(store: str, previous: str | None) -> str:
    """A views.py with the new declaration."""
    more = ")" if previous is None else f", previous={previous})"
    return declared(store).replace(VIEWS[store], ONLY_EVEN[store] + more)


def without_busy(rows: Rows) -> Rows:
    return {key: email for key, email in rows.items() if key != BUSY}


@contextmanager
def busy(shop: Shop, place: Place) -> Iterator[None]:
    """One key is written and read all the time: a reader finds it at each look, and never older than before."""
    stop = threading.Event()
    failures: list[str] = []
    reads = [0]

    def write() -> None:
        connection, number = shop.connect(), 10
        with connection.cursor() as cursor:
            while not stop.is_set():
                number += 1
                cursor.execute(f"UPDATE shop.user SET email = 'e{number}' WHERE id = {BUSY}")
                time.sleep(0.005)

    def read() -> None:
        one, last = place.one(BUSY), 0
        while not stop.is_set():
            found = one()
            number = int((found or "e-1").lstrip("e"))
            if number < last:
                failures.append(f"key {BUSY} was {last} and then {found}")
            last, reads[0] = max(last, number), reads[0] + 1
            time.sleep(0.002)

    def watched(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except Exception as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=watched, args=(work,)) for work in (write, read)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert reads[0] > 100


class Story:
    """A view whose declaration changes, under a running viewtail."""

    def __init__(self, store: str, shop: Shop, place: Place, run: Run) -> None:
        self.store, self.shop, self.place, self.run = store, shop, place, run

    def is_old(self) -> bool:
        """Readers have what the previous declaration makes of the table now."""
        return without_busy(self.place.shown()) == without_busy(self.shop.wanted())

    def is_new(self) -> bool:
        return without_busy(self.place.shown()) == self.even()

    def even(self) -> Rows:
        return {key: email for key, email in without_busy(self.shop.wanted()).items() if key % 2 == 0}

    def copy_is(self, number: int, wanted: Rows) -> bool:
        return without_busy(self.place.copy(number)) == wanted

    def note(self) -> str:
        found = self.shop.rows("SELECT note FROM viewtail.rebuild")
        return (found[0][0] or "") if found else ""

    def spoil_until_told(self, key: int) -> None:
        """Again and again: what a store did not take durably before a kill is written again."""

        def told() -> bool:
            self.place.spoil(2, key)
            return f"1 entity is wrong; such as key {key}" in self.note()

        wait_for("the difference is told", told)

    def states(self) -> dict[str, str]:
        return {name.partition(":")[2]: state for name, state in self.shop.states().items()}

    def restart(self, views: str | None = None, **environment: str) -> None:
        self.run.kill()
        if views is not None:
            (self.run.folder / "views.py").write_text(views)
        self.run.start(**{**BESIDE, **environment})

    def plan(self) -> dict[str, bool]:
        """What the next run would backfill, and whether beside what readers have."""
        (self.run.folder / "viewtail.toml").write_text('[run]\non_change = "beside"\n')
        done = self.run.command("run", "--plan", "--json")
        assert done.returncode == 0, done.stderr
        return {one["view"]: one["is_beside"] for one in json.loads(done.stdout)["backfills"]}

    def restart_parking(self, more: str) -> str:
        """With a new declaration that parks key 4; what `status` says when its copy could not be swapped for that."""
        refusing = ONLY_EVEN["mysql"] + ' and (row["id"] != 4 or 1 / 0)'
        self.restart(declared("mysql").replace(VIEWS["mysql"], refusing + more))
        wait_for("it is told", lambda: "1 key is parked in the copy and not in what readers have" in self.note())
        return self.run.command("status").stdout

    def commands_know_of_both(self) -> None:
        """While the new copy differs, and key 5 changed."""
        told = self.run.command("status").stdout
        assert "It could not be swapped: it is not as its table is: 1 entity is wrong" in told
        recorded = json.loads(self.run.command("replays", "--json").stdout)
        (one,) = [one for one in recorded if (one["kind"], one["state"]) == ("rebuild", "done")]
        assert one["view"] == f"{self.store}:people~2" and "1 wrong" in one["result"]
        assert self.run.command("why", "people", "5").returncode == 0
        assert "meanwhile" in self.run.command("get", "people", "5").stdout
        assert "200 would go" in self.run.command("preview", "people", "--sample", "1000").stdout

    def killed_at(self, step: str) -> None:
        """Return when the pipeline's process was killed there."""
        self.restart(VIEWTAIL_FAILPOINT=step if ":" in step else f"{step}:1")
        first = wait_for("the pipeline's process runs", lambda: self.run.workers().get(self.store))
        wait_for(f"it is killed {step}", lambda: self.run.workers().get(self.store) != first, 60)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.slow
def test_with_previous_both_copies_are_kept_until_the_new_one_is_compared_and_for_the_way_back(
    store: str, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, store, shop, tmp_path) as (place, run), busy(shop, place):
        story = Story(store, shop, place, run)
        views = changed(store, VIEWS[store])
        # Each process is killed as it begins to compare, so the swap does not come.
        story.restart(views, VIEWTAIL_FAILPOINT="after begin:1")
        wait_for("it is filled", lambda: story.states() == {"people": "filled", "people~2": "filled"})
        shop.execute(
            "UPDATE shop.user SET email = 'meanwhile' WHERE id IN (5, 6)", "DELETE FROM shop.user WHERE id = 8"
        )
        wait_for("the old copy is kept up to date", lambda: place.shown()[5] == "meanwhile" and story.is_old())
        wait_for("the new one too", lambda: story.copy_is(2, story.even()))
        wait_for("it was killed", lambda: "code -9" in run.log)
        story.restart()
        story.spoil_until_told(4)
        assert story.is_old() and place.copies() == {2}
        shop.execute("UPDATE shop.user SET email = 'mended' WHERE id = 4")
        wait_for("it is mended", lambda: story.copy_is(2, story.even()))
        assert story.is_old(), "it is compared again in a minute"
        assert run.command("verify", "people").returncode == 0, "the live copy is compared by the previous declaration"
        if store == "mysql":
            story.commands_know_of_both()
        story.killed_at("before swapping")
        assert story.is_old()
        # Redis moves keys one by one then.
        story.killed_at("in swapping:3" if store == "redis" else "after swapping")
        assert store == "redis" or story.is_new(), "the store swapped them"
        story.restart()
        wait_for("readers have the new one", lambda: story.is_new() and place.copies() == {1} and run.is_well())
        shop.execute("UPDATE shop.user SET email = 'after' WHERE id IN (9, 10)", "DELETE FROM shop.user WHERE id = 11")
        wait_for("the former copy is kept", lambda: story.copy_is(1, without_busy(shop.wanted())))
        wait_for("readers have the new one", story.is_new)
        erased = run.command("forget", "shop.user", "11", "--json")
        assert erased.returncode == 0, erased.stdout + erased.stderr
        looked = {one["view"] for one in json.loads(erased.stdout)["looked"]}
        assert looked == {f"{store}:people", f"{store}:people~1"}
        assert rebuilt(run, "--rollback")["live_copy"] == 1
        assert story.is_old(), "exact, with what changed after the swap"
        story.restart()
        wait_for("all is well", run.is_well)
        shop.execute("UPDATE shop.user SET email = 'back' WHERE id IN (12, 13)")
        wait_for("it stays so, and is kept", lambda: story.is_old() and story.copy_is(2, story.even()))
        assert run.command("verify", "people").returncode == 0
        if store == "mysql":
            assert rebuilt(run)["live_copy"] == 2, "until it is asked for"
            assert story.is_new()
            assert rebuilt(run, "--rollback")["live_copy"] == 1
        filled = shop.rows("SELECT filled_at FROM viewtail.view WHERE name NOT LIKE '%~%'")
        assert run.stop() == 0  # a store that was not told how far it is would be filled again
        story.restart(declared(store))
        wait_for("what nobody declares goes", lambda: place.copies() == set() and run.is_well())
        assert story.is_old()
        assert shop.rows("SELECT filled_at FROM viewtail.view") == filled, "nothing was backfilled"


@pytest.mark.parametrize(
    ("previous", "is_compared"), [(None, False), (None, True), (VIEWS["mysql"], True)], ids=["", "compared", "previous"]
)
def test_a_changed_declaration_of_a_paused_view_waits_until_the_view_is_resumed(
    previous: str | None, is_compared: bool, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, "mysql", shop, tmp_path) as (place, run):
        story = Story("mysql", shop, place, run)
        assert run.command("pause", "people").returncode == 0
        cut_off = {} if is_compared else {"VIEWTAIL_FAILPOINT": "after begin:1"}  # each comparison
        story.restart(changed("mysql", previous), **cut_off)
        wait_for("it is built", lambda: story.states() == {"people": "paused", "people~2": "filled"})
        compared = "SELECT 1 FROM viewtail.rebuild WHERE compared IS NOT NULL"
        if is_compared:
            wait_for("it is compared", lambda: shop.rows(compared))
            story.restart()
        shop.execute("UPDATE shop.user SET email = 'meanwhile' WHERE id IN (5, 6)")
        wait_for("the copy gets changes", lambda: story.copy_is(2, story.even()))
        assert run.command("rebuild", "people").returncode == 1
        assert story.states() == {"people": "paused", "people~2": "filled"} and place.shown()[5] == "e5"
        resumed = run.command("resume", "people")
        assert resumed.returncode == 0, resumed.stderr
        if not is_compared:
            wait_for("it is as if it had not been paused", lambda: story.states()["people"] == "halted")
            assert place.shown()[5] == "e5", "readers keep what they have until the copy was compared"
            story.restart()
        wait_for("readers have the new one", lambda: story.is_new() and run.is_well())


def test_previous_that_is_of_no_use_is_told_and_what_it_kept_goes(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, "mysql", shop, tmp_path) as (place, run):
        story = Story("mysql", shop, place, run)
        # Neither made the live copy, so nothing can keep it up to date.
        other = 'IndexTable("people", Entity("shop.user"), value="n")'
        story.restart(changed("mysql", other), VIEWTAIL_FAILPOINT="after begin:1")
        wait_for("it is halted", lambda: story.states().get("people") == "halted")
        reason = shop.rows("SELECT reason FROM viewtail.view WHERE name = 'mysql:people'")[0][0]
        assert "Its previous= is not the declaration that made it" in reason
        story.restart(changed("mysql", 'IndexTable("people", Entity("shop.user"), value="nothing")'))
        wait_for("readers have the new one", lambda: story.is_new() and place.copies() == set())
        assert "previous= has no effect" in run.log and "has no column nothing" in run.log
        # Its time is over; and then it is not declared any more.
        for end in ("its time is over", "previous= is gone"):
            story.restart(declared("mysql").replace(VIEWS["mysql"], VIEWS["mysql"][:-1] + f", previous={NEW})"))
            wait_for("readers have it", lambda: story.is_old() and len(place.copies()) == 1, 60)
            if end == "previous= is gone":
                story.restart(declared("mysql"))
            else:
                shop.execute("UPDATE viewtail.rebuild SET kept_until = CURRENT_TIMESTAMP(6)")
            wait_for(f"the former copy goes: {end}", lambda: place.copies() == set())
            wait_for("all is well", run.is_well)
            assert story.is_old() and run.command("rebuild", "people", "--rollback").returncode == 2
            story.restart(changed("mysql", VIEWS["mysql"]))
            wait_for("readers have the other one", lambda: story.is_new() and len(place.copies()) == 1, 60)
        # Readers have the previous one, and views.py has it no more.
        rebuilt(run, "--rollback")
        story.restart(changed("mysql", None))
        wait_for("the new one is built", lambda: story.is_new() and place.copies() == set())
        # In place there is no other copy.
        story.restart(declared("mysql").replace(VIEWS["mysql"], VIEWS["mysql"][:-1] + f", previous={NEW})"), **IN_PLACE)
        wait_for("it is changed in place", lambda: story.is_old() and run.is_well())
        assert place.copies() == set() and run.log.count("previous= has no effect") > 1


def test_a_new_declaration_that_is_dropped_is_not_built_again_by_itself(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, "mysql", shop, tmp_path) as (place, run):
        story = Story("mysql", shop, place, run)
        views = changed("mysql", VIEWS["mysql"])
        (run.folder / "views.py").write_text(views)
        assert story.plan() == {"mysql:people": True}
        story.restart(views, VIEWTAIL_FAILPOINT="after begin:1")
        wait_for("it is filled", lambda: story.states() == {"people": "filled", "people~2": "filled"})
        assert story.plan() == {}, "the copy waits to be compared"
        story.restart()
        story.spoil_until_told(4)
        assert run.command("rebuild", "people", "--abort", "--yes").returncode == 0
        story.restart()
        wait_for("all is well", run.is_well)
        shop.execute("UPDATE shop.user SET email = 'later' WHERE id IN (4, 5)")
        wait_for("the old one is kept", story.is_old)
        assert place.copies() == set() and story.states() == {"people": "filled"} and story.plan() == {}
        assert "as it was declared before (previous=)" in run.command("status").stdout
        assert rebuilt(run)["live_copy"] == 3
        assert story.is_new() and "as it was declared before" not in run.command("status").stdout


def test_a_new_declaration_that_parks_what_readers_have_is_not_swapped_by_itself(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, "mysql", shop, tmp_path) as (place, run):
        story = Story("mysql", shop, place, run)
        told = story.restart_parking(f", previous={VIEWS['mysql']})")
        for command in ("dead-letters list mysql:people~2", "rebuild mysql:people --accept-parked", "--abort"):
            assert command in told
        shop.execute("UPDATE shop.user SET email = 'meanwhile' WHERE id = 4")
        wait_for("readers have the old one, kept up to date", lambda: story.is_old() and place.copies() == {2})
        assert rebuilt(run, "--accept-parked")["live_copy"] == 2
        assert without_busy(place.shown()) == {key: email for key, email in story.even().items() if key != 4}


def test_what_is_said_while_a_copy_cannot_be_swapped_and_readers_have_what_nothing_keeps(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, "mysql", shop, tmp_path) as (place, run):
        story = Story("mysql", shop, place, run)
        told = story.restart_parking(")")
        assert "by itself (run.on_change). What keeps it from that: viewtail status" in told
        assert "viewtail rebuild mysql:people --abort drops this copy" in told and "replay mysql:people~2" not in told
        asked = run.command("why", "people", "4", "--json")
        assert asked.returncode == 1 and asked.stdout, asked.stderr
        why = json.loads(asked.stdout)
        assert (why["verdict"], why["next"]) == ("halted", "viewtail rebuild mysql:people")
        replayed = run.command("replay", "people", "--yes")
        assert replayed.returncode == 1
        assert "not marked: what views.py declares is built in a copy beside" in replayed.stderr
        done = run.command("rebuild", "people", "--abort", "--yes")
        assert done.returncode == 0, done.stderr
        assert "builds another copy at once" in done.stdout and "as before" not in done.stdout
        wait_for("another one is built", lambda: place.copies() == {3})
        shop.execute("UPDATE shop.user SET email = 'meanwhile' WHERE id = 2")
        story.restart(declared("mysql"))
        wait_for("the change is taken out: readers keep what they have, with changes", story.is_old)
        wait_for("no copy stays", lambda: place.copies() == set() and run.is_well())
        assert place.shown() == shop.wanted()


@pytest.mark.redis
@pytest.mark.parametrize(
    ("store", "other"),
    [
        ("redis", 'RedisHash("people", Entity("shop.user"), fields=["email"], key="p:{id}")'),
        ("redis", 'RedisHash("people", Entity("shop.user"), fields=["email"], key="people:{generation}:{id}")'),
        ("redis", 'RedisJson("people", Entity("shop.user"), fields=["email"])'),
        ("sets", 'RedisSet("people", Entity("shop.user"), key="of:{email}")'),
    ],
)
def test_another_form_of_redis_keys_is_refused_and_nothing_is_touched(
    store: str, other: str, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with kept(request, store, shop, tmp_path) as (place, run):
        names = set(place.client.scan_iter())  # type: ignore[attr-defined]
        views = declared(store).replace(VIEWS[store], other)
        (tmp_path / "views.py").write_text(views.replace("import Entity", "import RedisJson, RedisSet, Entity"))
        (tmp_path / "viewtail.toml").write_text('[run]\non_change = "beside"\n')
        checked = run.command("check")
        assert checked.returncode == 1
        assert "view redis:people, on_change: its Redis keys have another form" in checked.stdout
        findings = json.loads(run.command("check", "--json").stdout)["findings"]
        (failure,) = (one for one in findings if one["level"] == "fail")
        assert failure["mend"].startswith("Give it a new name") and "Give it" not in failure["seen"]
        refused = run.command("run")
        assert refused.returncode == 2, "it does not stand by"
        assert "view redis:people: its Redis keys have another form" in refused.stderr
        assert set(place.client.scan_iter()) == names and place.copies() == set()  # type: ignore[attr-defined]
        shop.execute("UPDATE shop.user SET email = 'later' WHERE id = 5")
        wait_for("the one that runs goes on", lambda: place.shown() == shop.wanted() and run.is_well())
        (tmp_path / "views.py").write_text(declared(store))
        assert run.command("check").returncode == 0
