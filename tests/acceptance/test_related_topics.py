"""Rows made of several tables in topics: a tailer publishes them, and projectors keep every kind of view from these."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from elasticsearch import Elasticsearch

from stack import Server
from tests.support.asking import ask
from tests.support.related_world import CHANGES, VIEWS, RelatedWorld
from tests.support.running import DIED, Run, wait_for
from tests.support.topic_log import faults_of_order, told

pytestmark = [pytest.mark.redis, pytest.mark.slow]
ENTITIES = ("person", "category", "ticket", "seat", "price", "author", "thing")
WITH_TOPICS = (
    VIEWS
    + """
from viewtail import Group, SearchIndex, Topic

by_tag = Group("rel.person_tag", by="tag_id", values={"people": Count(), "last": Max("person_id")})


def searched(row):
    return {"city": row["billing"] and row["billing"]["city"], "tags": [tag["name"] for tag in row["tags"]],
            "amounts": [float(payment["amount"]) for payment in row["payments"] if payment["amount"] is not None]}


fields = {"city": "keyword", "tags": "keyword", "amounts": "double"}
views += [
    SearchIndex("rel_people", person, document=searched, fields=fields),
    RedisHash("rel_by_tag", by_tag, fields=["people", "last"]),
    Topic("rel.docs.by_tag", by_tag, partitions=2),
]
"""
    + f"topics = {{name: globals()[name] for name in {ENTITIES}}}\n"
    + "views += [Topic(f'rel.docs.{name}', of, partitions=1 + (of is person)) for name, of in topics.items()]\n"
)
SMALL = """
from viewtail import Entity, Many, RedisJson, Topic

