"""`[notify]`: two `viewtail run` of one deployment, and what people get from them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pymysql
import pytest

from stack import Server
from tests.support.running import Run, addresses, wait_for
from tests.support.webhook import Webhook, webhook
from viewtail.deployment_watch import TELL_EVERY_S

SCHEMA, STORE = "notified", "notified_runs"
VIEWS = f"""
from viewtail import Entity, RedisHash

views = [RedisHash("{SCHEMA}", Entity("{SCHEMA}.user"), fields=["email"])]
"""
VALUE = "ada@example.org"

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as found:
        yield found


def execute(server: Server, *statements: str) -> None:
    session = pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)
    with closing(session), session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_of_two_runs_one_tells_and_none_says_the_address_or_a_value(
    mysql_server: Server, redis_server: Server, tmp_path: Path, hook: Webhook
) -> None:
    execute(
        mysql_server,
        *(f"DROP DATABASE IF EXISTS {name}" for name in (SCHEMA, STORE)),
        f"CREATE DATABASE {SCHEMA}",
        f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, email VARCHAR(60) NOT NULL)",
        f"INSERT INTO {SCHEMA}.user VALUES (1, '{VALUE}')",
    )
    environment = {
        **addresses(mysql_server, redis_server),
        "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/{STORE}",
        "VIEWTAIL_NOTIFY__URL": hook.url,
        "VIEWTAIL_CONSOLE__URL": "https://console.example.org",
    }
    with ExitStack() as runs:
        both = []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            run = Run(tmp_path / name, VIEWS, environment)
            runs.callback(run.kill)
            run.start()
            both.append(run)
        first, second = both
        tried = first.command("check", "--notify")
        assert tried.returncode == 0 and "taken, in the form json" in tried.stdout
        wait_for("all is filled", first.is_filled)
        execute(mysql_server, f"ALTER TABLE {SCHEMA}.user DROP COLUMN email")
        wait_for("people are told", lambda: hook.told(), 40)
        first.kill()  # whether it was the one that told or not: the other one goes on
        time.sleep(1.3 * TELL_EVERY_S)  # nothing more may come
        (incident,) = hook.bodies[-1]["began"]
        assert len(hook.bodies) == 2 and hook.told() == [("view_halted", "began")]
        assert incident["view"] == f"redis:{SCHEMA}" and "Halted views" in incident["mend"]
        assert incident["page"] == f"https://console.example.org/view/redis/{SCHEMA}"
        said = first.log + second.log + f"{hook.bodies}" + tried.stdout + tried.stderr
        assert "s3cr3t" not in said and VALUE not in said
        assert "people were told" in first.log + second.log
