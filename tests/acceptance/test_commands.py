"""The real commands against real servers: init, check, get, find, search, their Python calls, and how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

import stack.mysql
import viewtail
from offsets.views import State
from stack.server import Server
from tests.support.running import Run, addresses, clean_environment, in_this_process, wait_for
from viewtail.changes.errors import MisuseError
from viewtail.settings import load

SCHEMA = "commands"
STORE = "commands_views"
PASSWORD = "cAnArY-p4ss"

TABLES = f"""
CREATE DATABASE {SCHEMA};
CREATE TABLE {SCHEMA}.user (
  id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
  name VARCHAR(64) NOT NULL,
  email VARCHAR(100) NULL,
  is_active BOOL NOT NULL DEFAULT TRUE,
  amount DECIMAL(10,2) NOT NULL DEFAULT 0,
  token BINARY(4) NOT NULL DEFAULT 0x00ff0000,
  about TEXT,
  seen_at DATETIME(3) NOT NULL DEFAULT '2024-01-02 03:04:05.600',
  UNIQUE KEY email_idx (email)
);
CREATE TABLE {SCHEMA}.member (team INT, user VARCHAR(20), PRIMARY KEY (team, user), role VARCHAR(10));
INSERT INTO {SCHEMA}.user (id, name, email, amount, about) VALUES
  (1, 'Ada', 'ada@example.org', 1.50, 'first programmer'), (2, 'Grace', 'grace@example.org', 2, 'found the bug'),
  (3, 'Edsger', NULL, 3, 'shortest paths'), (4, 'Alan', 'alan@example.org', 4, 'machines and a bug');
UPDATE {SCHEMA}.user SET is_active = FALSE WHERE id = 4;
INSERT INTO {SCHEMA}.user (id, name) SELECT 1000 + seq, 'same' FROM
  (WITH RECURSIVE s AS (SELECT 1 AS seq UNION ALL SELECT seq + 1 FROM s WHERE seq < 120) SELECT seq FROM s) t;
INSERT INTO {SCHEMA}.member VALUES (1, 'a:b', 'boss'), (1, 'c', 'crew')
"""

VIEWS = f"""
from viewtail import Entity, IndexTable, RedisHash, RedisJson, SearchIndex

user = Entity("{SCHEMA}.user")

