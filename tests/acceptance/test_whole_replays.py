"""Replays of whole views in the record: who, when, what, how many, and what came of them; over restarts too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stack import Server
from tests.acceptance.test_status import Shop, own_mysql

__all__ = ["own_mysql"]

ROWS = 3_000
USER, PET = "mysql:user_by_email", "mysql:pet_by_name"
SLOWLY = ("--max-rows-per-second", "1000")
pytestmark = [pytest.mark.mysql, pytest.mark.slow]


class RecordedShop(Shop):
    def newest(self, count: int = 1) -> list[dict[str, Any]]:
        """Replays, the newest first."""
        found = json.loads(self.viewtail("replays", "--json", "--limit", "100").stdout)
        return [one for one in found if one["kind"] == "replay"][:count]

    def is_at(self, state: str, at_least: int = 0) -> bool:
        (one,) = self.newest()
        return one["state"] == state and one["progress"].get("entities", 0) >= at_least

    def replay(self, *arguments: str) -> None:
        done = self.viewtail("replay", "--yes", *arguments)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def shop(own_mysql: Server, tmp_path: Path) -> Iterator[RecordedShop]:
    folder = tmp_path / "shop"
    folder.mkdir()
    shop = RecordedShop(own_mysql, folder)
    shop.environment |= {"VIEWTAIL_RUN__CHUNK_ROWS": "500", "VIEWTAIL_CLEANER__SHARE": "0"}
    digits = "(SELECT 0 AS d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 "
    digits += "UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)"
    numbers = f"SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n FROM {digits} a, {digits} b, {digits} c, {digits} e"
    shop.sql(f"INSERT INTO shop.user SELECT n, 'somebody' FROM ({numbers}) x WHERE n BETWEEN 3 AND {ROWS}")
    yield shop
    shop.connection.close()


def test_a_replay_is_recorded_when_it_begins_and_done_with_its_counts_when_the_view_is_filled(
    shop: RecordedShop,
) -> None:
    with shop.running():
        shop.until_filled()
    shop.replay(USER, *SLOWLY)
    (one,) = shop.newest()
    assert (one["view"], one["what"], one["state"], one["ended_at"]) == (USER, "the whole view", "waiting", None)
    assert "@" in one["operator"] and one["result"] == "no row was read; no viewtail runs its pipeline"
    with shop.running():
        shop.until(lambda: shop.is_at("running", 500))
        assert "rows were read" in shop.newest()[0]["result"]
    (one,) = shop.newest()
    assert one["state"] == "waiting" and 500 <= one["progress"]["entities"] < ROWS, "and it says so after a stop"
    with shop.running():
        shop.until_filled()
    (one,) = shop.newest()
    assert (one["state"], one["result"]) == ("done", f"{ROWS:,} rows read: {ROWS:,} written, 0 parked")
    assert one["progress"] == {"entities": ROWS, "shown": ROWS, "parked": 0}
    assert one["ended_at"] is not None
    with shop.running():
        shop.sql("ALTER TABLE shop.user DROP COLUMN email")
        shop.until(lambda: shop.views()[USER] == "halted")
    assert shop.newest() == [one], "what becomes of the view later is not the replay's"


def test_a_replay_that_another_one_or_a_halt_cuts_off_says_so(shop: RecordedShop) -> None:
    with shop.running():
        shop.until_filled()
        shop.replay(USER, *SLOWLY)
        shop.until(lambda: shop.is_at("running", 500))
        shop.replay(USER, *SLOWLY)
        second, first = shop.newest(2)
        assert first["state"] == "stopped" and first["progress"]["entities"] >= 500
        assert first["result"].startswith("cut off by another replay; until then:")
        assert second["ended_at"] is None
        shop.until(lambda: shop.is_at("running", 500))
        shop.sql("ALTER TABLE shop.user DROP COLUMN email")
        shop.until(lambda: shop.is_at("halted"))
        assert "email" in shop.newest()[0]["result"]
        shop.sql("ALTER TABLE shop.user ADD COLUMN email VARCHAR(100)")
        shop.replay(USER)
        shop.until_filled()
    third, second = shop.newest(2)
    assert second["state"] == "stopped" and "until then: the view is halted: " in second["result"]
    assert (third["state"], third["result"]) == ("done", f"{ROWS:,} rows read: {ROWS:,} written, 0 parked")


def test_a_new_history_is_recorded_as_a_replay_of_each_view(shop: RecordedShop) -> None:
    with shop.running():
        shop.until_filled()
    done = shop.viewtail("replay", "--new-history")
    assert done.returncode == 0, done.stderr
    what = "the whole view, as of a new history: epoch 2"
    assert {(one["view"], one["what"], one["state"]) for one in shop.newest(9)} == {
        (USER, what, "waiting"), (PET, what, "waiting"),
    }  # fmt: skip
    with shop.running():
        shop.until_filled()
    assert {(one["view"], one["state"], one["progress"]["shown"]) for one in shop.newest(9)} == {
        (USER, "done", ROWS), (PET, "done", 1),
    }  # fmt: skip


def test_a_dry_run_of_whole_views_tells_about_how_many_entities_and_reads_no_table(shop: RecordedShop) -> None:
    with shop.running():
        shop.until_filled()
    shop.sql("INSERT INTO shop.pet VALUES (2, 'Mia')")
    shop.sql("ANALYZE TABLE shop.user, shop.pet")
    shop.sql("LOCK TABLES shop.user WRITE, shop.pet WRITE")
    done = shop.viewtail("replay", "--all", "--dry-run")
    shop.sql("UNLOCK TABLES")
    assert done.returncode == 0, done.stderr
    said = "entities would be written again, in place"
    told = re.fullmatch(f"{USER}: about ([0-9,]+) {said}\n{PET}: about 2 {said}\n", done.stdout)
    assert told is not None, done.stdout
    assert ROWS <= int(told[1].replace(",", "")) < 2 * ROWS  # an estimate
    assert shop.newest() == []
    assert set(shop.views().values()) == {"filled"}
    assert shop.viewtail("pause", USER).returncode == 0
    done = shop.viewtail("replay", USER, PET, "--dry-run")
    assert done.returncode == 1 and f"viewtail resume {USER}" in done.stderr