person = Entity("rel.person", related={"notes": Many("rel_too.note", by="person_id")})
views = [
    RedisJson("person", person, document=lambda row: {"name": row["name"], "notes": row["notes"]}),
    Topic("rel.docs.small", person, partitions=1%s),
]
"""


@dataclass
class Fleet:
    """The servers, and the processes over them."""

    world: RelatedWorld
    kafka: Server
    search: Server
    folder: Path
    runs: ExitStack
    all: list[Run] = field(default_factory=list)

    def tailer(self, views: str = WITH_TOPICS) -> Run:
        return self._run("tailer", "tail", views, VIEWTAIL_SOURCE__URL=self.world.server.url)

    def projector(self, name: str = "projector", views: str = WITH_TOPICS) -> Run:
        return self._run(name, "project", views, VIEWTAIL_SOURCE__URL=self.kafka.url)

    def _run(self, name: str, role: str, views: str, **source: str) -> Run:
        run = self.made(name, views, **source)
        run.start("--role", role)
        self.runs.callback(run.kill)
        return run

    def made(self, name: str, views: str, **more: str) -> Run:
        """One that is not started."""
        folder = self.folder / name
        folder.mkdir()
        settings = {
            "VIEWTAIL_MYSQL__URL": f"{self.world.server.url}/viewtail",
            "VIEWTAIL_REDIS__URL": self.world.redis_server.url,
            "VIEWTAIL_ELASTICSEARCH__URL": self.search.url,
            "VIEWTAIL_KAFKA__URL": self.kafka.url,
            "VIEWTAIL_METRICS__PORT": "0",
            **more,
        }
        if more["VIEWTAIL_SOURCE__URL"] == self.kafka.url:
            del settings["VIEWTAIL_KAFKA__URL"]
        run = Run(folder, views, settings)
        self.all.append(run)
        return run

    def groups(self) -> dict[str, dict[str, str]]:
        client = self.redis
        names = [name for name in client.scan_iter("rel_by_tag:*") if not name.endswith(":t")]
        rows = {name.rpartition(":")[2]: client.hgetall(name) for name in names}
        return {key: {"people": row["people"], "last": row["last"]} for key, row in rows.items()}

    @property
    def redis(self) -> Any:
        import redis

        return redis.Redis(port=self.world.redis_server.port, decode_responses=True)

    def found(self) -> dict[str, Any]:
        with Elasticsearch(self.search.url) as client:
            client.indices.refresh(index="rel_people")
            hits = client.search(index="rel_people", size=1000)["hits"]["hits"]
        return {hit["_id"]: hit["_source"] for hit in hits}

    def is_equal(self) -> bool:
        """Whether every view holds what the joins say; fails with what differs."""
        assert self.world.is_equal()
        groups = "SELECT tag_id, COUNT(*), MAX(person_id) FROM rel.person_tag WHERE tag_id IS NOT NULL GROUP BY tag_id"
        wanted = {
            str(tag): {"people": str(count), "last": str(last)} for tag, count, last in ask(self.world.server, groups)
        }
        assert self.groups() == wanted
        assert self.found() == {key: _searched(row) for key, row in self.world.people().items()}
        return True

    def settle(self) -> None:
        wait_for("every view holds what the joins say", self.is_equal)


def published(tailer: Run) -> bool:
    """Whether its topics are filled; views that projectors keep may be missing yet."""
    pipelines = json.loads(tailer.command("status", "--json").stdout)["pipelines"]
    return {view["state"] for found in pipelines for view in found["views"] if found["name"] == "kafka"} == {"filled"}


def _searched(person: dict[str, Any]) -> dict[str, Any]:
    return {
        "city": person["billing"] and person["billing"]["city"],
        "tags": [tag["name"] for tag in person["tags"]],
        "amounts": [float(payment["amount"]) for payment in person["payments"] if payment["amount"] is not None],
    }


@pytest.fixture
def fleet(
    mysql_server: Server, redis_server: Server, elasticsearch_server: Server, kafka_server: Server, tmp_path: Path
) -> Iterator[Fleet]:
    # Each test has topics of its own names: what was told of the ends of deleted ones is still there.
    admin = AdminClient({"bootstrap.servers": f"{kafka_server.host}:{kafka_server.port}", "log_level": 0})
    there = [topic for topic in admin.list_topics(timeout=30).topics if topic.startswith("rel.docs.")]
    for future in admin.delete_topics(there).values() if there else ():
        future.result(30)
    world = RelatedWorld(mysql_server, redis_server)
    world.make()
    with Elasticsearch(elasticsearch_server.url) as client:
        for index in client.indices.get(index="rel_people*"):
            client.indices.delete(index=index)
    with ExitStack() as runs:
        made = Fleet(world, kafka_server, elasticsearch_server, tmp_path, runs)
        try:
            yield made
        finally:
            for run in made.all:
                print(run.folder.name, run.log[-4000:] if (run.folder / "run.log").exists() else "")


def test_every_kind_of_view_is_kept_from_topics_of_whole_rows(fleet: Fleet) -> None:
    tailer, projector = fleet.tailer(), fleet.projector()
    wait_for("the topics are filled", lambda: published(tailer), 90)
    wait_for("the views are filled", projector.is_filled, 120)
    fleet.settle()
    for number, changes in enumerate(CHANGES.values()):
        for statement in changes:
            fleet.world.do(statement)
        if number == 1:
            tailer.kill_worker("kafka")
        if number == 2:
            projector.kill()
            projector.start("--role", "project")
        fleet.settle()
    assert DIED in tailer.log
    verified = projector.command("verify", "--json")
    assert verified.returncode == 0, (verified.stdout, verified.stderr)
    views = json.loads(verified.stdout)["views"]
    assert {"redis:person", "mysql:person_paid", "elasticsearch:rel_people", "redis:rel_by_tag"} <= {
        view["view"] for view in views
    }
    assert all(view["is_equal"] and view["proven_through"] for view in views)
    checked = projector.command("check")
    assert checked.returncode == 0, checked.stdout
    assert "topic rel.docs.person: 2 partitions, whole rows" in checked.stdout
    for name in (*ENTITIES, "by_tag"):
        assert faults_of_order(told(fleet.kafka, f"rel.docs.{name}")) == []
    # What is missing and wrong is written again from the tables, as in other views.
    fleet.redis.delete("person:1")
    ask(fleet.world.server, "UPDATE viewtail.person_paid SET country = 'wrong' WHERE id = 9")
    repaired = projector.command("verify", "--repair")
    assert repaired.returncode == 0, (repaired.stdout, repaired.stderr)
    fleet.settle()
    why = json.loads(projector.command("why", "redis:person", "1", "--json").stdout)
    assert why["verdict"] == "current", why
    assert [run.stop() for run in (projector, tailer)] == [0, 0]


def test_views_are_filled_from_the_topic_alone(fleet: Fleet) -> None:
    views = WITH_TOPICS.replace("rel.docs.", "rel.docs.alone.")
    tailer = fleet.tailer(views)
    wait_for("the topics are filled", lambda: published(tailer), 90)
    for statement in CHANGES["rows that go"]:
        fleet.world.do(statement)
    projector = fleet.made("projector", views, VIEWTAIL_SOURCE__URL=fleet.kafka.url)
    projector.start("--role", "project", VIEWTAIL_SOURCE__FILL_FROM="topic")
    fleet.runs.callback(projector.kill)
    fleet.settle()
    for statement in CHANGES["many rows at once"]:
        fleet.world.do(statement)
    fleet.settle()


def test_a_topic_that_is_missing_or_lacks_a_column_is_named_with_what_to_do(fleet: Fleet) -> None:
    declared = SMALL % ""
    tailer = fleet.made("tailer", declared, VIEWTAIL_SOURCE__URL=fleet.world.server.url)
    projector = fleet.made("projector", declared, VIEWTAIL_SOURCE__URL=fleet.kafka.url)

    def checked(views: str = declared) -> str:
        (projector.folder / "views.py").write_text(views)
        done = projector.command("check")
        assert done.returncode == 1, done.stdout
        return " ".join(done.stdout.split())

    assert "topic rel.docs.small: not there" in checked()
    seen = checked(declared.replace('    Topic("rel.docs.small", person, partitions=1),\n', ""))
    assert "no topic of views.py has them" in seen and "Topic('rel.person.person', ENTITY)" in seen
    seen = checked(SMALL % ', where=lambda row: row["id"] > 1')
    assert "no topic of views.py has them" in seen
    seen = checked(SMALL % ', fields=["id", "name"]')
    assert "the topic rel.docs.small, which it is kept from, lacks notes" in seen
    # Another team's tailer may publish less than this one's declaration says.
    less = declared.replace('by="person_id")', 'by="person_id", columns=["id"])')
    (tailer.folder / "views.py").write_text(less)
    tailer.start("--role", "tail")
    fleet.runs.callback(tailer.kill)
    wait_for("the topic is filled", lambda: published(tailer), 90)
    (projector.folder / "views.py").write_text(declared)
    projector.start("--role", "project")
    fleet.runs.callback(projector.kill)
    wait_for("the view is filled from the tables", projector.is_filled, 90)
    fleet.world.do("INSERT INTO rel_too.note VALUES (50, 2, 'more')")

    def letters() -> list[str]:
        listed = json.loads(projector.command("dead-letters", "list", "--json").stdout)["letters"]
        return [row["cause"] for row in listed]

    wait_for("the key is parked with the reason", lambda: len(letters()) == 1)
    assert "column notes has rows without person_id, text" in letters()[0]