views = [
    IndexTable("by_email", user, value="email", where=lambda row: row["is_active"]),
    IndexTable("by_name", user, value=["name", "seen_at"]),
    IndexTable("by_amount", user, value=["amount", "token"]),
    RedisHash("person", user, fields=["name", "email", "token"]),
    RedisJson("card", user, document=lambda row: {{"name": row["name"], "amount": row["amount"]}}),
    RedisHash("member", Entity("{SCHEMA}.member"), fields=["role"]),
    SearchIndex("person", user, fields={{"name": "keyword", "about": "text"}}),
]
"""


class Deployed:
    """Filled views of the tables above, and the settings that point at them."""

    def __init__(self, folder: Path, server: Server, environ: dict[str, str]) -> None:
        self.folder = folder
        self.server = server
        self.environ = environ
        self.running = Run(folder, VIEWS, environ)

    def execute(self, sql: str, *arguments: object) -> tuple[tuple[Any, ...], ...]:
        connection = connect(self.server)
        with connection, connection.cursor() as cursor:
            cursor.execute(sql, arguments or None)
            return tuple(cursor.fetchall())

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = self.running.command(*arguments)
        assert "Traceback" not in done.stdout + done.stderr
        assert "a fault in viewtail" not in done.stderr
        return done

    def json(self, *arguments: str) -> Any:
        done = self.command(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def connect(server: Server) -> pymysql.Connection[Any]:
    return pymysql.connect(host=server.host, port=server.port, user="root", autocommit=True)


@pytest.fixture(scope="module")
def deployed(
    tmp_path_factory: pytest.TempPathFactory,
    mysql_server: Server,
    redis_server: Server,
    elasticsearch_server: Server,
) -> Iterator[Deployed]:
    """Filled once, then stopped: what changes in the tables afterwards, the views do not know."""
    with connect(mysql_server) as connection, connection.cursor() as cursor:
        for statement in TABLES.split(";\n"):
            cursor.execute(statement)
    environ = addresses(mysql_server, redis_server, elasticsearch_server)
    environ["VIEWTAIL_MYSQL__URL"] = f"{mysql_server.url}/{STORE}"
    found = Deployed(tmp_path_factory.mktemp("deployed"), mysql_server, environ)
    found.running.start()

    def is_filled() -> bool:
        states = found.execute(f"SELECT state FROM {STORE}.view")
        return len(states) == 7 and all(state == State.FILLED for (state,) in states)

    try:
        wait_for("filled views", is_filled, 60)
        assert found.running.stop() == 0
    except BaseException:
        print(found.running.log)
        found.running.kill()
        raise
    yield found
    with connect(mysql_server) as connection, connection.cursor() as cursor:
        for database in (SCHEMA, STORE):
            cursor.execute(f"DROP DATABASE {database}")


# --- replay ---


def test_replay_names_each_view_once_whatever_its_store(deployed: Deployed) -> None:
    done = deployed.command(
        "replay", "--yes", "elasticsearch:person", "redis:person", "by_name", "elasticsearch:person"
    )
    assert done.returncode == 0, done.stderr
    said = [line.partition(":  ")[0].partition(" ")[0] for line in done.stdout.splitlines()]
    assert said == ["elasticsearch:person:", "redis:person:", "mysql:by_name:"]
    deployed.running.start()
    try:
        wait_for(
            "filled views",
            lambda: all(state == State.FILLED for (state,) in deployed.execute(f"SELECT state FROM {STORE}.view")),
            60,
        )
    finally:
        assert deployed.running.stop() == 0


# --- get ---


def test_get_reads_one_record_of_each_store_with_its_version_as_text(deployed: Deployed) -> None:
    content = {
        "by_email": {"email": "ada@example.org"},
        "redis:person": {"name": "Ada", "email": "ada@example.org", "token": "AP8AAA=="},
        "card": {"name": "Ada", "amount": "1.50"},
        "elasticsearch:person": {"name": "Ada", "about": "first programmer"},
    }
    for view, expected in content.items():
        found = deployed.json("get", view, "1")
        assert (found["key"], found["content"]) == ("1", expected)
        assert isinstance(found["version"], str)
        assert int(found["version"]) > 1 << 53


def test_get_prints_a_line_for_people_too(deployed: Deployed) -> None:
    done = deployed.command("get", "card", "2")
    heading, line = done.stdout.splitlines()
    assert heading.split("\t") == ["key", "version", "name", "amount"]
    assert line.split("\t")[2:] == ["Grace", "2.00"]


def test_get_takes_keys_of_several_columns_with_colons_encoded(deployed: Deployed) -> None:
    assert deployed.json("get", "member", "1:a%3Ab")["content"] == {"role": "boss"}


def test_get_says_when_there_is_nothing(deployed: Deployed) -> None:
    for view in ("by_email", "card", "elasticsearch:person"):
        done = deployed.command("get", view, "99")
        assert done.returncode == 1
        assert "has nothing under the key '99'" in done.stderr
    assert deployed.command("get", "by_email", "3").returncode == 1  # NULL: not to be told from a tombstone


def test_a_name_that_two_stores_have_must_say_which(deployed: Deployed) -> None:
    done = deployed.command("get", "person", "1")
    assert done.returncode == 2
    assert "say which: redis:person, elasticsearch:person" in done.stderr


# --- find ---


def test_find_gives_canonical_rows_by_value(deployed: Deployed) -> None:
    found = deployed.json("find", "by_email", "ada@example.org")
    (row,) = found["rows"]
    assert (row["id"], row["amount"], row["token"]) == (1, "1.50", "AP8AAA==")
    assert found["has_more"] is False
    assert deployed.json("find", "by_amount", "2", "00ff0000")["rows"][0]["name"] == "Grace"
    assert deployed.json("find", "by_name", "Ada", "2024-01-02 03:04:05.6")["rows"][0]["id"] == 1


def found_nothing(deployed: Deployed, *arguments: str) -> bool:
    done = deployed.command("find", *arguments, "--json")
    return done.returncode == 1 and json.loads(done.stdout)["rows"] == []


def test_finding_nothing_is_one_line_and_exit_code_1(deployed: Deployed) -> None:
    assert found_nothing(deployed, "by_email", "nobody@example.org")
    assert found_nothing(deployed, "by_email", "' OR 1=1 -- ")
    done = deployed.command("find", "by_email", "nobody")
    assert (done.returncode, done.stderr.strip()) == (1, "nothing found")


def test_values_are_compared_by_their_bytes(deployed: Deployed) -> None:
    assert found_nothing(deployed, "by_email", "ADA@example.org")


def test_a_row_outside_the_view_is_not_found(deployed: Deployed) -> None:
    assert found_nothing(deployed, "by_email", "alan@example.org")


def test_a_late_index_never_returns_a_row_that_does_not_match(deployed: Deployed) -> None:
    deployed.execute(f"UPDATE {SCHEMA}.user SET email = 'moved@example.org' WHERE id = 2")
    try:
        assert deployed.execute(f"SELECT email FROM {STORE}.by_email WHERE id = 2") == (("grace@example.org",),)
        assert found_nothing(deployed, "by_email", "grace@example.org")
        deployed.execute(f"UPDATE {SCHEMA}.user SET email = 'grace@example.org', is_active = FALSE WHERE id = 2")
        assert found_nothing(deployed, "by_email", "grace@example.org")
    finally:
        deployed.execute(f"UPDATE {SCHEMA}.user SET email = 'grace@example.org', is_active = TRUE WHERE id = 2")
    assert len(deployed.json("find", "by_email", "grace@example.org")["rows"]) == 1


def test_find_is_bounded_and_says_when_there_is_more(deployed: Deployed) -> None:
    done = deployed.command("find", "by_name", "same", "--json")
    found = json.loads(done.stdout)
    assert (len(found["rows"]), found["has_more"]) == (100, True)
    assert "more keys with this value than the limit, 100" in done.stderr
    assert [row["id"] for row in found["rows"]] == list(range(1001, 1101))
    assert len(deployed.json("find", "by_name", "same", "--limit", "1000")["rows"]) == 120


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [
        ("filling", None, "is only half backfilled"),
        ("new", None, "is not backfilled yet"),
        ("halted", "TRUNCATE was seen", "is halted and gets no more changes: TRUNCATE was seen"),
    ],
)
def test_reading_says_when_a_view_is_not_all_there(
    deployed: Deployed, state: str, reason: str | None, said: str
) -> None:
    deployed.execute(f"UPDATE {STORE}.view SET state = %s, reason = %s", state, reason)
    try:
        for arguments in (
            ("find", "by_email", "ada@example.org"),
            ("get", "card", "1"),
            ("search", "elasticsearch:person", "bug"),
        ):
            done = deployed.command(*arguments)
            assert done.returncode == 0
            assert f"{said}" in done.stderr
    finally:
        deployed.execute(f"UPDATE {STORE}.view SET state = 'filled', reason = NULL")


# --- search ---


def test_search_finds_documents_page_by_page(deployed: Deployed) -> None:
    def both() -> Any:
        found = deployed.json("search", "elasticsearch:person", "bug", "--size", "1", "--page", "2")
        return found if found["total"] == 2 else None

    found = wait_for("a refreshed index", both)
    assert (found["page"], found["size"], len(found["hits"])) == (2, 1, 1)
    (hit,) = found["hits"]
    assert hit["key"] in ("2", "4")
    assert isinstance(hit["version"], str)
    done = deployed.command("search", "elasticsearch:person", "programmer -bug", "--field", "about")
    assert done.stdout.splitlines()[1].split("\t")[0] == "1"
    assert "hits 1 to 1 of 1" in done.stderr
    assert "no hits in name, about, " in deployed.command("search", "elasticsearch:person", "nosuchword").stderr


def test_wrong_pages_and_fields_are_refused(deployed: Deployed) -> None:
    for options, said in (
        (("--page", "0"), "both count from 1"),
        (("--page", "9999999"), "as far as Elasticsearch pages"),
        (("--field", "nosuch"), "has no field 'nosuch'; it has name, about"),
    ):
        done = deployed.command("search", "elasticsearch:person", "x", *options)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr


# --- From Python ---


@pytest.fixture
def python(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process, in the folder and with the settings of the deployment."""
    in_this_process(deployed.running, monkeypatch)


