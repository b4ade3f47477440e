"""Clients that are not ours read what a real `viewtail run` publishes: kcat, Java, Debezium's JDBC sink, the examples.

What docs/consuming.md tells other teams to write, its commands and its settings, is what is run here.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from jsonschema import Draft202012Validator

from offsets.views import State
from stack import connect, java, kafka, kcat
from stack.server import Server
from tests.support.running import Run, addresses, clean_environment, wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.kafka]

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = CHECKOUT / "examples/consumers"
PAGE = (CHECKOUT / "docs/consuming.md").read_text()
SCHEMA = "consumers"
STORE = "consumers_views"
TABLES = f"""
CREATE DATABASE {SCHEMA};
CREATE TABLE {SCHEMA}.orders (
  id BIGINT UNSIGNED NOT NULL PRIMARY KEY, customer VARCHAR(40) NOT NULL, total DECIMAL(12,2) NOT NULL, note TEXT
) CHARSET=utf8mb4;
CREATE TABLE {SCHEMA}.item (
  shop INT NOT NULL, code VARCHAR(20) NOT NULL, PRIMARY KEY (shop, code),
  price DECIMAL(20,4), stock BIGINT, weight DOUBLE, width FLOAT, is_sold BOOL NOT NULL, has_box BIT(1),
  made_on DATE, opens_at TIME(3), sold_at DATETIME(6), seen_at TIMESTAMP(3) NULL, vintage YEAR,
  state ENUM('new','used'), tags SET('a','b','c'), about TEXT, details JSON, place POINT
) CHARSET=utf8mb4;
CREATE TABLE {SCHEMA}.bulk (id INT NOT NULL PRIMARY KEY, filler VARCHAR(600) NOT NULL);
INSERT INTO {SCHEMA}.orders VALUES (1, 'Ada', 1.50, NULL), (2, 'Grüße', 20, 'first'), (3, 'Alan', 0, '');
INSERT INTO {SCHEMA}.item (shop, code, is_sold, made_on) VALUES (7, 'a', 0, '2024-02-29'), (7, 'b', 1, NULL)
"""
VIEWS = f"""
from viewtail import Entity, Topic

