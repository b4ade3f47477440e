"""The real commands over topic views: check, init, get, status, replay, forget, and views that change or halt."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from projectors.stores.topics.admin import Topics
from projectors.stores.topics.checks import checks
from projectors.stores.topics.views import Topic
from projectors.views import Entity
from stack import Server
from tests.support import topic_log
from tests.support.asking import ask
from tests.support.random_rows import sample_tables
from tests.support.running import Run, addresses, wait_for
from tests.support.topic_log import Told
from viewtail.changes.findings import Level

SCHEMA, OWN = "topic_commands", "topic_commands_own"
ODD_KEY = "2024-02-03:00ff0000:1.50:2024-01-02 03%3A04%3A05.600:a%3Ab%7B%7D"
VIEWS = f"""
from viewtail import Entity, Topic

views = [
    Topic("{SCHEMA}.user", Entity("{SCHEMA}.user"), partitions=2),
    Topic("{SCHEMA}.odd", Entity("{SCHEMA}.odd"), partitions=1, fields=["v"]),
]
"""
MOST_BYTES = 20_000


class Deployed:
    """A running viewtail over the tables above."""

    def __init__(self, folder: Path, mysql: Server, kafka: Server) -> None:
        self.mysql, self.kafka = mysql, kafka
        urls = {"VIEWTAIL_MYSQL__URL": f"{mysql.url}/{OWN}", "VIEWTAIL_KAFKA__URL": kafka.url}
        self.environment = {**addresses(mysql), **urls}
        self.run = Run(folder, VIEWS, self.environment)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = self.run.command(*arguments)
        assert "Traceback" not in done.stdout + done.stderr
        return done

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return ask(self.mysql, statement)

    def declare(self, views: str) -> None:
        """Another views.py, and a run that has read it."""
        if self.run.process is not None:
            assert self.run.stop() == 0
        (self.run.folder / "views.py").write_text(views)
        self.run.start()

    def log(self, table: str = "user") -> list[Told]:
        return topic_log.told(self.kafka, f"{SCHEMA}.{table}")

    def state(self, table: str = "user") -> str:
        found = self.ask(f"SELECT state FROM {OWN}.view WHERE name = 'kafka:{SCHEMA}.{table}'")
        return str(found[0][0])

    def wait_filled(self, *tables: str) -> None:
        for table in tables or ("user", "odd"):
            wait_for(f"{table} is filled", lambda: self.state(table) == "filled")  # noqa: B023

    def equals_its_table(self) -> bool:
        table = {row[:1]: row for row in self.ask(f"SELECT * FROM {SCHEMA}.user")}
        found = topic_log.folded(self.log())
        assert found == table
        return True


@pytest.fixture
def deployed(tmp_path: Path, mysql_server: Server, kafka_server: Server) -> Iterator[Deployed]:
    for database in (SCHEMA, OWN):
        ask(mysql_server, f"DROP DATABASE IF EXISTS {database}")
    ask(mysql_server, f"CREATE DATABASE {SCHEMA}")
    ask(mysql_server, f"CREATE TABLE {SCHEMA}.user (id BIGINT UNSIGNED PRIMARY KEY, name MEDIUMTEXT)")
    ask(mysql_server, f"INSERT INTO {SCHEMA}.user VALUES (1, 'Ada'), (2, 'Grace'), (18446744073709551615, 'last')")
    ask(
        mysql_server,
        f"CREATE TABLE {SCHEMA}.odd (day DATE, token BINARY(4), amount DECIMAL(6,2), at DATETIME(3), "
        "name VARCHAR(20), PRIMARY KEY (day, token, amount, at, name), v INT)",
    )
    ask(
        mysql_server,
        f"INSERT INTO {SCHEMA}.odd VALUES ('2024-02-03', 0x00ff0000, 1.50, '2024-01-02 03:04:05.600', 'a:b{{}}', 1)",
    )
    _delete_topics(kafka_server)
    found = Deployed(tmp_path, mysql_server, kafka_server)
    found.run.start()
    try:
        wait_for("the views are there", lambda: found.state("odd"))
        found.wait_filled()
        yield found
        assert "Traceback" not in found.run.log
    except BaseException:
        print(found.run.log[-6000:])
        raise
    finally:
        found.run.kill()
        _delete_topics(kafka_server)
        for database in (SCHEMA, OWN):
            ask(mysql_server, f"DROP DATABASE IF EXISTS {database}")


def _delete_topics(server: Server) -> None:
    admin = AdminClient({"bootstrap.servers": f"{server.host}:{server.port}"})
    names = [name for name in admin.list_topics(timeout=10).topics if name.startswith(f"{SCHEMA}.")]
    for future in admin.delete_topics(names).values() if names else ():
        future.result(10)


def test_the_commands_know_topics(deployed: Deployed) -> None:
    checked = deployed.command("check")
    assert checked.returncode == 0, checked.stdout
    assert "topic topic_commands.user: 2 partitions, cleanup.policy=compact" in checked.stdout
    user, odd = f"kafka:{SCHEMA}.user", f"kafka:{SCHEMA}.odd"
    wait_for("the pipeline has reported that it runs", lambda: deployed.command("status").returncode == 0)
    status = deployed.command("status", "--json")
    assert status.returncode == 0, status.stdout
    (pipeline,) = json.loads(status.stdout)["pipelines"]
    assert (pipeline["name"], pipeline["state"]) == ("kafka", "running")
    assert user in deployed.command("status").stdout
    assert json.loads(deployed.command("get", user, "2", "--json").stdout)["content"]["name"] == "Grace"
    assert deployed.command("get", user, "18446744073709551615").returncode == 0
    assert deployed.command("get", odd, ODD_KEY).returncode == 0, "dates, bytes and digits are keys as users write them"
    waited = deployed.command("wait", user)
    assert waited.returncode == 2 and "is a topic: it has changes, not rows, so it is not compared" in waited.stderr
    missing = deployed.command("get", user, "7")
    assert missing.returncode == 1
    assert "has nothing under the key '7'" in missing.stderr
    deployed.ask(f"DELETE FROM {SCHEMA}.user WHERE id = 2")
    wait_for("the delete is published", lambda: deployed.command("get", user, "2").returncode == 1)

    before = {one.key: one.version for one in deployed.log()}
    assert deployed.command("replay", "--yes", user).returncode == 0
    wait_for("the rows come again", lambda: [one.op for one in deployed.log()].count("r") == 5)
    again = {one.key: one for one in deployed.log() if one.op == "r"}
    assert again.keys() == {(1,), (18446744073709551615,)} | {(2,)}
    assert all(again[key].version > before[key] for key in ((1,), (18446744073709551615,)))
    assert topic_log.faults_of_order(deployed.log()) == []
    assert deployed.equals_its_table()

    folder = deployed.run.folder / "init"
    folder.mkdir()
    other = Run(folder, "", deployed.environment)
    (folder / "views.py").unlink()
    _good(other.command("init", "--schema", SCHEMA))
    declared = (folder / "views.py").read_text()
    assert "Topic(" in declared
    compile(declared, "views.py", "exec")

    deployed.declare(
        VIEWS.replace(f'    Topic("{SCHEMA}.odd", Entity("{SCHEMA}.odd"), partitions=1, fields=["v"]),\n', "")
    )
    forgotten = wait_for("it is forgotten", lambda: _good(deployed.command("forget", odd, "--yes")))
    assert f"its topic {SCHEMA}.odd" in forgotten.stdout
    assert "kafka-topics.sh" in forgotten.stdout
    assert (
        f"{SCHEMA}.odd" in Topics({"bootstrap.servers": f"{deployed.kafka.host}:{deployed.kafka.port}"}).partitions()
    ), "its consumers may still read it"


def test_a_topic_that_is_declared_is_not_forgotten_with_a_projectors_settings(deployed: Deployed) -> None:
    assert deployed.run.stop() == 0
    projector = Run(deployed.run.folder, VIEWS, {**deployed.environment, "VIEWTAIL_SOURCE__URL": deployed.kafka.url})
    refused = projector.command("forget", f"kafka:{SCHEMA}.odd")
    assert refused.returncode == 2 and "is declared in views.py" in refused.stderr
    assert deployed.state("odd") == "filled"


def test_a_view_whose_fields_change_is_published_again_and_the_newest_messages_are_of_the_new_form(
    deployed: Deployed,
) -> None:
    deployed.declare(VIEWS.replace("partitions=2)", 'partitions=2, fields=["id"])'))
    wait_for("the rows come again", lambda: [one.op for one in deployed.log()].count("r") == 6)
    assert topic_log.folded(deployed.log()) == {(key,): (key,) for key in (1, 2, 18446744073709551615)}
    assert topic_log.faults_of_order(deployed.log()) == []


def test_a_new_column_is_told_at_once_and_published_after_the_next_start(deployed: Deployed) -> None:
    told = '"event":"the view lacks a new column until its pipeline starts again, which backfills the view with it"'
    deployed.ask(f"ALTER TABLE {SCHEMA}.odd ADD COLUMN more INT")  # a view with fields= shows none
    deployed.ask(f"ALTER TABLE {SCHEMA}.user ADD COLUMN age INT DEFAULT 7")
    deployed.ask(f"ALTER TABLE {SCHEMA}.user MODIFY name LONGTEXT")  # the view is bound to the table as it is now
    deployed.ask(f"INSERT INTO {SCHEMA}.user VALUES (3, 'Lin', 8)")
    wait_for("the row comes", lambda: [one.after for one in deployed.log() if one.op == "c"] == [(3, "Lin")])
    (line,) = [line for line in deployed.run.log.splitlines() if told in line]
    assert f"kafka:{SCHEMA}.user" in line and "ADD COLUMN age" in line and '"level":"warning"' in line
    assert deployed.command("replay", "--yes", f"kafka:{SCHEMA}.user").returncode == 0
    wait_for("a replay before that is as before", lambda: _filled(deployed, (3, "Lin")))
    deployed.declare(VIEWS)
    wait_for("all rows come again with it", lambda: _filled(deployed, (3, "Lin", 8)) and deployed.equals_its_table())
    assert [one.op for one in deployed.log("odd")].count("r") == 1


def _filled(deployed: Deployed, row: tuple[object, ...]) -> bool:
    return any(one.op == "r" and one.after == row for one in deployed.log())


def test_a_topic_that_is_not_as_it_is_declared_is_refused_and_check_says_why(deployed: Deployed) -> None:
    deployed.declare(
        VIEWS.replace("partitions=2", "partitions=5").replace("partitions=1,", 'config={"retention.ms": 1},')
    )
    wait_for("the view halts", lambda: deployed.state() == "halted")
    checked = deployed.command("check")
    assert checked.returncode == 1
    assert f"topic {SCHEMA}.user: it has 2 partitions, and 5 are declared" in checked.stdout
    assert "declare partitions=2" in checked.stdout
    assert "its retention.ms is 604800000, and 1 is declared" in checked.stdout
    assert f"kafka-configs.sh --alter --topic {SCHEMA}.odd" in checked.stdout


def test_a_message_that_is_too_large_parks_its_key_until_a_smaller_one_comes(deployed: Deployed) -> None:
    admin = AdminClient({"bootstrap.servers": f"{deployed.kafka.host}:{deployed.kafka.port}"})
    deployed.run.stop()
    for future in admin.delete_topics([f"{SCHEMA}.user"]).values():
        future.result(10)
    config = f'partitions=2, config={{"max.message.bytes": {MOST_BYTES}}})'
    deployed.declare(VIEWS.replace("partitions=2)", config))
    wait_for("it is filled again", lambda: len(deployed.log()) == 3)
    # Each fits, and all of them do not fit into one batch of the topic; what cannot be compressed is sent as it is.
    many = ",".join(f"({1000 + number}, HEX(RANDOM_BYTES(1000)))" for number in range(300))
    deployed.ask(f"INSERT INTO {SCHEMA}.user VALUES (3, REPEAT('x', {MOST_BYTES})), {many}")
    wait_for("the others come", lambda: len(deployed.log()) == 303)
    letters = deployed.ask(f"SELECT reason FROM {OWN}.dead_letter")
    assert len(letters) == 1
    assert f"is larger than the topic {SCHEMA}.user takes" in letters[0][0]
    assert "max.message.bytes" in letters[0][0]
    assert deployed.command("status").returncode == 1
    deployed.ask(f"UPDATE {SCHEMA}.user SET name = 'small' WHERE id = 3")  # the row before it is too large as well
    deployed.ask(f"UPDATE {SCHEMA}.user SET name = 'smaller' WHERE id = 3")
    wait_for("the key is no dead letter", lambda: not deployed.ask(f"SELECT 1 FROM {OWN}.dead_letter"))
    assert deployed.equals_its_table()


def test_every_column_type_is_published_by_the_stream_as_by_the_fill(deployed: Deployed) -> None:
    tables = [table for table in sample_tables() if table.name != "mixture"]
    chance = random.Random(7)
    for table in tables:
        create = table.create_statement("DYNAMIC").replace(f"`{table.name}`", f"{SCHEMA}.a_{table.name}", 1)
        deployed.ask(create)
    views = "".join(
        f'    Topic("{SCHEMA}.a_{table.name}", Entity("{SCHEMA}.a_{table.name}"), partitions=1),\n' for table in tables
    )
    deployed.declare(VIEWS.replace("]\n", views + "]\n"))
    names = [f"a_{table.name}" for table in tables]
    wait_for("the views are there", lambda: [deployed.state(name) for name in names])
    deployed.wait_filled(*names)
    for table in tables:
        rows = ",".join(table.row(number, chance) for number in range(40))
        deployed.ask(f"INSERT IGNORE INTO {SCHEMA}.a_{table.name} VALUES {rows}")
    counts = {name: deployed.ask(f"SELECT COUNT(*) FROM {SCHEMA}.{name}")[0][0] for name in names}
    wait_for("the rows come", lambda: {name: len(deployed.log(name)) for name in names} == counts)
    assert deployed.ask(f"SELECT view_id, reason FROM {OWN}.dead_letter") == []
    assert deployed.command("replay", "--yes", *(f"kafka:{SCHEMA}.{name}" for name in names)).returncode == 0
    wait_for("the rows come again", lambda: all(len(deployed.log(name)) == 2 * counts[name] for name in names))
    for name in names:
        messages = deployed.log(name)
        streamed = {one.key: one.after for one in messages if one.op == "c"}
        filled = {one.key: one.after for one in messages if one.op == "r"}
        assert streamed == filled, name


def _good(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_check_says_which_topic_kafka_would_refuse_and_why_no_broker_answers(kafka_server: Server) -> None:
    slip = Topic(f"{SCHEMA}.slip", Entity("a.b"), config={"retentoin.ms": 5})
    sound = Topic(f"{SCHEMA}.sound", Entity("a.b"))
    brokers = f"{kafka_server.host}:{kafka_server.port}"
    found = {one.what: one for one in checks({"bootstrap.servers": brokers}, [slip, sound])}
    assert found[f"topic {SCHEMA}.slip"].level is Level.FAIL and "retentoin.ms" in found[f"topic {SCHEMA}.slip"].seen
    assert found[f"topic {SCHEMA}.sound"].seen == "not there yet; viewtail makes it"
    assert not [name for name in Topics({"bootstrap.servers": brokers}).partitions() if name.startswith(SCHEMA)]
    (away,) = checks({"bootstrap.servers": "127.0.0.1:1"}, [sound])
    assert away.level is Level.FAIL and "127.0.0.1:1 failed: Connection refused" in away.seen
    assert "by itself" not in away.seen