@pytest.mark.usefixtures("python")
def test_the_same_from_python() -> None:
    rows = viewtail.find("by_email", "ada@example.org")
    assert [row["name"] for row in rows] == ["Ada"]
    assert (rows.has_more, rows.remark) == (False, None)
    assert viewtail.find("by_name", "same", limit=7).has_more
    record = viewtail.get("member", (1, "a:b"), settings=load(None, os.environ))
    assert record is not None
    assert record.content == {"role": b"boss"}
    assert viewtail.get("card", 99) is None
    wait_for("a refreshed index", lambda: viewtail.search("elasticsearch:person", "bug").total == 2)


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize(
    ("values", "limit", "said"),
    [
        ((5,), 10, "a value of type int does not fit column name: give a str"),
        ((b"x",), 10, "a value of type bytes does not fit column name: give a str"),
        (("x\ud800",), 10, "a value for column name has a lone surrogate"),
        (("x", "2024-01-01T00:00:00"), 10, r"YYYY-MM-DD HH:MM:SS"),
        (("x", "y", "z"), 10, "give 1 to 2 values, not 3"),
        (("x",), 0, "limit is 0; it must be at least 1"),
    ],
)
def test_values_that_do_not_fit_are_refused_from_python_too(values: tuple[Any, ...], limit: int, said: str) -> None:
    with pytest.raises(MisuseError, match=said):
        viewtail.find("by_name", *values, limit=limit)