views = [
    Topic("{SCHEMA}.orders", Entity("{SCHEMA}.orders"), partitions=3),
    Topic("{SCHEMA}.item", Entity("{SCHEMA}.item"), partitions=2, schemas=True),
    Topic("{SCHEMA}.bulk", Entity("{SCHEMA}.bulk"), partitions=2),
]
"""


class Published:
    """A viewtail that publishes the tables above."""

    def __init__(self, folder: Path, mysql: Server, broker: Server) -> None:
        self.mysql, self.broker = mysql, broker
        environ = {"VIEWTAIL_KAFKA__URL": broker.url, "VIEWTAIL_MYSQL__URL": f"{mysql.url}/{STORE}"}
        self.running = Run(folder, VIEWS, {**addresses(mysql), **environ})
        self._marks = 1_000_000_000
        self._session = connected(mysql)

    @property
    def address(self) -> str:
        """Of the broker, as clients take it."""
        return f"{self.broker.host}:{self.broker.port}"

    def execute(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        with self._session.cursor() as cursor:
            cursor.execute(sql, arguments or None)
            return list(cursor.fetchall())

    def wait(self) -> None:
        """Until everything that was committed in MySQL is in the topics."""
        self._marks += 1
        self.execute(f"INSERT INTO {SCHEMA}.orders VALUES ({self._marks}, 'mark', 0, NULL)")
        try:
            wait_for("the mark", lambda: self._marks in {row["id"] for row in self.plain("orders")}, 60)
        except AssertionError:
            print(self.running.log[-6000:])
            raise

    def plain(self, table: str) -> list[dict[str, Any]]:
        """What plain.py prints."""
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / "plain.py"), self.address, f"{SCHEMA}.{table}"],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def messages(self, table: str) -> Iterator[Message]:
        """The committed messages of a topic."""
        topic = f"{SCHEMA}.{table}"
        settings = {"bootstrap.servers": self.address, "group.id": "test", "isolation.level": "read_committed"}
        with closing(Consumer({**settings, "enable.partition.eof": True, "fetch.wait.max.ms": 10})) as consumer:
            unread = set(consumer.list_topics(topic, 10).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, number, 0) for number in unread])
            while unread:
                for message in consumer.consume(10_000, timeout=0.2):
                    if (error := message.error()) is None:
                        yield message
                    else:
                        assert error.code() == KafkaError._PARTITION_EOF
                        unread.discard(message.partition())

    def changes(self, table: str) -> Counter[tuple[str, int, str]]:
        """The committed changes of a topic: key, version and op."""
        return Counter(
            (
                (message.key() or b"").decode(),
                int(dict(message.headers() or [])["viewtail_version"] or 0),
                json.loads(value)["op"],
            )
            for message in self.messages(table)
            if (value := message.value()) is not None
        )


def connected(server: Server) -> pymysql.Connection[Any]:
    return pymysql.connect(host=server.host, port=server.port, user="root", autocommit=True, charset="utf8mb4")


@pytest.fixture(scope="module")
def published(
    tmp_path_factory: pytest.TempPathFactory, mysql_server: Server, kafka_server: Server
) -> Iterator[Published]:
    found = Published(tmp_path_factory.mktemp("published"), mysql_server, kafka_server)
    for statement in TABLES.split(";\n"):
        found.execute(statement)
    found.running.start()

    def is_filled() -> bool:
        states = found.execute(f"SELECT state FROM {STORE}.view")
        return len(states) == 3 and all(state == State.FILLED for (state,) in states)

    try:
        wait_for("filled topics", is_filled, 60)
        yield found
    except BaseException:
        print(found.running.log[-6000:])
        raise
    finally:
        found.running.kill()
        for database in (SCHEMA, STORE):
            found.execute(f"DROP DATABASE IF EXISTS {database}")


# --- examples/consumers/plain.py ---


def test_the_plain_consumer_ends_with_the_rows_of_the_table(published: Published) -> None:
    published.execute(f"INSERT INTO {SCHEMA}.orders VALUES (10, 'a', 1, 'x'), (11, 'b', 2, NULL), (12, 'c', 3, '')")
    published.execute(f"UPDATE {SCHEMA}.orders SET note = 'changed' WHERE id = 10")
    published.execute(f"DELETE FROM {SCHEMA}.orders WHERE id = 11")
    published.execute(f"UPDATE {SCHEMA}.orders SET id = 13 WHERE id = 12")
    published.wait()
    rows = published.execute(f"SELECT id, customer, CAST(total AS CHAR), note FROM {SCHEMA}.orders ORDER BY id")
    found = [(row["id"], row["customer"], row["total"], row["note"]) for row in published.plain("orders")]
    assert sorted(found) == rows


# --- kcat ---


def test_the_commands_for_kcat_print_keys_versions_and_what_they_promise(published: Published) -> None:
    published.wait()
    commands = re.findall(r"^    (kcat .+)$", PAGE, re.MULTILINE)
    assert len(commands) >= 3
    printed = [_kcat(published, command) for command in commands]
    assert all(printed)
    (versions,) = (lines for command, lines in zip(commands, printed, strict=True) if "%h" in command)
    found = Counter(tuple(line.split()[2:4]) for line in versions if not line.endswith(" -1"))
    expected = Counter((key, f"viewtail_version={version}") for key, version, _ in published.changes("orders"))
    assert found == expected


def _kcat(published: Published, command: str) -> list[str]:
    """The lines that a command of the page prints."""
    argv = kcat.client(published.broker)
    ours = command.replace("BROKER:9092", published.address).replace("shop.orders", f"{SCHEMA}.orders")
    script = f'kcat() {{ {" ".join(argv[: argv.index("-b")])} "$@"; }}\n{ours}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout.splitlines()


# --- examples/consumers/java ---


def test_a_java_consumer_counts_each_change_once_when_the_tailer_is_killed_in_a_transaction(
    published: Published,
) -> None:
    bulk = f"{SCHEMA}.bulk"
    published.execute(f"INSERT INTO {bulk} {_numbers(0, 500)}")
    published.execute(f"UPDATE {bulk} SET filler = 'updated'")
    published.execute(f"DELETE FROM {bulk} WHERE id < 100")
    published.wait()
    before = _uncommitted_end(published, bulk)
    published.execute(f"INSERT INTO {bulk} {_numbers(1000, 50_000)}")
    changes = 500 + 500 + 100 + 50_000
    wait_for("messages of an open transaction", lambda: _uncommitted_end(published, bulk) > before + 1000)
    assert published.running.kill_worker("kafka")
    published.wait()
    counted = _java(published, bulk)
    (rows,) = published.execute(f"SELECT COUNT(*) FROM {bulk}")
    assert counted == {"changes": changes, "tombstones": 100, "rows": rows[0], "twice": 0}
    uncommitted = _java(published, bulk, "read_uncommitted")
    assert uncommitted["changes"] > changes and uncommitted["twice"] > 0


def _numbers(start: int, count: int) -> str:
    """A SELECT of rows for the table bulk, in one statement."""
    return (
        f"WITH RECURSIVE n (id) AS (SELECT {start} UNION ALL SELECT id + 1 FROM n WHERE id < {start + count - 1}) "
        "SELECT /*+ SET_VAR(cte_max_recursion_depth = 1000000) */ id, REPEAT('x', 500) FROM n"
    )


def _uncommitted_end(published: Published, topic: str) -> int:
    """How many messages are in the log, those of open and aborted transactions too."""
    settings = {"bootstrap.servers": published.address, "group.id": "test", "isolation.level": "read_uncommitted"}
    with closing(Consumer(settings)) as consumer:
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, number))[1] for number in range(2))


def _java(published: Published, *arguments: str) -> dict[str, int]:
    jars = kafka.install() / "jars"
    names = ("kafka-clients-", "lz4-java-", "slf4j-api-")
    classes = ":".join(str(jar) for name in names for jar in jars.glob(f"{name}*.jar"))
    argv = [str(java.home() / "bin/java"), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classes]
    argv += [str(EXAMPLES / "java/CountChanges.java"), published.address, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {name: int(count) for name, count in map(str.split, done.stdout.splitlines())}


# --- The partition of a key ---


def test_the_partition_of_a_key_is_murmur2_of_its_bytes_as_java_has_it(published: Published) -> None:
    published.execute(f"INSERT INTO {SCHEMA}.orders SELECT id + 7000, 'c', 0, NULL FROM ({_numbers(0, 50)}) n")
    published.wait()
    seen = [(message.key() or b"", message.partition()) for message in published.messages("orders")]
    assert {partition for _, partition in seen} == {0, 1, 2}
    assert all(partition == (_murmur2(key) & 0x7FFFFFFF) % 3 for key, partition in seen)


def _murmur2(data: bytes) -> int:
    """As org.apache.kafka.common.utils.Utils has it."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    found = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        found = (found * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if rest := data[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * m & mask
    found = (found ^ found >> 13) * m & mask
    return found ^ found >> 15


