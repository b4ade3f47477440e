"""ALTERs while viewtail is away: a topic has each change once, in order, in the form that its event had."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis

from stack import Server
from tests.support import topic_log
from tests.support.asking import ask
from tests.support.running import Run, addresses, running, wait_for

FIRST = "(id INT PRIMARY KEY, name VARCHAR(20), n INT)"
Row = dict[str, Any]
Told = tuple[str, Row | None, Row | None]  # op, before, after


# In the first form: an update, a row that comes and goes, a delete.
CHANGES = [
    "UPDATE T SET n = 10 WHERE id = 1",
    "INSERT INTO T VALUES (3, 'c', 3)",
    "DELETE FROM T WHERE id = 3",
    "DELETE FROM T WHERE id = 2",
]


def row(number: int, name: object, n: object) -> Row:
    return {"id": number, "name": name, "n": n}


OLD: list[Told] = [
    ("u", row(1, "a", 1), row(1, "a", 10)),
    ("c", None, row(3, "c", 3)),
    ("d", row(3, "c", 3), None),
    ("d", row(2, "b", 2), None),
]


@dataclass(frozen=True, kw_only=True)
class Case:
    """What happens to one table behind `changes`, and the changes that its topic has of that."""

    then: list[str]  # statements; T is the table
    told: list[Told]
    old: list[Told] = field(default_factory=lambda: OLD)
    first: str = FIRST  # the table's form to begin with
    declared: str = ""  # further arguments of the topic
    redeclared: str | None = None  # those of the start behind it all
    changes: list[str] = field(default_factory=lambda: CHANGES)
    second: int = 2  # n of the second row
    halts: str = ""  # the topic, for this reason


def updated(before: Row, after: Row) -> list[Told]:
    return [("u", before, after)]


def only(name: str) -> list[Told]:
    def picked(image: Row | None) -> Row | None:
        return None if image is None else {name: image[name]}

    return [(op, picked(before), picked(after)) for op, before, after in OLD]


SWEPT = ("d", None, None)  # a key that the table no longer shows, found when the topic was filled again
NOW = row(1, "a", 10)
CASES = {
    "add": Case(
        then=["ALTER TABLE T ADD COLUMN age INT NOT NULL DEFAULT 7", "UPDATE T SET age = 8"],
        told=updated({**NOW, "age": 7}, {**NOW, "age": 8}),
    ),
    "add_first": Case(
        then=["ALTER TABLE T ADD COLUMN age INT FIRST", "UPDATE T SET age = 8"],
        told=updated({**NOW, "age": None}, {**NOW, "age": 8}),
    ),
    "add_with_schemas": Case(
        declared=", schemas=True",
        then=["ALTER TABLE T ADD COLUMN age INT NOT NULL DEFAULT 7", "UPDATE T SET age = 8"],
        told=updated({**NOW, "age": 7}, {**NOW, "age": 8}),
    ),
    "drop": Case(
        then=["ALTER TABLE T DROP COLUMN n", "UPDATE T SET name = 'x'"],
        told=updated({"id": 1, "name": "a"}, {"id": 1, "name": "x"}),
    ),
    "drop_and_add": Case(
        then=["ALTER TABLE T DROP COLUMN n", "ALTER TABLE T ADD COLUMN n VARCHAR(9) DEFAULT 'q'", "UPDATE T SET n='y'"],
        told=updated(row(1, "a", "q"), row(1, "a", "y")),
    ),
    "widen": Case(
        then=["ALTER TABLE T MODIFY n BIGINT", "UPDATE T SET n = 5000000000"],
        told=updated(NOW, row(1, "a", 5000000000)),
    ),
    "to_text": Case(
        then=["ALTER TABLE T MODIFY n VARCHAR(20)", "UPDATE T SET n = 'x'"],
        told=updated(row(1, "a", "10"), row(1, "a", "x")),
    ),
    "to_bits": Case(
        then=["ALTER TABLE T MODIFY n BIT(3)", "UPDATE T SET n = 1"],
        first="(id INT PRIMARY KEY, name VARCHAR(20), n BIT(1))",
        second=0,
        changes=[statement.replace("= 10", "= 0").replace("'c', 3", "'c', 1") for statement in CHANGES],
        old=[
            ("u", row(1, "a", True), row(1, "a", False)),
            ("c", None, row(3, "c", True)),
            ("d", row(3, "c", True), None),
            ("d", row(2, "b", False), None),
        ],
        told=updated(row(1, "a", "AA=="), row(1, "a", "AQ==")),
    ),
    "unsigned": Case(
        then=["ALTER TABLE T MODIFY n INT UNSIGNED", "UPDATE T SET n = 4000000000"],
        told=updated(NOW, row(1, "a", 4000000000)),
    ),
    "there_and_back": Case(
        then=["ALTER TABLE T MODIFY n VARCHAR(20)", "UPDATE T SET n = '11'", "ALTER TABLE T MODIFY n INT"],
        told=updated(row(1, "a", "10"), row(1, "a", "11")),
    ),
    "not_null": Case(
        declared=", schemas=True",
        then=["UPDATE T SET n = NULL", "UPDATE T SET n = 1", "ALTER TABLE T MODIFY n INT NOT NULL"],
        told=[*updated(NOW, row(1, "a", None)), *updated(row(1, "a", None), row(1, "a", 1))],
    ),
    "rename": Case(
        then=["ALTER TABLE T CHANGE name title VARCHAR(20)", "UPDATE T SET title = 'x'"],
        told=updated({"id": 1, "title": "a", "n": 10}, {"id": 1, "title": "x", "n": 10}),
    ),
    "charset": Case(
        then=["ALTER TABLE T CONVERT TO CHARACTER SET latin1", "UPDATE T SET name = 'é'"],
        told=updated(NOW, row(1, "é", 10)),
    ),
    "reorder": Case(
        then=["ALTER TABLE T MODIFY n INT FIRST", "UPDATE T SET n = 11"], told=updated(NOW, row(1, "a", 11))
    ),
    "several": Case(
        then=[
            "ALTER TABLE T ADD COLUMN x INT",
            "UPDATE T SET x = 1",
            "ALTER TABLE T DROP COLUMN n, ADD COLUMN y INT FIRST",
            "UPDATE T SET y = 2",
        ],
        told=[
            *updated({**NOW, "x": None}, {**NOW, "x": 1}),
            *updated({"id": 1, "name": "a", "x": 1, "y": None}, {"id": 1, "name": "a", "x": 1, "y": 2}),
        ],
    ),
    "swap": Case(
        then=[
            "CREATE TABLE T_new (id INT PRIMARY KEY, name VARCHAR(90), n INT, age INT)",
            "INSERT INTO T_new (id, name, n) SELECT id, name, n FROM T",
            "RENAME TABLE T TO T_old, T_new TO T",
            "UPDATE T SET age = 8",
        ],
        told=updated({**NOW, "age": None}, {**NOW, "age": 8}),
    ),
    "emptied": Case(
        then=[
            "TRUNCATE TABLE T",
            "INSERT INTO T VALUES (5, 'e', 5)",
            "ALTER TABLE T ADD COLUMN age INT",
            "DELETE FROM T",
        ],
        told=[("c", None, row(5, "e", 5)), ("d", {**row(5, "e", 5), "age": None}, None)],
    ),
    "named": Case(
        declared=', fields=["n"]',
        old=only("n"),
        then=["ALTER TABLE T MODIFY n VARCHAR(20), DROP COLUMN name", "UPDATE T SET n = 'x'"],
        told=updated({"n": "10"}, {"n": "x"}),
    ),
    "other_key": Case(
        then=["ALTER TABLE T CHANGE id number INT NOT NULL", "UPDATE T SET n = 11"],
        told=[],
        halts="column number: rows of the binlog lack it",
    ),
    "redeclared": Case(
        declared=', fields=["name"]',
        redeclared=', fields=["name", "age"]',
        old=only("name"),
        then=["ALTER TABLE T ADD COLUMN age INT", "UPDATE T SET age = 8"],
        told=updated({"name": "a", "age": None}, {"name": "a", "age": 8}),
    ),
}


class Away:
    """A run over a table and a topic a case, stopped while all statements of all cases were executed."""

    def __init__(
        self, folder: Path, kafka: Server, source: Server, schema: str, cases: Collection[str] = CASES.keys()
    ) -> None:
        self.cases = {name: CASES[name] for name in cases}
        self.kafka, self.source, self.schema, self.own = kafka, source, schema, f"{schema}_own"
        urls = {"VIEWTAIL_MYSQL__URL": f"{source.url}/{self.own}", "VIEWTAIL_KAFKA__URL": kafka.url}
        self.run = Run(folder, "", {**addresses(source), **urls})

    def declare(self, arguments: Callable[[Case], str]) -> None:
        views = [
            f'    Topic("{self.schema}.{name}", Entity("{self.schema}.{name}"), partitions=1{arguments(case)}),\n'
            for name, case in self.cases.items()
        ]
        text = f"from viewtail import Entity, Topic\n\nviews = [\n{''.join(views)}]\n"
        (self.run.folder / "views.py").write_text(text)

    def make_tables(self) -> None:
        for database in (self.schema, self.own):
            ask(self.source, f"DROP DATABASE IF EXISTS {database}")
        ask(self.source, f"CREATE DATABASE {self.schema} CHARACTER SET utf8mb4")
        for name, case in self.cases.items():
            ask(self.source, f"CREATE TABLE {self.schema}.{name} {case.first}")
            ask(self.source, f"INSERT INTO {self.schema}.{name} VALUES (1, 'a', 1), (2, 'b', {case.second})")

    def execute(self, name: str, statements: Iterable[str]) -> None:
        for statement in statements:
            ask(self.source, re.sub(r"\bT(?=_|\b)", f"{self.schema}.{name}", statement))

    def states(self) -> dict[str, str]:
        found = ask(self.source, f"SELECT name, state FROM {self.own}.view")
        return {str(name).removeprefix(f"kafka:{self.schema}."): str(state) for name, state in found}

    def messages(self, name: str) -> list[tuple[Row, str, Row | None, Row | None]]:
        """Key, op, before, after; without tombstones."""
        found = []
        for message in topic_log.raw(self.kafka, f"{self.schema}.{name}"):
            if message.value() is not None:
                key, value = (payload(orjson.loads(text)) for text in (message.key(), message.value()))
                found.append((key, value["op"], value["before"], value["after"]))
        return found


def payload(content: Row) -> Row:
    found: Row = content.get("payload", content)
    return found


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def away(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kafka_server: Server
) -> Iterator[Away]:
    source: Server = request.getfixturevalue(f"{request.param}_server")
    found = Away(tmp_path_factory.mktemp("away"), kafka_server, source, f"topic_alters_{request.param}")
    found.make_tables()
    found.declare(lambda case: case.declared)
    found.run.start()
    try:
        wait_for("all are filled", lambda: list(found.states().values()) == ["filled"] * len(CASES))
        assert found.run.stop() == 0
        for name, case in CASES.items():
            found.execute(name, [*case.changes, *case.then])
        found.declare(lambda case: case.declared if case.redeclared is None else case.redeclared)
        found.run.start()
        yield found
        assert "Traceback" not in found.run.log
    except BaseException:
        print(found.run.log[-6000:])
        raise
    finally:
        found.run.kill()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.halts])
def test_each_change_is_published_once_in_the_form_that_it_had(away: Away, name: str) -> None:
    assert_told(away, name, [*CASES[name].old, *CASES[name].told])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.halts])
def test_changes_that_cannot_be_published_in_their_form_halt_the_topic_and_are_not_skipped(
    away: Away, name: str
) -> None:
    wait_for("the topic halts", lambda: away.states()[name] == "halted")
    ((reason,),) = ask(away.source, f"SELECT reason FROM {away.own}.view WHERE name = 'kafka:{away.schema}.{name}'")
    assert CASES[name].halts in reason and f"viewtail replay kafka:{away.schema}.{name}" in reason


def assert_told(away: Away, name: str, changes: Sequence[Told]) -> None:
    """These changes, each once and in order; and when the topic is filled again, the keys of its table."""

    def told() -> bool:
        found = [(op, before, after) for _, op, before, after in away.messages(name)]
        assert [one for one in found if one[0] != "r" and one != SWEPT] == [*changes]
        return True

    wait_for("every change comes", told, 20)
    wait_for("the topic is filled again", lambda: away.states()[name] == "filled")
    assert told()
    newest = {tuple(key.values()): after for key, _, _, after in away.messages(name)}
    shown = {key for key, after in newest.items() if after is not None}
    assert shown == set(ask(away.source, f"SELECT id FROM {away.schema}.{name}"))


RUNNING = {
    "drop": ["ALTER TABLE T DROP COLUMN n", "UPDATE T SET name = 'x'"],
    "to_text": ["ALTER TABLE T MODIFY n VARCHAR(20)", "UPDATE T SET n = 'x'"],
    "rename": ["ALTER TABLE T CHANGE name title VARCHAR(20)", "UPDATE T SET title = 'x'"],
}


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory, kafka_server: Server, mysql_server: Server) -> Iterator[Away]:
    """One that runs and is stopped by a signal for as long as the statements take."""
    found = Away(tmp_path_factory.mktemp("behind"), kafka_server, mysql_server, "topic_alters_behind", RUNNING)
    found.make_tables()
    found.declare(lambda case: case.declared)
    found.run.start()
    try:
        wait_for("all are filled", lambda: list(found.states().values()) == ["filled"] * len(RUNNING))
        (worker,) = found.run.workers().values()
        os.kill(worker, signal.SIGSTOP)
        for name, statements in RUNNING.items():
            found.execute(name, [*CHANGES, *statements])
        os.kill(worker, signal.SIGCONT)
        yield found
        assert "Traceback" not in found.run.log
    except BaseException:
        print(found.run.log[-6000:])
        raise
    finally:
        found.run.kill()


@pytest.mark.parametrize("name", RUNNING)
def test_a_run_that_lags_behind_an_alter_publishes_what_it_would_after_a_start(behind: Away, name: str) -> None:
    assert_told(behind, name, [*OLD, *CASES[name].told])


@pytest.mark.parametrize("server", ["mysql", "mariadb"])
def test_what_a_guarded_view_passes_over_while_it_is_new_comes_with_its_backfill(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: Server, server: str
) -> None:
    source: Server = request.getfixturevalue(f"{server}_server")
    schema, client = f"guarded_alters_{server}", redis.Redis(port=redis_server.port)
    client.flushall()
    for database in (schema, f"{schema}_own"):
        ask(source, f"DROP DATABASE IF EXISTS {database}")
    ask(source, f"CREATE DATABASE {schema}")
    ask(source, f"CREATE TABLE {schema}.t {FIRST}")
    ask(source, f"INSERT INTO {schema}.t VALUES (1, 'a', 1), (2, 'b', 2)")
    views = f'from viewtail import Entity, RedisJson\nviews = [RedisJson("doc", Entity("{schema}.t"), document=dict)]\n'
    urls = {"VIEWTAIL_MYSQL__URL": f"{source.url}/{schema}_own", "VIEWTAIL_REDIS__URL": redis_server.url}

    def shown() -> dict[int, Row]:
        names = [name for name in client.scan_iter("doc:*") if not name.endswith(b":t")]
        documents = {int(name.rpartition(b":")[2]): orjson.loads(client.get(name)) for name in names}
        return {
            key: {name: value for name, value in document.items() if name != "_version"}
            for key, document in documents.items()
        }

    with running(tmp_path, views, {**addresses(source), **urls}) as run:
        wait_for("the view is filled", lambda: shown() == {1: row(1, "a", 1), 2: row(2, "b", 2)})
        wait_for("it says so", lambda: ask(source, f"SELECT state FROM {schema}_own.view") == [("filled",)])
        assert run.stop() == 0
        for statement in [*CHANGES, "ALTER TABLE T ADD COLUMN age INT NOT NULL DEFAULT 7"]:
            ask(source, re.sub(r"\bT\b", f"{schema}.t", statement))
        run.start()
        wait_for("the view equals its table", lambda: shown() == {1: {**row(1, "a", 10), "age": 7}})


def test_a_topic_whose_key_became_wider_is_filled_again(
    tmp_path: Path, kafka_server: Server, mysql_server: Server
) -> None:
    wide = Away(tmp_path, kafka_server, mysql_server, "topic_alters_wide", ["add"])
    wide.make_tables()
    wide.declare(lambda case: case.declared)
    with running(tmp_path, (tmp_path / "views.py").read_text(), wide.run.environment()) as run:
        wait_for("it is filled", lambda: wide.states() == {"add": "filled"})
        wide.execute("add", ["ALTER TABLE T MODIFY id BIGINT", "INSERT INTO T VALUES (5000000000, 'wide', 1)"])
        wait_for("the row comes", lambda: any(key == {"id": 5000000000} for key, *_ in wide.messages("add")))
        done = run.command("replay", f"kafka:{wide.schema}.add", "--wait", "--yes")
        assert done.returncode == 0, done.stderr
        assert run.command("status").returncode == 0
