"""Kafka with an authorizer: viewtail needs the rights that `check --print-grants` prints, and no more."""

from __future__ import annotations

import itertools
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from pydantic import SecretStr

import stack.kafka
from ingest import SourceAccess
from ingest.binlog.coordinates import BinlogPosition
from ingest.kafka.kind import KafkaKind
from ingest.kafka.position import own
from ingest.kafka.settings import KafkaSourceSettings
from ingest.limits import Limits
from projectors.binding import bind
from projectors.stores import publisher
from projectors.stores.access import Access
from projectors.stores.topics.store import KafkaSettings, TopicsStore
from projectors.stores.topics.views import Topic
from projectors.views import Entity
from stack import Server
from stack.server import HOST, free_port
from tests.support.asking import ask
from tests.support.events import user_table
from tests.support.running import Run, addresses, running, wait_for
from viewtail.changes.batches import Batch, Followed, Watermark
from viewtail.changes.errors import ViewtailError
from viewtail.changes.findings import Level
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.published import POSITIONS
from viewtail.changes.writes import KeptChange, ViewWrites
from viewtail.servers.sessions import MySQLAddress

pytestmark = [pytest.mark.kafka, pytest.mark.mysql]

SCHEMA, OWN = "kafka_rights", "kafka_rights_own"
VIEWS = f"""
from viewtail import Entity, IndexTable, Topic

user = Entity("{SCHEMA}.user")
views = [Topic("{SCHEMA}.user", user, partitions=2), IndexTable("user_by_name", user, value="name")]
"""
PASSWORD = "secret"
NOWHERE = MySQLAddress(host="127.0.0.1", port=1, user="root")
TABLE = user_table()
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Guarded:
    """A broker that lets nobody do what was not granted."""

    server: Server
    folder: Path

    def url(self, user: str) -> str:
        return f"kafka://{user}:{PASSWORD}@{HOST}:{self.server.port}"

    def admin(self) -> AdminClient:
        return AdminClient(self._login())

    def _login(self) -> dict[str, str | int | float | bool]:
        return {
            "bootstrap.servers": f"{HOST}:{self.server.port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": PASSWORD,
        }

    def run(self, command: str) -> None:
        """A command of kafka-acls.sh, as the administrator."""
        words = shlex.split(command)
        assert words[0] == "kafka-acls.sh"
        file = self.folder / "admin.properties"
        login = f'{_MODULE} required username="admin" password="{PASSWORD}";'
        of_java = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login}
        stack.kafka.write_properties(file, of_java)
        argv = [*stack.kafka.command("org.apache.kafka.tools.AclCommand", ("-Xmx256m",)), *words[1:]]
        done = subprocess.run([*argv, "--command-config", str(file)], capture_output=True, text=True)
        assert done.returncode == 0 and "Adding ACLs" in done.stdout, done.stdout + done.stderr

    def grant_only(self, bindings: Sequence[AclBinding]) -> None:
        """These, and nothing else to anybody."""
        admin = self.admin()
        everything = AclBindingFilter(
            ResourceType.ANY,
            None,  # type: ignore[arg-type]
            ResourcePatternType.ANY,
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for future in admin.delete_acls([everything]).values():
            future.result(10)
        for made in admin.create_acls(list(bindings)).values() if bindings else ():
            made.result(10)
        wait_for("the broker knows", lambda: set(admin.describe_acls(everything).result(10)) == set(bindings))


_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder, port, controller = tmp_path_factory.mktemp("guarded"), free_port(), f"{HOST}:{free_port()}"
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in ("admin", "tailer", "projector"))
    options = {
        "listeners": f"SASL_PLAINTEXT://{HOST}:{port},CONTROLLER://{controller}",
        "advertised.listeners": f"SASL_PLAINTEXT://{HOST}:{port}",
        "controller.quorum.voters": f"1@{controller}",
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'{_MODULE} required username="admin" password="{PASSWORD}" {users};'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",  # the latter is the broker itself, at its controller
        "allow.everyone.if.no.acl.found": "false",
    }
    server = stack.kafka.start(folder / "kafka", port, [f"{name}={value}" for name, value in options.items()])
    yield Guarded(server, folder)
    server.kill()