# --- viewtail schema ---


def test_the_schemas_that_viewtail_prints_hold_for_every_message(published: Published) -> None:
    for table in ("orders", "item"):
        published.execute(f"DELETE FROM {SCHEMA}.{table} LIMIT 1")
    published.wait()
    for table in ("orders", "item"):
        printed = [published.running.command("schema", f"{SCHEMA}.{table}", *more) for more in ([], ["--key"])]
        assert [done.returncode for done in printed] == [0, 0], printed[0].stderr
        value, key = (Draft202012Validator(json.loads(done.stdout)) for done in printed)
        seen = list(published.messages(table))
        assert len(seen) > 2
        for message in seen:
            key.validate(json.loads(message.key() or b""))
            if (content := message.value()) is not None:
                value.validate(json.loads(content))


# --- Waiting for a write, as the page says ---


def test_the_ends_that_viewtail_has_published_say_where_a_write_is(published: Published) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    topic = f"{SCHEMA}.orders"
    published.execute("CREATE USER waiter IDENTIFIED BY 'w'")
    published.execute("GRANT INSERT, UPDATE ON viewtail.watermark TO waiter")
    for key in (5000, 5001, 5002):
        published.execute(f"INSERT INTO {topic} VALUES ({key}, 'waited for', 0, NULL)")
        with pymysql.connect(host="127.0.0.1", port=published.mysql.port, user="waiter", password="w") as connection:
            ends = namespace["ends_now"](published.address, connection, f"{STORE}.kafka")
        assert key in {json.loads(one)["id"] for one in _keys_before(published, topic, ends[topic])}
    published.execute("DROP USER waiter")


