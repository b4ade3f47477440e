"""What stack/ promises of MySQL, MariaDB and Elasticsearch beyond what every server does (test_stack_server.py)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from stack import mariadb, mysql
from stack.server import Server


@pytest.fixture
def stopping() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def own_mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = mysql.start(tmp_path_factory.mktemp("own"), options=("--server-id=7",))
    yield server
    server.kill()


def test_two_mysql_servers_have_identities_of_their_own(own_mysql: Server, mysql_server: Server) -> None:
    assert len({_select(server, "@@server_uuid") for server in (own_mysql, mysql_server)}) == 2


def test_mysql_has_what_viewtail_asks_of_a_source_and_keeps_its_durability(own_mysql: Server) -> None:
    row_settings = "@@binlog_row_metadata, @@binlog_row_image, @@gtid_mode, @@enforce_gtid_consistency"
    assert _select(own_mysql, row_settings) == "FULL\tFULL\tON\tON"
    assert _select(own_mysql, "@@sync_binlog, @@innodb_flush_log_at_trx_commit") == "1\t1"
    assert _select(own_mysql, "@@server_id") == "7"  # options win over the defaults


def test_mysqlbinlog_reads_the_files_of_the_server(own_mysql: Server) -> None:
    _mysql(own_mysql, "CREATE DATABASE seen_in_the_binlog")
    file = own_mysql.directory / "data/binlog.000001"
    printed = _run([*mysql.tool("mysqlbinlog"), "--no-defaults", str(file)])
    assert "CREATE DATABASE seen_in_the_binlog" in printed


def test_committed_rows_survive_a_kill_of_mysql(own_mysql: Server) -> None:
    _mysql(own_mysql, "CREATE DATABASE d; CREATE TABLE d.t (id INT PRIMARY KEY); INSERT INTO d.t VALUES (42)")
    own_mysql.kill()
    own_mysql.start()
    assert _mysql(own_mysql, "SELECT id FROM d.t") == "42"


def test_mariadb_has_what_viewtail_asks_of_a_source_and_keeps_rows_over_a_kill(
    tmp_path: Path, stopping: ExitStack
) -> None:
    server = _started(stopping, mariadb.start(tmp_path, options=("--server-id=7",)))

    def ask(statements: str) -> str:
        return _run([*mariadb.client(server), "--batch", "--skip-column-names", "-e", statements])

    assert ask("SELECT VERSION()").startswith("10.11.")
    settings = "@@log_bin, @@binlog_format, @@binlog_row_metadata, @@binlog_row_image, @@server_id"
    assert ask(f"SELECT {settings}") == "1\tROW\tFULL\tFULL\t7"
    assert ask("SELECT @@sync_binlog, @@innodb_flush_log_at_trx_commit") == "1\t1"
    ask("CREATE DATABASE d; CREATE TABLE d.t (id INT PRIMARY KEY); INSERT INTO d.t VALUES (42)")
    server.kill()
    server.start()
    assert ask("SELECT id FROM d.t") == "42"


@pytest.mark.elasticsearch
def test_documents_survive_a_kill_of_elasticsearch(harmed_elasticsearch: Server) -> None:
    server = harmed_elasticsearch
    _request(server, "PUT", "/cities/_doc/1?version=9&version_type=external", {"name": "Köln"})
    # The launcher stands before the server; the pid is the server's own.
    os.kill(server.pid, signal.SIGKILL)
    server.kill()
    assert not server.is_running()
    server.start()
    found = _request(server, "GET", "/cities/_doc/1")
    assert (found["_version"], found["_source"]) == (9, {"name": "Köln"})


def _started(stopping: ExitStack, server: Server) -> Server:
    stopping.callback(server.kill)  # a clean end takes longer
    return server


def _select(server: Server, expressions: str) -> str:
    return _mysql(server, f"SELECT {expressions}")


def _mysql(server: Server, statements: str) -> str:
    return _run([*mysql.client(server), "--batch", "--skip-column-names", "-e", statements])


def _run(argv: list[str]) -> str:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _request(server: Server, method: str, path: str, document: dict[str, Any] | None = None) -> dict[str, Any]:
    body = None if document is None else json.dumps(document).encode()
    request = Request(server.url + path, body, {"Content-Type": "application/json"}, method=method)
    with build_opener(ProxyHandler({})).open(request, timeout=30) as response:
        answer: dict[str, Any] = json.load(response)
    return answer