def bindings_of(lines: Sequence[str]) -> list[AclBinding]:
    """What the printed commands grant, one right each."""
    found = []
    kinds = {
        "topic": ResourceType.TOPIC,
        "group": ResourceType.GROUP,
        "transactional-id": ResourceType.TRANSACTIONAL_ID,
    }
    for line in lines:
        if not line.startswith("kafka-acls.sh "):
            continue
        words = shlex.split(line)
        given = [(word, words[at + 1]) for at, word in enumerate(words[:-1]) if word.startswith("--")]
        (principal,) = (value for word, value in given if word == "--allow-principal")
        pattern = dict(given).get("--resource-pattern-type", "literal").upper()
        found += [
            AclBinding(
                kinds[word[2:]],
                name,
                ResourcePatternType[pattern],
                principal,
                "*",
                AclOperation[{"DescribeConfigs": "DESCRIBE_CONFIGS"}.get(operation, operation.upper())],
                AclPermissionType.ALLOW,
            )
            for word, name in given
            if word[2:] in kinds
            for operation in (value for other, value in given if other == "--operation")
        ]
    assert found
    return found


# --- What is printed is enough ---


def commands_of(run: Run) -> list[str]:
    printed = run.command("check", "--print-grants")
    assert printed.returncode == 0, printed.stderr
    return [line for line in printed.stdout.splitlines() if line.startswith("kafka-acls.sh ")]


def test_a_tailer_and_a_projector_work_with_the_rights_that_are_printed(
    guarded: Guarded, mysql_server: Server, tmp_path: Path
) -> None:
    for statement in (
        f"DROP DATABASE IF EXISTS {SCHEMA}",
        f"DROP DATABASE IF EXISTS {OWN}",
        f"CREATE DATABASE {SCHEMA}",
        f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, name VARCHAR(40))",
        f"INSERT INTO {SCHEMA}.user VALUES (1, 'Ada'), (2, 'Grace')",
    ):
        ask(mysql_server, statement)
    shared = {
        **addresses(mysql_server),
        "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/{OWN}",
        "VIEWTAIL_KAFKA__URL": guarded.url("tailer"),
        "VIEWTAIL_KAFKA__SASL_MECHANISM": "PLAIN",
    }
    projecting = {
        **shared,
        "VIEWTAIL_SOURCE__URL": guarded.url("projector"),
        "VIEWTAIL_SOURCE__SASL_MECHANISM": "PLAIN",
    }
    guarded.grant_only([])
    for name in ("tailer", "projector"):
        (tmp_path / name).mkdir()
    for line in commands_of(Run(tmp_path / "tailer", VIEWS, shared)):
        guarded.run(line)
    for line in commands_of(Run(tmp_path / "projector", VIEWS, projecting)):
        guarded.run(line)

    def shown() -> bool:
        table = ask(mysql_server, f"SELECT name, id FROM {SCHEMA}.user")
        view = ask(mysql_server, f"SELECT name, id FROM {OWN}.user_by_name WHERE name IS NOT NULL")
        return sorted(table) == sorted(view)

    tailer = Run(tmp_path / "tailer", VIEWS, shared)
    tailer.start("--role", "tail")
    try:
        with running(tmp_path / "projector", VIEWS, projecting) as projector:
            projector.kill()
            projector.start("--role", "project")
            wait_for("all is well", projector.is_well, 60)
            wait_for("the view equals its table", shown)
            ask(mysql_server, f"DELETE FROM {SCHEMA}.user WHERE id = 1")
            ask(mysql_server, f"INSERT INTO {SCHEMA}.user VALUES (3, 'Lin')")
            wait_for("changes come through the topic", shown)
            assert tailer.command("replay", "--yes", f"kafka:{SCHEMA}.user").returncode == 0
            wait_for("the topic is filled again", lambda: tailer.log.count('"rows":2') > 1)
            for run in (tailer, projector):
                checked = run.command("check")
                assert checked.returncode == 0 and "not there" not in checked.stdout, checked.stdout
            assert "AUTHORIZATION" not in tailer.log + projector.log
            assert projector.stop() == 0
    finally:
        tailer.kill()


# --- What is printed is needed ---


def printed_for_tailer(guarded: Guarded, topic: str) -> tuple[TopicsStore, Access, Topic, list[AclBinding]]:
    store, view = TopicsStore(), Topic(topic, Entity("shop.user"), fields=["id", "name"], partitions=1)
    section = KafkaSettings(url=SecretStr(guarded.url("tailer")), sasl_mechanism="PLAIN")
    access = Access(section=section, own=NOWHERE, database=OWN, read_position=BinlogPosition.from_text)
    return store, access, view, bindings_of(list(store.grants(access, [view])))


def publish(guarded: Guarded, topic: str) -> None:
    """What a tailer does: makes the topic, publishes, tells consumers how far it is, and reads the keys."""
    store, access, view, _ = printed_for_tailer(guarded, topic)
    (bound,) = bind([view], lambda schema, name: TABLE)
    sink = publisher(store.sink(access, [bound], PipelineId.of("kafka").name))
    assert sink is not None
    with closing(sink):
        for why in sink.prepare().values():
            raise ViewtailError(why)
        inserted = KeptChange((1,), 5, "insert", None, (1, "a"))
        sink.on_passed([Watermark("token", 5)])
        at = BinlogPosition(epoch=1, file="binlog.000007", end=500, start=400, gtid="uuid:5")
        sink.write([ViewWrites(bound.id, None, [inserted])], at)
        sink.publish_watermarks()
        assert [key for page in sink.keys(bound.id) for key, _ in page] == [(1,)]