def _keys_before(published: Published, topic: str, ends: list[int]) -> set[str]:
    """The keys of the committed messages before these offsets, by partition."""
    found: set[str] = set()
    settings = {"bootstrap.servers": published.address, "group.id": "test", "isolation.level": "read_committed"}
    with closing(Consumer({**settings, "enable.partition.eof": True, "fetch.wait.max.ms": 10})) as consumer:
        for number, end in enumerate(ends):
            consumer.assign([TopicPartition(topic, number, 0)])
            while (message := consumer.poll(10)) is not None and (message.offset() or 0) < end:
                assert message.error() is None
                found.add((message.key() or b"").decode())
    return found


# --- examples/consumers/exactly_once.py ---


class Member:
    """One process of exactly_once.py."""

    def __init__(self, published: Published, name: str, log: Path, topic: str = f"{SCHEMA}.orders") -> None:
        mysql = published.mysql
        url = f"mysql://root@{mysql.host}:{mysql.port}/{REPORT}"
        arguments = [str(EXAMPLES / "exactly_once.py"), published.address, topic, url, name]
        with log.open("ab") as into:
            self.process = subprocess.Popen([sys.executable, *arguments], env=clean_environment(), stderr=into)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


REPORT = "consumers_report"


def test_the_consumer_with_offsets_in_mysql_writes_each_change_once_however_often_it_is_killed(
    published: Published, tmp_path: Path
) -> None:
    chance = random.Random(12)
    published.execute(f"CREATE DATABASE {REPORT}")
    writer = Writer(published, f"INSERT INTO {SCHEMA}.orders VALUES (%s, 'c', 1, NULL)", 100_000)
    members = {"one": Member(published, "one", tmp_path / "log")}
    try:
        wait_for("rows", lambda: _written(published) > 0)
        _hang_and_come_back(published, members, tmp_path / "log")
        members["two"] = Member(published, "two", tmp_path / "log")
        for _ in range(8):
            wait_for("rows", lambda at=_written(published): _written(published) > at)  # type: ignore[misc]
            time.sleep(chance.random() / 10)
            for name in chance.choice((["one"], ["two"], ["one", "two"])):
                members[name].kill()
                members[name] = Member(published, name, tmp_path / "log")
        writer.stop()
        published.wait()
        expected = published.changes("orders")
        wait_for("every change", lambda: _written(published) >= expected.total())
        assert _consumed(published) == expected
    except BaseException:
        print((tmp_path / "log").read_text()[-4000:])
        raise
    finally:
        writer.stop()
        for member in members.values():
            member.kill()
        published.execute(f"DROP DATABASE {REPORT}")


