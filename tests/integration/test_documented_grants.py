"""What viewtail asks a server's catalogue is answered to its own user as to root, or `check` names the missing GRANT.

An answer that is empty for want of rights looks as one that says "none": MariaDB gives no rules of foreign keys to a
user who may only SELECT, and no error. So every question stands in QUESTIONS, and is asked by a user with exactly the
documented grants and by root. A question that is new goes there too: the last test looks for it in the code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest

from ingest import Committed, SourceAccess
from ingest.binlog import checks
from ingest.binlog.continuity import binlog_sizes, history_of, shows
from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.kind import BinlogKind, BinlogSettings
from ingest.binlog.margins import limits_of
from ingest.canonical.foreign_keys import cascading_ancestry
from ingest.canonical.group_sizes import group_sizes
from ingest.canonical.parts import examples, exists, rows_about, rows_of_parts
from ingest.canonical.tables import Descriptions, next_number, row_estimates, sizes_now
from ingest.left_out import left_out
from ingest.limits import Limits
from ingest.poll.checks import is_replica
from ingest.poll.polled_table import auto_increment
from ingest.poll.writers import why_unreadable, writers_of
from offsets import deployments, migrations
from projectors.stores import registry
from projectors.stores.access import Access
from projectors.stores.index_tables.adopting import engine_of, rules_of
from projectors.stores.index_tables.releasing import constraints_of
from projectors.stores.index_tables.table import present_tables
from projectors.throttle import replica_lag_s
from stack import Server
from viewtail import Entity, IndexTable
from viewtail.changes.findings import Finding
from viewtail.changes.patterns import Part, pattern_of
from viewtail.changes.tables import NamePattern
from viewtail.entities.event_table import EventTable
from viewtail.operations import first_views
from viewtail.operations.check import Checked, check, grants
from viewtail.operations.lint import live
from viewtail.operations.lint.choosing import Chosen
from viewtail.operations.lint.linting import Linter
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import Connection, MySQLAddress, create_database, open_session, value_of

CHECKOUT = Path(__file__).parents[2]
SCHEMA, OWN, FAR = "asked", "asked_views", "asked_far"
VIEWS = [IndexTable("child_by_a", Entity(f"{SCHEMA}.child"), value="a")]
TABLES = [(SCHEMA, name) for name in ("parent", "child", "event", "part_1")]
ODD = 'we`ird %s, (x) "key"'
SETUP = (
    *(f"DROP DATABASE IF EXISTS {name}" for name in (SCHEMA, OWN, FAR)),
    *(f"CREATE DATABASE {name} CHARACTER SET utf8mb4" for name in (SCHEMA, OWN, FAR)),
    f"CREATE TABLE {FAR}.country (code VARCHAR(8) PRIMARY KEY)",
    f"CREATE TABLE {SCHEMA}.parent (`a``b` INT, b INT, PRIMARY KEY (`a``b`, b))",
    (
        f"CREATE TABLE {SCHEMA}.child (id INT PRIMARY KEY COMMENT 'CONSTRAINT `x` ON DELETE CASCADE', a INT, b INT, "
        "c VARCHAR(8) DEFAULT 'x''y' COMMENT 'a #PPI', "
        f"up INT, twice INT AS (2 * a), KEY (a, b), CONSTRAINT `{ODD.replace('`', '``')}` "
        "FOREIGN KEY (a, b) REFERENCES parent (`a``b`, b) ON DELETE CASCADE ON UPDATE SET NULL, CONSTRAINT across "
        f"FOREIGN KEY (c) REFERENCES {FAR}.country (code) ON UPDATE CASCADE, CONSTRAINT self FOREIGN KEY (up) "
        "REFERENCES child (id) ON DELETE SET NULL, CONSTRAINT plain FOREIGN KEY (up) REFERENCES child (id))"
    ),
    f"CREATE TABLE {SCHEMA}.event (event_id INT AUTO_INCREMENT PRIMARY KEY, note INT)",
    f"CREATE TABLE {SCHEMA}.part_1 (id INT PRIMARY KEY)",
    f"CREATE TABLE {OWN}.x (id INT PRIMARY KEY, v VARCHAR(8), KEY (v, id), UNIQUE KEY one (v), CHECK (id > 0))",
    f"INSERT INTO {SCHEMA}.parent VALUES (1, 2)",
    f"ANALYZE TABLE {SCHEMA}.parent",
)
Question = Callable[[Connection], object]


def _with_cursor(ask: Callable[[Any], object]) -> Question:
    def asked(connection: Connection) -> object:
        with connection.cursor() as cursor:
            return ask(cursor)

    return asked


def _facts(connection: Connection) -> object:
    facts = facts_of(connection)
    asked = (facts.identity, facts.executed, facts.read_only, facts.logs_cascades)
    with connection.cursor() as cursor:
        cursor.execute(facts.status)
        return facts, [value_of(connection, one) for one in asked], cursor.fetchall()


def _described(connection: Connection) -> object:
    found = Descriptions(connection, TABLES)
    return [(table, table.indexes) for name in TABLES if (table := found.table(*name))]


def _parts(connection: Connection) -> object:
    pattern, part = pattern_of(SCHEMA, NamePattern("part_{number:int}")), Part(SCHEMA, "part_1", (1,))
    assert pattern is not None
    shown = examples(connection, [(SCHEMA, pattern.name)])
    return rows_of_parts(connection, pattern), shown, exists(connection, part), rows_about(connection, part)


def _group_sizes(connection: Connection) -> object:
    table = Descriptions(connection, TABLES).table(SCHEMA, "parent")
    return group_sizes(connection, table, table.columns[:1], "PRIMARY")


def _shown(connection: Connection) -> object:
    facts = facts_of(connection)
    changes = Committed(gtids=frozenset({f"{value_of(connection, facts.identity)}:1"}), version=0)
    with connection.cursor() as cursor:
        return shows(cursor, changes, facts)


def _writers(connection: Connection) -> object:
    facts = facts_of(connection)
    return why_unreadable(connection, facts) or list(writers_of(facts).now(connection, SCHEMA, "event"))


def _first_view(connection: Connection) -> object:
    return first_views.schema_to_look_at(connection, SCHEMA, (OWN,)), first_views.choose(connection, SCHEMA)


def _linted(connection: Connection) -> object:
    linter = Linter(Chosen(), SCHEMA)
    live.define(linter, connection, SCHEMA, is_judged=True)
    tables = [(table.name, table.options, [column.name for column in table.columns]) for table in linter.schema]
    return tables, linter.schema.programs, linter.findings()


# Name: the files that ask it, and the question.
QUESTIONS: dict[str, tuple[tuple[str, ...], Question]] = {
    "facts": (("viewtail/servers/facts.py", "ingest/watermarks.py", "viewtail/operations/waiting.py"), _facts),
    "settings": (("ingest/binlog/checks.py",), lambda asked: list(checks.server_checks(asked))),
    "filters and replication": (("ingest/left_out.py",), left_out),
    "history": (("ingest/binlog/continuity.py",), lambda asked: (history_of(asked), binlog_sizes(asked))),
    "what a snapshot shows": (("ingest/binlog/continuity.py",), _shown),
    "prepared transactions": (
        (),
        lambda asked: [one.seen for one in checks.prepared_checks(asked, MySQLAddress(host="", user=""))],
    ),
    "how long changes are kept": (
        ("viewtail/operations/erase.py",),
        lambda asked: value_of(asked, "SELECT @@GLOBAL.binlog_expire_logs_seconds"),
    ),
    "by which limits binlogs are removed": (("ingest/binlog/margins.py",), limits_of),
    "tables": (("ingest/canonical/tables.py",), _described),
    "tables of a pattern": (("ingest/canonical/parts.py",), _parts),
    "how many rows have one value": (("ingest/canonical/group_sizes.py",), _group_sizes),
    "what number a table gives next": (
        (),
        lambda asked: next_number(asked, Descriptions(asked, TABLES).table(SCHEMA, "event")),
    ),
    "row estimates": ((), lambda asked: row_estimates(asked, TABLES)),
    "sizes of tables": ((), lambda asked: sizes_now(asked, TABLES)),
    "foreign keys": (("ingest/canonical/foreign_keys.py",), lambda asked: cascading_ancestry(asked, TABLES)),
    "a first views.py": (
        ("viewtail/operations/first_views.py", "viewtail/operations/first_related.py"),
        _first_view,
    ),
    "the definitions that lint looks at": (("viewtail/operations/lint/live.py",), _linted),
    "how busy the source is": (("projectors/throttle.py",), replica_lag_s),
    "who may bring a polled row": (("ingest/poll/writers.py",), _writers),
    "whether a polled server is a replica": (("ingest/poll/checks.py",), is_replica),
    "ids of a polled table": (
        ("ingest/poll/polled_table.py", "ingest/poll/source.py"),
        lambda asked: auto_increment(asked, SCHEMA, "event"),
    ),
    "viewtail's own tables": (("offsets/migrations.py",), _with_cursor(lambda asked: migrations.columns(asked, OWN))),
    "who a deployment is": (("offsets/deployments.py",), _with_cursor(lambda asked: deployments.id_of(asked, OWN))),
    "viewtail's own database": (("viewtail/servers/sessions.py",), lambda asked: create_database(asked, OWN)),
    "index tables": (
        ("projectors/stores/index_tables/table.py", "projectors/stores/index_tables/reading.py"),
        lambda asked: present_tables(asked, facts_of(asked), OWN, ["x", "y"]),
    ),
    "a table that is released": (
        ("projectors/stores/index_tables/releasing.py",),
        lambda asked: constraints_of(asked, OWN, "x"),
    ),
    "a table that is adopted": (
        ("projectors/stores/index_tables/adopting.py",),
        lambda asked: (rules_of(asked, OWN, "x"), engine_of(asked, OWN, "x")),
    ),
    "settings of the store": (
        ("projectors/stores/index_tables/checks.py", "projectors/stores/index_tables/sink.py"),
        lambda asked: value_of(asked, "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit"),
    ),
    "transactions older than a copy": (
        ("projectors/stores/index_tables/swapping.py",),
        lambda asked: value_of(asked, "SELECT COUNT(*) >= 0 FROM information_schema.innodb_trx"),
    ),
    "whether an event table is there": (
        ("viewtail/entities/event_table.py",),
        lambda asked: EventTable(f"{SCHEMA}.event").exists(asked),
    ),
}
# What the documented grants do not answer, by server: what says so instead, with what it names.
UNANSWERED = {
    ("mysql", "prepared transactions"): "GRANT XA_RECOVER_ADMIN ON *.*",
    ("mysql", "transactions older than a copy"): "GRANT PROCESS ON *.*",
    ("mariadb", "transactions older than a copy"): "GRANT PROCESS ON *.*",
}
# Of sources that are polled, which have grants and checks of their own (tests/acceptance/test_polling.py).
OF_POLLING = {"who may bring a polled row", "whether a polled server is a replica"}
ELSEWHERE = {
    # It archives with rights of its own, and names those that are missing (tests/integration/test_archive.py).
    "viewtail/entities/archive_steps.py",
    # Who reads a table that is renamed: where that may not be asked, it is tried in short attempts.
    "projectors/stores/index_tables/renaming.py",
    # How many sessions there are, which differs from question to question (tests/acceptance/test_sessions.py).
    "viewtail/operations/sessions.py",
}


@dataclass(frozen=True)
class Asked:
    """A server, and its user with the documented grants."""

    name: str
    server: Server

    def address(self, user: str) -> MySQLAddress:
        return MySQLAddress(host=self.server.host, port=self.server.port, user=user)

    def answer(self, user: str, question: Question) -> object:
        connection = open_session(self.address(user), role="source")
        with connection:
            try:
                return question(connection)
            except pymysql.err.MySQLError as error:
                return f"refused: {error.args[0]}"

    def servers(self, user: str) -> Checked:
        at = self.address(user)
        access = Access(section=None, own=at, database=OWN, read_position=BinlogPosition.from_text)
        source = SourceAccess(
            section=BinlogSettings(database=OWN),
            limits=Limits(),
            address=lambda: at,
            primary=lambda: at,
            own=at,
            own_database=OWN,
            is_cleaned=True,
        )
        return Checked(kind=BinlogKind(), source=source, stores=[(registry.STORES[0], access)])

    def findings(self, user: str) -> list[Finding]:
        return check(self.servers(user), VIEWS)


def _of_readme(_: Asked) -> list[str]:
    lines = re.findall(r"^(GRANT .+?);", (CHECKOUT / "README.md").read_text(), re.MULTILINE)
    assert len(lines) == 3
    renamed = [re.sub(r"\bON shop\.", f"ON {SCHEMA}.", line) for line in lines]
    return [re.sub(r"\bON viewtail\.", f"ON {OWN}.", line) for line in renamed]


def _printed(asked: Asked) -> list[str]:
    """By `check --print-grants`: single tables, of which views are."""
    views = [IndexTable(f"v{number}", Entity(".".join(name)), value="b") for number, name in enumerate(TABLES)]
    return [line for line in grants(asked.servers("viewtail"), views) if not line.startswith("--")]


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def asked(request: pytest.FixtureRequest) -> Asked:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    made = Asked(request.param, server)
    connection: Any = pymysql.connect(host=server.host, port=server.port, user="root", autocommit=True)
    with connection, connection.cursor() as cursor:
        for statement in SETUP:
            cursor.execute(statement)
        for user, its_grants in (("by_readme", _of_readme(made)), ("by_print", _printed(made))):
            cursor.execute(f"DROP USER IF EXISTS {user}")
            cursor.execute(f"CREATE USER {user}")
            for grant in its_grants:
                cursor.execute(re.sub(r" TO .*", f" TO {user}", grant))
    return made


def differing(asked: Asked, user: str) -> dict[str, tuple[object, object]]:
    """What root is answered, and what the user is."""
    answers = {
        name: (asked.answer("root", question), asked.answer(user, question))
        for name, (_, question) in QUESTIONS.items()
        if name not in OF_POLLING
    }
    return {name: answer for name, answer in answers.items() if answer[0] != answer[1]}


@pytest.mark.parametrize("user", ["by_readme", "by_print"])
def test_a_user_with_the_documented_grants_is_answered_as_root_or_check_names_the_grant(
    asked: Asked, user: str
) -> None:
    found = differing(asked, user)
    expected = {name for server, name in UNANSWERED if server == asked.name}
    assert found.keys() == expected, found
    mends = " ".join(one.mend for one in asked.findings(user))
    assert not [name for name in expected if UNANSWERED[asked.name, name] not in mends], mends


def test_the_foreign_keys_that_such_a_user_sees_are_all_there_are(asked: Asked) -> None:
    keys: Any = asked.answer("by_readme", lambda connection: cascading_ancestry(connection, [(SCHEMA, "child")]))
    assert [(key.name, key.parent, key.columns, key.referenced, key.on_delete, key.on_update) for key in keys] == [
        ("across", (FAR, "country"), ("c",), ("code",), "RESTRICT", "CASCADE"),
        ("self", (SCHEMA, "child"), ("up",), ("id",), "SET NULL", "RESTRICT"),
        (ODD, (SCHEMA, "parent"), ("a", "b"), ("a`b", "b"), "CASCADE", "SET NULL"),
    ]


def test_a_parents_table_that_the_user_may_not_read_is_a_finding_with_its_grant(asked: Asked) -> None:
    """Where cascades are not logged the cleaner follows the parents."""
    if asked.name == "mysql":
        logs_cascades = asked.answer("root", lambda one: value_of(one, facts_of(one).logs_cascades))
        assert logs_cascades, "this server's cascades are row events"
        return
    found = {one.what: one for one in asked.findings("by_readme")}
    assert f"foreign key {SCHEMA}.child.{ODD}" in found and f"foreign key {SCHEMA}.child.across" in found
    assert found[f"SELECT on {FAR}.country"].mend.startswith(f"GRANT SELECT ON `{FAR}`.`country` TO ")
    assert f"SELECT on {SCHEMA}.parent" not in found


def _asking_files() -> Iterator[str]:
    """Files of the product with a question for the catalogue, or for what a server is."""
    question = re.compile(r"\b(information_schema|performance_schema)\.[a-zA-Z_{]|\"SHOW (?!GRANTS)[A-Z]|SELECT @@")
    for package in ("offsets", "ingest", "projectors", "viewtail"):
        for file in sorted((CHECKOUT / package).rglob("*.py")):
            lines = [line.partition("#")[0] for line in file.read_text().splitlines()]
            if any('"' in line and question.search(line) for line in lines):
                yield str(file.relative_to(CHECKOUT))


def test_every_file_that_asks_the_catalogue_has_its_questions_here() -> None:
    known = {file for files, _ in QUESTIONS.values() for file in files} | ELSEWHERE
    missing = sorted({*_asking_files()} - known)
    assert not missing, "add what they ask to QUESTIONS, so that it is asked with the documented grants"
