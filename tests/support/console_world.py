"""A table, views of it in Redis and MySQL, a `viewtail run` that keeps them, and its console."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pymysql
import redis
from playwright.sync_api import Page

from stack import Server
from stack.server import free_port
from tests.support.running import Run, addresses, running, wait_for

TOKEN = "a-token-that-is-long-enough"
HOSTILE = """<script>document.title='owned'</script><img src=x onerror="document.title='owned'">"""
VIEWS = """
from viewtail import Entity, IndexTable, RedisHash, RedisJson

person = Entity("console.person")


def card(row):
    if row["name"] == "refused":
        raise ValueError("no card for such a name")
    return {"name": row["name"], "points": row["points"]}


views = [
    IndexTable("person_by_email", person, value="email"),
    RedisHash("person", person, fields=["name", "email"]),
    RedisJson("card", person, document=card, key="card:{id}"),
]
"""


@dataclass
class World:
    """The servers, the run, and the address of its console."""

    mysql: Server
    cache: Server
    run: Run
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with (
            pymysql.connect(host=self.mysql.host, port=self.mysql.port, user="root", autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    @property
    def keys(self) -> redis.Redis:
        return redis.Redis(host=self.cache.host, port=self.cache.port)

    def get(self, path: str, **headers: str) -> tuple[int, str, Mapping[str, str]]:
        return self.ask(urllib.request.Request(self.url + path, headers=headers))

    def post(self, path: str, form: Mapping[str, str], **headers: str) -> tuple[int, str, Mapping[str, str]]:
        """As curl does: no redirection is followed."""
        request = urllib.request.Request(self.url + path, urlencode(form).encode(), headers, method="POST")
        return self.ask(request)

    @staticmethod
    def ask(request: urllib.request.Request) -> tuple[int, str, Mapping[str, str]]:
        try:
            with _opener.open(request, timeout=30) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.headers

    def session(self, name: str = "ada") -> tuple[dict[str, str], str]:
        """The Cookie header of an operator who signed in, and the key of the session's forms."""
        code, _, headers = self.post("/sign-in", {"name": name, "token": TOKEN, "to": "/"})
        assert code == 303, code
        cookie = {"Cookie": headers["Set-Cookie"].partition(";")[0]}
        found = re.search(r'name="form_key" value="([0-9a-f]+)"', self.get("/", **cookie)[1])
        assert found is not None
        return cookie, found[1]

    def sign_in(self, page: Page, name: str = "ada") -> None:
        """In the browser, from wherever it is; it is back there afterwards."""
        page.get_by_role("link", name="Sign in").first.click()
        page.get_by_label("Your name, for the record").fill(name)
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="Sign out").wait_for()


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirection)


@contextmanager
def console_world(
    folder: Path, mysql: Server, cache: Server, views: str = VIEWS, **environment: str
) -> Iterator[World]:
    """All views are filled, but for the keys that one refuses."""
    port = free_port()
    settings = {
        **addresses(mysql, cache),
        "VIEWTAIL_MYSQL__URL": f"{mysql.url}/console_views",
        "VIEWTAIL_CONSOLE__PORT": f"{port}",
        "VIEWTAIL_CONSOLE__TOKEN": TOKEN,
        **environment,
    }
    made = World(mysql, cache, Run(folder, views, settings), port)
    made.sql("DROP DATABASE IF EXISTS console_views")
    made.sql("DROP DATABASE IF EXISTS console")
    made.sql("CREATE DATABASE console CHARACTER SET utf8mb4")
    made.sql("CREATE TABLE console.person (id INT PRIMARY KEY, name VARCHAR(200), email VARCHAR(200), points INT)")
    for number in range(1, 21):
        name = {3: HOSTILE, 5: "refused"}.get(number, f"name {number}")
        made.sql("INSERT INTO console.person VALUES (%s, %s, %s, %s)", number, name, f"{number}@example.org", number)
    made.keys.flushdb()
    with running(folder, views, settings) as run:
        made.run = run
        wait_for("the console, and filled views", lambda: _is_filled(made))
        yield made
    made.sql("DROP DATABASE IF EXISTS console_views")
    made.sql("DROP DATABASE IF EXISTS console")


def _is_filled(world: World) -> bool:
    code, text, _ = world.get("/")
    return code == 200 and "filled</span>" in text and not re.search(r"(new|filling|backfilling|starting)</span>", text)