def test_the_consumer_with_offsets_in_mysql_stops_at_a_topic_that_was_made_again(
    published: Published, tmp_path: Path
) -> None:
    topic = "consumers.again"
    published.execute(f"CREATE DATABASE {REPORT}")
    _make_with_a_change(published, topic)
    member = Member(published, "one", tmp_path / "log", topic)
    try:
        wait_for("the change", lambda: _written(published) == 1)
        member.kill()
        client = AdminClient({"bootstrap.servers": published.address})
        client.delete_topics([topic])[topic].result(10)
        wait_for("another topic", lambda: _make_with_a_change(published, topic) or True)
        member = Member(published, "one", tmp_path / "log", topic)
        assert member.process.wait(30) == 1
        assert f"{topic} was deleted and made again: begin anew" in (tmp_path / "log").read_text()
        assert _written(published) == 1
    finally:
        member.kill()
        published.execute(f"DROP DATABASE {REPORT}")


def _make_with_a_change(published: Published, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": published.address})  # gone with it is what it was asked
    for made in client.create_topics([NewTopic(topic, 1)]).values():
        made.result(10)
    producer = Producer({"bootstrap.servers": published.address})
    value = b'{"before":null,"after":{"id":1},"op":"c"}'
    producer.produce(topic, value, b'{"id":1}', headers=[("viewtail_version", b"1")])
    assert producer.flush(30) == 0


def _hang_and_come_back(published: Published, members: dict[str, Member], log: Path) -> None:
    """A member is stopped, another one of its name takes its partitions, and the first one wakes up."""
    hung = members["one"]
    _stop_between_transactions(published, hung)
    members["one"] = Member(published, "one", log)
    fences = f"SELECT COUNT(*), MIN(fence) FROM {REPORT}.pipeline"
    wait_for("another owner", lambda: published.execute(fences) == [(3, 2)])
    hung.process.send_signal(signal.SIGCONT)
    assert hung.process.wait(60) != 0


def _stop_between_transactions(published: Published, member: Member) -> None:
    """Stopped in the midst of one, it would keep its partition's row locked for longer than the others wait."""
    is_open = (
        "SELECT COUNT(*) FROM information_schema.innodb_trx JOIN information_schema.processlist "
        f"ON id = trx_mysql_thread_id WHERE db = '{REPORT}'"
    )

    def is_stopped() -> bool:
        member.process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)  # what it had sent is done
        if published.execute(is_open) == [(0,)]:
            return True
        member.process.send_signal(signal.SIGCONT)
        return False

    wait_for("it is between two transactions", is_stopped)


def _written(published: Published) -> int:
    try:
        ((count,),) = published.execute(f"SELECT COUNT(*) FROM {REPORT}.consumed_change")
    except pymysql.err.ProgrammingError:
        return 0  # not made yet
    return int(count)


def _consumed(published: Published) -> Counter[tuple[str, int, str]]:
    rows = published.execute(f"SELECT entity_key, version, op FROM {REPORT}.consumed_change")
    return Counter((json.dumps(json.loads(key), separators=(",", ":")), version, op) for key, version, op in rows)


class Writer:
    """Commits one row after another in a thread, with rising keys, until it is stopped."""

    def __init__(self, published: Published, statement: str, first: int) -> None:
        self._published, self._statement, self._next = published, statement, first
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with connected(self._published.mysql) as connection, connection.cursor() as cursor:
            while not self._is_stopping.wait(0.001):
                cursor.execute(self._statement, (self._next,))
                self._next += 1

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join()


# --- Debezium's JDBC sink, with the settings of the page ---

COPY = "consumers_copy"


