"""Two deployments with one Redis, one Elasticsearch and one broker: neither writes where the other one keeps a view."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis
from confluent_kafka.admin import AdminClient
from elasticsearch import Elasticsearch

from stack import Server
from tests.support import topic_log
from tests.support.asking import ask
from tests.support.running import Run, addresses, wait_for

SCHEMA, OWN, OTHER = "two_shop", "two_own", "two_other"
FIRST = """
from viewtail import *

user = Entity("two_shop.user")
views = [
    IndexTable("two_email", user, value="email"),
    RedisHash("two_user", user, fields=["name"]),
    RedisJson("two_card", user, fields=["name"], key="card:{id}"),
    SearchIndex("two-users", user, fields={"name": "keyword"}),
]
"""
FIRST_TOPICS = f"{FIRST}views += [Topic('two.user', user, fields=['name']), Topic('two.first', user)]\n"
# One of the same name, one of another name whose keys meet, one that is nobody else's.
SECOND = """
from viewtail import *

user = Entity("two_shop.user")
views = [
    IndexTable("two_email", user, value="email"),
    RedisHash("two_user", user, fields=["email"]),
    RedisHash("two_badge", user, fields=["email"], key="card:{id}"),
    RedisHash("two_own_one", user, fields=["email"]),
    SearchIndex("two-users", user, fields={"email": "keyword"}),
]
"""
SECOND_TOPICS = f"{SECOND}views += [Topic('two.user', user, fields=['email']), Topic('two.second', user)]\n"
REFUSED = {"redis:two_user", "redis:two_badge", "elasticsearch:two-users"}
pytestmark = [pytest.mark.mysql, pytest.mark.slow]


class Two:
    """The servers, and a `viewtail run` for each deployment."""

    def __init__(self, folder: Path, mysql: Server, redis_server: Server, elasticsearch: Server) -> None:
        self.stores = addresses(mysql, redis_server, elasticsearch)
        self.mysql = mysql
        self.redis: Any = redis.Redis(port=redis_server.port)
        self.elastic = Elasticsearch(elasticsearch.url)
        self.folder, self.runs = folder, list[Run]()
        self.first = self.run_of("first", FIRST, OWN)
        self.second = self.run_of("second", SECOND, OTHER)

    def run_of(self, name: str, views: str, database: str) -> Run:
        """Another one, with its own tables in a database."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "run.log").touch()
        run = Run(folder, views, {**self.stores, "VIEWTAIL_MYSQL__URL": f"{self.mysql.url}/{database}"})
        self.runs.append(run)
        return run

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return ask(self.mysql, statement)

    def states(self, database: str) -> dict[str, str]:
        return dict(self.ask(f"SELECT name, state FROM {database}.view"))

    def reason(self, database: str, view: str) -> str:
        return str(self.ask(f"SELECT reason FROM {database}.view WHERE name = '{view}'")[0][0])

    def until(self, database: str, state: str, *views: str) -> None:
        wait_for(
            f"{views} are {state}",
            lambda: all(self.states(database).get(view) == state for view in views),
        )

    def begin_first(self) -> None:
        self.first.start()
        self.until(OWN, "filled", "mysql:two_email", "redis:two_user", "redis:two_card", "elasticsearch:two-users")

    def user(self, key: int) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self.redis.hgetall(f"two_user:{key}")
        found.pop(b"_version", None)
        return found

    def document(self, key: int) -> Any:
        self.elastic.indices.refresh(index="two-users")
        return self.elastic.get(index="two-users", id=str(key))["_source"]

    @staticmethod
    def redeclare(run: Run, views: str) -> None:
        """Its views.py is another one when it is started again."""
        assert run.stop() == 0
        (run.folder / "views.py").write_text(views)

    @staticmethod
    def forget(run: Run, view: str, *options: str) -> str:
        """Returns what stays, as the command says it."""
        done = run.command("forget", view, "--yes", "--json", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)
        assert found["dropped"] == []
        return "; ".join(found["left"])

    def with_topics(self, kafka: Server, *views: str) -> tuple[Run, Run]:
        """Both, with a broker."""
        admin = AdminClient({"bootstrap.servers": f"{kafka.host}:{kafka.port}"})
        for future in admin.delete_topics(["two.user", "two.first", "two.second"]).values():
            future.exception(10)
        wait_for("topics are gone", lambda: not any(name.startswith("two.") for name in admin.list_topics().topics))
        for run, declared in zip((self.first, self.second), views, strict=True):
            run._environment["VIEWTAIL_KAFKA__URL"] = kafka.url
            (run.folder / "views.py").write_text(declared)
        return self.first, self.second

    @staticmethod
    def published(kafka: Server, least: int) -> list[Any]:
        """What the rows in the topic were after each change."""
        found = [orjson.loads(one.value())["after"] for one in topic_log.raw(kafka, "two.user")]
        assert len(found) >= least
        return found

    def clear(self) -> None:
        self.redis.flushall()
        self.elastic.options(ignore_status=404).indices.delete(index="viewtail-two-users")


