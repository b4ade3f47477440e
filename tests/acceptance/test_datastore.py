"""A DataStore over two servers: put, found, indexes kept by one `viewtail run`, a shard that goes and comes."""

from __future__ import annotations

import json
import random
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import stack
from stack import Server
from tests.support.asking import ask
from tests.support.running import Run, in_this_process, wait_for
from viewtail.changes.errors import MisuseError, StoreError, StoreUnavailableError, ViewtailError
from viewtail.datastore import DataStore, Index
from viewtail.entities.datastore import indexes
from viewtail.entities.datastore.properties import home_of_id, home_of_value, new_id

DATABASE = "friendfeed"
INDEXES = """[
    Index(table="index_user_id", properties=["user_id"], shard_on="user_id"),
    Index(table="index_day", properties={"day": "VARCHAR(255)", "rank": "BIGINT"}),
]"""
VIEWS = f"""
import os
from viewtail.datastore import DataStore, Index

datastore = DataStore(os.environ["SHARDS"].split(), {INDEXES})
"""

pytestmark = [pytest.mark.mysql, pytest.mark.slow]


class Feed:
    """Two servers, a run over both, and the DataStore as a program has it."""

    def __init__(self, servers: tuple[Server, Server], folder: Path) -> None:
        self.servers = servers
        self.urls = [f"mysql://root@127.0.0.1:{server.port}/{DATABASE}" for server in servers]
        self.run = Run(
            folder,
            VIEWS,
            {"SHARDS": " ".join(self.urls), "VIEWTAIL_VIEWS": "views:datastore", "VIEWTAIL_METRICS__PORT": "0"},
        )
        self.datastore = DataStore(self.urls, eval(INDEXES, {"Index": Index}))
        self.by_user, self.by_day = self.datastore.indexes

    def bodies(self) -> dict[UUID, dict[str, Any]]:
        """What the tables have, read and decoded apart from the product."""
        found = {}
        for server in self.servers:
            for entity_id, body in ask(server, f"SELECT id, body FROM {DATABASE}.entities"):
                found[UUID(bytes=entity_id)] = json.loads(zlib.decompress(body))
        return found

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Of an index, wherever they are: (shard, id, values)."""
        found = []
        for target, server in enumerate(self.servers):
            for (name,) in ask(
                server, f"SELECT table_schema FROM information_schema.tables WHERE table_name = '{table}'"
            ):
                columns = "user_id" if table == "index_user_id" else "day, `rank`"
                rows = ask(server, f"SELECT id, {columns} FROM {name}.{table}")
                found += [(target, UUID(bytes=row[0]), row[1:]) for row in rows if None not in row]
        return sorted(found)

    def is_right(self) -> bool:
        """Whether each index has exactly the rows that the entities say, each on its shard, once."""
        users, days = [], []
        for entity_id, entity in self.bodies().items():
            home = home_of_id(entity_id.bytes, 2)
            if (user := entity.get("user_id")) is not None:
                users.append((home_of_value(str(user), 2), entity_id, (str(user),)))
            if entity.get("day") is not None and isinstance(entity.get("rank"), int):
                days.append((home, entity_id, (entity["day"], entity["rank"])))
        assert self.rows("index_user_id") == sorted(users)
        assert self.rows("index_day") == sorted(days)
        return True


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    folder = tmp_path_factory.mktemp("shards")
    started = [stack.mysql.start(folder / f"db{number}", options=[f"--server-id={number}"]) for number in (1, 2)]
    yield started[0], started[1]
    for server in started:
        server.kill()


@pytest.fixture
def feed(servers: tuple[Server, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    for server in servers:
        server.start()
        for (name,) in ask(
            server,
            "SELECT schema_name FROM information_schema.schemata "
            f"WHERE schema_name LIKE 'viewtail%' OR schema_name = '{DATABASE}'",
        ):
            ask(server, f"DROP DATABASE {name}")
    found = Feed(servers, tmp_path)
    in_this_process(found.run, monkeypatch)
    found.datastore.create()
    found.run.start()
    try:
        wait_for("all is well", found.run.is_well)
        yield found
    except BaseException:
        print(found.run.log[-6000:])
        raise
    finally:
        found.run.kill()
        found.datastore.close()


def test_what_is_put_is_found_by_its_properties_and_what_is_gone_is_not(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = feed.datastore
    ids = [store.put({"user_id": number % 7, "title": f"link {number}"}) for number in range(100)]
    store.put({"title": "of nobody"})
    last = store.put({"user_id": 3, "day": "monday", "rank": 1}, wait=True, within_s=60)
    for entity_id in ids:
        store.put(store.get(entity_id) or {}, wait=entity_id in ids[-2:], within_s=60)
    wait_for("indexes", feed.is_right)
    assert [one["id"] for one in feed.by_user.get_all(store, user_id=3)] == sorted([*ids[3::7], last])
    assert [one["title"] for one in feed.by_user.get_all(store, user_id=3, title="link 10")] == ["link 10"]
    assert feed.by_day.get_all(store, day="monday")[0]["id"] == last
    assert feed.by_day.get_all(store, day="monday", rank=2) == []
    assert len(feed.by_user.get_all(store, user_id=3, limit=5)) == 5
    assert feed.run.command("pause", "index_day").returncode == 0
    with pytest.raises(ViewtailError, match="index_day is paused"):
        store.put({"day": "monday", "rank": 3}, wait=True, within_s=60)
    assert feed.run.command("resume", "index_day").returncode == 0
    store.put({"day": "monday", "rank": 4}, wait=True, within_s=60)
    both = [one["id"] for one in feed.by_day.get_all(store, day="monday") if one["rank"] in (3, 4)]
    assert len(both) == 2 and [store.delete(one, wait=True, within_s=60) for one in both] == [True, True]
    for rows in (1, 2, 5, len(ids[3::7]) + 1, 100):
        monkeypatch.setattr(indexes, "PAGE_ROWS", rows)
        assert [one["id"] for one in feed.by_user.get_all(store, user_id=3)] == sorted([*ids[3::7], last])

    store.put({"id": last, "user_id": 4}, wait=True, within_s=60)  # moves to the other rows of both indexes
    assert store.delete(ids[3], wait=True, within_s=60) and not store.delete(ids[3])
    wait_for("indexes", feed.is_right)
    assert [one["id"] for one in feed.by_user.get_all(store, user_id=3)] == ids[10::7]
    assert feed.by_day.get_all(store, day="monday") == []
    assert store.get(ids[3]) is None
    verified = feed.run.command("verify", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert verified.stderr.count("-- ") == 4 and verified.stdout.count('"is_equal": true') == 6, verified.stdout


def test_a_stale_index_never_shows_a_wrong_entity(feed: Feed) -> None:
    store = feed.datastore
    entity_id = store.put({"user_id": 1}, wait=True, within_s=60)
    feed.run.stop()
    store.put({"id": entity_id, "user_id": 2})
    assert feed.rows("index_user_id")[0][2] == ("1",), "nobody keeps it now"
    assert feed.by_user.get_all(store, user_id=1) == []
    feed.run.start()
    wait_for("indexes", feed.is_right)
    assert [one["id"] for one in feed.by_user.get_all(store, user_id=2)] == [entity_id]


def test_a_shard_that_is_down_stops_its_own_keys_only(feed: Feed) -> None:
    store = feed.datastore
    users = {shard: next(n for n in range(100) if home_of_value(str(n), 2) == shard) for shard in (0, 1)}
    feed.servers[1].kill()
    entity_id = next(one for one in iter(new_id, None) if home_of_id(one.bytes, 2) == 0)
    store.put({"id": entity_id, "user_id": users[0]})
    wait_for("found", lambda: feed.by_user.get_all(store, user_id=users[0]))
    with pytest.raises(StoreUnavailableError):
        feed.by_user.get_all(store, user_id=users[1])
    with pytest.raises(StoreUnavailableError):
        feed.by_day.get_all(store, day="monday")
    feed.servers[1].start()
    wait_for("all is well again", feed.run.is_well)
    other = next(one for one in iter(new_id, None) if home_of_id(one.bytes, 2) == 1)
    store.put({"id": other, "user_id": users[1]}, wait=True, within_s=60)
    wait_for("indexes", feed.is_right)


def test_a_run_that_begins_while_a_shard_is_down_keeps_the_others(feed: Feed) -> None:
    assert feed.run.stop() == 0
    feed.servers[1].kill()
    feed.run.start()
    entity_id = next(one for one in iter(new_id, None) if home_of_id(one.bytes, 2) == 0)
    feed.datastore.put({"id": entity_id, "user_id": next(n for n in range(99) if home_of_value(str(n), 2) == 0)})
    kept = [(entity_id.bytes,)]
    wait_for(
        "kept", lambda: ask(feed.servers[0], "SELECT id FROM viewtail_from_0_to_0_friendfeed.index_user_id") == kept
    )
    feed.servers[1].start()
    wait_for("all is well again", feed.run.is_well)
    wait_for("indexes", feed.is_right)


def test_an_entity_on_a_shard_that_is_not_its_home_parks_and_changes_nothing(feed: Feed) -> None:
    store = feed.datastore
    entity_id = store.put({"user_id": 5}, wait=True, within_s=60)
    home = home_of_id(entity_id.bytes, 2)
    before = feed.rows("index_user_id")
    body = zlib.compress(json.dumps({"user_id": 6}).encode())
    ask(
        feed.servers[1 - home],
        f"INSERT INTO {DATABASE}.entities (id, body) VALUES (x'{entity_id.hex}', x'{body.hex()}')",
    )
    parked = wait_for("it is parked", lambda: feed.run.command("dead-letters", "list").stdout)
    assert entity_id.hex in parked
    assert feed.rows("index_user_id") == before
    assert feed.by_user.get_all(store, user_id=6) == []
    assert [one["id"] for one in feed.by_user.get_all(store, user_id=5)] == [entity_id]


def test_writers_at_once_and_a_kill_leave_indexes_that_are_equal(feed: Feed) -> None:
    def write(seed: int) -> None:
        chance, store, mine = random.Random(seed), DataStore(feed.urls, feed.datastore.indexes), []
        for number in range(150):
            if mine and chance.random() < 0.2:
                store.delete(mine.pop(chance.randrange(len(mine))))
                continue
            known = {"id": chance.choice(mine)} if mine and chance.random() < 0.5 else {}
            body = {"user_id": chance.randrange(20), "day": chance.choice(["monday", None]), "rank": number}
            entity_id = store.put({**known, **body})
            mine = [*mine, entity_id] if not known else mine
        store.close()

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for writer in writers:
        writer.start()
    feed.run.kill()
    feed.run.start()
    for writer in writers:
        writer.join()
    wait_for("indexes", feed.is_right)
    assert len(feed.bodies()) > 100


def test_shards_that_are_given_in_another_order_are_refused(feed: Feed) -> None:
    with pytest.raises(StoreError, match=r"mysql_shards\[0\] of 2 was made as number 1 of 2"):
        DataStore(feed.urls[::-1], feed.datastore.indexes).create()
    with pytest.raises(StoreError, match="was made as number"):
        DataStore(feed.urls[::-1], feed.datastore.indexes).get(new_id())


def test_an_entity_that_cannot_be_read_can_be_deleted(feed: Feed) -> None:
    store = feed.datastore
    entity_id = store.put({"user_id": 1})
    for server in feed.servers:
        ask(server, f"UPDATE {DATABASE}.entities SET body = 'x'")
    with pytest.raises(StoreError, match="cannot be read"):
        store.get(entity_id)
    assert store.delete(entity_id)
    assert not store.delete(entity_id)
    assert feed.bodies() == {}


def test_a_missing_table_is_an_error_that_says_how_to_make_it(feed: Feed) -> None:
    store = feed.datastore
    with pytest.raises(StoreError, match=r"1049 .* datastore\.create\(\)"):
        DataStore([f"{url}_none" for url in feed.urls]).get(new_id())
    store.get(new_id())
    feed.run.kill()
    for table, ask_for in (
        ("index_day", lambda: feed.by_day.get_all(store, day="monday")),
        ("entities", lambda: [store.get(new_id()) for _ in range(8)]),
    ):
        for server in feed.servers:
            for (name,) in ask(
                server, f"SELECT table_schema FROM information_schema.tables WHERE table_name = '{table}'"
            ):
                ask(server, f"DROP TABLE {name}.{table}")
        with pytest.raises(StoreError, match=r"1146 .* datastore\.create\(\)\. The indexes come with: viewtail run"):
            ask_for()


def test_what_cannot_be_kept_is_refused_before_it_is_written(feed: Feed) -> None:
    store = feed.datastore
    for wrong, said in (
        ({"user_id": [1]}, "index index_user_id cannot have this entity"),
        ({"x": {1}}, "no JSON can be made"),
        ({"id": "x"}, "an id is a UUID"),
        ("text", "an entity is a dict"),
    ):
        with pytest.raises(MisuseError, match=said):
            store.put(wrong)  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="ask for user_id, the first property"):
        feed.by_user.get_all(store, title="x")
    assert feed.bodies() == {}
