"""`viewtail init` proposes what belongs to a row in other tables, from foreign keys and from names of columns."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ingest.canonical import describe
from projectors.binding import bind
from projectors.derived.look_ups import look_ups
from projectors.related import Count, Many, One
from projectors.views import Entity
from stack import Server
from tests.support.asking import ask
from viewtail.operations.first_views import choose, views_py
from viewtail.servers.sessions import MySQLAddress, open_session

SCHEMA = "first"
SETUP = (
    "user (id BIGINT PRIMARY KEY, name VARCHAR(50))",
    "region (id BIGINT PRIMARY KEY, name VARCHAR(50))",
    "product (id BIGINT PRIMARY KEY, title VARCHAR(50), sku VARCHAR(20) NOT NULL, UNIQUE (sku))",
    "tag (id INT PRIMARY KEY, name VARCHAR(50))",
    (
        "`order` (id BIGINT PRIMARY KEY, user_id BIGINT, billing_id BIGINT, region_id VARCHAR(9), up INT, "
        "status VARCHAR(20), KEY (user_id), FOREIGN KEY (billing_id) REFERENCES first.user (id))"
    ),
    (
        "order_line (order_id BIGINT, line_no INT, sku VARCHAR(20), amount INT, PRIMARY KEY (order_id, line_no), "
        "FOREIGN KEY (order_id) REFERENCES first.`order` (id), FOREIGN KEY (sku) REFERENCES first.product (sku))"
    ),
    "order_tag (order_id BIGINT, tag_id INT, PRIMARY KEY (order_id, tag_id), KEY (tag_id))",
    "order_view (id BIGINT AUTO_INCREMENT PRIMARY KEY, order_id BIGINT, KEY (order_id))",
)


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    ask(server, f"DROP DATABASE IF EXISTS {SCHEMA}")
    ask(server, f"CREATE DATABASE {SCHEMA} CHARACTER SET utf8mb4")
    for table in SETUP:
        ask(server, f"CREATE TABLE {SCHEMA}.{table}")
    ask(server, "INSERT INTO first.`order` (id, user_id, status) VALUES (1, 7, 'paid')")
    ask(server, "INSERT INTO first.order_view (order_id) VALUES (1)")
    for _ in range(8):
        ask(server, "INSERT INTO first.order_view (order_id) SELECT order_id FROM first.order_view")
    ask(server, "ANALYZE TABLE first.`order`, first.order_view")
    return server


def proposed(server: Server, *tables: str) -> tuple[str, dict[str, Any]]:
    """The text of views.py, and what it declares; its views fit their tables."""
    address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
    with open_session(address, role="source") as session:
        text = views_py(*choose(session, SCHEMA, tables), ["mysql", "redis", "elasticsearch", "kafka"])
        namespace: dict[str, Any] = {}
        exec(compile(text, "views.py", "exec"), namespace)
        bound = bind(namespace["views"], partial(describe, session))
    assert not [each for each in look_ups(bound) if each.index is None]
    namespace["ids"] = {view.id for view in bound}
    return text, namespace


def test_an_order_has_its_users_its_lines_with_their_products_its_tags_and_a_number(server: Server) -> None:
    text, declared = proposed(server, "order")
    lines = Many("first.order_line", by="order_id", related={"product": One("first.product", on="sku", to="sku")})
    assert (
        declared["entity_with_related"]
        == Entity(
            "first.order",
            related={
                "user": One("first.user", on="billing_id"),
                "user_row": One("first.user", on="user_id"),
                "order_line": lines,
                "tag": Many("first.tag", through="first.order_tag", by="order_id", to="tag_id"),
                "order_view_count": Count("first.order_view", by="order_id"),
            },
        )
        or "billing" in text
    ), text
    assert "redis:order_document" in declared["ids"]
    assert "document=lambda row: {'user_id': row['user_id'], " in text


def test_a_relation_without_an_index_is_a_comment_with_the_statement(server: Server) -> None:
    ask(server, "ALTER TABLE first.order_view DROP KEY order_id")
    text, declared = proposed(server, "order")
    assert "redis:order_document" not in declared["ids"]
    index = "CREATE INDEX `order_id` ON `first`.`order_view` (`order_id`);"
    assert f"    # First, on the primary: {index}\n    # RedisJson('order_docu" in text


def test_a_table_that_nothing_refers_to_has_no_document(server: Server) -> None:
    text, declared = proposed(server, "region")
    assert "related" not in text and "redis:region_document" not in declared["ids"]


def test_several_tables_have_an_entity_each(server: Server) -> None:
    _, declared = proposed(server, "order_line", "user")
    line, user = declared["entity_order_line_with_related"], declared["entity_user_with_related"]
    assert {name for name, _ in line.related} == {"order", "product"}
    assert {name for name, _ in user.related} == {"order", "order_row"}
    assert {"redis:order_line_document", "redis:user_document"} <= declared["ids"]
