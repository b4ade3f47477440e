"""`viewtail forget`: a view that is no longer declared goes with its data, and one entity is erased everywhere."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis
from confluent_kafka.admin import AdminClient
from elasticsearch import Elasticsearch, NotFoundError

from stack import Server
from tests.support.asking import ask
from tests.support.running import Run, addresses, wait_for

SCHEMA, OWN = "forget_shop", "forget_own"
VIEWS = {
    "mysql:forget_email": 'IndexTable("forget_email", user, value="email")',
    "redis:forget_user": 'RedisHash("forget_user", user, fields=["name"], key="fu:{id}")',
    "redis:forget_json": 'RedisJson("forget_json", user, fields=["email"])',
    "elasticsearch:forget-user": 'SearchIndex("forget-user", user, fields={"name": "text"})',
    f"kafka:{SCHEMA}.user": f'Topic("{SCHEMA}.user", user, partitions=1)',
    f"kafka:{SCHEMA}.kept": f'Topic("{SCHEMA}.kept", user, partitions=1, compact=False)',
    "redis:forget_stays": 'RedisHash("forget_stays", user, fields=["name"], key="fu:{id}:more")',
    "mysql:forget_stays": 'IndexTable("forget_stays", log, value="value")',
}
ROWS = 250  # more than a script's worth of Redis keys
pytestmark = [pytest.mark.mysql, pytest.mark.slow]


def declared(*names: str) -> str:
    lines = "\n".join(f"    {VIEWS[name]}," for name in names)
    entities = f'user = Entity("{SCHEMA}.user")\n'
    entities += f'log = Entity("{SCHEMA}.log", key="who", version="number", append_only=True)\n'
    return f"from viewtail import *\n\n{entities}\nviews = [\n{lines}\n]\n"


class Shop:
    """A running viewtail with a view in every store, and what others keep beside."""

    def __init__(self, folder: Path, mysql: Server, redis_server: Server, elasticsearch: Server, kafka: Server) -> None:
        self.mysql, self.kafka = mysql, kafka
        self.redis: Any = redis.Redis(port=redis_server.port)
        self.elastic = Elasticsearch(elasticsearch.url)
        self.admin = AdminClient({"bootstrap.servers": f"{kafka.host}:{kafka.port}"})
        urls = {"VIEWTAIL_MYSQL__URL": f"{mysql.url}/{OWN}", "VIEWTAIL_KAFKA__URL": kafka.url}
        self.environment = {**addresses(mysql, redis_server, elasticsearch), **urls}
        self.run = Run(folder, declared(*VIEWS), self.environment)

    def command(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = self.run.command(*arguments)
        assert "Traceback" not in done.stdout + done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return ask(self.mysql, statement)

    def until_filled(self, count: int) -> None:
        states = f"SELECT COUNT(*) FROM {OWN}.view WHERE state = 'filled'"
        wait_for("the views are filled", lambda: self.ask(states)[0][0] >= count, 60)

    def declare(self, *names: str) -> None:
        assert self.run.stop() == 0
        (self.run.folder / "views.py").write_text(declared(*names))
        self.run.start()
        wait_for("it runs", lambda: self.run.command("status", "--json").stdout.count('"state": "running"') >= 2, 60)

    def redis_keys(self) -> set[str]:
        """Of Redis, but for witnesses."""
        return {name.decode() for name in self.redis.scan_iter() if not name.startswith(b"viewtail:")}

    def known(self) -> set[str]:
        return {name for (name,) in self.ask(f"SELECT name FROM {OWN}.view")}

    def topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=10).topics)


@pytest.fixture
def shop(
    tmp_path: Path, mysql_server: Server, redis_server: Server, elasticsearch_server: Server, kafka_server: Server
) -> Iterator[Shop]:
    found = Shop(tmp_path, mysql_server, redis_server, elasticsearch_server, kafka_server)
    for database in (SCHEMA, OWN):
        found.ask(f"DROP DATABASE IF EXISTS {database}")
    found.ask(f"CREATE DATABASE {SCHEMA}")
    found.ask(f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, name VARCHAR(40), email VARCHAR(40))")
    found.ask(f"CREATE TABLE {SCHEMA}.log (number INT PRIMARY KEY AUTO_INCREMENT, who INT, value VARCHAR(40))")
    found.ask(f"ALTER TABLE {SCHEMA}.log MODIFY who INT NOT NULL")
    rows = ", ".join(f"({number}, 'name {number}', 'mail{number}@x')" for number in range(1, ROWS + 1))
    found.ask(f"INSERT INTO {SCHEMA}.user VALUES {rows}")
    found.ask(f"INSERT INTO {SCHEMA}.log (who, value) VALUES (7, 'old'), (7, 'new'), (8, 'other')")
    found.redis.flushall()
    for future in found.admin.delete_topics([f"{SCHEMA}.user", f"{SCHEMA}.kept"]).values():
        if future.exception(10) is None:
            wait_for("topics are gone", lambda: not any(name.startswith(SCHEMA) for name in found.topics()))
    found.elastic.options(ignore_status=404).indices.delete(index="viewtail-forget-user,forget-foreign")
    found.run.start()
    try:
        wait_for("viewtail is there", lambda: found.known())
        found.until_filled(len(VIEWS))
        yield found
        assert "Traceback" not in found.run.log
    except BaseException:
        print(found.run.log[-6000:])
        raise
    finally:
        found.run.kill()
        found.redis.flushall()
        found.elastic.options(ignore_status=404).indices.delete(index="viewtail-forget-user,forget-foreign")


STAY = ("redis:forget_stays", "mysql:forget_stays")


def plant(shop: Shop) -> set[str]:
    """What others keep beside the views, under names that could be taken for theirs; the Redis keys among it."""
    shop.ask(f"CREATE TABLE {OWN}.forget_emails (id INT PRIMARY KEY, email VARCHAR(40))")
    shop.redis.set("fu:9001", "a string that is not viewtail's")
    shop.redis.hset("fu:9002", "_version", "12")
    shop.redis.hset("fu:9003", mapping={"name": "of another program"})
    shop.redis.hset("fu:not-a-number", "_version", "0" * 19)
    shop.redis.set("{fu:9001}:t", "no version")
    shop.redis.set("forget_json:abc", '{"_version":"' + "0" * 19 + '"}')
    shop.redis.set("forget_json:9001", '{"email":"foreign"}')
    shop.elastic.index(index="forget-foreign", id="1", document={"a": 1}, refresh=True)
    shop.elastic.indices.put_alias(index="forget-foreign", name="forget-user-too")
    return {"fu:9001", "fu:9002", "fu:9003", "fu:not-a-number", "{fu:9001}:t", "forget_json:abc", "forget_json:9001"}


def test_a_forgotten_view_goes_with_all_its_data_and_nothing_else_goes(shop: Shop) -> None:
    shop.ask(f"DELETE FROM {SCHEMA}.user WHERE id <= 10")
    wait_for("tombstones are there", lambda: shop.redis.exists("{fu:10}:t") and not shop.redis.exists("fu:10"))
    foreign = plant(shop)
    refused = shop.command("forget", "redis:forget_user", "--yes", code=2)
    assert "is declared in views.py" in refused.stderr
    shop.declare(*STAY)
    shop.ask(
        f"INSERT INTO {OWN}.dead_letter (view_id, key_hash, rendered_key, version, reason) "
        f"SELECT id, 'x', '7', 1, 'a reason' FROM {OWN}.view"
    )
    of_others = {f"fu:{number}:more" for number in range(11, ROWS + 1)}
    of_others |= {f"{{fu:{number}:more}}:t" for number in range(1, 11)}

    unasked = shop.command("forget", "redis:forget_user", code=2)
    assert f"Redis keys fu:{{INTEGER}}: {ROWS - 10}, and 10 tombstones" in unasked.stderr
    assert "4 Redis keys of that form whose values viewtail did not write" in unasked.stderr
    assert "redis:forget_user" in shop.known()

    shop.command("forget", "redis:forget_user", "--yes")
    assert {name for name in shop.redis_keys() if "fu:" in name} == of_others | {
        name for name in foreign if "fu:" in name
    }
    done = json.loads(shop.command("forget", "redis:forget_json", "--yes", "--json").stdout)
    assert done["dropped"] == [f"Redis keys forget_json:{{INTEGER}}: {ROWS - 10}, and 10 tombstones"]
    assert shop.redis_keys() == of_others | foreign

    shop.command("forget", "forget_email", "--yes")
    assert {"forget_emails", "forget_stays"} <= {name for (name,) in shop.ask(f"SHOW TABLES FROM {OWN}")}
    assert "forget_email" not in {name for (name,) in shop.ask(f"SHOW TABLES FROM {OWN}")}

    told = shop.command("forget", "forget-user", "--yes")
    assert "index viewtail-forget-user: 251 documents" in told.stdout
    with pytest.raises(NotFoundError):
        shop.elastic.indices.get(index="viewtail-forget-user")
    assert not shop.elastic.indices.exists_alias(name="forget-user")
    assert shop.elastic.count(index="forget-user-too")["count"] == 1

    kept = shop.command("forget", f"{SCHEMA}.kept", "--yes")
    assert "its consumers may still read it" in kept.stderr
    shop.command("forget", f"{SCHEMA}.user", "--yes", "--with-topic")
    wait_for("the topic is gone", lambda: f"{SCHEMA}.user" not in shop.topics())
    assert f"{SCHEMA}.kept" in shop.topics()

    assert shop.known() == set(STAY)
    assert {name for (name,) in shop.ask(f"SELECT v.name FROM {OWN}.dead_letter JOIN {OWN}.view v ON v.id = view_id")}
    assert shop.ask(f"SELECT COUNT(*) FROM {OWN}.dead_letter") == [(len(STAY),)]
    shop.ask(f"UPDATE {SCHEMA}.user SET name = 'again' WHERE id = 11")
    wait_for("the views that stay go on", lambda: shop.redis.hget("fu:11:more", "name") == b"again")


def test_a_former_copy_that_is_kept_goes_with_its_view(shop: Shop) -> None:
    """Nobody keeps it any more, and its time would never be over."""
    views = ("mysql:forget_email", "redis:forget_user", "elasticsearch:forget-user")
    for view in views:
        shop.command("rebuild", view, "--yes", "--keep", "1d")
    held = "redis:forget_json"
    shop.command("rebuild", held, "--yes", "--hold")
    tables = (
        f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{OWN}' AND table_name LIKE 'forget%'"
    )
    assert {name for (name,) in shop.ask(tables)} == {"forget_email", "forget_email__viewtail_1", "forget_stays"}
    assert len(shop.elastic.indices.get(index="viewtail*forget-user*", expand_wildcards="all")) == 2
    # The running viewtail keeps the copy alone, as it does after a change of the declaration.
    shop.ask(f"UPDATE {OWN}.view SET state = 'halted', reason = 'its declaration changed' WHERE name = '{held}'")
    (shop.run.folder / "views.py").write_text(declared(*STAY))
    assert "still keeps view" in shop.command("forget", held, "--yes", code=2).stderr
    shop.declare(*STAY)
    told = shop.run.command("status").stdout
    assert all(f"viewtail forget {view}" in told for view in views) and "viewtail rebuild" not in told
    for view in (*views, held):
        shop.command("forget", view, "--yes")
    assert {name for (name,) in shop.ask(tables)} == {"forget_stays"}
    assert not shop.elastic.indices.get(index="viewtail*forget-user*", expand_wildcards="all")
    assert shop.redis_keys() == {f"fu:{number}:more" for number in range(1, ROWS + 1)}
    assert (
        not [view for view in shop.known() if view.startswith(views)] and shop.ask(f"SELECT * FROM {OWN}.rebuild") == []
    )
    assert "is not declared" not in shop.run.command("status").stdout.partition("kafka:")[0]


def test_what_viewtail_did_not_make_is_never_dropped(shop: Shop) -> None:
    """In the view's own place: a table, an index and a topic that somebody else put there."""
    shop.declare(*STAY)
    shop.ask(f"DROP TABLE {OWN}.forget_email")
    shop.ask(f"CREATE TABLE {OWN}.forget_email (id INT PRIMARY KEY, email VARCHAR(40), version BIGINT UNSIGNED)")
    shop.elastic.indices.delete(index="viewtail-forget-user")
    shop.elastic.index(index="viewtail-forget-user", id="1", document={"a": 1}, refresh=True)
    for name, word in (("forget_email", "was not made by viewtail"), ("forget-user", "does not carry viewtail's mark")):
        told = shop.command("forget", name, "--yes")
        assert word in told.stdout and "dropped:" not in told.stdout
    assert shop.ask(f"SELECT COUNT(*) FROM {OWN}.forget_email") == [(0,)]
    assert shop.elastic.count(index="viewtail-forget-user")["count"] == 1
    assert not shop.known() & {"mysql:forget_email", "elasticsearch:forget-user"}


