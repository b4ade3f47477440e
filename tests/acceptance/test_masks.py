"""People's data stays in its database: a canary in every masked column is looked for in all that viewtail writes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from stack import Server
from tests.support.asking import ask
from tests.support.indices import Indices
from tests.support.published import Topic
from tests.support.running import Run, addresses, running, wait_for
from tests.support.topic_log import raw

SECRET = "a secret that only these tests know"
ROWS, PARKED_EACH = 300, 50


def hashed(text: str) -> str:
    return hmac.new(SECRET.encode(), text.encode(), hashlib.sha256).hexdigest()


# --- A canary in every masked column ---

SCHEMA = "masks"
TABLES = (
    f"CREATE DATABASE {SCHEMA}",
    f"""CREATE TABLE {SCHEMA}.user (
        id INT PRIMARY KEY, email VARCHAR(100) NOT NULL COMMENT 'for invoices #PPI', phone VARCHAR(40), name TEXT,
        birth DATE, about JSON COMMENT '#ppi', place POINT COMMENT '#GEO', income DECIMAL(14,2) COMMENT '#PPI',
        token VARBINARY(40), seen DATETIME, domain VARCHAR(100) AS (SUBSTRING_INDEX(email, '@', 1)),
        visits INT NOT NULL DEFAULT 0, UNIQUE KEY (email)
    )""",
    f"""CREATE TABLE {SCHEMA}.note (
        id INT PRIMARY KEY, user_id INT NOT NULL, body VARCHAR(200) COMMENT '#PPI', kind VARCHAR(20), KEY (user_id)
    )""",
)
VIEWS = f"""
from viewtail import Entity, IndexTable, Many, One, RedisHash, RedisJson, SearchIndex, Topic

masked = {{"phone": "last4", "name": "null", "birth": "year", "token": "hash", "seen": "year"}}
user = Entity("{SCHEMA}.user", masked=masked)
note = Entity("{SCHEMA}.note", related={{"user": One("{SCHEMA}.user", on="user_id")}})
account = Entity("{SCHEMA}.user", masked=masked, related={{"notes": Many("{SCHEMA}.note", by="user_id")}})
shown = ["email", "phone", "name", "birth", "about", "place", "income", "token", "seen", "domain", "visits"]


def document(row):
    if row["id"] % {PARKED_EACH} == 0:
        raise ValueError(row["email"])
    return {{**row, "place": None}}


views = [
    IndexTable("by_email", user, value="email"),
    IndexTable("by_phone", user, value=["phone", "birth"]),
    RedisHash("masked", user, fields=shown),
    RedisJson("masked_json", user, document=document),
    RedisJson("masked_notes", note, document=lambda row: {{"body": row["body"], "user": row["user"]}}),
    SearchIndex("masked", user, fields=shown),
    Topic("{SCHEMA}.user", user),
    Topic("{SCHEMA}.account", account),
]
"""
X, Y = 77.7123456, 8.8123456
PLAIN = (b"canary", b"canary".hex().encode(), b"1907-03-04", b"7777712345", b"77.7123456", struct.pack("<d", X))
NEEDLES = {*PLAIN, *(base64.b64encode(b" " * at + text)[4:-4] for text in PLAIN[-1:] + PLAIN[:1] for at in (3, 4, 5))}


def values(key: int, visits: int = 0) -> str:
    return (
        f"({key}, 'canary-{key}@canary.example', '+49canary{key:04}', 'canary {key}', '1907-03-04', "
        f"'{{\"is\": \"canary {key}\"}}', POINT({X}, {Y}), 7777712345.{key % 100:02}, 'canary {key}', "
        f"'1907-03-04 05:06:07', {visits})"
    )


def insert(keys: Sequence[int], visits: int = 0) -> str:
    names = "id, email, phone, name, birth, about, place, income, token, seen, visits"
    return f"REPLACE INTO {SCHEMA}.user ({names}) VALUES {', '.join(values(key, visits) for key in keys)}"


def has_canary(content: bytes) -> list[bytes]:
    return [needle for needle in NEEDLES if needle in content]


class SpoolWatcher:
    """Reads the unnamed temporary files of a run's processes while they are there."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._run, self._folder = run, folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.contents: dict[str, bytes] = {}  # by file, the longest that was seen

    def __enter__(self) -> SpoolWatcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            for process in self._run.workers().values():
                with suppress(OSError):
                    for link in Path(f"/proc/{process}/fd").iterdir():
                        with suppress(OSError):
                            self._look(link)

    def _look(self, link: Path) -> None:
        file = str(link.readlink())
        if file.startswith(f"{self._folder}/"):
            content = link.read_bytes()
            if len(content) > len(self.contents.get(file, b"")):
                self.contents[file] = content


