"""A world whose views are damaged by hand: tables of several kinds of keys, and views of each in every store.

What the views must hold is computed here from plain SELECTs, and read back from the stores raw. Nothing of viewtail is
imported: a mistake of its own cannot excuse itself here.
"""

from __future__ import annotations

import base64
import json
import random
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import redis

from stack import Server
from tests.support.forked import PATIENCE_S, Background
from tests.support.indices import Indices
from tests.support.running import Run, addresses, wait_for
from tests.support.world import escaped

SCHEMA, STORE = "damaged", "damaged_views"
PEOPLE = 800  # of the table at first; writers change those from BUSY on alone
BUSY = 5000
KEYED = "id BIGINT UNSIGNED NOT NULL PRIMARY KEY"
PERSON = """name VARCHAR(64) NOT NULL, email VARCHAR(100) NULL, visits INT NOT NULL, price DECIMAL(10,2) NULL,
  ratio FLOAT NULL, seen DATETIME(3) NULL, token VARBINARY(16) NULL, about JSON NULL, is_active BOOL NOT NULL"""
_FOLDING = "VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL"
TABLES = (
    f"CREATE TABLE {SCHEMA}.person ({KEYED}, {PERSON})",
    f"CREATE TABLE {SCHEMA}.place (code {_FOLDING}, n INT NOT NULL, title VARCHAR(40), PRIMARY KEY (code, n))",
    f"CREATE TABLE {SCHEMA}.latin (code VARCHAR(40) CHARACTER SET latin1 NOT NULL PRIMARY KEY, title VARCHAR(40))",
    f"CREATE TABLE {SCHEMA}.raw (id BINARY(4) NOT NULL PRIMARY KEY, title VARCHAR(40))",
    f"CREATE TABLE {SCHEMA}.day (day DATE NOT NULL PRIMARY KEY, title VARCHAR(40))",
    f"CREATE TABLE {SCHEMA}.draft (id INT NOT NULL PRIMARY KEY, ref BIGINT NOT NULL, body VARCHAR(60))",
    f"""CREATE TABLE {SCHEMA}.cell (added BIGINT AUTO_INCREMENT PRIMARY KEY, row_key VARCHAR(20) NOT NULL,
        ref BIGINT NOT NULL, body VARCHAR(60))""",
    f"CREATE TABLE {SCHEMA}.nobody (id INT NOT NULL PRIMARY KEY, title VARCHAR(40))",
)
_ENTITIES = f"""
from viewtail import Entity, IndexTable, RedisHash, RedisJson, SearchIndex

person, place = Entity("{SCHEMA}.person"), Entity("{SCHEMA}.place")
latin, raw, day = Entity("{SCHEMA}.latin"), Entity("{SCHEMA}.raw"), Entity("{SCHEMA}.day")
draft = Entity("{SCHEMA}.draft", version="ref")
cell = Entity("{SCHEMA}.cell", key="row_key", version="ref", append_only=True)
nobody = Entity("{SCHEMA}.nobody")


def is_active(row):
    return row["is_active"]


def nowhere(row):
    return row["visits"] < 0


def document(row):
    return {{"n": row["name"], "v": row["visits"], "p": row["price"], "r": row["ratio"], "e": row["email"]}}
"""
INDEX_TABLES = """
    IndexTable("d_email", person, value="email"),
    IndexTable("d_many", person, value=["name", "visits", "price", "ratio", "seen", "token"], where=is_active),
    IndexTable("d_place", place, value="title"),
    IndexTable("d_latin", latin, value="title"),
    IndexTable("d_raw", raw, value="title"),
    IndexTable("d_draft", draft, value="body"),
    IndexTable("d_cell", cell, value="body"),
    IndexTable("d_nobody", nobody, value="title"),
    IndexTable("d_nowhere", person, value="email", where=nowhere),
"""
_FIELDS = '["name", "email", "visits", "price", "ratio", "seen", "token", "about"]'
REDIS = f"""
    RedisHash("d_hash", person, fields={_FIELDS}),
    RedisJson("d_json", person, fields={_FIELDS}),
    RedisJson("d_made", person, document=document, where=is_active),
    RedisHash("d_place", place, fields=["title"]),
    RedisHash("d_latin", latin, fields=["title"]),
    RedisHash("d_raw", raw, fields=["title"]),
    RedisHash("d_day", day, fields=["title"]),
    RedisJson("d_draft", draft, fields=["body"]),
    RedisHash("d_cell", cell, fields=["body"]),
    RedisHash("d_nobody", nobody, fields=["title"]),
    RedisHash("d_nowhere", person, fields=["email"], where=nowhere),
"""
_MADE = '{"n": "keyword", "v": "integer", "p": "double", "r": "float", "e": "keyword"}'
SEARCH = f"""
    SearchIndex("d_person", person, fields={_FIELDS}),
    SearchIndex("d_made", person, document=document, where=is_active, fields={_MADE}),
    SearchIndex("d_place", place, fields=["title"]),
    SearchIndex("d_raw", raw, fields=["title"]),
    SearchIndex("d_draft", draft, fields=["body"]),
    SearchIndex("d_cell", cell, fields=["body"]),
    SearchIndex("d_nobody", nobody, fields=["title"]),
    SearchIndex("d_nowhere", person, fields=["email"], where=nowhere),
"""
REDIS_NAMES = tuple(f"d_{name}" for name in (
    "hash", "json", "made", "place", "latin", "raw", "day", "draft", "cell", "nobody", "nowhere",
))  # fmt: skip
SEARCH_NAMES = ("d_person", "d_made", "d_place", "d_raw", "d_draft", "d_cell", "d_nobody", "d_nowhere")
CODES = ("abc", "Abd", "pqr", "straße", "é:{}%", "tail", "x", "y", "z")
LATIN_CODES = ("café", "naïve", "plain", "other")
RAWS = (b"\0\0\0\1", b"ab\0\0", b"abc\0", b"zz\xff\xfe", b"\xff\xff\xff\xff")
DAYS = ("2024-01-02", "2024-02-29", "1999-12-31")
ARCHIVED = ("r50", "r51", ("r50",), ("r51",))  # cells whose rows may go; their views keep them
Content = dict[str, dict[Any, Any]]  # view -> key -> what it shows


