"""docs/first-steps.md and docs/howto/ as they are written: a reader's commands, on real servers.

The pages are read, not repeated: their views.py are written, their commands are run, and what they show must be there.
`…` on a page stands for anything.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from elasticsearch import Elasticsearch
from elasticsearch.helpers import bulk

import stack.mysql
import stack.redis
from stack import Server
from tests.support import shop_of_pages
from tests.support.asking import ask
from tests.support.indices import Indices
from tests.support.pages import PageReader, Step, steps_of
from tests.support.running import Run, wait_for

DOCS = Path(__file__).resolve().parents[2] / "docs"
FIRST_STEPS = "first-steps.md"
PAGES = [FIRST_STEPS, *sorted(f"howto/{page.name}" for page in (DOCS / "howto").glob("*.md"))]
# These change nothing, so they are repeated until they show what the page shows.
LOOKS = (
    *(f"viewtail {name} " for name in ("status", "why", "get", "find", "search", "dead-letters list", "verify")),
    *("redis-cli -h cache HGET", "redis-cli -h cache ZRANGE", "curl ", 'mysql -h db1 -e "SELECT'),
)
LEFT_TABLE = """
CREATE DATABASE copy;
CREATE TABLE copy.shop_customer (
  id INT NOT NULL PRIMARY KEY, name LONGTEXT NOT NULL, email LONGTEXT, city LONGTEXT NOT NULL
);
INSERT INTO copy.shop_customer SELECT id, name, email, city FROM shop.customer WHERE id <> 11;
UPDATE copy.shop_customer SET city = 'Rome' WHERE id = 21;
INSERT INTO copy.shop_customer VALUES (9001, 'Nobody', NULL, 'Nowhere')"""
NOT_RUN = ("pipx install ",)  # tests/acceptance/test_distribution.py installs viewtail

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.elasticsearch, pytest.mark.slow]


class Reader(PageReader):
    """Somebody with the servers that the pages name, and a folder."""

    def __init__(self, mysql: Server, cache: Server, search: Server, folder: Path) -> None:
        self.mysql, self.cache, self.search = mysql, cache, search
        # Only what keeps tests apart; what a reader sets comes from the pages.
        self.settings = {"VIEWTAIL_METRICS__PORT": "0"}
        self.run = Run(folder, "", self.settings)
        (folder / "views.py").unlink()  # a reader has none yet

    def follow(self, step: Step) -> None:
        if step.views:
            (self.run.folder / "views.py").write_text(step.views)
            if step.views == "views = []\n":  # the page has the reader stop it before
                assert self.run.stop() == 0
        elif step.sql:
            for statement in step.sql.strip().removesuffix(";").split(";\n"):
                ask(self.mysql, statement)
        elif step.shell:
            self._set(step.shell)
        elif step.command == "viewtail run":
            self.run.start()
            wait_for("it is at work, as somebody who types the next command sees it", self.run.is_filled)
        elif f"{step.command} ".startswith(LOOKS) and "--repair" not in step.command:
            wait_for(f"$ {step.command}", lambda: self.shows(step))
        else:
            self.shows(step)
            if step.command.startswith("viewtail pause "):
                wait_for("its process has seen it", lambda: "pipeline paused" in self.run.log)

    def _set(self, lines: str) -> None:
        for line in lines.splitlines():
            if not line.startswith(NOT_RUN):
                export, _, setting = line.partition(" ")
                assert export == "export", line
                name, _, value = setting.partition("=")
                self.settings[name] = self.translated(value)

    def places(self) -> dict[str, str]:
        return {
            "mysql -h db1": shlex.join(stack.mysql.client(self.mysql)),
            "redis-cli -h cache": shlex.join(stack.redis.client(self.cache)),
            "@db1": f"@{self.mysql.host}:{self.mysql.port}",
            "redis://cache": self.cache.url,
            "http://search:9200": self.search.url,
        }


@pytest.fixture
def reader(
    mysql_server: Server, redis_server: Server, elasticsearch_server: Server, tmp_path: Path
) -> Iterator[Reader]:
    """With the tables that the pages are about, and nothing else yet."""
    _forget(mysql_server, redis_server, elasticsearch_server)
    for statement in shop_of_pages.statements():
        ask(mysql_server, statement)
    made = Reader(mysql_server, redis_server, elasticsearch_server, tmp_path)
    try:
        yield made
    finally:
        if made.run.process is not None:
            print(made.run.log[-6000:])
            made.run.kill()
        _forget(mysql_server, redis_server, elasticsearch_server)


def _forget(mysql: Server, cache: Server, search: Server) -> None:
    for database in ("shop", "viewtail", "copy"):
        ask(mysql, f"DROP DATABASE IF EXISTS {database}")
    ask(mysql, "DROP USER IF EXISTS viewtail")
    ask(mysql, "RESET PERSIST IF EXISTS binlog_row_metadata")
    with redis.Redis(port=cache.port) as client:
        client.flushall()
    # `why` reads it backwards, and passes over much where a table of that name was another one before.
    ask(mysql, "FLUSH BINARY LOGS")
    ask(mysql, f"PURGE BINARY LOGS TO '{ask(mysql, 'SHOW BINARY LOGS')[-1][0]}'")
    Indices(search).drop_all()
    with Elasticsearch(search.url) as client:
        client.options(ignore_status=404).indices.delete(index="orders")  # what another tool left


# -- what is there before somebody opens the page; in each, 11 is missing, 21 is wrong, 9001 is too many --------------


def left_by_pgsync(reader: Reader) -> None:
    """The index in the form that pgsync 7.3.0 leaves (tests/peers/pgsync_left.py runs it)."""
    orders: dict[int, dict[str, Any]] = {
        number: {"id": number, "status": status, "customer": {"name": name}, "lines": [], "_meta": {}}
        for number, status, name in ask(
            reader.mysql,
            "SELECT o.id, o.status, c.name FROM shop.order AS o JOIN shop.customer AS c ON c.id = o.customer_id",
        )
    }
    for number, title, amount in ask(
        reader.mysql, "SELECT order_id, title, amount FROM shop.order_line ORDER BY order_id, line_no"
    ):
        orders[number]["lines"].append({"title": title, "amount": float(amount)})
    del orders[11]
    orders[21]["lines"] *= 2
    orders[9001] = {"id": 9001, "status": "open"}
    with Elasticsearch(reader.search.url) as client:
        bulk(client, ({"_index": "orders", "_id": str(n), **row} for n, row in orders.items()), refresh=True)


def left_by_debezium(reader: Reader) -> None:
    """The table in the form that Debezium's JDBC sink leaves (test_adopt_debezium.py runs it)."""
    for statement in LEFT_TABLE.split(";"):
        ask(reader.mysql, statement)


BEFORE: dict[str, Callable[[Reader], None]] = {
    "howto/from-pgsync.md": left_by_pgsync,
    "howto/from-debezium.md": left_by_debezium,
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("page", PAGES)
def test_a_reader_sees_what_the_page_shows(page: str, reader: Reader) -> None:
    steps = steps_of((DOCS / page).read_text())
    assert len(steps) > 5 and sum(bool(step.shown) for step in steps) > 3, "it is read as it is meant"
    if page != FIRST_STEPS:  # who comes here has been there: the user, and the settings
        steps = [step for step in steps_of((DOCS / FIRST_STEPS).read_text()) if step.sql or step.shell] + steps
    BEFORE.get(page, lambda _: None)(reader)
    for step in steps:
        reader.follow(step)


def test_every_page_says_what_it_is_for_and_where_to_go_on() -> None:
    for page in PAGES[1:]:
        text = (DOCS / page).read_text()
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert {"What can go wrong", "Read on"} <= {*headings} or page == "howto/missing-rows.md", page
        assert "```console\n$ viewtail " in text or "    ```console\n" in text, page
        assert len(text.splitlines()) < 160, f"{page}: one screen or two"