def test_the_public_names_are_those_documented() -> None:
    assert set(viewtail.__all__) == {
        *("Entity", "IndexTable", "MySQLTable", "SearchIndex", "Topic"),
        *("RedisHash", "RedisJson", "RedisSet", "RedisSortedSet"),
        *("Count", "Group", "Many", "Max", "Min", "One", "Sum"),
        *("WaitedTooLongError", "find", "get", "search", "wait_for"),
    }  # fmt: skip
    assert all(getattr(viewtail, name).__doc__ for name in viewtail.__all__)


# --- check ---


def test_check_is_content_with_the_servers_of_the_stack(deployed: Deployed) -> None:
    done = deployed.command("check")
    assert done.returncode == 0, done.stdout
    assert ", 0 failures" in done.stdout
    found = deployed.json("check")
    assert found["is_well"] is True
    seen = {(one["where"], one["what"]): one["level"] for one in found["findings"]}
    assert seen["source", f"SELECT on {SCHEMA}.user"] == "ok"
    assert seen["elasticsearch", "cluster health"] == "ok"
    assert seen["views", "view mysql:by_email"] == "ok"
    assert all(one["seen"] for one in found["findings"])
    assert seen["views", "view mysql:by_email, where"] == seen["views", "view redis:card, document"] == "ok"


