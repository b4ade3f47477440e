"""What `viewtail preview` promises: what an edited views.py would change, before it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stack import Server
from tests.support.copies import STORES, VIEWS, Shop, declared, kept

ROWS = 50
EDITED = {
    "mysql": 'IndexTable("people", Entity("shop.user"), value=["email", "n"], where=lambda row: row["id"] >= 10)',
    "redis": 'RedisHash("people", Entity("shop.user"), fields=["email", "n"], where=lambda row: row["id"] >= 10)',
    "elasticsearch": 'SearchIndex("people", Entity("shop.user"), fields={"email": "keyword", "n": "integer"}, '
    'where=lambda row: row["id"] >= 10)',
}


@pytest.fixture
def shop(mysql_server: Server) -> Shop:
    return Shop(mysql_server, ROWS)


@pytest.mark.parametrize("store", STORES)
def test_a_preview_shows_what_would_change_come_and_go_and_changes_nothing(
    store: str, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shop.execute("UPDATE shop.user SET email = NULL WHERE id = 48")
    with kept(request, store, shop, tmp_path) as (place, run):
        done = run.command("preview", "people", "--sample", "500", "--json")
        assert done.returncode == 0, done.stderr
        same = json.loads(done.stdout)
        assert same["differences"] == [] and same["same"] == same["sampled"] > 20
        before = place.shown()
        (tmp_path / "views.py").write_text(declared(store).replace(VIEWS[store], EDITED[store]))
        done = run.command("preview", "people", "--sample", "500", "--json")
        assert done.returncode == 0, done.stderr
        found = {int(one["key"]): one for one in json.loads(done.stdout)["differences"]}
        gone = [key for key, one in found.items() if one["after"] is None]
        assert gone and all(key < 10 for key in gone)
        some = min(key for key in found if key >= 10)
        n = "0" if store == "redis" else 0
        if store == "mysql":  # an index table shows nothing of an entity without a value
            assert (found[48]["before"], found[48]["after"]) == (None, {"email": None, "n": 0})
        assert found[some]["before"] == {"email": f"e{some}"}
        assert found[some]["after"] == {"email": f"e{some}", "n": n}
        shown = run.command("preview", "people", "--sample", "500")
        assert f"\n{some} changes\n+ n: 0\n" in shown.stdout + "\n" and "10 would go" in shown.stdout
        assert f"{1 if store == 'mysql' else 0} would come" in shown.stdout
        assert place.shown() == before
        (tmp_path / "views.py").write_text(declared(store).replace('"people"', '"later"'))
        new = run.command("preview", "later", "--sample", "20")
        assert new.returncode == 0, new.stderr
        assert "0 would change, 20 would come, 0 would go, 0 stay as they are\n" in new.stdout
        assert ("is not made yet" in new.stderr) == (store != "redis"), new.stderr  # which has no place to make
        (tmp_path / "views.py").write_text(declared(store))


def test_a_row_for_which_a_function_fails_is_told(shop: Shop, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with kept(request, "mysql", shop, tmp_path) as (_, run):
        failing = VIEWS["mysql"][:-1] + ', where=lambda row: 1 / (row["id"] - 7))'
        (tmp_path / "views.py").write_text(declared("mysql").replace(VIEWS["mysql"], failing))
        done = run.command("preview", "people", "--sample", "1000", "--json")
        assert done.returncode == 1
        assert [one["key"] for one in json.loads(done.stdout)["refused"]] == ["7"]
        shown = run.command("preview", "people", "--sample", "1000")
        assert f"0 would go, {ROWS - 1} stay as they are, 1 could not be projected\n" in shown.stdout
        (tmp_path / "views.py").write_text(declared("mysql"))