def views_of(*stores: str) -> str:
    """A views.py with the views of these stores."""
    return f"{_ENTITIES}\nviews = [{''.join(stores)}]\n"


@dataclass(slots=True, kw_only=True)
class DamagedWorld:
    """Tables with rows, and a viewtail that keeps views of them in these stores."""

    folder: Path
    mysql: Server
    redis_server: Server | None = None
    search: Server | None = None
    environ: dict[str, str] = field(init=False)
    run: Run = field(init=False)
    redis: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        stores = [INDEX_TABLES] + [REDIS] * (self.redis_server is not None) + [SEARCH] * (self.search is not None)
        self.environ = addresses(self.mysql, self.redis_server, self.search)
        self.environ["VIEWTAIL_MYSQL__URL"] = f"{self.mysql.url}/{STORE}"
        self.environ["VIEWTAIL_CLEANER__SHARE"] = "0"  # it would mend what is to be found
        self.run = Run(self.folder, views_of(*stores), self.environ)
        if self.redis_server is not None:
            self.redis = redis.Redis(port=self.redis_server.port)
        self._make()

    @property
    def indices(self) -> Indices:
        assert self.search is not None
        return Indices(self.search)

    def connect(self) -> Any:
        return pymysql.connect(
            host="127.0.0.1", port=self.mysql.port, user="root", autocommit=True, charset="utf8mb4", binary_prefix=True
        )

    def ask(self, sql: str, arguments: object = None) -> list[tuple[Any, ...]]:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql, arguments)
            return list(cursor.fetchall())

    def command(self, *arguments: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """A viewtail command; none may end with a traceback."""
        done = self.run.command(*arguments, timeout_s=timeout_s)
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        assert "a fault in viewtail" not in done.stderr, done.stderr
        return done

    def start_command(self, *arguments: str, **environment: str) -> Background:
        """A viewtail command that goes on by itself."""
        return self.run.background(*arguments, **environment)

    def verify(self, *arguments: str) -> dict[str, Any]:
        """By view, what `viewtail verify --json` says of it; and `code`, `failed`."""
        done = self.command("verify", "--json", *arguments)
        assert done.stdout, done.stderr
        found = json.loads(done.stdout)
        return {"code": done.returncode, "failed": found["failed"]} | {one["view"]: one for one in found["views"]}

    def drop(self) -> None:
        for database in (SCHEMA, STORE):
            self.ask(f"DROP DATABASE IF EXISTS {database}")
        if self.redis is not None:
            self.redis.flushall()
        if self.search is not None:
            self.indices.drop(SEARCH_NAMES)

    # -- rows ---------------------------------------------------------------------------------------------------

    def _make(self) -> None:
        self.drop()
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {SCHEMA}")
            for table in TABLES:
                cursor.execute(table)
            people = [person(n) for n in (*range(1, PEOPLE + 1), *range(BUSY, BUSY + 200))]
            for at in range(0, len(people), 500):
                cursor.executemany(
                    f"INSERT INTO {SCHEMA}.person VALUES ({', '.join(['%s'] * 10)})", people[at : at + 500]
                )
            places = [(code, n, f"{code} {n}") for code in CODES for n in range(1, 9)]
            cursor.executemany(f"INSERT INTO {SCHEMA}.place VALUES (%s, %s, %s)", places)
            cursor.executemany(f"INSERT INTO {SCHEMA}.latin VALUES (%s, %s)", [(one, one) for one in LATIN_CODES])
            cursor.executemany(f"INSERT INTO {SCHEMA}.raw VALUES (%s, %s)", [(one, one.hex()) for one in RAWS])
            cursor.executemany(f"INSERT INTO {SCHEMA}.day VALUES (%s, %s)", [(one, one) for one in DAYS])
            drafts = [(n, 10 * n, f"draft {n}") for n in range(1, 101)]
            cursor.executemany(f"INSERT INTO {SCHEMA}.draft VALUES (%s, %s, %s)", drafts)
            cells = [(f"r{n}", 10 * n + at, f"cell {n} {at}") for n in range(1, 61) for at in range(3)]
            cursor.executemany(f"INSERT INTO {SCHEMA}.cell (row_key, ref, body) VALUES (%s, %s, %s)", cells)

    # -- what must be -------------------------------------------------------------------------------------------

    def expected(self) -> Content:
        """What each view must show, but for cells that were archived."""
        people = {row[0]: dict(zip(_NAMES, row, strict=True)) for row in self.ask(f"SELECT {_SELECTED}")}
        active = {n: one for n, one in people.items() if one["is_active"]}
        places = {(code, n): title for code, n, title in self.ask(f"SELECT * FROM {SCHEMA}.place")}
        latin = dict(self.ask(f"SELECT * FROM {SCHEMA}.latin"))
        raws = dict(self.ask(f"SELECT * FROM {SCHEMA}.raw"))
        days = dict(self.ask(f"SELECT CAST(day AS CHAR), title FROM {SCHEMA}.day"))
        drafts = dict(self.ask(f"SELECT id, body FROM {SCHEMA}.draft"))
        cells = dict(self.ask(f"SELECT row_key, body FROM {SCHEMA}.cell ORDER BY ref"))
        many = ("name", "visits", "price", "ratio", "seen", "token")
        found: Content = {
            "mysql:d_email": {(n,): (one["email"],) for n, one in people.items() if one["email"] is not None},
            "mysql:d_many": {(n,): tuple(one[name] for name in many) for n, one in active.items()},
            "mysql:d_place": {key: (title,) for key, title in places.items()},
            "mysql:d_latin": {(key,): (title,) for key, title in latin.items()},
            "mysql:d_raw": {(key,): (title,) for key, title in raws.items()},
            "mysql:d_draft": {(key,): (body,) for key, body in drafts.items()},
            "mysql:d_cell": {(key,): (body,) for key, body in cells.items()},
            "mysql:d_nobody": {},
            "mysql:d_nowhere": {},
        }
        if self.redis is not None:
            found |= {
                "redis:d_hash": {f"{n}": as_hash(one) for n, one in people.items()},
                "redis:d_json": {f"{n}": self._as_document(one) for n, one in people.items()},
                "redis:d_made": {f"{n}": made(one) for n, one in active.items()},
                "redis:d_place": {f"{escaped(code)}:{n}": text(title) for (code, n), title in places.items()},
                "redis:d_latin": {escaped(code): text(title) for code, title in latin.items()},
                "redis:d_raw": {key.hex(): text(title) for key, title in raws.items()},
                "redis:d_day": {key: text(title) for key, title in days.items()},
                "redis:d_draft": {f"{n}": {"body": body} for n, body in drafts.items()},
                "redis:d_cell": {key: {b"body": body.encode()} for key, body in cells.items()},
                "redis:d_nobody": {},
                "redis:d_nowhere": {},
            }
        if self.search is not None:
            found |= {
                "elasticsearch:d_person": {f"{n}": self._as_found(one) for n, one in people.items()},
                "elasticsearch:d_made": {f"{n}": made(one) for n, one in active.items()},
                "elasticsearch:d_place": {f"{escaped(c)}:{n}": {"title": title} for (c, n), title in places.items()},
                "elasticsearch:d_raw": {key.hex(): {"title": title} for key, title in raws.items()},
                "elasticsearch:d_draft": {f"{n}": {"body": body} for n, body in drafts.items()},
                "elasticsearch:d_cell": {key: {"body": body} for key, body in cells.items()},
                "elasticsearch:d_nobody": {},
                "elasticsearch:d_nowhere": {},
            }
        return {view: {key: exact(one) for key, one in content.items()} for view, content in found.items()}

    def wait_until_filled(self) -> None:
        count, asked = len(self.expected()), f"SELECT COUNT(*) FROM {STORE}.view WHERE state = 'filled'"
        wait_for("all views are filled", lambda: self.ask(asked) == [(count,)] and self.run.is_well())

    def wait_until_shown(self) -> None:
        """Until each view shows its table; cells may have been archived."""

        def is_shown() -> bool:
            told = differences(self.expected(), self.actual(), ARCHIVED)
            assert told == [], told
            return True

        wait_for("the views show their tables", is_shown)

    def _as_document(self, row: Mapping[str, Any]) -> dict[str, Any]:
        shown = {name: row[name] for name in _SHOWN}
        shown["price"] = None if row["price"] is None else str(row["price"])
        shown["token"] = None if row["token"] is None else base64.b64encode(row["token"]).decode()
        # MariaDB's JSON is a text.
        shown["about"] = (
            row["about"] if self.mysql.name == "mariadb" or row["about"] is None else json.loads(row["about"])
        )
        return shown

    def _as_found(self, row: Mapping[str, Any]) -> dict[str, Any]:
        shown = self._as_document(row)
        shown["seen"] = None if row["seen"] is None else row["seen"].replace(" ", "T")
        return {name: value for name, value in shown.items() if value is not None}

    # -- what is ------------------------------------------------------------------------------------------------

    def actual(self) -> Content:
        found = self._index_tables()
        found |= self._redis_views() if self.redis is not None else {}
        found |= self._documents() if self.search is not None else {}
        return {view: {key: exact(one) for key, one in content.items()} for view, content in found.items()}

    def _index_tables(self) -> Content:
        found: Content = {}
        for name in ("d_email", "d_many", "d_place", "d_latin", "d_raw", "d_draft", "d_cell", "d_nobody", "d_nowhere"):
            width = 2 if name == "d_place" else 1
            columns = (
                "*" if name != "d_many" else "id, name, visits, price, ratio * 1e0, CAST(seen AS CHAR), token, version"
            )
            rows = self.ask(f"SELECT {columns} FROM {STORE}.{name}")
            found[f"mysql:{name}"] = {
                row[:width]: row[width:-1] for row in rows if any(value is not None for value in row[width:-1])
            }
        return found

    def _redis_views(self) -> Content:
        found: Content = {f"redis:{name}": {} for name in REDIS_NAMES}
        names = list(self.redis.scan_iter(match="d_*", count=5000))
        kinds = self._of_each(names, lambda look, raw: look.type(raw))
        tombstones = self._of_each(names, lambda look, raw: look.exists(b"{" + raw + b"}:t"))
        for raw, kind, has_tombstone in zip(names, kinds, tombstones, strict=True):
            assert kind in (b"hash", b"string"), f"{raw!r} is a {kind!r}"
            assert not has_tombstone, f"{raw!r} has a tombstone beside it"
        hashes = [raw for raw, kind in zip(names, kinds, strict=True) if kind == b"hash"]
        documents = [raw for raw, kind in zip(names, kinds, strict=True) if kind == b"string"]
        contents = dict(zip(hashes, self._of_each(hashes, lambda look, raw: look.hgetall(raw)), strict=True))
        assert all(len(content.pop(b"_version")) == 19 for content in contents.values())
        for raw, document in zip(documents, self._of_each(documents, lambda look, raw: look.get(raw)), strict=True):
            contents[raw] = json.loads(document)
            assert document.startswith(b'{"_version":"') and len(contents[raw].pop("_version")) == 19
        for raw, content in contents.items():
            name, _, key = raw.decode("utf-8", "surrogateescape").partition(":")
            found[f"redis:{name}"][key] = content
        return found

    def _of_each(self, names: Iterable[bytes], ask: Callable[[Any, bytes], object]) -> list[Any]:
        """The answers for thousands of keys, asked for at once: one by one they take seconds."""
        with self.redis.pipeline(transaction=False) as look:
            for raw in names:
                ask(look, raw)
            answers: list[Any] = look.execute()
        return answers

    def _documents(self) -> Content:
        return self.indices.contents(SEARCH_NAMES)


@contextmanager
def kept(world: DamagedWorld) -> Iterator[DamagedWorld]:
    """Its views are filled, and kept by a running viewtail; on failure its log is shown."""
    world.run.start()
    try:
        world.wait_until_filled()
        yield world
    except BaseException:
        print(world.run.log[-6000:])
        raise
    finally:
        world.run.kill()
        world.drop()


_NAMES = ("id", "name", "email", "visits", "price", "ratio", "seen", "token", "about", "is_active")
_SHOWN = _NAMES[1:-1]
_SELECTED = (
    "id, name, email, visits, price, ratio * 1e0, CAST(seen AS CHAR), token, CAST(about AS CHAR), is_active "
    f"FROM {SCHEMA}.person"
)


def person(n: int) -> tuple[Any, ...]:
    """A row. 1 and 0 among the visits; empty names; NULL where n ends with 50 to 59; not active where with 60 to 69."""
    tens = n % 100 // 10
    is_null = tens == 5
    return (
        *(n, "" if n % 100 == 41 else f"name {n}", None if is_null else f"u{n}@example.org", n % 2),
        *(None if is_null else f"{n}.25", None if is_null else n + 0.5),
        *(None if is_null else f"2024-01-02 03:04:{n % 60:02d}.{n % 1000:03d}", None if is_null else b"%03d\0" % n),
        *(None if is_null else json.dumps({"n": n, "x": [1, "a"]}), tens != 6),
    )


def as_hash(row: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Of a person; a NULL is an absent field."""
    shown = {name: row[name] for name in _SHOWN if row[name] is not None}
    return {name.encode(): value if isinstance(value, bytes) else str(value).encode() for name, value in shown.items()}


def made(row: Mapping[str, Any]) -> dict[str, Any]:
    """What `document` makes of a person."""
    price = None if row["price"] is None else str(row["price"])
    return {"n": row["name"], "v": row["visits"], "p": price, "r": row["ratio"], "e": row["email"]}


def text(title: str | None) -> dict[bytes, bytes]:
    return {} if title is None else {b"title": title.encode()}


def exact(content: Any) -> Any:
    """With the types of values: 1, 1.0 and true are three."""
    return json.dumps(content, sort_keys=True) if _is_json(content) else content


def _is_json(content: Any) -> bool:
    return isinstance(content, dict) and not any(isinstance(name, bytes) for name in content)


def differences(expected: Content, actual: Content, but: Iterable[str] = ()) -> list[str]:
    """What should be and what is, of up to five keys a view."""
    told: list[str] = []
    for view, wanted in expected.items():
        found = actual.get(view, {})
        keys = [key for key in {**wanted, **found} if wanted.get(key) != found.get(key) and key not in but]
        told += [f"{view} {key}: should be {wanted.get(key)}, is {found.get(key)}" for key in keys[:5]]
    return told


class BusyWriters:
    """Threads that change undamaged rows: hot keys, deletes, moved keys, XA, large transactions.

    Without a pause behind each transaction they do it as fast as they can, and leave no processor to anybody else.
    """

    def __init__(self, world: DamagedWorld, threads: int = 3, pause_s: float = 0) -> None:
        self._world, self._pause_s = world, pause_s
        self._stop = threading.Event()
        self._ref, self._lock = 10_000, threading.Lock()
        self._threads = [threading.Thread(target=self._write, args=(random.Random(at), at)) for at in range(threads)]
        self.committed = 0
        self.failures: list[str] = []

    def __enter__(self) -> BusyWriters:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, chance: random.Random, at: int) -> None:
        try:
            with self._world.connect() as connection, connection.cursor() as cursor:
                while not self._stop.wait(self._pause_s):
                    try:
                        self._transaction(chance, cursor.execute, at)
                        self.committed += 1
                    except pymysql.err.MySQLError as error:
                        if error.args[0] not in (1213, 1205, 1062, 1614, 1402):  # deadlock, duplicate, XA rolled back
                            raise
                        self._undo(cursor, at)
        except Exception as error:
            self.failures.append(repr(error))

    @staticmethod
    def _undo(cursor: Any, at: int) -> None:
        for statement in (f"XA END 'w{at}'", f"XA ROLLBACK 'w{at}'", "ROLLBACK"):
            try:
                cursor.execute(statement)
            except pymysql.err.MySQLError:
                continue

    def _transaction(self, chance: random.Random, execute: Any, at: int) -> None:
        kind = chance.random()
        if kind < 0.02:
            execute(f"XA START 'w{at}'")
            self._change(chance, execute)
            execute(f"XA END 'w{at}'")
            execute(f"XA PREPARE 'w{at}'")
            execute(f"XA {'COMMIT' if chance.random() < 0.7 else 'ROLLBACK'} 'w{at}'")
        elif kind < 0.025:
            execute(f"UPDATE {SCHEMA}.person SET visits = visits + 1, ratio = ratio + 1 WHERE id >= {BUSY}")
        else:
            execute("BEGIN")
            for _ in range(chance.choice((1, 1, 2, 4))):
                self._change(chance, execute)
            execute("ROLLBACK" if chance.random() < 0.1 else "COMMIT")

    def _change(self, chance: random.Random, execute: Any) -> None:
        n, kind = BUSY + chance.randrange(200), chance.random()
        if kind < 0.3:  # a few keys that change all the time
            hot = BUSY + chance.randrange(3)
            execute(f"UPDATE {SCHEMA}.person SET visits = visits + 1 WHERE id = {hot}")
        elif kind < 0.45:
            execute(f"REPLACE INTO {SCHEMA}.person VALUES ({', '.join(['%s'] * 10)})", (n, *person(n * 7)[1:]))
        elif kind < 0.55:
            execute(f"DELETE FROM {SCHEMA}.person WHERE id = {n}")
        elif kind < 0.62:
            execute(f"UPDATE IGNORE {SCHEMA}.person SET id = {BUSY + chance.randrange(200)} WHERE id = {n}")
        elif kind < 0.7:
            email = chance.choice((None, "", f"x{n}"))
            execute(f"UPDATE {SCHEMA}.person SET email = %s, is_active = NOT is_active WHERE id = {n}", (email,))
        elif kind < 0.78:
            code = chance.choice(("busy", "BUSY", "büsy", "busy "))
            execute(f"REPLACE INTO {SCHEMA}.place VALUES (%s, %s, %s)", (code, chance.randrange(20), f"{n}"))
        elif kind < 0.82:
            execute(f"DELETE FROM {SCHEMA}.place WHERE code = 'busy' AND n = {chance.randrange(20)}")
        elif kind < 0.86:
            execute(f"REPLACE INTO {SCHEMA}.raw VALUES (%s, %s)", (b"w%03d" % chance.randrange(50), f"{n}"))
        elif kind < 0.94:
            self._draft(chance, execute)
        else:
            values = (f"w{chance.randrange(30)}", self._next(), f"body {n}")
            execute(f"INSERT INTO {SCHEMA}.cell (row_key, ref, body) VALUES (%s, %s, %s)", values)

    def _draft(self, chance: random.Random, execute: Any) -> None:
        n = 1000 + chance.randrange(50)
        if chance.random() < 0.2:
            execute(f"DELETE FROM {SCHEMA}.draft WHERE id = {n}")
            return
        # The row is locked before its number is taken, so that the numbers of a row rise.
        execute(f"SELECT * FROM {SCHEMA}.draft WHERE id = {n} FOR UPDATE")
        execute(f"REPLACE INTO {SCHEMA}.draft VALUES ({n}, {self._next()}, 'body')")

    def _next(self) -> int:
        with self._lock:
            self._ref += 1
            return self._ref