def test_keys_that_a_declared_view_took_over_stay(shop: Shop) -> None:
    VIEWS["redis:heir"] = 'RedisHash("heir", user, fields=["email"], key="fu:{id}")'
    try:
        shop.declare(*STAY, "redis:heir")
        wait_for("it is filled", lambda: shop.redis.hget("fu:1", "email") == b"mail1@x", 60)
        told = shop.command("forget", "redis:forget_user", "--yes")
    finally:
        del VIEWS["redis:heir"]
    assert f"stays: {ROWS:,} Redis keys of that form that view redis:heir has" in told.stdout
    assert shop.redis.exists("fu:1") and len([name for name in shop.redis_keys() if name.startswith("fu:")]) == 2 * ROWS


def proof_of(shop: Shop, key: str, *arguments: str, code: int = 0) -> Any:
    done = shop.command("forget", f"{SCHEMA}.user", key, "--json", *arguments, code=code)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def drops(shop: Shop) -> list[tuple[str, ...]]:
    """What the record says of dead letters that were dropped."""
    runs = json.loads(shop.command("replays", "--json").stdout)
    return [(run["view"], run["what"], run["result"]) for run in runs if run["kind"] == "drop"]


def found_in(proof: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in proof["looked"]:
        found.setdefault(one["view"], set()).add(one["found"].partition(":")[0])
    return found


def test_an_erased_entity_is_nowhere_and_the_proof_says_what_stays(shop: Shop) -> None:
    refused = shop.command("forget", "user", "7", code=2)
    assert f"DELETE FROM `{SCHEMA}`.`user` WHERE `id` = 7" in refused.stderr
    letter = (
        f"INSERT INTO {OWN}.dead_letter (view_id, key_hash, rendered_key, version, reason) SELECT id, "
        f"UNHEX(LEFT(SHA2('7', 256), 32)), '7', 1, 'a reason' FROM {OWN}.view WHERE name = 'redis:forget_user'"
    )
    shop.ask(f"DELETE FROM {SCHEMA}.user WHERE id = 7")
    wait_for("the delete came, which would clear the letter", lambda: shop.redis.exists("{fu:7}:t"))
    shop.ask(letter)
    shop.command("dead-letters", "drop", "redis:forget_user", "7", "--yes")
    assert drops(shop) == [("redis:forget_user", "parked keys: 7", "1 dead letter forgotten")]
    shop.ask(letter)
    proof = proof_of(shop, "7")
    assert proof["is_erased"] and proof["is_known"] and proof["letters"] == 1
    assert drops(shop) == [("redis:forget_user", "parked keys: (a key that was erased)", "1 dead letter forgotten")]
    rests = " ".join(rest["what"] for rest in proof["rests"])
    assert all(files in rests for files in ("InnoDB's pages", "append-only file", "segments and translog"))
    of_user = {name for name in VIEWS if name != "mysql:forget_stays"}
    assert found_in(proof) == {
        name: {"a tombstone", "nothing"} if name.startswith("redis:") else {"a tombstone"} for name in of_user
    }
    topics = {one["view"]: one for one in proof["looked"] if one["view"].startswith("kafka:")}
    assert topics[f"kafka:{SCHEMA}.user"]["stays"] == "the key; and 2 older messages with values"
    assert "max.compaction.lag.ms" in topics[f"kafka:{SCHEMA}.user"]["until"]
    assert "retention.ms" in topics[f"kafka:{SCHEMA}.kept"]["until"]
    assert any("binlog" in rest["what"] for rest in proof["rests"])
    assert not any(one["was_erased"] for one in proof["looked"])
    assert shop.ask(f"SELECT COUNT(*) FROM {OWN}.dead_letter") == [(0,)]
    told = shop.command("forget", "user", "7").stdout
    assert "Erased: nothing stays but what is named here" in told
    assert "mail7@x" not in told
    assert f"ok    viewtail's own, table `{OWN}`.`operator_run`: nothing" in told


def test_what_viewtails_own_tables_say_of_an_erased_entity_is_erased_too(shop: Shop) -> None:
    view = "redis:forget_user"
    shop.command("replay", view, "--key", "7", "--key", "8", "--key", "77")
    shop.command("replay", view, "--where", "id = 7 OR name = 'name 70'")
    shop.command("replay", view, "--where", "id BETWEEN 1 AND 2")
    place = json.dumps({"order": "id", "key": [7], "kept": 0})
    lowered = [{"key": "7", "from": "70", "to": "7"}, {"key": "8", "from": "9", "to": "7"}]
    for of, state, what, progress in (
        (view, "stopped", "compare", {"after": place, "parked": ["7", "70"], "counts": {"rows": 7}}),
        ("redis:forgotten", "done", "compare and repair", {"lowered_count": 2, "lowered": lowered}),
    ):
        text = json.dumps(progress).replace("\\", "\\\\")
        shop.ask(
            f"INSERT INTO {OWN}.operator_run (kind, view, what, fingerprint, operator, state, progress, result) "
            f"VALUES ('repair', '{of}', '{what}', 'hash', 'somebody', '{state}', '{text}', "
            "'key 7 cannot be read, 7 rows')"
        )
    shop.ask(
        f"INSERT INTO {OWN}.operator_run (kind, view, what, fingerprint, operator, state, progress, result) "
        f"VALUES ('pause', '{view}', 'the view', '', 'somebody', 'done', '{{}}', 'row 7 is odd')"
    )
    shop.ask(f"UPDATE {OWN}.view SET fill_key = '{place}' WHERE name IN ('{view}', 'mysql:forget_email')")
    shop.ask(
        f"INSERT INTO {OWN}.rebuild (view_name, pipeline_id, copy, stage, note, started_by, keep_s) "
        f"VALUES ('{view}', 99, 2, 'ended', 'the Redis key fu:7 was not dropped', 'somebody', 0)"
    )
    shop.ask(f"DELETE FROM {SCHEMA}.user WHERE id = 7")

    busy = pymysql.connect(host="127.0.0.1", port=shop.mysql.port, user="root", autocommit=True)
    with busy, busy.cursor() as cursor:
        cursor.execute(f"UPDATE {OWN}.operator_run SET state = 'running' WHERE what LIKE 'the keys%'")
        cursor.execute(f"SELECT id FROM {OWN}.operator_run WHERE state = 'running'")
        ((number,),) = cursor.fetchall()
        cursor.execute(f"SELECT GET_LOCK('viewtail:{OWN}:operator_run#{number}', 0)")
        (left,) = [one for one in proof_of(shop, "7", code=1)["own"] if not one["is_clean"]]
        assert left["found"] == f"the key: what runs now ({number})" and "then this command again" in left["run"]
    proof = proof_of(shop, "7")
    own = {one["place"]: one for one in proof["own"]}
    assert len(own) == 6 and {one["found"] for one in own.values()} == {"nothing"}
    runs = own[f"table `{OWN}`.`operator_run`"]
    assert runs["held"] == "the key in 1 row" and runs["was_erased"]
    conditions = shop.ask(f"SELECT id FROM {OWN}.operator_run WHERE what LIKE 'where%' OR kind = 'pause' ORDER BY id")
    assert f"IN ({', '.join(str(one) for (one,) in conditions)})" in runs["until"] and len(conditions) == 3

    rows = shop.ask(
        f"SELECT what, progress, result, fingerprint = '' FROM {OWN}.operator_run WHERE kind NOT IN ('clean', 'pause')"
    )
    key = "(a key that was erased)"
    assert [what for what, *_ in rows] == [
        f"the keys: {key}, 8, 77", f"where id = {key} OR name = 'name 70'", "where id BETWEEN 1 AND 2", "compare",
        "compare and repair",
    ]  # fmt: skip
    assert [bool(is_without) for *_, is_without in rows] == [True, True, False, True, True]
    assert json.loads(rows[3][1]) == {"after": None, "parked": [key, "70"], "counts": {"rows": 7}}
    assert json.loads(rows[4][1])["lowered"] == [{**lowered[0], "key": key}, lowered[1]]
    assert rows[4][2] == f"key {key} cannot be read, 7 rows"
    assert shop.ask(f"SELECT COUNT(*) FROM {OWN}.view WHERE fill_key LIKE '%[7]%'") == [(0,)]
    assert shop.ask(f"SELECT note FROM {OWN}.rebuild") == [(f"the Redis key fu:{key} was not dropped",)]


def test_values_that_are_still_there_are_erased_through_the_guard(shop: Shop) -> None:
    shop.ask(f"DELETE FROM {SCHEMA}.user WHERE id = 7")
    wait_for("the delete came", lambda: shop.redis.exists("{fu:7}:t"))
    version = f"{1 << 53:019d}"  # of long ago
    shop.ask(f"UPDATE {OWN}.forget_email SET email = 'mail7@x', version = 5 WHERE id = 7")
    shop.redis.delete("{fu:7}:t")
    shop.redis.hset("fu:7", mapping={"_version": version, "name": "damaged"})
    shop.elastic.indices.delete(index="viewtail-forget-user")
    proof = proof_of(shop, "7")
    erased = {one["view"] for one in proof["looked"] if one["was_erased"]}
    assert {"mysql:forget_email", "redis:forget_user"} <= erased and proof["is_erased"]
    assert shop.ask(f"SELECT email FROM {OWN}.forget_email WHERE id = 7") == [(None,)]
    assert not shop.redis.exists("fu:7") and shop.redis.get("{fu:7}:t") > version.encode()
    shop.ask(f"INSERT INTO {SCHEMA}.user VALUES (7, 'new', 'new@x')")
    wait_for("a row that comes later is shown", lambda: shop.redis.hget("fu:7", "name") == b"new")

    shop.ask(f"DELETE FROM {SCHEMA}.user WHERE id = 7")
    wait_for("the delete came", lambda: shop.redis.exists("{fu:7}:t"))
    shop.redis.delete("{fu:7}:t")
    shop.redis.hset("fu:7", mapping={"_version": "9" * 19, "name": "above all versions"})
    proof = proof_of(shop, "7", code=1)
    (left,) = [one for one in proof["looked"] if not one["is_clean"]]
    assert left["view"] == "redis:forget_user" and "viewtail verify redis:forget_user --repair" in left["run"]


def test_a_key_that_nothing_knew_gets_no_sentence_that_it_was_erased(shop: Shop) -> None:
    told = shop.command("forget", "user", "80000").stdout
    assert "No view and none of viewtail's tables knew this key: is it the one that you mean?" in told
    assert "Erased" not in told
    assert not proof_of(shop, "80000")["is_known"]


def test_what_viewtail_did_not_write_is_taken_out_by_the_command_that_the_proof_names(shop: Shop) -> None:
    shop.ask(f"DELETE FROM {SCHEMA}.user WHERE id = 7")
    wait_for("the delete came", lambda: shop.redis.exists("{fu:7}:t"))
    shop.redis.hset("fu:7", mapping={"name": "put there by hand"})
    (left,) = [one for one in proof_of(shop, "7", code=1)["looked"] if not one["is_clean"]]
    assert left["place"] == "Redis key fu:7"
    assert left["run"].startswith("viewtail verify redis:forget_user --repair takes out what no row has")
    shop.command("verify", "redis:forget_user", "--repair")
    assert not shop.redis.exists("fu:7") and proof_of(shop, "7")["is_erased"]


def test_an_entity_of_an_append_only_table_is_erased_when_all_its_rows_are_gone(shop: Shop) -> None:
    refused = shop.command("forget", "log", "7", code=2)
    assert "2 rows of it are still in" in refused.stderr
    shop.ask(f"DELETE FROM {SCHEMA}.log WHERE who = 7")
    told = shop.command("forget", "log", "7")
    assert "it held values, which this command erased" in told.stdout
    assert shop.ask(f"SELECT value, version FROM {OWN}.forget_stays WHERE who = 7") == [(None, 5)]
    assert shop.ask(f"SELECT value FROM {OWN}.forget_stays WHERE who = 8") == [("other",)]


def test_what_nobody_could_look_at_is_no_proof(shop: Shop) -> None:
    shop.ask(f"DELETE FROM {SCHEMA}.user WHERE id = 7")
    shop.declare(*STAY)
    proof = proof_of(shop, "7", code=1)
    assert {one["run"] for one in proof["looked"] if not one["is_clean"]} == {
        f"viewtail forget {name}" for name in VIEWS if name not in STAY
    }
    assert shop.run.stop() == 0
    late = shop.command("forget", "user", "7", "--timeout", "1", code=1)
    assert "did not come to this moment of the source" in late.stderr
    assert "viewtail run" in late.stderr
    for wrong in (("user", "7", "--with-topic"), ("user", "seven"), ("pets", "7"), ("forget_user", "--by", "id")):
        shop.command("forget", *wrong, code=2)
