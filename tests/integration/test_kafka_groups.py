"""A consumer group is of one deployment: the broker would share partitions out among two, and each would miss some."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from ingest.kafka.group import Group
from ingest.kafka.sharing import is_of_another, named
from stack import Server
from tests.support.running import wait_for
from viewtail.changes.errors import SourceError
from viewtail.servers.brokers import SOURCE, Broker, GroupMember

TOPIC, PARTITIONS = "groups.user", 4
_numbers = itertools.count(1)


class Groups:
    """Members of one group, each in a thread of its own."""

    def __init__(self, server: Server) -> None:
        self.client: dict[str, Any] = {
            "bootstrap.servers": f"{server.host}:{server.port}",
            "client.id": "viewtail",
            "log_level": 0,
        }
        self.name = f"groups.{next(_numbers)}"
        self.broker = Broker(self.client, SOURCE)
        self.parts: dict[str, int] = {}  # by member, how many partitions it has
        self.errors: dict[str, str] = {}  # of those that left
        self.stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def join(self, deployment: str, process: str, sees: Callable[[], bool] = lambda: True) -> None:
        """`sees`: whether it is told of others."""

        def others() -> Sequence[GroupMember]:
            found = self.broker.members_of([self.name])[self.name]
            return [one for one in found if is_of_another(deployment, one)] if sees() else []

        def count(by: int) -> Callable[[Any], None]:
            return lambda parts: self.parts.update({process: self.parts.get(process, 0) + by * len(parts)})

        name = named(self.client, deployment, process)
        group = Group(self.client, self.name, name, [TOPIC], count(1), count(-1), others)

        def run() -> None:
            try:
                group.run(self.stop, list)
            except SourceError as error:
                self.errors[process] = str(error)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def until_all_are_with(self, *processes: str) -> None:
        wait_for("all partitions are with them", lambda: self._shares(processes) == PARTITIONS)

    def _shares(self, processes: Sequence[str]) -> int:
        shares = [self.parts.get(one, 0) for one in processes]
        return sum(shares) if all(shares) else 0

    def close(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(20)


@pytest.fixture
def groups(kafka_server: Server) -> Iterator[Groups]:
    found = Groups(kafka_server)
    admin = AdminClient(found.client)
    for future in admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)]).values():
        future.exception(20)  # the test before may have made it
    yield found
    found.close()


def test_who_finds_another_deployment_in_its_group_does_not_join_and_says_so(groups: Groups) -> None:
    groups.join("b" * 32, "one:1")
    groups.until_all_are_with("one:1")
    groups.join("a" * 32, "other:1")
    wait_for("the second is refused", lambda: "other:1" in groups.errors)
    assert "viewtail.bbbbbbbb@one:1 at" in groups.errors["other:1"]
    assert "VIEWTAIL_SOURCE__GROUP" in groups.errors["other:1"]
    groups.join("b" * 32, "one:2")
    groups.until_all_are_with("one:1", "one:2")
    assert groups.errors.keys() == {"other:1"}


def test_of_two_deployments_that_join_a_group_at_once_one_stays(groups: Groups) -> None:
    is_there = threading.Event()
    groups.join("b" * 32, "one:1", is_there.is_set)
    groups.join("a" * 32, "other:1", is_there.is_set)
    groups.until_all_are_with("one:1", "other:1")
    is_there.set()
    groups.join("a" * 32, "other:2", lambda: False)  # the broker shares out again
    groups.until_all_are_with("other:1", "other:2")
    assert groups.errors.keys() == {"one:1"}


def test_a_member_that_an_earlier_viewtail_runs_is_no_other_deployment(groups: Groups) -> None:
    groups.join("", "one:1")
    groups.until_all_are_with("one:1")
    groups.join("a" * 32, "one:2")
    groups.until_all_are_with("one:1", "one:2")
    assert groups.errors == {}
