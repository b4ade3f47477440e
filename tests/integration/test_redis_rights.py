"""A Redis user with the documented rights can do all that viewtail does; `check` says what one with fewer lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from stack import Server
from tests.support.asking import ask
from tests.support.running import Run, addresses, wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.redis]
SCHEMA = "redis_rights"
VIEWS = f"""
from viewtail import Entity, RedisHash, RedisJson, RedisSet, RedisSortedSet

user = Entity("{SCHEMA}.user")
views = [
    RedisHash("user", user, fields=["name"]),
    RedisJson("card", user, document=lambda row: {{"name": row["name"]}}),
    RedisSet("named", user, key="of:{{name}}"),
    RedisSortedSet("aged", user, key="ages:{{name}}", score="age"),
    RedisHash("large", user, fields=["name"], key="large:{{generation}}:{{id}}"),
]
"""
KEYS = [pattern for word in ("named", "of", "aged", "ages", "large") for pattern in (f"~{word}:*", f"~{{{word}:*")]
PAGE = Path(__file__).parents[2] / "docs" / "deployments.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, mysql_server: Server, redis_server: Server) -> Iterator[Run]:
    ask(mysql_server, f"CREATE DATABASE {SCHEMA}")
    ask(mysql_server, f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, name VARCHAR(20) NOT NULL, age INT NOT NULL)")
    ask(mysql_server, f"INSERT INTO {SCHEMA}.user VALUES (1, 'ada', 36), (2, 'eve', 20)")
    environ = addresses(mysql_server, redis_server) | {
        "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/{SCHEMA}_own",
        "VIEWTAIL_REDIS__USER": "few",
        "VIEWTAIL_REDIS__PASSWORD": "secret",
    }
    found = Run(tmp_path_factory.mktemp("rights"), VIEWS, environ)
    yield found
    found.kill()
    for name in (SCHEMA, f"{SCHEMA}_own"):
        ask(mysql_server, f"DROP DATABASE IF EXISTS {name}")


@pytest.fixture
def client(redis_server: Server) -> Iterator[Redis]:
    with Redis(port=redis_server.port) as found:
        yield found
        found.execute_command("ACL", "DELUSER", "few")


def documented() -> list[str]:
    """The rights in docs/deployments.md."""
    (line,) = re.findall(r"ACL SETUSER viewtail on >PASSWORD (.*)", PAGE.read_text())
    return str(line).split()


def allow(client: Redis, *rights: str) -> None:
    client.execute_command("ACL", "SETUSER", "few", "reset", "on", ">secret", *KEYS, *rights)


@pytest.mark.parametrize(
    ("taken", "lacks"),
    [("~viewtail:*", "key"), ("-eval", "'eval'"), ("-hgetall", "The user executing the script can't run this command")],
    ids=["the key of owners", "EVAL", "HGETALL"],
)
def test_check_fails_where_a_redis_user_may_not_ask_whose_a_place_is(
    run: Run, client: Redis, taken: str, lacks: str
) -> None:
    rights = documented()
    allow(client, *([one for one in rights if one != taken] if taken[0] == "~" else [*rights, taken]))
    done = run.command("check", "--json")
    assert done.stdout, done.stderr
    failed = [one for one in json.loads(done.stdout)["findings"] if one["level"] == "fail"]
    assert done.returncode == 1
    assert {one["what"] for one in failed} >= {"view redis:user, its place"}
    for one in failed:
        assert "not known whose its place is" in one["seen"] and lacks in one["seen"], one
        assert "docs/deployments.md" in one["seen"]


def test_the_documented_rights_of_a_redis_user_suffice(run: Run, client: Redis, mysql_server: Server) -> None:
    allow(client, *documented())
    done = run.command("check")
    assert done.returncode == 0, done.stdout
    run.start()
    wait_for("all is well", run.is_well)
    ask(mysql_server, f"UPDATE {SCHEMA}.user SET name = 'bob', age = 50 WHERE id = 1")
    ask(mysql_server, f"DELETE FROM {SCHEMA}.user WHERE id = 2")
    wait_for("the sets follow", lambda: client.smembers("of:bob") == {b"1"} and not client.exists("ages:eve"))
    for command in ("verify", "replay redis:user --yes --wait", "rebuild redis:large --hurry"):
        done = run.command(*command.split())
        assert done.returncode == 0, done.stdout + done.stderr
    assert run.command("rebuild", "redis:card", "--hurry").returncode == 0
    done = run.command("forget", f"{SCHEMA}.user", "2", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert run.command("get", "redis:user", "1").returncode == 0
    assert run.stop() == 0