def test_check_tries_the_functions_of_views_on_rows_of_the_table(deployed: Deployed, tmp_path: Path) -> None:
    """It names the exception and the line, and no value; also beside a view that its table does not fit."""
    views = f"""
from viewtail import Entity, IndexTable, RedisJson, SearchIndex
user = Entity("{SCHEMA}.user")
def refuse_some(row):
    if row["email"] is None:
        raise ValueError(row["name"])
    return {{"name": row["name"]}}
views = [
    RedisJson("some", user, document=refuse_some),
    RedisJson("all", user, document=lambda row: [row["name"]]),
    RedisJson("kept", user, document=lambda row: {{"at": object()}}, where=lambda row: row["id"] > 5000),
    RedisJson("unknown", user, document=lambda row: {{"at": row["nmae"]}}),
    SearchIndex("strict", user, document=lambda row: {{"name": 1, "nmae": 2}}, fields={{"name": "keyword"}}),
    IndexTable("no_list", user, value="name", each="INT"),
    IndexTable("misfit", user, value="nmae"),
]
"""
    done = Run(tmp_path, views, deployed.environ).command("check", "--json")
    assert done.returncode == 1
    found = {one["what"]: one for one in json.loads(done.stdout)["findings"] if one["where"] == "views"}
    assert found["view mysql:misfit"]["level"] == "fail"
    some = found["view redis:some, document"]
    assert some["level"] == "warn"
    assert re.match(r"document raised ValueError at views.py:6 \(\d+ of the table's first 100 rows\)", some["seen"])
    assert found["view redis:all, document"]["level"] == "fail"
    assert "document returned list, not a dict or None" in found["view redis:all, document"]["seen"]
    assert found["view redis:kept, where and document"]["level"] == "ok"
    assert "document raised KeyError for 'nmae' at views.py:12" in found["view redis:unknown, document"]["seen"]
    assert "did you mean name?" in found["view redis:unknown"]["seen"]
    strict = found["view elasticsearch:strict, document"]
    assert strict["level"] == "fail" and "returned the field nmae, which the view does not declare" in strict["seen"]
    no_list = found["view mysql:no_list, each"]
    assert no_list["level"] == "fail" and "its list is no JSON" in no_list["seen"] and "each=" in no_list["mend"]
    assert "Edsger" not in done.stdout + done.stderr


WRONG = (
    "--binlog-row-metadata=MINIMAL",
    "--binlog-row-image=MINIMAL",
    "--binlog-row-value-options=PARTIAL_JSON",
    "--gtid-mode=OFF",
    "--enforce-gtid-consistency=OFF",
    "--binlog-order-commits=OFF",
    "--binlog-transaction-compression=ON",
    "--binlog-checksum=NONE",
    "--binlog-expire-logs-seconds=60",
    "--max-allowed-packet=1M",
)


def test_the_sql_that_check_prints_mends_what_it_found(tmp_path: Path) -> None:
    server = stack.mysql.start(tmp_path / "mysql", options=WRONG)
    try:
        with connect(server) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE TABLE shop.user (id INT PRIMARY KEY, email VARCHAR(50))")
            cursor.execute(f"CREATE USER 'viewtail'@'%' IDENTIFIED BY '{PASSWORD}'")
        views = "from viewtail import *\nviews = [IndexTable('i', Entity('shop.user'), value='email')]"
        url = f"mysql://viewtail:{PASSWORD}@{server.host}:{server.port}"
        running = Run(tmp_path, views, {"VIEWTAIL_SOURCE__URL": url})
        levels = {"fail": 0, "warn": 0}
        for _ in range(3):  # what a table lacks can be seen once it may be seen
            findings = _check(running)
            bad = [one for one in findings if one["level"] != "ok"]
            for one in bad:
                levels[one["level"]] += 1
            _apply(server, bad)
        assert bad == []
        assert levels["warn"] == 5
        assert levels["fail"] == 11  # compressed transactions and partial JSON are read, so nobody need mend them
        assert running.command("check").returncode == 0
    finally:
        server.kill()


def _check(running: Run) -> list[dict[str, str]]:
    done = running.command("check", "--json")
    assert PASSWORD not in done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["is_well"] else 1)
    findings: list[dict[str, str]] = found["findings"]
    return findings


def _apply(server: Server, findings: list[dict[str, str]]) -> None:
    """The statements that are printed, as they are."""
    with connect(server) as connection, connection.cursor() as cursor:
        for one in findings:
            if one["where"] == "views":  # the message holds the GRANT
                cursor.execute("GRANT SELECT ON `shop`.`user` TO 'viewtail'@'%'")
                continue
            assert one["why"]
            for statement in one["mend"].split(";"):
                if statement.strip():
                    cursor.execute(statement)