@contextmanager
def made(server: Server) -> Iterator[None]:
    for database in (SCHEMA, f"{SCHEMA}_views"):
        ask(server, f"DROP DATABASE IF EXISTS {database}")
    for statement in TABLES:
        ask(server, statement)
    yield
    for database in (SCHEMA, f"{SCHEMA}_views"):
        ask(server, f"DROP DATABASE IF EXISTS {database}")


def index_tables(server: Server) -> bytes:
    """Everything in viewtail's own database, index tables too."""
    database = f"{SCHEMA}_views"
    names = ask(server, f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{database}'")
    return repr([ask(server, f"SELECT * FROM {database}.`{name}`") for (name,) in names]).encode()


def keys_of(client: Any) -> bytes:
    found = []
    for key in client.scan_iter():
        found.append((key, client.dump(key)))
        found.append(client.hgetall(key) if client.type(key) == b"hash" else None)
        found.append(client.get(key) if client.type(key) == b"string" else None)
    return repr(found).encode()


def is_filled(run: Run) -> bool:
    """Whether every view is, keys that are parked or not."""
    pipelines = json.loads(run.command("status", "--json").stdout)["pipelines"]
    states = {view["state"] for pipeline in pipelines for view in pipeline["views"]}
    return {pipeline["state"] for pipeline in pipelines} == {"running"} and states == {"filled"}


class Deployment:
    """The servers, a run with views of every store, and what its commands printed."""

    def __init__(self, folder: Path, mysql: Server, cache: Server, search: Server, broker: Server) -> None:
        self.folder, self.mysql, self.cache, self.search, self.broker = folder, mysql, cache, search, broker
        self.client: Any = redis.Redis(port=cache.port)
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.environment = {
            **addresses(mysql, cache, search),
            "VIEWTAIL_MYSQL__URL": f"{mysql.url}/{SCHEMA}_views",
            "VIEWTAIL_KAFKA__URL": broker.url,
            "VIEWTAIL_MASKS__SECRET": SECRET,
            "VIEWTAIL_LOGS__LEVEL": "debug",
            "VIEWTAIL_RUN__SPOOL_BYTES": "4096",
            "TMPDIR": str(self.temporary),
        }
        self.outputs: dict[str, bytes] = {}
        self.spooled: dict[str, bytes] = {}

    def write(self, statement: str) -> None:
        ask(self.mysql, statement)

    def with_email(self, email: str) -> list[tuple[int]]:
        return ask(self.mysql, f"SELECT id FROM {SCHEMA}_views.by_email WHERE email = '{hashed(email)}'")

    def command(self, run: Run, *arguments: str, codes: Sequence[int] = (0,)) -> str:
        done = run.command(*arguments)
        assert done.returncode in codes, (arguments, done.stdout, done.stderr)
        self.outputs[" ".join(arguments)] = f"{done.stdout}{done.stderr}".encode()
        return done.stdout

    def change(self, run: Run) -> None:
        """Changes of every kind, large transactions, and workers that die of one."""
        self.write(insert(range(ROWS + 1, ROWS + 50)))
        self.write(f"UPDATE {SCHEMA}.user SET visits = visits + 1 WHERE id % 3 = 0")
        assert run.kill_worker("redis") and run.kill_worker("mysql")
        self.write(f"UPDATE {SCHEMA}.user SET about = JSON_SET(about, '$.is', 'other canary') WHERE id < 20")
        self.write(f"DELETE FROM {SCHEMA}.user WHERE id BETWEEN 100 AND 120")
        self.write(f"UPDATE {SCHEMA}.note SET body = 'it was a canary' WHERE id = 2")
        with SpoolWatcher(run, self.temporary) as spools:
            wait_for("all is well again", partial(is_filled, run), 120)
            for visits in range(1, 4):
                self.write(insert(range(1000, 9000), visits))
                run.kill_worker("elasticsearch")
            wait_for("the last row", lambda: self.with_email("canary-8999@canary.example") == [(8999,)], 120)
            wait_for("all is well again", partial(is_filled, run), 120)
        self.spooled = spools.contents
        assert self.spooled, "no temporary file was seen"

    def is_shown_masked(self) -> None:
        assert self.client.hget("masked:8", "token").decode() == hashed(b"canary 8".hex())
        shown = json.loads(self.client.get("masked_json:8"))
        assert (shown["phone"], shown["name"], shown["birth"]) == ("****0008", None, 1907)
        assert (shown["about"], shown["income"], shown["seen"]) == (None, None, 1907)
        assert (shown["email"], shown["domain"]) == (hashed("canary-8@canary.example"), hashed("canary-8"))
        note = json.loads(self.client.get("masked_notes:2"))
        assert note["body"] == hashed("it was a canary")
        assert note["user"]["email"] == hashed("canary-2@canary.example")

    def ask_everything(self, run: Run) -> None:
        """Every command that shows something of rows."""
        command = partial(self.command, run)
        found = json.loads(command("find", "by_email", "canary-8@canary.example", "--json"))
        assert [row["id"] for row in found["rows"]] == [8]
        assert json.loads(command("find", "by_phone", "+49canary0008", "1907", "--json"))["rows"][0]["id"] == 8
        command("find", "by_email", "canary-none@canary.example", codes=(1,))
        command("get", "redis:masked", "8", "--json")
        command("get", "elasticsearch:masked", "8", "--json")
        command("search", "elasticsearch:masked", hashed("canary-8@canary.example"))
        command("why", "masked_json", str(PARKED_EACH), "--json", codes=(0, 1))
        command("why", "by_email", "8")
        command("dead-letters", "list", "--json", codes=(0, 1))
        command("preview", "masked_json", "--json", codes=(0, 1))
        command("check", "--json")
        command("status", "--json", codes=(1,))
        people = json.loads(command("check", "--people", "--json"))["columns"]
        phone = {"table": f"{SCHEMA}.user", "column": "phone", "tags": [], "view": "mysql:by_phone", "form": "last4"}
        phone["unmasked"] = None
        assert phone in people
        command("check", "--people")
        for view in ("by_email", "redis:masked", "masked_notes", "elasticsearch:masked"):
            command("verify", view)
        self.client.hset("masked:9", "email", "damaged")
        command("verify", "redis:masked", "--repair", codes=(0, 1))
        command("verify", "redis:masked")
        command("replay", "--yes", "by_phone", "masked_json")

    def everything(self) -> dict[str, bytes]:
        """All that viewtail wrote, by where it is."""
        topics = [f"{SCHEMA}.{name}" for name in ("user", "account")]
        messages = repr([(found.key(), found.value()) for topic in topics for found in raw(self.broker, topic)])
        assert messages.count(hashed("canary-8@canary.example")) >= 2
        contents = {
            "index tables": index_tables(self.mysql),
            "Redis": keys_of(self.client),
            "Elasticsearch": repr(Indices(self.search).stored("masked", [*map(str, range(1, ROWS))])).encode(),
            "topics": messages.encode(),
            **{f"spool {name}": content for name, content in self.spooled.items()},
            **{f"output of {name}": content for name, content in self.outputs.items()},
        }
        for folder in (self.folder, self.cache.directory, self.search.directory, self.broker.directory):
            contents |= {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        return contents


def test_no_store_topic_log_file_or_output_has_a_masked_value(
    tmp_path: Path, mysql_server: Server, redis_server: Server, elasticsearch_server: Server, kafka_server: Server
) -> None:
    world = Deployment(tmp_path, mysql_server, redis_server, elasticsearch_server, kafka_server)
    with made(mysql_server):
        world.write(insert(range(1, ROWS + 1)))
        world.write(f"INSERT INTO {SCHEMA}.note VALUES (1, 1, 'a canary sang', 'song'), (2, 2, 'canary', 'song')")
        with running(tmp_path, VIEWS, world.environment) as run:
            wait_for("the views are filled", partial(is_filled, run), 120)
            assert world.with_email("canary-7@canary.example") == [(7,)], "equal values have equal hashes"
            world.change(run)
            world.is_shown_masked()
            world.ask_everything(run)
            wait_for("they are filled again", partial(is_filled, run), 120)
            assert run.stop() == 0
        assert {name: found for name, content in world.everything().items() if (found := has_canary(content))} == {}
        assert SECRET not in run.log


# --- Tags that come and go ---

LATER = "masks_later"
LATER_VIEWS = f"""
from viewtail import Entity, IndexTable, RedisHash

user = Entity("{LATER}.user")
views = [
    IndexTable("later_by_email", user, value="email"),
    IndexTable("later_by_age", user, value="age"),
    RedisHash("later", user, fields=["email", "age", "plan"]),
    IndexTable("later_by_plan", user, value="plan"),
    IndexTable("later_raw", user, value="age", unmasked=["age"]) if UNMASKED else IndexTable("id2", user, value="id2"),
]
"""


@pytest.mark.parametrize("of", ["mysql_server", "mariadb_server"])
def test_a_comment_that_gains_the_tag_masks_from_then_on_and_fills_the_views_that_have_the_column_again(
    of: str, request: pytest.FixtureRequest, redis_server: Server, tmp_path: Path
) -> None:
    server = request.getfixturevalue(of)
    client = redis.Redis(port=redis_server.port)
    client.flushall()  # of the other server's deployment
    for database in (LATER, f"{LATER}_views"):
        ask(server, f"DROP DATABASE IF EXISTS {database}")
    ask(server, f"CREATE DATABASE {LATER}")
    columns = "email VARCHAR(100) NOT NULL, age INT, plan VARCHAR(20), id2 INT NOT NULL DEFAULT 0"
    ask(server, f"CREATE TABLE {LATER}.user (id INT PRIMARY KEY, {columns})")
    ask(
        server, f"INSERT INTO {LATER}.user (id, email, age, plan) VALUES (1, 'ada', 36, 'free'), (2, 'ben', 41, 'paid')"
    )
    environment = {
        **addresses(server, redis_server),
        "VIEWTAIL_MYSQL__URL": f"{server.url}/{LATER}_views",
        "VIEWTAIL_MASKS__SECRET": SECRET,
    }

    def shown(view: str, column: str) -> dict[Any, Any]:
        return dict(ask(server, f"SELECT id, {column} FROM {LATER}_views.{view} WHERE {column} IS NOT NULL"))

    def hashes() -> dict[int, dict[bytes, bytes]]:
        return {key: client.hgetall(f"later:{key}") for key in (1, 2, 3)}

    def is_masked() -> bool:
        emails = {key: hashed(name) for key, name in ((1, "ada"), (2, "ben"), (3, "cleo"))}
        in_redis = {key: fields.get(b"email", b"").decode() for key, fields in hashes().items()}
        no_age = all(b"age" not in fields for fields in hashes().values())
        return shown("later_by_email", "email") == in_redis == emails and no_age and shown("later_by_age", "age") == {}

    with running(tmp_path, LATER_VIEWS.replace("UNMASKED", "False"), environment) as run:
        wait_for("filled views", run.is_filled, 120)
        assert shown("later_by_email", "email") == {1: "ada", 2: "ben"}
        ask(
            server,
            f"ALTER TABLE {LATER}.user MODIFY email VARCHAR(100) NOT NULL COMMENT 'a #PPI', "
            "MODIFY age INT COMMENT '#ppi'",
        )
        ask(server, f"INSERT INTO {LATER}.user (id, email, age, plan) VALUES (3, 'cleo', 50, 'free')")
        wait_for("all that is shown is masked", is_masked, 120)
        wait_for("filled views", run.is_filled, 120)
        assert "columns are masked otherwise: the view is filled again" in run.log
        for view in ("mysql:later_by_email", "mysql:later_by_age", "redis:later"):
            assert f"view={view}" in run.log or f'"view": "{view}"' in run.log or view in run.log
        assert run.command("verify", "later_by_email").returncode == 0
        assert run.stop() == 0
        # A view that says so has the value, and `check` names it; beside one of the same store that has it masked it
        # is refused.
        (tmp_path / "views.py").write_text(LATER_VIEWS.replace("UNMASKED", "True"))
        refused = run.command("check")
        assert refused.returncode == 1 and "column age of masks_later.user is unmasked for it" in refused.stdout
        alone = LATER_VIEWS.replace("UNMASKED", "True").replace('IndexTable("later_by_age", user, value="age"),', "")
        (tmp_path / "views.py").write_text(alone)
        assert "has age as it is in masks_later.user: unmasked=" in run.command("check").stdout
        run.start()
        wait_for("the value is there", lambda: shown("later_raw", "age") == {1: 36, 2: 41, 3: 50}, 120)
        ask(server, f"UPDATE {LATER}.user SET age = 51 WHERE id = 3")
        wait_for("and its changes", lambda: shown("later_raw", "age") == {1: 36, 2: 41, 3: 51}, 60)
        assert is_masked() or shown("later_by_email", "email") == {
            1: hashed("ada"),
            2: hashed("ben"),
            3: hashed("cleo"),
        }
        assert all(b"age" not in fields for fields in hashes().values())
    for database in (LATER, f"{LATER}_views"):
        ask(server, f"DROP DATABASE {database}")


def test_a_store_that_was_not_filled_masked_is_not_listed_as_masked(
    mysql_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    """The tag comes while there is no secret; what lacks is said, and the list waits for the backfill."""
    schema, client = "masks_unfilled", redis.Redis(port=redis_server.port)
    for database in (schema, f"{schema}_views"):
        ask(mysql_server, f"DROP DATABASE IF EXISTS {database}")
    ask(mysql_server, f"CREATE DATABASE {schema}")
    ask(mysql_server, f"CREATE TABLE {schema}.user (id INT PRIMARY KEY, email VARCHAR(100) NOT NULL)")
    ask(mysql_server, f"INSERT INTO {schema}.user VALUES (1, 'ada')")
    views = f"""
from viewtail import Entity, RedisHash
views = [RedisHash("unfilled", Entity("{schema}.user"), fields=["email"])]
"""
    environment = {
        **addresses(mysql_server, redis_server),
        "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/{schema}_views",
    }

    def listed() -> tuple[str | None, str | None]:
        (found,) = json.loads(run.command("check", "--people", "--json").stdout)["columns"]
        return found["form"], found["unmasked"]

    with running(tmp_path, views, environment) as run:
        wait_for("a filled view", run.is_filled, 120)
        tag = f"ALTER TABLE {schema}.user MODIFY email VARCHAR(100) NOT NULL COMMENT '#PPI'"
        ask(mysql_server, tag)
        wait_for("it is halted", lambda: "halted" in run.command("status").stdout)
        checked = run.command("check").stdout
        assert "mend: VIEWTAIL_MASKS__SECRET=..., then restart `viewtail run`" in checked, checked
        assert "then also: viewtail replay redis:unfilled" in checked and "mend: change views.py" not in checked
        assert run.stop() == 0
        environment["VIEWTAIL_MASKS__SECRET"] = SECRET
        form, unmasked = listed()
        assert form == "hash" and unmasked == "halted: the store may still have it unmasked"
        assert "hash (halted: the store may still have it unmasked)" in run.command("check", "--people").stdout
        assert client.hget("unfilled:1", "email") == b"ada"
        run.start()
        wait_for("it runs", lambda: '"running"' in run.command("status", "--json").stdout)
        assert run.command("replay", "--yes", "redis:unfilled").returncode == 0
        wait_for("it is masked", lambda: listed() == ("hash", None), 60)
        assert client.hget("unfilled:1", "email") == hashed("ada").encode()


# --- Topics and polling ---

FOREIGN, FOREIGN_TOPIC = "masks_foreign", "dbz.masks_foreign.user"


def test_views_of_a_topic_that_debezium_writes_are_masked(
    mysql_server: Server, redis_server: Server, kafka_server: Server, tmp_path: Path
) -> None:
    topic = Topic(kafka_server, FOREIGN_TOPIC)
    source = {"db": FOREIGN, "table": "user", "snapshot": "true", "file": "binlog.000003"}
    for key in (1, 2):
        image = {"id": key, "name": f"canary {key}", "phone": f"0049canary{key:04}"}
        value = {"before": None, "after": image, "source": {**source, "pos": 1000 * key}, "op": "r"}
        topic.publish_bytes(json.dumps({"id": key}).encode(), json.dumps(value).encode(), 0)
    ask(mysql_server, f"DROP DATABASE IF EXISTS {FOREIGN}")
    ask(mysql_server, f"CREATE DATABASE {FOREIGN}")
    ask(mysql_server, f"CREATE TABLE {FOREIGN}.user (id INT PRIMARY KEY, name TEXT COMMENT '#PPI', phone VARCHAR(40))")
    views = f"""
from viewtail import Entity, RedisHash
user = Entity("{FOREIGN}.user", masked={{"phone": "last4"}})
views = [RedisHash("{FOREIGN}", user, fields=["name", "phone"])]
"""
    environment = {
        "VIEWTAIL_SOURCE__URL": kafka_server.url, "VIEWTAIL_SOURCE__TOPICS": FOREIGN_TOPIC,
        "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/{FOREIGN}_views", "VIEWTAIL_REDIS__URL": redis_server.url,
        "VIEWTAIL_METRICS__PORT": "0", "VIEWTAIL_LOGS__LEVEL": "debug", "VIEWTAIL_MASKS__SECRET": SECRET,
    }  # fmt: skip
    client = redis.Redis(port=redis_server.port)
    with running(tmp_path, views, environment) as run:
        wait_for("the view is filled", run.is_well, 120)
        found = {key: client.hmget(f"{FOREIGN}:{key}", "name", "phone") for key in (1, 2)}
        assert found == {key: [hashed(f"canary {key}").encode(), f"****{key:04}".encode()] for key in (1, 2)}
        assert has_canary(run.log.encode()) == []
    for database in (FOREIGN, f"{FOREIGN}_views"):
        ask(mysql_server, f"DROP DATABASE {database}")


POLLED = "masks_polled"


def test_a_polled_table_is_masked(mysql_server: Server, tmp_path: Path) -> None:
    for database in (POLLED, f"{POLLED}_views"):
        ask(mysql_server, f"DROP DATABASE IF EXISTS {database}")
    ask(mysql_server, f"CREATE DATABASE {POLLED}")
    ask(
        mysql_server,
        f"CREATE TABLE {POLLED}.event (event_id INT AUTO_INCREMENT PRIMARY KEY, id INT NOT NULL, version INT NOT NULL, "
        "name VARCHAR(40) NOT NULL COMMENT '#PPI', UNIQUE (id, version))",
    )
    ask(mysql_server, f"INSERT INTO {POLLED}.event (id, version, name) VALUES (1, 1, 'canary 1'), (2, 1, 'canary 2')")
    views = f"""
from viewtail import Entity, IndexTable
event = Entity("{POLLED}.event", key="id", version="version", append_only=True, order="event_id")
views = [IndexTable("by_name", event, value="name")]
"""
    environment = {
        **addresses(mysql_server),
        "VIEWTAIL_SOURCE__MODE": "poll",
        "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/{POLLED}_views",
        "VIEWTAIL_MASKS__SECRET": SECRET,
    }

    def shown() -> dict[Any, Any]:
        return dict(ask(mysql_server, f"SELECT id, name FROM {POLLED}_views.by_name"))

    with running(tmp_path, views, environment) as run:
        wait_for("the view is filled", run.is_filled, 120)
        ask(
            mysql_server,
            f"INSERT INTO {POLLED}.event (id, version, name) VALUES (2, 2, 'canary 3'), (3, 1, 'canary 4')",
        )
        expected = {1: hashed("canary 1"), 2: hashed("canary 3"), 3: hashed("canary 4")}
        wait_for("new rows come", lambda: shown() == expected, 60)
        assert has_canary(run.log.encode()) == []
    for database in (POLLED, f"{POLLED}_views"):
        ask(mysql_server, f"DROP DATABASE {database}")


# --- Conditions of operators ---

ASKED = "masks_asked"


def test_a_condition_over_a_masked_column_is_kept_and_told_without_its_values(
    mysql_server: Server, tmp_path: Path
) -> None:
    for database in (ASKED, f"{ASKED}_views"):
        ask(mysql_server, f"DROP DATABASE IF EXISTS {database}")
    ask(mysql_server, f"CREATE DATABASE {ASKED}")
    ask(mysql_server, f"CREATE TABLE {ASKED}.user (id INT PRIMARY KEY, email VARCHAR(40) NOT NULL COMMENT '#PPI')")
    ask(mysql_server, f"INSERT INTO {ASKED}.user VALUES (1, 'canary-1'), (2, 'canary-2'), (3, 'other')")
    views = f"""
from viewtail import Entity, IndexTable
views = [IndexTable("by_email", Entity("{ASKED}.user"), value="email")]
"""
    environment = {
        **addresses(mysql_server),
        "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/{ASKED}_views",
        "VIEWTAIL_MASKS__SECRET": SECRET,
    }

    with running(tmp_path, views, environment) as run:
        wait_for("the view is filled", run.is_filled, 120)
        told = []
        for condition, code in (
            ("email LIKE 'canary-%'", 0),
            ("email = 'no canary'", 0),
            ("UUID_TO_BIN(email) IS NULL", 2),  # whose error has the value of a row
        ):
            done = run.command("replay", "by_email", "--yes", "--where", condition)
            assert done.returncode == code, done.stderr
            told.append(f"{done.stdout}{done.stderr}")
        assert "2 written" in told[0] and "1411" in told[2]
        assert has_canary(told[2].encode()) == []
        told.append(run.command("replays").stdout)
        kept = repr(ask(mysql_server, f"SELECT * FROM {ASKED}_views.operator_run"))
        assert "where email LIKE ? (" in kept
        assert has_canary("".join([*told, kept, run.log]).encode()) == []
    for database in (ASKED, f"{ASKED}_views"):
        ask(mysql_server, f"DROP DATABASE {database}")
