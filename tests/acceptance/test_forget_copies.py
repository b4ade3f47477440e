"""`viewtail forget` of an entity whose view has two copies: its values go from the former one as from the live one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stack import Server
from tests.support.copies import LISTS, STORES, TABLES, Shop, kept, rebuilt
from tests.support.running import wait_for

ROWS = 300
KINDS = [
    *STORES,
    LISTS,
    TABLES,
    pytest.param("generations", marks=pytest.mark.redis),
    pytest.param("sets", marks=pytest.mark.redis),
]
ERASED = 7


@pytest.mark.one_in(3)
@pytest.mark.parametrize("store", KINDS)
def test_an_erased_entity_is_in_no_copy(
    store: str, mysql_server: Server, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    shop = Shop(mysql_server, ROWS)
    with kept(request, store, shop, tmp_path) as (place, run):
        assert rebuilt(run)["live_copy"] == 2
        shop.execute(f"DELETE FROM shop.user WHERE id = {ERASED}")
        wait_for("both are kept", lambda: ERASED not in place.shown() and ERASED not in place.copy(1))
        place.damage(ERASED, "put back")
        if store == "mysql":
            place.spoil(1, ERASED)
        assert place.shown()[ERASED] == "put back"

        done = run.command("forget", "shop.user", str(ERASED), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        proof = json.loads(done.stdout)
        assert proof["is_erased"]
        assert len({one["view"] for one in proof["looked"]}) == 2, "both copies were looked at"
        erased = {one["view"] for one in proof["looked"] if one["was_erased"]}
        assert len(erased) == (2 if store == "mysql" else 1), proof["looked"]
        assert place.shown() == place.copy(1) == shop.wanted()

        shop.execute(f"INSERT INTO shop.user (id, email) VALUES ({ERASED}, 'again')")
        wait_for("a row that comes later is shown", lambda: place.shown() == place.copy(1) == shop.wanted())