def test_check_looks_at_every_server_when_one_is_away(deployed: Deployed) -> None:
    environ = {**deployed.environ, "VIEWTAIL_REDIS__URL": "redis://127.0.0.1:1"}
    (deployed.folder / "views.py").write_text(VIEWS)
    done = Run(deployed.folder, VIEWS, environ).command("check", "--json")
    findings = json.loads(done.stdout)["findings"]
    assert done.returncode == 1
    assert [one["where"] for one in findings if one["level"] == "fail"] == ["redis"]
    assert {one["where"] for one in findings} == {"source", "mysql", "redis", "elasticsearch", "views"}


def test_an_output_that_takes_nothing_is_said(deployed: Deployed) -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [sys.executable, "-m", "viewtail.main", "find", "by_name", "same", "--json", "--limit", "120"],
            cwd=deployed.folder,
            env={**clean_environment(), **deployed.environ},
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )
    assert process.returncode == 1
    assert process.stderr == b"viewtail: error: the output cannot be written: No space left on device\n"


# --- init ---


def test_init_writes_files_that_check_and_run_take_as_they_are(deployed: Deployed, tmp_path: Path) -> None:
    running = Run(tmp_path, "", {**deployed.environ, "VIEWTAIL_MYSQL__URL": f"{deployed.server.url}/{STORE}"})
    (tmp_path / "views.py").unlink()
    done = running.command("init", "--schema", SCHEMA)
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "views.py").read_text()
    assert "IndexTable('user_by_email', entity, value='email')" in written
    assert "RedisHash('user', entity, fields=['name', 'email', 'is_active', 'amount'])" in written
    assert "SearchIndex('user', entity, fields={'name': 'text', 'email': 'text'})" in written
    assert f"# Other tables that can have views, each as an Entity of its own: {SCHEMA}.member" in written
    assert "views.py: 1 more table can have views" in done.stdout
    assert running.command("check").returncode == 0


def test_init_s_examples_are_toml_when_they_are_uncommented(deployed: Deployed, tmp_path: Path) -> None:
    source = {"VIEWTAIL_SOURCE__URL": deployed.server.url}
    running = Run(tmp_path, "", source)
    (tmp_path / "views.py").unlink()
    assert running.command("init", "--schema", SCHEMA).returncode == 0
    written = (tmp_path / "viewtail.toml").read_text()
    found = tomllib.loads(re.sub(r"^# (?=url = )", "", written, flags=re.MULTILINE))
    assert found["elasticsearch"]["url"].startswith("http://")
    assert found["redis"]["url"].startswith("redis://") and found["mysql"]["url"].endswith("/viewtail")


def test_init_has_a_topic_when_kafka_s_address_is_set(deployed: Deployed, tmp_path: Path) -> None:
    kafka = {"VIEWTAIL_KAFKA__URL": "kafka://127.0.0.1:9092"}
    running = Run(tmp_path, "", {"VIEWTAIL_SOURCE__URL": deployed.server.url, **kafka})
    (tmp_path / "views.py").unlink()
    assert running.command("init", "--schema", SCHEMA).returncode == 0
    assert f"\n    Topic('{SCHEMA}.user', entity),\n" in (tmp_path / "views.py").read_text()
    assert "[kafka]\n# url comes from VIEWTAIL_KAFKA__URL" in (tmp_path / "viewtail.toml").read_text()
    printed = running.command("schema", f"kafka:{SCHEMA}.user")
    assert printed.returncode == 0, printed.stderr
    assert json.loads(printed.stdout)["title"] == f"viewtail.{SCHEMA}.user.Envelope"


def test_init_shows_the_topic_as_a_comment_without_kafka_s_address(deployed: Deployed, tmp_path: Path) -> None:
    running = Run(tmp_path, "", {"VIEWTAIL_SOURCE__URL": deployed.server.url})
    (tmp_path / "views.py").unlink()
    assert running.command("init", "--schema", SCHEMA).returncode == 0
    assert (
        f"(set VIEWTAIL_KAFKA__URL first)\n    # Topic('{SCHEMA}.user', entity),\n"
        in (tmp_path / "views.py").read_text()
    )
    assert '[kafka]\n# url = "kafka://HOST:9092"' in (tmp_path / "viewtail.toml").read_text()