@pytest.fixture
def two(tmp_path: Path, mysql_server: Server, redis_server: Server, elasticsearch_server: Server) -> Iterator[Two]:
    found = Two(tmp_path, mysql_server, redis_server, elasticsearch_server)
    for database in (SCHEMA, OWN, OTHER):
        found.ask(f"DROP DATABASE IF EXISTS {database}")
    found.ask(f"CREATE DATABASE {SCHEMA}")
    found.ask(f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, name VARCHAR(40), email VARCHAR(40))")
    found.ask(f"INSERT INTO {SCHEMA}.user VALUES (1, 'ada', 'ada@x'), (2, 'ben', 'ben@x')")
    found.clear()
    try:
        yield found
        assert not any("Traceback" in run.log for run in found.runs)
    except BaseException:
        for run in found.runs:
            print(f"=== {run.folder.name}", run.log[-4000:], sep="\n")
        raise
    finally:
        for run in found.runs:
            run.kill()
        found.clear()


def test_a_place_is_taken_over_on_purpose_and_the_former_owner_halts_its_view_by_name(two: Two) -> None:
    two.begin_first()
    two.second.start()
    two.until(OTHER, "halted", *REFUSED)
    refused = two.second.command("replay", "redis:two_user", "--yes")
    assert refused.returncode == 1 and "redis:two_user: not marked, it stays halted" in refused.stderr
    assert f"belongs to the deployment {OWN} on" in refused.stderr
    assert "viewtail check" in two.second.command("why", "redis:two_user", "1").stdout
    asked = two.second.command("replay", "redis:two_user", "--take-over")
    assert asked.returncode == 2
    assert f"kept by {OWN} on" in asked.stderr
    assert two.user(1) == {b"name": b"ada"}

    taken = two.second.command(
        *("replay", "redis:two_user", "elasticsearch:two-users", "--take-over", "--yes", "--wait")
    )
    assert taken.returncode == 0, taken.stdout + taken.stderr
    assert two.user(1) == {b"email": b"ada@x"}
    assert two.document(2) == {"email": "ben@x"}
    two.until(OWN, "halted", "redis:two_user", "elasticsearch:two-users")
    assert f"{OTHER} on" in two.reason(OWN, "redis:two_user")
    assert "taken over from" in two.reason(OWN, "elasticsearch:two-users")

    two.ask(f"UPDATE {SCHEMA}.user SET name = 'eve', email = 'eve@x' WHERE id = 1")
    two.ask(f"DELETE FROM {SCHEMA}.user WHERE id = 2")
    wait_for("the second has them", lambda: two.user(1) == {b"email": b"eve@x"} and not two.user(2))
    wait_for("and the index", lambda: two.document(1) == {"email": "eve@x"})
    wait_for("the first has its own", lambda: b'"eve"' in (two.redis.get("card:1") or b""))
    again = two.second.command("replay", "redis:two_user", "--take-over", "--yes")
    assert "nothing to take over" in again.stdout

    two.redeclare(two.first, FIRST.replace('    SearchIndex("two-users", user, fields={"name": "keyword"}),\n', ""))
    left = two.forget(two.first, "elasticsearch:two-users")
    assert "belongs to the deployment two_other on" in left and "taken over from" in left
    assert two.document(1) == {"email": "eve@x"}
    two.first.start()

    assert two.second.stop() == 0
    views = two.second.folder / "views.py"
    views.write_text(SECOND.replace('    RedisHash("two_user", user, fields=["email"]),\n', ""))
    assert two.second.command("forget", "redis:two_user", "--yes").returncode == 0
    assert two.first.command("replay", "redis:two_user", "--wait").returncode == 0
    assert two.user(1) == {b"name": b"eve"}


