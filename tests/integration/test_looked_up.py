"""`check` of views of several tables: which index each look-up has or needs, and how many rows one value has."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

from ingest import SourceAccess
from ingest.binlog.kind import BinlogSettings
from ingest.canonical import describe
from ingest.limits import Limits
from projectors.binding import bind
from projectors.related import Count, Many, One
from projectors.stores.redis.views import RedisJson
from projectors.views import Entity
from stack import Server
from tests.support.asking import ask
from viewtail.changes.findings import Finding, Level
from viewtail.operations.looked_up import index_findings
from viewtail.servers.sessions import MySQLAddress, open_session

LINES = Many("looked.`order line`", by="order_id", limit=100, related={"it": One("looked.product", on="product")})
TAGS = Many("looked.tag", through="looked.order_tag", by="order_id", to="tag")
RELATED = {
    "who": One("looked.user", on="us`er"),
    "lines": LINES,
    "tags": TAGS,
    "n": Count("looked.note", by="order_id"),
}
VIEW = RedisJson("order", Entity("looked.order", related=RELATED), document=dict)
HOT, COLD = 20_000, 500
SETUP = (
    "CREATE TABLE user (id BIGINT PRIMARY KEY)",
    "CREATE TABLE product (code VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY)",
    "CREATE TABLE tag (id INT PRIMARY KEY)",
    "CREATE TABLE `order` (id BIGINT PRIMARY KEY, `us``er` INT)",
    (
        "CREATE TABLE `order line` (id BIGINT AUTO_INCREMENT PRIMARY KEY, order_id BIGINT NOT NULL, "
        "product VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, amount INT, KEY (amount), "
        "KEY early (order_id, amount))"
    ),
    "CREATE TABLE order_tag (order_id BIGINT, tag INT, note TEXT, PRIMARY KEY (order_id, tag), KEY (note(20), tag))",
    "CREATE TABLE note (id BIGINT PRIMARY KEY, order_id BIGINT)",
)
HIDDEN = {
    "mysql": "ALTER TABLE looked.note ADD KEY hidden (order_id) INVISIBLE",
    "mariadb": "ALTER TABLE looked.note ADD KEY hidden (order_id) IGNORED",
}


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    ask(server, "DROP DATABASE IF EXISTS looked")
    ask(server, "CREATE DATABASE looked")
    for statement in SETUP:
        table, _, rest = statement.removeprefix("CREATE TABLE ").partition(" (")
        ask(server, f"CREATE TABLE looked.{table} ({rest}")
    ask(server, HIDDEN[request.param])
    return server


def found(server: Server) -> dict[str, Finding]:
    address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
    with open_session(address, role="source") as session:
        bound = bind([VIEW], partial(describe, session))
    source = SourceAccess(
        section=BinlogSettings(database="looked"),
        limits=Limits(),
        address=lambda: address,
        primary=lambda: address,
        own=address,
        own_database="looked",
        is_cleaned=True,
    )
    return {finding.what: finding for finding in index_findings(source, bound)}


def of_level(findings: dict[str, Finding], level: Level) -> dict[str, Finding]:
    return {what: finding for what, finding in findings.items() if finding.level is level}


def test_what_check_prints_for_a_missing_index_makes_it(server: Server) -> None:
    missing = of_level(found(server), Level.FAIL)
    assert {what: finding.mend for what, finding in missing.items()} == {
        "index of looked.order line (product)": "CREATE INDEX `product` ON `looked`.`order line` (`product`);",
        "index of looked.order (us`er)": "CREATE INDEX `us``er` ON `looked`.`order` (`us``er`);",
        "index of looked.order_tag (tag)": "CREATE INDEX `tag` ON `looked`.`order_tag` (`tag`);",
        "index of looked.note (order_id)": "CREATE INDEX `order_id` ON `looked`.`note` (`order_id`);",
    }
    assert all("redis:order finds rows by it" in finding.seen for finding in missing.values())
    for finding in missing.values():
        ask(server, finding.mend)
    findings = found(server)
    assert of_level(findings, Level.OK) == findings
    assert findings["index of looked.order line (order_id)"].seen == "early", "the table is empty"
    assert findings["index of looked.order_tag (order_id)"].seen == "PRIMARY"


def numbers(many: int) -> str:
    """A SELECT of so many numbers n."""
    digits = "(SELECT 0 d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 "
    digits += "UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)"
    tables = ", ".join(f"{digits} t{power}" for power in range(5))
    total = " + ".join(f"t{power}.d * {10**power}" for power in range(5))
    return f"SELECT {total} AS n FROM {tables} HAVING n < {many}"


def test_the_most_rows_of_one_value_are_seen_and_what_they_mean_is_said(server: Server) -> None:
    for finding in of_level(found(server), Level.FAIL).values():
        ask(server, finding.mend)
    ask(server, "ALTER TABLE looked.`order line` ADD KEY odd (product, amount), DROP KEY product")
    rows = f"SELECT n + 1, IF(n < {HOT}, 'hot''%s', CONCAT('c', n)), n, n FROM ({numbers(HOT + COLD)}) s"
    ask(server, f"INSERT INTO looked.`order line` (id, product, order_id, amount) {rows}")
    ask(server, "UPDATE looked.`order line` SET order_id = 1 WHERE id <= 4000")
    ask(server, f"INSERT INTO looked.`order` SELECT n, IF(n % 2, NULL, 7) FROM ({numbers(600)}) s")
    ask(server, "ANALYZE TABLE looked.`order line`, looked.`order`")
    findings = found(server)
    by_product = findings["index of looked.order line (product)"]
    assert f"one in a sample has about {HOT:,} (value hot'%25s)" in by_product.seen
    assert re.match(r"odd; about \d+ rows a value, one in a sample has about ", by_product.seen)
    order = findings["order of looked.order line (product)"]
    assert (order.level, order.mend) == (Level.WARN, "CREATE INDEX `product` ON `looked`.`order line` (`product`);")
    assert "about 300 (value 7)" in findings["index of looked.order (us`er)"].seen
    too_many = findings["rows of looked.order line (order_id)"]
    assert too_many.level is Level.WARN and "limit=100" in too_many.why and "about 4,000 (value 1)" in too_many.seen
    assert of_level(findings, Level.FAIL) == {}


def test_what_takes_too_long_is_left_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for finding in of_level(found(server), Level.FAIL).values():
        ask(server, finding.mend)
    ask(server, f"INSERT INTO looked.note SELECT n, 5 FROM ({numbers(1000)}) s")
    monkeypatch.setattr("ingest.canonical.group_sizes.MOST_ROWS", 400)
    assert "more than " in found(server)["index of looked.note (order_id)"].seen
    monkeypatch.setattr("viewtail.operations.looked_up.ALL_S", -1.0)
    assert found(server)["index of looked.note (order_id)"].seen == "order_id"


def test_a_select_that_the_server_ends_is_an_answer_too(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for finding in of_level(found(server), Level.FAIL).values():
        ask(server, finding.mend)
    ask(server, f"INSERT INTO looked.note SELECT n, 5 FROM ({numbers(1000)}) s")
    ask(server, "ANALYZE TABLE looked.note")
    waits = "SELECT SUM(SLEEP(0.01)) FROM (SELECT 1 FROM looked.note LIMIT 1000) g"

    def value_of(connection: Any, sql: str, *arguments: object) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(waits if "COUNT(*)" in sql else sql, arguments)
            return cursor.fetchone()[0]

    monkeypatch.setattr("ingest.canonical.group_sizes.value_of", value_of)
    monkeypatch.setattr("viewtail.operations.looked_up.SELECT_S", 0.2)
    seen = found(server)["index of looked.note (order_id)"].seen
    assert re.search(r"more than [\d,]+ \(value 5\)", seen), seen
