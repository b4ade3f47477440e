"""A topic that is published again: rows as they are now, and deletes of what the table has no longer."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from stack.server import Server
from tests.acceptance.test_status import Shop, own_mysql

__all__ = ["own_mysql"]

pytestmark = [pytest.mark.mysql, pytest.mark.kafka, pytest.mark.slow]
VIEWS = """
from viewtail import Entity, Topic
views = [Topic({topic!r}, Entity("shop.user"), partitions=1)]
"""


class TopicShop(Shop):
    """A shop with one topic."""

    def __init__(self, mysql: Server, kafka: Server, folder: Path) -> None:
        super().__init__(mysql, folder)
        self.topic = f"user-{uuid.uuid4().hex[:8]}"
        self.brokers = kafka.url.removeprefix("kafka://")
        self.environment["VIEWTAIL_KAFKA__URL"] = kafka.url
        (folder / "views.py").write_text(VIEWS.format(topic=self.topic))
        # Every test has a database of its own name, but the record of positions is the deployment's.
        self.environment["VIEWTAIL_MYSQL__URL"] = f"{mysql.url}/vt_{self.topic.replace('-', '_')}"

    def until_filled(self) -> None:
        self.until(lambda: list(self.views().values()) == ["filled"])

    def messages(self) -> list[tuple[dict[str, Any], str | None, Any]]:
        """Key, op and the row after, of every committed message; a tombstone has no op."""
        with closing(
            Consumer({
                "bootstrap.servers": self.brokers, "group.id": "t", "isolation.level": "read_committed",
                "enable.partition.eof": True,
            })
        ) as consumer:  # fmt: skip
            consumer.assign([TopicPartition(self.topic, 0, 0)])
            found = []
            while (message := consumer.poll(10)) is not None and message.error() is None:
                value = orjson.loads(message.value()) if message.value() is not None else None
                op, after = (None, None) if value is None else (value["op"], value["after"])
                found.append((orjson.loads(message.key() or b""), op, after))
        return found

    def newest(self) -> dict[int, Any]:
        """What a consumer has who keeps the newest message of each key."""
        found: dict[int, Any] = {}
        for key, op, after in self.messages():
            if op is None:
                found.pop(key["id"], None)
            else:
                found[key["id"]] = after
        return found


@pytest.fixture
def shop(own_mysql: Server, kafka_server: Server, tmp_path: Path) -> Iterator[TopicShop]:
    folder = tmp_path / "shop"
    folder.mkdir()
    shop = TopicShop(own_mysql, kafka_server, folder)
    yield shop
    shop.connection.close()
    admin = AdminClient({"bootstrap.servers": shop.brokers})  # its futures fail once nothing holds it
    admin.delete_topics([shop.topic])[shop.topic].result(10)


def test_a_replay_publishes_present_rows_and_deletes_what_the_binlog_never_told(shop: TopicShop) -> None:
    shop.sql("INSERT INTO shop.user VALUES (3, 'x@example.org'), (4, NULL)")
    with shop.running():
        shop.until_filled()
        shop.sql("DELETE FROM shop.user WHERE id = 4")
        shop.until(lambda: sorted(shop.newest()) == [1, 2, 3])
    shop.sql("SET sql_log_bin = 0")
    shop.sql("DELETE FROM shop.user WHERE id = 2")
    shop.sql("UPDATE shop.user SET email = 'new@example.org' WHERE id = 3")
    shop.sql("SET sql_log_bin = 1")
    before = len(shop.messages())
    with shop.running():
        shop.until_filled()
        assert shop.viewtail("replay", "--yes", f"kafka:{shop.topic}").returncode == 0
        shop.until(lambda: 2 not in shop.newest())
        shop.until_filled()
    assert [(key["id"], op) for key, op, _ in shop.messages()[before:]] == [(1, "r"), (3, "r"), (2, "d"), (2, None)]
    assert shop.newest() == {
        1: {"id": 1, "email": "ada@example.org"}, 3: {"id": 3, "email": "new@example.org"},
    }  # fmt: skip


def test_a_truncate_deletes_from_the_topic_what_the_table_has_no_longer_and_the_view_goes_on(shop: TopicShop) -> None:
    with shop.running():
        shop.until_filled()
        before = len(shop.messages())
        shop.sql("TRUNCATE TABLE shop.user")
        shop.sql("INSERT INTO shop.user VALUES (2, 'again@example.org'), (3, 'new@example.org')")
        shop.until(lambda: sorted(shop.newest()) == [2, 3])
        shop.sql("UPDATE shop.user SET email = 'later@example.org' WHERE id = 3")
        shop.until(lambda: shop.newest()[3]["email"] == "later@example.org")
        shop.until_filled()
    since = [(key["id"], op) for key, op, _ in shop.messages()[before:]]
    assert [op for key, op in since if key == 1] == ["d", None], "its delete, and the tombstone behind it"
    assert "d" not in [op for key, op in since if key != 1], "what was inserted again is not deleted"
    assert shop.newest() == {
        2: {"id": 2, "email": "again@example.org"}, 3: {"id": 3, "email": "later@example.org"},
    }  # fmt: skip


def test_get_reads_a_topic_by_key(shop: TopicShop) -> None:
    with shop.running():
        shop.until_filled()
        found = shop.viewtail("get", f"kafka:{shop.topic}", "2", "--json")
        assert "grace@example.org" in found.stdout, found.stderr
        assert shop.viewtail("get", f"kafka:{shop.topic}", "77").returncode == 1