def test_who_was_refused_a_place_and_forgets_the_view_drops_nothing_of_who_has_it(two: Two) -> None:
    two.begin_first()
    two.second.start()
    two.until(OTHER, "halted", *REFUSED)
    two.redeclare(
        two.second, SECOND.replace("two_user", "two_mine").replace("two_badge", "two_tag").replace("card:", "tag:")
    )
    two.second.start()
    two.until(OTHER, "filled", "redis:two_mine", "redis:two_tag")
    for view in ("redis:two_user", "redis:two_badge"):
        assert f"belongs to the deployment {OWN} on" in two.forget(two.second, view)
    two.redeclare(two.second, SECOND.partition("    SearchIndex")[0] + "]\n")
    kept = two.second.command("forget", "elasticsearch:two-users", "--keep-data", "--json")
    assert "DELETE /" not in kept.stdout and f"belongs to the deployment {OWN} on" in kept.stdout
    assert not two.states(OTHER).keys() & {*REFUSED}
    assert (two.user(1), two.document(2)) == ({b"name": b"ada"}, {"name": "ben"})
    assert two.redis.exists("card:1", "card:2") == 2
    two.ask(f"UPDATE {SCHEMA}.user SET name = 'eve' WHERE id = 1")
    wait_for("the first goes on", lambda: two.user(1) == {b"name": b"eve"} and two.document(1) == {"name": "eve"})
    wait_for("the first is well", two.first.is_well)


def test_a_view_that_gets_another_name_goes_on_with_the_redis_keys_that_it_had(two: Two) -> None:
    two.begin_first()
    two.redeclare(two.first, FIRST.replace('"two_card"', '"two_cards"'))
    two.first.start()
    two.until(OWN, "filled", "redis:two_cards")
    two.ask(f"UPDATE {SCHEMA}.user SET name = 'eve' WHERE id = 1")
    wait_for("it goes on", lambda: b'"eve"' in (two.redis.get("card:1") or b""))
    assert "view redis:two_cards has" in two.forget(two.first, "redis:two_card")
    assert two.redis.exists("card:1", "card:2") == 2
    two.second.start()
    two.until(OTHER, "halted", *REFUSED)
    assert "view redis:two_cards" in two.reason(OTHER, "redis:two_badge")


def test_a_topic_is_published_by_one_deployment_until_it_is_taken_over(two: Two, kafka_server: Server) -> None:
    mine, theirs = two.with_topics(kafka_server, FIRST_TOPICS, SECOND_TOPICS)
    mine.start()
    two.until(OWN, "filled", "kafka:two.user", "kafka:two.first")
    checked = theirs.command("check")
    assert checked.returncode == 1
    assert f"the topic two.user belongs to the deployment {OWN} on" in checked.stdout
    theirs.start()
    two.until(OTHER, "filled", "kafka:two.second")
    two.until(OTHER, "halted", "kafka:two.user")
    two.ask(f"UPDATE {SCHEMA}.user SET name = 'eve', email = 'eve@x' WHERE id = 1")
    wait_for("the first published it", lambda: two.published(kafka_server, 3)[2:] == [{"name": "eve"}])

    taken = theirs.command("replay", "kafka:two.user", "--take-over", "--yes", "--wait")
    assert taken.returncode == 0, taken.stdout + taken.stderr
    two.until(OWN, "halted", "kafka:two.user")
    assert "taken over from" in two.reason(OWN, "kafka:two.user")
    two.ask(f"UPDATE {SCHEMA}.user SET email = 'new@x' WHERE id = 1")
    wait_for("the second goes on", lambda: two.published(kafka_server, 0)[-1] == {"email": "new@x"})
    assert [one for one in two.published(kafka_server, 0)[3:] if "name" in one] == []
    two.redeclare(mine, FIRST)
    assert f"belongs to the deployment {OTHER} on" in two.forget(mine, "kafka:two.user", "--with-topic")
    assert two.published(kafka_server, 4)[-1] == {"email": "new@x"}


def test_a_view_whose_place_another_deployment_has_is_refused_by_check_and_halted_by_run(two: Two) -> None:
    two.begin_first()
    checked = two.second.command("check", "--json")
    failures = {one["what"]: one for one in json.loads(checked.stdout)["findings"] if one["level"] == "fail"}
    assert checked.returncode == 1
    assert set(failures) == {f"view {view}, its place" for view in REFUSED}
    assert all(OWN in one["seen"] and "--take-over" in one["seen"] for one in failures.values())
    assert two.first.command("check").returncode == 0

    two.second.start()
    two.until(OTHER, "filled", "mysql:two_email", "redis:two_own_one")
    two.until(OTHER, "halted", *REFUSED)
    assert f"{OWN} on" in two.reason(OTHER, "redis:two_badge")
    assert "view redis:two_card" in two.reason(OTHER, "redis:two_badge")
    status = two.second.command("status")
    assert status.returncode == 1
    assert "--take-over" in status.stdout

    two.ask(f"UPDATE {SCHEMA}.user SET name = 'eve', email = 'eve@x' WHERE id = 1")
    wait_for("the first goes on", lambda: two.user(1) == {b"name": b"eve"} and two.document(1) == {"name": "eve"})
    wait_for("and the second with its own", lambda: two.redis.hget("two_own_one:1", "email") == b"eve@x")
    assert two.user(1) == {b"name": b"eve"}
    assert two.document(1) == {"name": "eve"}
    wait_for("the first is well", two.first.is_well)