def printed_for_projector(guarded: Guarded, topic: str) -> tuple[KafkaKind, SourceAccess, list[AclBinding]]:
    kind = KafkaKind()
    url = SecretStr(guarded.url("projector"))
    access = SourceAccess(
        section=KafkaSourceSettings(url=url, sasl_mechanism="PLAIN", topics=(f"shop.user={topic}",)),
        limits=Limits(),
        address=lambda: NOWHERE,
        primary=lambda: NOWHERE,
        own=NOWHERE,
        own_database=OWN,
    )
    return kind, access, bindings_of(list(kind.grants(access, [("shop", "user")], [("shop", "user")])))


def follow(guarded: Guarded, topic: str) -> None:
    """What a projector does: joins its group, looks where it can go on, reads changes and progress."""
    kind, access, _ = printed_for_projector(guarded, topic)
    tables = [("shop", "user")]
    told = [one for one in kind.checks(access, tables, {}, tables) if one.what == f"topic {POSITIONS}"]
    if any(one.level is not Level.OK for one in told):
        raise ViewtailError(f"{told[0].seen}: {told[0].mend}")
    stop, taken = threading.Event(), list[tuple[str, int]]()

    def take(parts: Sequence[tuple[str, int]]) -> None:
        taken.extend(parts)
        stop.set()

    limit = threading.Timer(10, stop.set)
    limit.start()
    members = kind.members(access, "mysql", [("shop", "user")], take, lambda _: None)
    members.run(stop, list)
    limit.cancel()
    if not taken:
        raise ViewtailError(members.trouble or "no partition was given")
    assert kind.sharers(access, ["mysql"]) is not None
    history = kind.history(access, PipelineId(topic, 0, "mysql"), 0).at(1)
    reader = history.reader({("shop", "user"): Followed(TABLE, ("id", "name"))}, {})
    begin = reader.now()
    reader.resume(begin, begin)
    read: list[Batch] = []
    for batch in reader.read(kind.read_position(own(begin).to_text().replace('"offset":2', '"offset":0'))):
        read.append(batch)
        if any(one.changes for one in read) and any(one.watermarks for one in read):
            reader.interrupt()
    assert kind.waiting(access, {"one": begin}) == {"one": 0}


def operation_of(binding: AclBinding) -> str:
    assert isinstance(binding.operation, AclOperation)
    return binding.operation.name


def refusal(of: Callable[[], None]) -> str:
    """What it says; '' where it went well: the coordinator of a group is asked for while messages are read."""
    try:
        of()
    except ViewtailError as error:
        return str(error)
    return ""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("left_out", range(9), ids=[
    "Create topic", "DescribeConfigs topic", "Read topic", "Write topic",
    "Create positions", "Read positions", "Write positions", "Write transactional id", "Describe group",
])  # fmt: skip
def test_a_tailer_without_one_of_its_rights_says_which_it_lacks(guarded: Guarded, left_out: int) -> None:
    topic = f"rights.{next(_numbers)}"
    _, _, _, needed = printed_for_tailer(guarded, topic)
    assert len(needed) == 9
    without = needed[left_out]
    guarded.grant_only([one for one in needed if one is not without])
    said = wait_for("it is refused", lambda: refusal(lambda: publish(guarded, topic)))
    assert "grant the user" in said and operation_of(without) in said, said
    guarded.grant_only(needed)
    publish(guarded, topic)


@pytest.mark.parametrize("left_out", range(5), ids=[
    "DescribeConfigs topic", "Read topic", "Read positions", "Read group", "Describe group",
])  # fmt: skip
def test_a_projector_without_one_of_its_rights_says_which_it_lacks(guarded: Guarded, left_out: int) -> None:
    topic = f"rights.{next(_numbers)}"
    *_, of_tailer = printed_for_tailer(guarded, topic)
    _, _, needed = printed_for_projector(guarded, topic)
    assert len(needed) == 5
    without = needed[left_out]
    guarded.grant_only([*of_tailer, *needed])
    publish(guarded, topic)
    follow(guarded, topic)
    guarded.grant_only([*of_tailer, *(one for one in needed if one is not without)])
    said = wait_for("it is refused", lambda: refusal(lambda: follow(guarded, topic)))
    # Who may not read a topic is not told that it is there.
    is_hidden = left_out in (1, 2) and "may not see it" in said
    assert is_hidden or ("grant the user" in said and operation_of(without) in said), said
