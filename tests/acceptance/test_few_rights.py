"""Commands of a MySQL user who lacks rights: each says which, and where the grants are listed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stack import Server
from tests.support.copies import Shop, declared
from tests.support.running import Run, addresses, running, wait_for

VIEWS = declared("mysql", "redis")
USERS = {
    "nobody": [],
    "reader": ["SELECT ON *.*"],
    "stranger": ["SELECT ON shop.*", "REPLICATION SLAVE, REPLICATION CLIENT ON *.*"],
    "without_client": ["SELECT, REPLICATION SLAVE ON *.*", "ALL ON viewtail.*"],
    "without_slave": ["SELECT, REPLICATION CLIENT ON *.*", "ALL ON viewtail.*"],
}
SINCE = "replay redis:people --since 03:00 --dry-run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, mysql_server: Server, redis_server: Server) -> Iterator[Run]:
    shop = Shop(mysql_server, 20)
    for user, rights in USERS.items():
        shop.execute(f"DROP USER IF EXISTS {user}", f"CREATE USER {user}")
        shop.execute(*(f"GRANT {right} TO {user}" for right in rights))
    with running(tmp_path_factory.mktemp("rights"), VIEWS, addresses(mysql_server, redis_server)) as found:
        wait_for("all is well", found.is_well)
        yield found


def asked(run: Run, user: str, command: str) -> tuple[int, str]:
    done = Run(run.folder, VIEWS, run.environment() | {"VIEWTAIL_SOURCE__USER": user}).command(*command.split())
    return done.returncode, done.stdout + done.stderr


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("user", "command", "missing"),
    [
        ("nobody", "status", "SELECT command denied"),
        ("nobody", "dead-letters list", "SELECT command denied"),
        ("stranger", "status", "SELECT command denied"),
        ("stranger", "get redis:people 5", "SELECT command denied"),
        ("stranger", "find mysql:people e5", "SELECT command denied"),
        ("stranger", "replays", "SELECT command denied"),
        ("stranger", "why redis:people 5", "denied"),
        ("reader", "pause redis:people", "SELECT with locking clause command denied"),
        ("reader", "pause --pipeline redis", "UPDATE command denied"),
        ("reader", "resume --pipeline redis", "UPDATE command denied"),
        ("reader", "wait redis:people", "UPDATE command denied"),
        ("reader", "verify redis:people", "INSERT command denied"),
        ("reader", "replay redis:people --key 5", "INSERT command denied"),
        ("reader", "replay mysql:people --yes", "SELECT with locking clause command denied"),
        ("reader", "rebuild mysql:people --hurry", "SELECT with locking clause command denied"),
        ("reader", "wait redis:people --position binlog.000001:4", "REPLICATION CLIENT"),
        ("reader", SINCE, "REPLICATION CLIENT"),
        ("without_client", SINCE, "REPLICATION CLIENT"),
        ("without_slave", SINCE, "REPLICATION SLAVE"),
    ],
)
def test_a_user_who_lacks_a_right_is_told_which(run: Run, user: str, command: str, missing: str) -> None:
    code, said = asked(run, user, command)
    assert code == 1 and missing in said and "`viewtail check` lists" in said, said
    assert "again" not in said and "a fault in viewtail" not in said, said


@pytest.mark.parametrize(
    ("user", "missing"), [("without_client", "REPLICATION CLIENT"), ("without_slave", "REPLICATION SLAVE")]
)
def test_why_without_the_binlog_leaves_the_last_change_out_and_says_so(run: Run, user: str, missing: str) -> None:
    code, said = asked(run, user, "why redis:people 5")
    (change,) = [line for line in said.splitlines() if line.startswith("last change")]
    assert code == 0 and "CURRENT" in said, said
    assert "not looked" in change and missing in change and "`viewtail check` lists" in change, said