PROJECTED = """
from viewtail import *

user = Entity("two_shop.user")
views = [Topic("two_shop.user", user, partitions=2), RedisHash("two_projected", user, fields=["name"])]
"""


def test_projectors_of_two_deployments_whose_databases_are_called_the_same_share_no_group(
    two: Two, kafka_server: Server, mariadb_server: Server
) -> None:
    ask(mariadb_server, f"DROP DATABASE IF EXISTS {OWN}")
    tailer = two.run_of("tailer", PROJECTED, OWN)
    tailer._environment["VIEWTAIL_KAFKA__URL"] = kafka_server.url
    tailer.start("--role", "tail")
    of_kafka = {"VIEWTAIL_SOURCE__URL": kafka_server.url, "VIEWTAIL_SOURCE__CANONICAL_URL": two.mysql.url}
    mine = two.run_of("mine", PROJECTED, OWN)
    mine._environment |= of_kafka
    mine.start("--role", "project")
    two.until(OWN, "filled", "redis:two_projected")

    theirs = two.run_of("theirs", PROJECTED.replace("two_projected", "two_theirs"), OWN)
    theirs._environment |= {**of_kafka, "VIEWTAIL_MYSQL__URL": f"{mariadb_server.url}/{OWN}"}
    checked = theirs.command("check", "--json")
    failed = [one for one in json.loads(checked.stdout)["findings"] if one["level"] == "fail"]
    assert [one["what"] for one in failed] == ["consumer group of redis"], failed
    assert "VIEWTAIL_SOURCE__GROUP" in failed[0]["mend"]
    theirs.start("--role", "project")
    wait_for("it says so, and does not join", lambda: "has members of another deployment" in theirs.log)
    two.ask(f"INSERT INTO {SCHEMA}.user SELECT id + 10, name, email FROM {SCHEMA}.user")
    wait_for("the first has all", lambda: all(two.redis.exists(f"two_projected:{key}") for key in (11, 12)))
    assert mine.command("check").returncode == 0

    assert theirs.stop() == 0
    theirs._environment["VIEWTAIL_SOURCE__GROUP"] = "two.theirs"
    theirs.start("--role", "project")
    wait_for("both have all", lambda: all(two.redis.exists(f"two_theirs:{key}") for key in (1, 2, 11, 12)), 60)


OTHER_APP = """
from viewtail import *

user = Entity("two_shop.user")
views = [RedisHash("two_cart", user, fields=["name"]), RedisHash("two_order", user, fields=["name"])]
"""
CHANGED = f"{FIRST}views += [RedisHash('two_new', user, fields=['email'])]\n"


def test_a_second_app_on_the_same_database_is_told_so_and_a_changed_views_py_is_not(two: Two) -> None:
    two.begin_first()
    app = two.run_of("app", OTHER_APP, OWN)
    said = f"runs with the database {OWN}, and keeps other views"
    checked = app.command("check", "--json")
    found = json.loads(checked.stdout)["findings"]
    (warned,) = [one for one in found if (one["where"], one["what"]) == ("views", f"database {OWN}")]
    assert (warned["level"], checked.returncode) == ("warn", 0)
    assert said in warned["seen"] and "VIEWTAIL_MYSQL__URL" in warned["mend"]
    app.start()
    wait_for("it stands by, and says for whom", lambda: said in app.log)
    told = app.command("status").stdout
    assert said in told and "VIEWTAIL_MYSQL__URL" in told
    assert "viewtail forget" not in told and "Start one" not in told
    assert app.stop() == 0
    wait_for("the first is well", two.first.is_well)

    rolled = two.run_of("rolled", CHANGED, OWN)
    assert rolled.command("check").returncode == 0
    rolled.start()
    wait_for("it stands by", lambda: "standby" in two.first.command("status").stdout)
    assert two.first.stop() == 0
    two.until(OWN, "filled", "redis:two_new", "redis:two_user")
    wait_for("the changed one is well", rolled.is_well)
    assert said not in rolled.log
