"""What `{generation}` in a key template promises: readers follow one pointer, which leads to one whole copy."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stack import Server
from tests.support.copies import VIEWS, Generations, Shop, placed, rebuilt
from tests.support.running import Run, running, wait_for

pytestmark = pytest.mark.redis

ROWS = 2_000
SETS = """RedisSortedSet("teams", Entity("shop.user"), key="team:{generation}:{n}", score="id")"""
VIEWS_PY = f"""from viewtail import Entity, RedisHash, RedisSortedSet
views = [{VIEWS["generations"]}, {SETS}]
"""


@pytest.fixture
def kept(mysql_server: Server, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Generations, Run]]:
    """The views, filled, under a running viewtail."""
    shop = Shop(mysql_server, ROWS)
    shop.execute("UPDATE shop.user SET n = id % 7")
    place, at = placed(request, "generations", shop)
    assert isinstance(place, Generations)
    place.clear()
    with running(tmp_path, VIEWS_PY, at) as run:
        wait_for("the views are filled", lambda: place.shown() == shop.wanted() and teams(place) == wanted_teams(shop))
        wait_for("all is well", run.is_well)
        yield place, run
        print(run.log[-6000:])
    place.clear()


def teams(place: Generations, number: int | None = None) -> dict[str, dict[str, float]]:
    """The sorted sets that readers find, or those of a copy."""
    if number is None:
        found: Any = place.client.get("team:generation")
        number = int(found)
    before = f"team:{number}:"
    names = [name.decode() for name in place.client.scan_iter(match=f"{before}*", count=1000)]
    sets: dict[str, dict[str, float]] = {}
    for name in names:
        members: Any = place.client.zrange(name, 0, -1, withscores=True)
        sets[name.removeprefix(before)] = {member.decode(): score for member, score in members}
    return sets


def wanted_teams(shop: Shop) -> dict[str, dict[str, float]]:
    sets: dict[str, dict[str, float]] = {}
    for key, n in shop.rows("SELECT id, n FROM shop.user"):
        sets.setdefault(str(n), {})[str(key)] = float(key)
    return sets


def test_readers_of_the_pointer_never_miss_and_a_rollback_is_exact(kept: tuple[Generations, Run]) -> None:  # noqa: C901, PLR0915
    """As the other stores in test_rebuild.py; and after it the commands know which copy is live."""
    place, run = kept
    shop, stop = place.shop, threading.Event()
    failures: list[str] = []
    reads = [0]

    def read_one() -> None:
        read, last = place.one(1), 0
        while not stop.is_set():
            number = int((read() or "e-1").lstrip("e"))
            if number < last:
                failures.append(f"key 1 was {last} and then {number}")
            last, reads[0] = max(last, number), reads[0] + 1

    def read_all() -> None:
        """Every key in one step: the pointer leads to a whole copy at each moment."""
        script = """
        local number, count = redis.call('GET', 'people:generation'), 0
        for key = 0, tonumber(ARGV[1]) - 1 do
          count = count + redis.call('EXISTS', 'people:' .. number .. ':' .. key)
        end
        return count"""
        while not stop.is_set():
            if (count := place.client.eval(script, 0, str(ROWS - 1))) != ROWS - 1:  # the last one is deleted
                failures.append(f"{count} rows")
            reads[0] += not stop.wait(0.01)

    def write() -> None:
        connection, number = shop.connect(), 10
        with connection.cursor() as cursor:
            while not stop.wait(0.003):
                number += 1
                cursor.execute(f"UPDATE shop.user SET email = 'e{number}' WHERE id = 1")
                cursor.execute(f"UPDATE shop.user SET n = n + 1 WHERE id = 2 + {number % 1900}")

    place.damage(7, "damaged")
    place.damage(99_999, "extra")
    threads = [threading.Thread(target=work) for work in (read_one, read_all, write)]
    for thread in threads:
        thread.start()
    try:
        assert rebuilt(run)["live_copy"] == 2
        assert place.pointer() == 2 and place.copies() == {1}
        shop.execute("DELETE FROM shop.user WHERE id = 1999")
        wait_for("both are kept", lambda: 1999 not in place.copy(1) and 1999 not in place.copy(2))
        assert place.shown()[7] == "e7" and 99_999 not in place.shown()
        assert rebuilt(run, "--rollback")["live_copy"] == 1
        assert place.pointer() == 1 and place.shown()[7] == "damaged" and place.shown()[99_999] == "extra"
        assert rebuilt(run)["live_copy"] == 2
        done = run.command("rebuild", "teams", "--json")
        assert done.returncode == 0, done.stderr
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == [] and reads[0] > 100
    wait_for("it is as its table", lambda: place.shown() == shop.wanted())
    wait_for("so are the sets, in both copies", lambda: teams(place, 1) == teams(place, 2) == wanted_teams(shop))
    assert place.client.get("team:generation") == b"2"

    assert "damaged" not in run.command("get", "people", "7").stdout, "it reads the live copy"
    assert len(run.command("find", "teams", "3").stdout.splitlines()) > 100
    assert run.command("preview", "people").stdout.splitlines()[0].endswith(", 100 stay as they are")
    assert run.command("why", "people", "7").returncode == 0
    shop.execute("DELETE FROM shop.user WHERE id = 7")
    done = run.command("forget", "shop.user", "7", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    looked = json.loads(done.stdout)["looked"]
    assert {one["view"] for one in looked} == {"redis:people", "redis:people~1", "redis:teams", "redis:teams~1"}
    assert place.copy(1).keys() - place.shown().keys() == {99_999}

    for view in ("people", "teams"):
        assert run.command("rebuild", view, "--abort", "--yes").returncode == 0
    assert place.copies() == set() and teams(place, 1) == {}
    assert list(place.client.scan_iter(match="*teams:1:*")) == []
    place.damage(8, "damaged")
    done = run.command("verify", "--repair")
    assert done.returncode == 0, done.stdout + done.stderr
    assert place.shown() == shop.wanted() and place.copies() == set()
    assert run.stop() == 0


def test_a_pointer_that_somebody_changed_is_found_and_put_right(kept: tuple[Generations, Run]) -> None:
    place, run = kept
    rebuilt(run)
    pointer = "people:generation"

    place.client.delete(pointer)
    place.shop.execute("UPDATE shop.user SET email = CONCAT(email, '+') WHERE id < 20")
    wait_for("it is put right", lambda: place.pointer() == 2)
    place.client.set(pointer, "1")
    done = run.command("verify", "people", "--repair")
    assert done.returncode == 0 and place.pointer() == 2, done.stdout + done.stderr

    assert run.stop() == 0
    place.client.set(pointer, "1")
    found = run.command("verify", "people", "--json")
    (report,) = json.loads(found.stdout)["views"]
    assert found.returncode == 1 and "must hold 2" in report["misled"] and report["differing"] == {"misled": 1}
    asked = run.command("why", "people", "7")
    assert asked.returncode == 1 and "must hold 2" in asked.stdout
    done = run.command("get", "people", "7")
    assert done.returncode == 0, "what viewtail reads is what its own tables call live"
    place.client.delete(pointer)
    found = run.command("verify", "people")
    assert found.returncode == 1 and "is not there" in found.stdout
    run.start()
    wait_for("a start puts it right", lambda: place.pointer() == 2)

    place.client.flushall()
    wait_for("a lost store is filled again where readers are led", lambda: place.shown() == place.shop.wanted(), 60)
    assert place.pointer() == 2
    wait_for("and the sets", lambda: teams(place) == wanted_teams(place.shop))


def test_a_new_declaration_comes_by_the_pointer_and_a_forgotten_view_goes_in_every_generation(
    kept: tuple[Generations, Run],
) -> None:
    place, run = kept
    wanted = place.shop.wanted()
    few = {key: email for key, email in wanted.items() if key < 10}
    assert run.stop() == 0
    views = run.folder / "views.py"
    only_few = VIEWS["generations"][:-1] + ', where=lambda row: row["id"] < 10)'
    views.write_text(VIEWS_PY.replace(VIEWS["generations"], only_few))
    run.start(VIEWTAIL_RUN__ON_CHANGE="beside", VIEWTAIL_FAILPOINT="after swapping:1")
    wait_for("the pointer has moved", lambda: place.pointer() == 2, 60)
    assert place.shown() == few
    run.kill()  # behind the pointer's move, and before the note of it
    run.start(VIEWTAIL_RUN__ON_CHANGE="beside")
    wait_for("the old one is gone", lambda: place.copies() == set(), 60)
    assert place.shown() == few
    wait_for("all is well", run.is_well)
    for view in ("people", "teams"):
        done = run.command("rebuild", view, "--keep", "1s")
        assert done.returncode == 0, done.stderr
    wait_for("the former copy's time is over", lambda: place.copies() == set())
    wait_for("of sets too", lambda: teams(place, 1) == {})
    assert run.stop() == 0

    place.client.mset({"people:note": "a", "people:3:9:9": "b", "team:x": "c", "people:1:3": "d"})
    views.write_text(
        'from viewtail import Entity, IndexTable as Table\nviews = [Table("of", Entity("shop.user"), value="email")]\n'
    )
    for view in ("people", "teams"):
        done = run.command("forget", view, "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
    names = {name.decode() for name in place.client.scan_iter(count=5000)}
    assert {name for name in names if not name.startswith("viewtail:")} == {
        "people:note", "people:3:9:9", "team:x", "people:1:3",
    }  # fmt: skip