def test_debezium_s_jdbc_sink_keeps_a_table_that_equals_the_source(
    published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_OPTS", f"{os.environ['KAFKA_OPTS']} -Duser.timezone=America/New_York")
    source, target = f"{SCHEMA}.item", f"{COPY}.item_copy"
    published.execute(f"INSERT INTO {source} (shop, code, is_sold, made_on) VALUES (1, 'before', 0, '2024-02-29')")
    published.execute(f"CREATE DATABASE {COPY}")
    published.execute(f"CREATE TABLE {target} LIKE {source}")
    published.execute("CREATE USER sink IDENTIFIED BY 'sink'")
    published.execute(f"GRANT ALL ON {COPY}.* TO sink")
    try:
        with _sink(published, tmp_path):
            for seed in range(200):
                published.execute(_random_change(random.Random(seed)))
            counts = published.execute(f"SELECT COUNT(*), SUM(shop = 9) FROM {source}")
            assert counts[0][0] > 20 and counts[0][1] > 5, "there must be rows, and some with changed keys"
            everything = "SELECT * FROM {} ORDER BY shop, code"
            expected = published.execute(everything.format(source))
            wait_for("the copy", lambda: published.execute(everything.format(target)) == expected)
    finally:
        published.execute(f"DROP DATABASE {COPY}")
        published.execute("DROP USER sink")


@contextmanager
def _sink(published: Published, folder: Path) -> Iterator[None]:
    """A worker with the connector of the page."""
    (page,) = re.findall(r"```properties\n(.*?)```", PAGE, re.DOTALL)
    for theirs, ours in {
        "shop.orders": f"{SCHEMA}.item",
        "orders_copy": "item_copy",
        "HOST:3306/DATABASE": f"{published.mysql.host}:{published.mysql.port}/{COPY}",
        "USER": "sink",
        "PASSWORD": "sink",
    }.items():
        assert theirs in page
        page = page.replace(theirs, ours)
    settings = dict(line.split("=", 1) for line in page.splitlines())
    worker = connect.start(folder, published.broker, {settings.pop("name"): settings}, [connect.debezium_jdbc()])
    try:
        yield
    except BaseException:
        print(re.findall("(?:ERROR|Caused by).*", (folder / "server.log").read_text())[-20:])
        raise
    finally:
        worker.kill()


def _random_change(chance: random.Random) -> str:
    """An insert, an update, a delete, or a change of a key."""
    item, key = f"{SCHEMA}.item", f"shop = {chance.randrange(3)} AND code = 'k{chance.randrange(20)}'"
    match chance.randrange(8):
        case 0:
            return f"DELETE FROM {item} WHERE {key}"
        case 1:
            return f"UPDATE IGNORE {item} SET shop = 9 WHERE {key}"
        case 2:
            return f"UPDATE {item} SET about = NULL, stock = stock + 1, is_sold = NOT is_sold WHERE {key}"
    shop, code = re.findall(r"\d+|k\d+", key)
    values = [
        *(f"{chance.uniform(-1e9, 1e9):.4f}", str(chance.getrandbits(63) - (1 << 62)), repr(chance.uniform(-1e9, 1e9))),
        *(f"{chance.uniform(-1e3, 1e3):.3f}", str(chance.randrange(2)), f"b'{chance.randrange(2)}'"),
        f"'{chance.randrange(1000, 9999)}-02-{chance.randrange(1, 29)}'",
        f"'{chance.randrange(24)}:59:0{chance.random():.3f}'",
        f"'1970-01-02 03:04:05' + INTERVAL {chance.randrange(10**15)} MICROSECOND",
        f"FROM_UNIXTIME({chance.randrange(1, 2**31)}.{chance.randrange(1000):03d})",
        *(str(chance.randrange(1901, 2156)), f"'{chance.choice(('new', 'used'))}'"),
        f"'{','.join(chance.sample('abc', chance.randrange(4)))}'",
        f"'{chance.choice(('', 'plain', 'Grüße 😀', 'NULL'))}'",
        f"JSON_OBJECT('n', {chance.random()}, 'l', JSON_ARRAY(1, NULL))",
        f"POINT({chance.randrange(90)}, {chance.random()})",
    ]  # fmt: skip
    shown = [value if chance.random() < 0.8 or at == 4 else "NULL" for at, value in enumerate(values)]
    return f"REPLACE INTO {item} VALUES ({shop}, '{code}', {', '.join(shown)})"
