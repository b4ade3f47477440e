"""docs/incidents.md as it is written: each incident is brought about on real servers, and the page mends it.

The page is read, not repeated: its commands are run, its edits are made, and what it shows must be there. `…` on the
page stands for anything. In the end every view equals its table, by `viewtail verify` and by a look of our own.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis

import stack.mysql
import stack.redis
from stack import Server
from tests.support.asking import ask
from tests.support.indices import Indices
from tests.support.pages import PageReader, Step, missing_lines, steps_of
from tests.support.proxy import Proxy
from tests.support.running import Run, wait_for
from tests.support.small_disk import SmallDisk

PAGE = Path(__file__).resolve().parents[2] / "docs/incidents.md"
TEXT = PAGE.read_text()
SECTIONS = dict(re.findall(r"^## (\d+\. .+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
ROWS, KEY = 300, 7  # KEY is the user that the page asks about
TABLE = (
    "CREATE TABLE shop.user (id INT PRIMARY KEY, name VARCHAR(50) NOT NULL, email VARCHAR(100), postcode VARCHAR(10))"
)
# These change nothing, so they are repeated until they show what the page shows.
LOOKS = (
    *("viewtail status", "viewtail why", "viewtail get", "viewtail dead-letters", "df "),
    'mysql -h db1 -e "SELECT',
)

pytestmark = [pytest.mark.mysql, pytest.mark.slow]


# -- the page ---------------------------------------------------------------------------------------------------------


def views_of_the_page() -> str:
    (found,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    return str(found)


# -- the shop of the page ---------------------------------------------------------------------------------------------


class Shop(PageReader):
    """The servers that the page names, a running viewtail, and a folder with views.py."""

    def __init__(self, db1: Server, db2: Server, cache: Server, disk: SmallDisk, search: Server, folder: Path) -> None:
        self.db1, self.db2, self.cache, self.disk, self.search = db1, db2, cache, disk, search
        self.folder = folder
        self.source = db1  # until a failover
        self.redis = redis.Redis(port=cache.port, decode_responses=True)
        self.indices = Indices(search)
        self.proxy = Proxy(db1.port)
        self.blocker: Any = None  # a session that holds up others
        environment = {
            "VIEWTAIL_SOURCE__URL": f"mysql://root@127.0.0.1:{self.proxy.port}",
            "VIEWTAIL_SOURCE__HEARTBEAT_S": "0.5",
            "VIEWTAIL_REDIS__URL": cache.url,
            "VIEWTAIL_ELASTICSEARCH__URL": search.url,
            "VIEWTAIL_METRICS__PORT": "0",
        }
        self.run = Run(folder, views_of_the_page(), environment)

    def places(self) -> dict[str, str]:
        return {
            "mysql -h db1": shlex.join(stack.mysql.client(self.db1)),
            "df -h /var/lib/redis": shlex.join([*self.disk.seen_by, "df", "-h", str(self.disk.folder)]),
            "redis-cli -h cache": shlex.join(stack.redis.client(self.cache)),
            "/var/lib/redis": str(self.disk.path),
            "4711": "4711" if self.blocker is None else str(self.blocker.thread_id()),
            "/backup/user.sql": str(self.folder / "user.sql"),
        }

    def systemctl(self, what: str) -> None:
        if what in ("stop", "restart"):
            assert self.run.stop() == 0
        if what in ("start", "restart"):
            self.run.start()

    # -- what a reader of the page does

    def follow(self, step: Step) -> None:
        if step.edit:
            self._edit(step.edit)
        elif step.command.startswith("systemctl "):
            _, what, service = step.command.split()
            assert service == "viewtail"
            self.systemctl(what)
        elif step.command.startswith(LOOKS) or step.command == "viewtail verify":
            wait_for(f"$ {step.command}", lambda: self.shows(step))
        else:
            code, output = self.done(step.command)
            assert code == 0, f"$ {step.command}\n{output}"
            assert missing_lines(step.shown, output) == [], f"$ {step.command}\n{output}"

    def _edit(self, lines: tuple[str, ...]) -> None:
        """Replace each `-` line of views.py by the `+` line behind it."""
        path = self.folder / "views.py"
        text = path.read_text()
        old = "".join(f"{line[1:]}\n" for line in lines if line[0] in "- ")
        new = "".join(f"{line[1:]}\n" for line in lines if line[0] in "+ ")
        assert text.count(old) == 1, f"views.py has not once:\n{old}"
        path.write_text(text.replace(old, new))

    # -- what is so

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        return [ask(self.source, statement) for statement in statements][-1]

    def refuses_to_write(self) -> bool:
        try:
            self.redis.set("other", "x" * 10_000)
        except redis.exceptions.ResponseError:
            return True
        return False

    def wait(self, view: str = "redis:user") -> None:
        done = self.run.command("wait", view, "--within", "30", timeout_s=40)
        assert done.returncode == 0, done.stderr

    def expected(self) -> dict[str, dict[str, Any]]:
        rows = self.sql("SELECT id, name, email, postcode FROM shop.user")
        return {
            "user_by_email": {str(number): email for number, _, email, _ in rows if email is not None},
            "user": {
                str(number): {"name": name} | ({} if email is None else {"email": email})
                for number, name, email, _ in rows
            },
            "card": {str(number): {"name": name, "initial": name[:1]} for number, name, _, _ in rows},
            "users": {str(number): {"name": name, "postcode": code} for number, name, _, code in rows},
        }

    def shown(self) -> dict[str, dict[str, Any]]:
        index = self.sql("SELECT id, email FROM viewtail.user_by_email WHERE email IS NOT NULL")
        client: Any = self.redis
        found: dict[str, dict[str, Any]] = {"user_by_email": {str(number): email for number, email in index}}
        found["user"] = {key.partition(":")[2]: client.hgetall(key) for key in client.scan_iter("user:*")}
        found["card"] = {key.partition(":")[2]: json.loads(client.get(key)) for key in client.scan_iter("card:*")}
        for values in (*found["user"].values(), *found["card"].values()):
            assert len(values.pop("_version")) == 19
        found["users"] = self.indices.contents(["users"])["elasticsearch:users"]
        return found

    def is_right(self) -> bool:
        """By a comparison that shares nothing with viewtail."""
        expected, shown = self.expected(), self.shown()
        differing = {
            view: [key for key in {*expected[view], *shown[view]} if expected[view].get(key) != shown[view].get(key)]
            for view in expected
        }
        assert not any(differing.values()), differing
        return True


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    folder = tmp_path_factory.mktemp("databases")
    started = [
        stack.mysql.start(folder / f"db{number}", options=[f"--server-id={number}", "--innodb-redo-log-capacity=64M"])
        for number in (1, 2)
    ]
    yield started[0], started[1]
    for server in started:
        server.kill()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, SmallDisk]]:
    """Its data is on a disk that can be filled."""
    folder = tmp_path_factory.mktemp("cache")
    with SmallDisk(folder / "disk", size_mib=64) as disk:
        server = stack.redis.start(folder / "redis", options=["--dir", str(disk.path)])
        yield server, disk
        server.kill()


@pytest.fixture
def shop(
    databases: tuple[Server, Server], cache: tuple[Server, SmallDisk], elasticsearch_server: Server, tmp_path: Path
) -> Iterator[Shop]:
    """db1 with a table of users, db2 that replicates it, and views that are filled."""
    for server in databases:
        _reset(server)
    db1, db2 = databases
    _replicate(db2, db1)
    found = Shop(db1, db2, *cache, elasticsearch_server, tmp_path)
    found.redis.flushall()
    found.indices.drop(["users"])
    rows = ", ".join(f"({n}, 'User {n}', 'u{n}@example.org', '{10000 + n}')" for n in range(1, ROWS + 1))
    found.sql("CREATE DATABASE shop", TABLE, f"INSERT INTO shop.user VALUES {rows}")
    with found.proxy:
        found.run.start()
        try:
            wait_for("all is well", found.run.is_well)
            for view in ("mysql:user_by_email", "redis:user", "redis:card", "elasticsearch:users"):
                found.wait(view)  # until it is backfilled, too
            yield found
        finally:
            print(found.run.log[-6000:])
            found.run.kill()
            found.redis.close()


def _reset(server: Server) -> None:
    server.start()
    for statement in (
        "STOP REPLICA",
        "RESET REPLICA ALL",
        *(f"DROP DATABASE IF EXISTS {name}" for name in ("shop", "rescue", "viewtail")),
        "RESET BINARY LOGS AND GTIDS",
    ):
        ask(server, statement)


def _replicate(replica: Server, primary: Server) -> None:
    ask(
        replica,
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {primary.port}, SOURCE_USER = 'root', "
        "SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1, SOURCE_CONNECT_RETRY = 1, SOURCE_RETRY_COUNT = 1000",
    )
    ask(replica, "START REPLICA")


# -- the incidents: what happens before somebody opens the page -------------------------------------------------------

Incident = Callable[[Shop], AbstractContextManager[None]]


@contextmanager
def restored(shop: Shop) -> Iterator[None]:
    """Redis comes back as it was; then somebody copies one more key out of the backup into it."""
    client: Any = shop.redis
    old = client.execute_command("DUMP", f"user:{KEY}", NEVER_DECODE=True)
    shop.cache.stop()
    backup = shop.folder / "backup"
    shutil.copytree(shop.disk.path / "appendonlydir", backup)
    shop.cache.start()
    shop.sql("UPDATE shop.user SET email = CONCAT('new.', email), name = CONCAT('New ', name)")
    shop.wait()
    shop.cache.stop()
    shutil.rmtree(shop.disk.path / "appendonlydir")
    shutil.copytree(backup, shop.disk.path / "appendonlydir")
    shop.cache.start()
    wait_for("viewtail mends by itself what it can", shop.is_right)
    client.restore(f"user:{KEY}", 0, old, replace=True)
    yield


@contextmanager
def purged(shop: Shop) -> Iterator[None]:
    """viewtail was down for longer than the binlogs are kept."""
    assert shop.run.stop() == 0
    shop.sql("UPDATE shop.user SET name = CONCAT('New ', name)", f"DELETE FROM shop.user WHERE id = {ROWS}")
    shop.sql("FLUSH BINARY LOGS")

    def is_gone() -> bool:
        files = shop.sql("SHOW BINARY LOGS")
        shop.sql(f"PURGE BINARY LOGS TO '{files[-1][0]}'")
        return len(shop.sql("SHOW BINARY LOGS")) == 1

    wait_for("the replica has read them too, and they are gone", is_gone)
    shop.run.start()
    yield


@contextmanager
def poisoned(shop: Shop) -> Iterator[None]:
    shop.sql(f"UPDATE shop.user SET name = '' WHERE id = {KEY}")
    shop.wait()
    yield


@contextmanager
def mapped_wrongly(shop: Shop) -> Iterator[None]:
    shop.sql(f"UPDATE shop.user SET postcode = 'SW1A 1AA' WHERE id = {KEY}")
    yield


@contextmanager
def lagging(shop: Shop) -> Iterator[None]:
    """Paused for maintenance, and forgotten; then a large transaction comes."""
    assert shop.run.command("pause", "--pipeline", "redis", "--reason", "new memory for cache").returncode == 0
    wait_for("its process has seen it", lambda: "pipeline paused" in shop.run.log)
    shop.sql("UPDATE shop.user SET name = CONCAT('New ', name)")
    yield


@contextmanager
def stuck(shop: Shop) -> Iterator[None]:
    """A report has read the index table and keeps its transaction open; a migration makes the column longer."""
    blocker: Any = pymysql.connect(host="127.0.0.1", port=shop.source.port, user="root", autocommit=False)
    shop.blocker = blocker
    with blocker.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM viewtail.user_by_email")
    shop.sql("ALTER TABLE shop.user MODIFY email VARCHAR(200)")
    shop.sql(f"UPDATE shop.user SET email = CONCAT(REPEAT('x', 110), email) WHERE id = {KEY}")
    try:
        yield
        with pytest.raises(pymysql.err.MySQLError):
            blocker.ping(reconnect=False)
    finally:
        with suppress(pymysql.err.MySQLError):
            blocker.close()


@contextmanager
def full(shop: Shop) -> Iterator[None]:
    dump = shop.disk.path / "dump-of-monday.rdb"
    dump.write_bytes(bytes(8 << 20))
    shop.disk.fill()
    try:
        wait_for("Redis refuses to write", shop.refuses_to_write)
        shop.sql("UPDATE shop.user SET name = CONCAT('New ', name)")
        yield
        assert not dump.exists()
    finally:
        shop.disk.free()


@contextmanager
def failed_over(shop: Shop) -> Iterator[None]:
    """db1 died with changes that db2 never got and viewtail had read; the address leads to db2 now."""
    executed = shop.sql("SELECT @@GLOBAL.gtid_executed")[0][0].replace("\n", "")
    assert ask(shop.db2, f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{executed}', 20)") == [(0,)]
    ask(shop.db2, "STOP REPLICA")
    shop.sql(f"UPDATE shop.user SET name = 'only on db1' WHERE id = {KEY}")
    shop.wait()
    shop.db1.kill()
    ask(shop.db2, "RESET REPLICA ALL")
    shop.source = shop.db2
    shop.proxy.lead_to(shop.db2.port)
    shop.sql("UPDATE shop.user SET email = CONCAT('new.', email) WHERE id > 200")
    yield


@contextmanager
def truncated(shop: Shop) -> Iterator[None]:
    dump = subprocess.run(
        [*stack.mysql.client(shop.db1, "mysqldump"), "--single-transaction", "--set-gtid-purged=OFF", "shop", "user"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (shop.folder / "user.sql").write_text(dump.stdout)
    shop.sql("TRUNCATE TABLE shop.user", "INSERT INTO shop.user VALUES (1001, 'Later', 'later@example.org', '1')")
    wait_for("the views are empty too", shop.is_right)
    yield
    assert shop.sql("SELECT COUNT(*) FROM shop.user") == [(ROWS + 1,)]


@contextmanager
def deployed_badly(shop: Shop) -> Iterator[None]:
    views = shop.folder / "views.py"
    good = views.read_text()
    git = ["git", "-C", str(shop.folder)]
    for setup in (["init", "-q"], ["config", "user.name", "tour"], ["config", "user.email", "tour@example.org"]):
        subprocess.run([*git, *setup], check=True)
    for text in (good, good.replace('fields=["name", "email"]', 'fields=["name"]')):
        views.write_text(text)
        subprocess.run([*git, "add", "views.py"], check=True)
        subprocess.run([*git, "commit", "-q", "-m", "views"], check=True)
    assert views.read_text() != good
    shop.systemctl("restart")
    wait_for("it is deployed", lambda: "email" not in shop.redis.hgetall(f"user:{KEY}"))
    wait_for("all is well", shop.run.is_well)
    yield
    assert views.read_text() == good


INCIDENTS: dict[str, Incident] = {
    "1. A store was restored from a backup": restored,
    "2. The binlog was purged": purged,
    "3. A poison row": poisoned,
    "4. A wrong mapping": mapped_wrongly,
    "5. Lag": lagging,
    "6. A stuck ALTER": stuck,
    "7. A full disk": full,
    "8. A failover that lost something": failed_over,
    "9. An accidental TRUNCATE": truncated,
    "10. A bad deploy": deployed_badly,
}


def test_every_incident_of_the_page_is_tried() -> None:
    assert list(SECTIONS) == list(INCIDENTS)
    for title, section in SECTIONS.items():
        commands = [step.command for step in steps_of(section)]
        looks = [command.split()[1] for command in commands if command.startswith("viewtail ")]
        assert {"status", "why", "verify"} <= set(looks), title


@pytest.mark.one_in(2)
@pytest.mark.parametrize("title", INCIDENTS)
def test_the_commands_of_the_page_mend_the_incident(title: str, shop: Shop) -> None:
    with INCIDENTS[title](shop):
        for step in steps_of(SECTIONS[title]):
            shop.follow(step)
    wait_for("all is well", shop.run.is_well)
    verified = shop.run.command("verify")
    assert verified.returncode == 0, f"{verified.stdout}{verified.stderr}"
    wait_for("every view equals its table", shop.is_right)
