"""How viewtail logs in: over TLS that is verified, by caching_sha2_password, and with no more rights than it prints."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest
from cryptography import x509

import stack.mysql
from ingest import SourceAccess
from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.kind import BinlogKind, BinlogSettings
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe
from ingest.limits import Limits
from projectors.stores import registry
from projectors.stores.access import Access
from stack import Server
from tests.support.authority import HERE, Authority
from tests.support.running import Run, running, wait_for
from viewtail import Entity, IndexTable
from viewtail.changes.batches import Followed
from viewtail.changes.errors import StoreError
from viewtail.changes.findings import Level
from viewtail.changes.pipelines import PipelineId
from viewtail.operations.check import Checked, check, grants
from viewtail.servers.sessions import MySQLAddress, open_session

PASSWORD = "canary %s/\\'\""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority("viewtail test")
    authority.write(folder / "server", HERE)
    Authority("somebody else").write(folder / "other", [x509.DNSName("db.example")])
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Server]:
    own = certificates / "server"
    options = [f"--ssl-ca={own}/ca.pem", f"--ssl-cert={own}/cert.pem", f"--ssl-key={own}/key.pem"]
    options.append("--innodb-native-foreign-keys=ON")  # for the last test
    started = stack.mysql.start(tmp_path_factory.mktemp("login") / "mysql", options=options)
    quoted = PASSWORD.replace("\\", "\\\\").replace("'", "''")
    execute(
        started,
        f"CREATE USER 'viewtail'@'%' IDENTIFIED WITH caching_sha2_password BY '{quoted}'",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.user (id INT PRIMARY KEY, email VARCHAR(60))",
        "CREATE TABLE shop.secret (id INT PRIMARY KEY)",
        "INSERT INTO shop.user VALUES (1, 'ada')",
    )
    yield started
    started.kill()


def execute(server: Server, *statements: str) -> list[tuple[Any, ...]]:
    connection: Any = pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        found = list(cursor.fetchall())
    connection.close()
    return found


def address(server: Server, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> MySQLAddress:
    return MySQLAddress(host=host, port=server.port, user="viewtail", password=PASSWORD, tls=tls)


def trusting(certificates: Path, whose: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates / whose / "ca.pem"))


@pytest.mark.parametrize("is_tls", [True, False], ids=["over TLS", "by RSA without TLS"])
def test_caching_sha2_password_logs_in_in_full_and_by_what_the_server_remembers(
    is_tls: bool, server: Server, certificates: Path
) -> None:
    tls = trusting(certificates, "server") if is_tls else None
    execute(server, "FLUSH PRIVILEGES")  # the server remembers nobody
    for _ in range(2):
        with open_session(address(server, tls), role="source") as session, session.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
            assert bool(cursor.fetchone()[1]) == is_tls  # type: ignore[index]


@pytest.mark.parametrize(
    ("whose", "host", "said"),
    [("other", "127.0.0.1", "CERTIFICATE_VERIFY_FAILED"), ("server", "localhost", "localhost")],
    ids=["another authority", "another host name"],
)
def test_a_server_that_is_not_the_one_to_trust_is_refused(
    whose: str, host: str, said: str, server: Server, certificates: Path
) -> None:
    with pytest.raises(StoreError, match=f"{said}.*tls_ca") as refused:
        open_session(address(server, trusting(certificates, whose), host), role="source")
    assert PASSWORD not in str(refused.value)


def test_changes_are_read_over_verified_tls_and_by_no_other(server: Server, certificates: Path) -> None:
    execute(server, "GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO 'viewtail'@'%'")
    trusted = address(server, trusting(certificates, "server"))
    with open_session(trusted, role="source") as session:
        followed = {("shop", "user"): Followed(describe(session, "shop", "user"), ("id", "email"))}

    def source(of: MySQLAddress) -> BinlogSource:
        return BinlogSource(of, followed, watermark_schema="viewtail", own_schemas=frozenset({"viewtail"}), epoch=1)

    begin = source(trusted).now()
    execute(server, f"REPLACE INTO shop.user VALUES (2, '{'x' * 60}')", "DELETE FROM shop.user WHERE id = 2")
    execute(server, "INSERT INTO shop.user SELECT n, 'many' FROM (WITH RECURSIVE s AS (SELECT 10 n UNION ALL "
            "SELECT n + 1 FROM s WHERE n < 900) SELECT n FROM s) t")  # fmt: skip
    reader, count = source(trusted), 0
    for batch in reader.read(begin):
        count += batch.row_count
        if count >= 893:
            kinds = execute(
                server,
                "SELECT connection_type FROM performance_schema.threads WHERE processlist_command LIKE 'Binlog Dump%'",
            )
            break
    reader.interrupt()
    assert count == 893 and kinds == [("SSL/TLS",)]
    with pytest.raises(StoreError, match="CERTIFICATE_VERIFY_FAILED"):
        list(source(replace(trusted, tls=trusting(certificates, "other"))).read(begin))
    execute(server, "REVOKE ALL, GRANT OPTION FROM 'viewtail'@'%'", "DELETE FROM shop.user WHERE id > 1")


VIEWS = """
from viewtail import Entity, IndexTable
views = [IndexTable("ix_email", Entity("shop.user"), value="email")]
"""


def granted(server: Server, run: Run) -> list[str]:
    printed = run.command("check", "--print-grants")
    assert printed.returncode == 0, printed.stderr
    found = [line for line in printed.stdout.splitlines() if not line.startswith("-- ")]
    assert printed.stdout.endswith("-- GRANT PROCESS ON *.* TO 'viewtail'@'%';\n"), "it can do without"
    execute(server, *found)
    return found


def test_everything_works_with_the_grants_that_are_printed(server: Server, tmp_path: Path) -> None:
    environment = {
        "VIEWTAIL_SOURCE__URL": f"mysql://127.0.0.1:{server.port}",
        "VIEWTAIL_SOURCE__USER": "viewtail",
        "VIEWTAIL_SOURCE__PASSWORD": PASSWORD,
        "VIEWTAIL_SOURCE__DATABASE": "vt_marks",
        "VIEWTAIL_METRICS__PORT": "0",
    }
    (tmp_path / "views.py").write_text(VIEWS)
    run = Run(tmp_path, VIEWS, environment)
    assert granted(server, run) == [
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'viewtail'@'%';",
        "GRANT SELECT ON `shop`.`user` TO 'viewtail'@'%';",
        "GRANT CREATE, SELECT, INSERT, UPDATE ON `vt\\_marks`.* TO 'viewtail'@'%';",
        "GRANT CREATE, ALTER, DROP, INDEX, SELECT, INSERT, UPDATE, DELETE ON `viewtail`.* TO 'viewtail'@'%';",
    ]
    checked = run.command("check", "--json")
    assert checked.returncode == 0, checked.stdout
    levels = {one["what"]: one["level"] for one in json.loads(checked.stdout)["findings"]}
    assert levels["PROCESS"] == "warn"
    with running(tmp_path, VIEWS, environment) as going:
        wait_for("all is well", going.is_well)
        execute(server, "UPDATE shop.user SET email = 'grace' WHERE id = 1")
        wait_for(
            "the change is found",
            lambda: json.loads(going.command("find", "ix_email", "grace", "--json").stdout or "[]"),
        )
        assert going.command("replay", "--yes", "ix_email").returncode == 0
        wait_for(
            "it is filled again",
            lambda: '"state": "filled"' in going.command("status", "--json").stdout,
        )
        assert going.stop() == 0
        assert "denied" not in going.log


def test_each_grant_that_is_missing_is_a_finding_that_names_it(server: Server) -> None:
    at = address(server)
    servers = servers_at(at)
    views = [IndexTable("ix_email", Entity("shop.user"), value="email")]
    needed = [line for line in grants(servers, views) if not line.startswith("--")]
    execute(server, "REVOKE ALL, GRANT OPTION FROM 'viewtail'@'%'", *needed)

    def failing() -> str:
        found = [one for one in check(servers, views) if one.level is Level.FAIL]
        return "\n".join(f"{one.what} {one.seen} {one.mend}" for one in found)

    assert failing() == ""
    single = []
    for statement in needed:
        names, _, where = statement.removeprefix("GRANT ").partition(" ON ")
        single += [(name, where.partition(" TO ")[0]) for name in names.split(", ")]
    assert len(single) == 15
    for name, where in single:
        execute(server, f"REVOKE {name} ON {where} FROM 'viewtail'@'%'")
        said = failing()
        assert name in said and f"ON {where} TO 'viewtail'@'%'" in said, (name, where, said)
        execute(server, f"GRANT {name} ON {where} TO 'viewtail'@'%'")


def as_root(server: Server) -> Checked:
    return servers_at(MySQLAddress(host="127.0.0.1", port=server.port, user="root"))


def servers_at(at: MySQLAddress) -> Checked:
    store = registry.STORES[0]
    access = Access(section=None, own=at, database="viewtail", read_position=BinlogPosition.from_text)
    source = SourceAccess(
        section=BinlogSettings(database="vt_marks"),
        limits=Limits(),
        address=lambda: at,
        primary=lambda: at,
        own=at,
        own_database="viewtail",
    )
    return Checked(kind=BinlogKind(), source=source, stores=[(store, access)])


def test_check_says_of_transactions_that_are_prepared_before_the_first_run(server: Server) -> None:
    def seen() -> str:
        (found,) = (one for one in check(as_root(server), []) if one.what == "XA RECOVER")
        return f"{found.level.value} {found.seen} {found.mend}"

    assert seen().startswith("ok no prepared")
    execute(
        server, "XA START 'early','b',7", "INSERT INTO shop.user VALUES (77, 'xa')", "XA END 'early','b',7",
        "XA PREPARE 'early','b',7",
    )  # fmt: skip
    said = seen()
    assert said.startswith("warn 1 prepared")
    execute(server, "XA ROLLBACK" + said.rpartition("XA ROLLBACK")[2])
    assert seen().startswith("ok no prepared")


def test_check_names_the_foreign_keys_whose_cascades_innodb_keeps_to_itself(
    server: Server, mysql_server: Server
) -> None:
    for one in (server, mysql_server):
        execute(
            one,
            "CREATE DATABASE IF NOT EXISTS cascades",
            "CREATE TABLE cascades.parent (id INT PRIMARY KEY)",
            "CREATE TABLE cascades.child (id INT PRIMARY KEY, parent INT, CONSTRAINT of_parent FOREIGN KEY (parent) "
            "REFERENCES cascades.parent (id) ON DELETE SET NULL)",
        )
    views = [IndexTable("i", Entity("cascades.child"), value="parent")]
    (found,) = (one for one in check(as_root(server), views) if "of_parent" in one.what)
    assert found.level is Level.WARN and "innodb_native_foreign_keys=OFF" in found.mend
    assert "so views would miss it" in found.why
    assert not any("of_parent" in one.what for one in check(as_root(mysql_server), views))
    cleaned = as_root(server)
    cleaned = replace(cleaned, source=replace(cleaned.source, is_cleaned=True))
    (found,) = (one for one in check(cleaned, views) if "of_parent" in one.what)
    assert "the cleaner looks for such rows when a row of cascades.parent goes" in found.why


def test_foreign_keys_are_read_up_to_the_table_that_all_begins_with_where_the_server_does_not_log_what_they_do(
    server: Server, mysql_server: Server
) -> None:
    for one in (server, mysql_server):
        execute(
            one,
            "CREATE DATABASE chain",
            "CREATE TABLE chain.a (id INT, part INT, PRIMARY KEY (id, part), UNIQUE (part))",
            "CREATE TABLE chain.b (id INT PRIMARY KEY, a INT, part INT, CONSTRAINT to_a FOREIGN KEY (a, part) "
            "REFERENCES chain.a (id, part) ON DELETE CASCADE)",
            "CREATE TABLE chain.c (id INT PRIMARY KEY, b INT, kept INT, CONSTRAINT to_b FOREIGN KEY (b) "
            "REFERENCES chain.b (id) ON DELETE SET NULL ON UPDATE CASCADE, "
            "CONSTRAINT stays FOREIGN KEY (kept) REFERENCES chain.a (part))",
        )
    ask = partial(BinlogKind().history, pipeline=PipelineId.of("mysql"), number=0)
    to_b, to_a = ask(as_root(server).source).unlogged_keys([("chain", "c")])
    assert (to_b.name, to_b.columns, to_b.parent, to_b.referenced) == ("to_b", ("b",), ("chain", "b"), ("id",))
    assert (to_b.on_delete, to_b.on_update) == ("SET NULL", "CASCADE")
    assert (to_a.table, to_a.columns, to_a.referenced) == (("chain", "b"), ("a", "part"), ("id", "part"))
    assert ask(as_root(mysql_server).source).unlogged_keys([("chain", "c")]) == ()
    execute(
        server,
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'viewtail'@'%'",
        "GRANT SELECT ON chain.c TO 'viewtail'@'%'",
    )
    seen = ask(servers_at(address(server)).source).unlogged_keys([("chain", "c")])
    assert [key.name for key in seen] == ["to_b"]