def test_only_topics_have_a_schema_to_print(deployed: Deployed) -> None:
    done = deployed.command("schema", "card")
    assert (done.returncode, "view redis:card has no messages: only topics have a schema" in done.stderr) == (2, True)


def test_init_keeps_what_is_there(deployed: Deployed, tmp_path: Path) -> None:
    running = Run(tmp_path, "mine = 1", deployed.environ)
    done = running.command("init", "--schema", SCHEMA)
    assert done.returncode == 1
    assert "views.py would be overwritten, so nothing was written" in done.stderr
    assert (tmp_path / "views.py").read_text() == "mine = 1"
    assert not (tmp_path / "viewtail.toml").exists()
    assert running.command("init", "--schema", SCHEMA, "--force").returncode == 0
    assert "IndexTable" in (tmp_path / "views.py").read_text()


def test_a_password_of_the_environment_is_not_written_into_the_file(deployed: Deployed, tmp_path: Path) -> None:
    deployed.execute(f"CREATE USER IF NOT EXISTS 'initial'@'%' IDENTIFIED BY '{PASSWORD}'")
    deployed.execute("GRANT SELECT ON *.* TO 'initial'@'%'")
    url = f"mysql://initial:{PASSWORD}@{deployed.server.host}:{deployed.server.port}/{SCHEMA}"
    running = Run(tmp_path, "", {"VIEWTAIL_SOURCE__URL": url})
    (tmp_path / "views.py").unlink()
    assert running.command("init").returncode == 0
    toml = tmp_path / "viewtail.toml"
    assert PASSWORD not in toml.read_text()
    assert stat.S_IMODE(toml.stat().st_mode) == 0o600
    assert "# RedisHash(" in (tmp_path / "views.py").read_text()  # no address, so only a comment
    given = Run(tmp_path, "", {})
    assert given.command("init", "--source", url, "--force").returncode == 0
    assert PASSWORD in toml.read_text()
    assert stat.S_IMODE(toml.stat().st_mode) == 0o600
    assert given.command("find", "user_by_email", "ada@example.org").returncode == 1  # reached, not filled
    deployed.execute("DROP USER 'initial'@'%'")


def test_init_asks_which_schema_when_there_are_several(deployed: Deployed, tmp_path: Path) -> None:
    running = Run(tmp_path, "", deployed.environ)
    (tmp_path / "views.py").unlink()
    done = running.command("init", "--schema", "comands")
    assert (done.returncode, "did you mean commands?" in done.stderr) == (2, True), done.stderr
    assert list(tmp_path.iterdir()) == []


# --- How commands end ---


@pytest.mark.parametrize(
    "name", ["", "init", "check", "run", "status", "get", "find", "search", "schema", "replay", "forget"]
)
def test_every_command_has_help(tmp_path: Path, name: str) -> None:
    done = Run(tmp_path, "", {}).command(*filter(None, [name, "--help"]))
    assert done.returncode == 0
    assert f"Usage: viewtail {name}".strip() in done.stdout
    assert len(done.stdout.split()) > 30


def test_ctrl_c_ends_a_command_with_130_and_no_traceback(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        (tmp_path / "views.py").write_text(VIEWS)
        environ = {"VIEWTAIL_SOURCE__URL": f"mysql://me@127.0.0.1:{listening.getsockname()[1]}"}
        process = subprocess.Popen(
            [sys.executable, "-m", "viewtail.main", "status"],
            cwd=tmp_path,
            env={**clean_environment(), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        connection, _ = listening.accept()  # it waits for a greeting that never comes
        with connection:
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in out + errors


def test_a_reader_that_had_enough_is_no_error(deployed: Deployed) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "viewtail.main", "find", "by_name", "same", "--json", "--limit", "120"],
        cwd=deployed.folder,
        env={**clean_environment(), **deployed.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, b"")
