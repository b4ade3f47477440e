"""A world for replays: tables of which every row says what it is, writers that keep a ledger, and a checker over both.

Each change gives its row a number that rises (`seq`), and the ledger has the numbers of each key in the order of its
changes. So the checker knows which state of the row a reader is shown, whatever version the store has for it. A beacon
row tells how far each store's pipeline has come: what was committed before a beacon that a reader has seen is no longer
to be seen in an older state. Nothing of viewtail is imported: a mistake of its own cannot excuse itself here.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pymysql
import redis

from stack import Server
from tests.support.indices import Indices
from tests.support.running import wait_for

SCHEMA, STORE = "replayed", "replayed_views"
KEYS = 2_400
BLOCK = 40  # neighbouring keys that one writer changes
STORES = ("mysql", "redis", "elasticsearch")
TABLES = ("person", "draft")
NAMES = {"person": "person", "some": "person", "draft": "draft"}  # of views, and their tables
VIEWS = f"""
from viewtail import Entity, IndexTable, RedisHash, RedisJson, SearchIndex

person, beacon = Entity("{SCHEMA}.person"), Entity("{SCHEMA}.beacon")
draft = Entity("{SCHEMA}.draft", version="seq")


def is_some(row):
    return row["seq"] % 3 != 0


def document(row):
    return {{"mark": row["mark"], "text": row["text"]}}


FIELDS = {{"mark": "keyword", "text": "keyword"}}
views = [
    IndexTable("rp_person", person, value=["mark", "text"]),
    IndexTable("rp_some", person, value=["mark", "text"], where=is_some),
    IndexTable("rp_draft", draft, value=["mark", "text"]),
    IndexTable("rp_beacon", beacon, value="n"),
    RedisHash("rp_person", person, fields=["mark", "text"]),
    RedisJson("rp_some", person, document=document, where=is_some),
    RedisHash("rp_draft", draft, fields=["mark", "text"]),
    RedisHash("rp_beacon", beacon, fields=["n"]),
    SearchIndex("rp_person", person, fields=FIELDS),
    SearchIndex("rp_some", person, document=document, where=is_some, fields=FIELDS),
    SearchIndex("rp_draft", draft, fields=FIELDS),
    SearchIndex("rp_beacon", beacon, fields={{"n": "long"}}),
]
"""
COLUMNS = "id INT PRIMARY KEY, seq BIGINT NOT NULL, mark VARCHAR(40) NOT NULL, text VARCHAR(40) NOT NULL, INDEX (seq)"


def mark_of(key: int, seq: int) -> str:
    return f"{key}-{seq}"


def text_of(key: int, seq: int) -> str:
    return f"text of {key}-{seq}"


def is_shown(name: str, seq: int) -> bool:
    """Whether a view shows a row of that number."""
    return name != "some" or seq % 3 != 0


@dataclass(frozen=True, slots=True)
class Entry:
    """What one change made of a key."""

    seq: int
    is_there: bool


class Ledger:
    """Every change of each key, in order; noted before it is committed. A key has one writer."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int], list[Entry]] = {}
        self.committed: dict[tuple[str, int], int] = {}
        self._numbers = itertools.count(1)

    def number(self) -> int:
        return next(self._numbers)

    def note(self, table: str, key: int, entry: Entry) -> None:
        self.entries.setdefault((table, key), []).append(entry)

    def is_there(self, table: str, key: int) -> bool:
        entries = self.entries.get((table, key))
        return entries[-1].is_there if entries else False

    def commit(self, changed: Mapping[tuple[str, int], int]) -> None:
        self.committed |= {key: self.entries[key][-1].seq for key in changed}

    def roll_back(self, changed: Mapping[tuple[str, int], int]) -> None:
        """`changed`: how many entries each key had before."""
        for key, count in changed.items():
            del self.entries[key][count:]


@dataclass(frozen=True, slots=True)
class Found:
    """What a store holds of a key."""

    version: int
    mark: str | None  # None: a tombstone
    text: str | None = None


class Checker:
    """What a reader may see of a view's keys after what it has seen; `failures` is what it should not have.

    Versions never fall, and a key that was gone returns above its tombstone only. What is shown is one whole state of
    the row, that was committed, and none from before the floor; where nothing is shown, a state since then says so.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._versions: dict[tuple[str, str, int], tuple[int, bool]] = {}
        self.failures: list[str] = []
        self.looks = 0

    def saw(self, view: tuple[str, str], key: int, found: Found | None, floor: int) -> None:
        """`floor`: the number of the newest change that the view is known to be past; 0: of none."""
        self.looks += 1
        store, name = view
        whys = self._of_version((store, name, key), found), self._of_content(name, key, found, floor)
        for why in whys:
            if why is not None:
                self.failures.append(f"{store}:{name} {key}: {why}")

    def _of_version(self, place: tuple[str, str, int], found: Found | None) -> str | None:
        before = self._versions.get(place)
        if found is None:
            return None if before is None else f"nothing is left of it, not even the version {before[0]}"
        is_shown = found.mark is not None
        self._versions[place] = found.version, is_shown
        if before is None:
            return None
        if found.version < before[0]:
            return f"went from version {before[0]} to {found.version}"
        if is_shown and not before[1] and found.version == before[0]:
            return f"returned at version {found.version}, at which it was gone"
        return None

    def _of_content(self, name: str, key: int, found: Found | None, floor: int) -> str | None:
        entries = self._ledger.entries.get((NAMES[name], key), [])
        if found is None or found.mark is None:
            since = [one for one in entries if one.seq >= floor]
            if floor == 0 or any(not one.is_there or not is_shown(name, one.seq) for one in since):
                return None
            return f"is gone, and was there at {floor} and ever since"
        seq = int(found.mark.partition("-")[2])
        if (found.mark, found.text) != (mark_of(key, seq), text_of(key, seq)):
            return f"shows parts of two rows: {found.mark}, {found.text}"
        if seq < floor:
            return f"shows {seq}, which the view was past: it had come to {floor}"
        if not is_shown(name, seq) or Entry(seq, True) not in entries:
            return f"shows {seq}, which is no state of its row"
        return None


@dataclass(slots=True, kw_only=True)
class ReplayedWorld:
    """The servers, read raw."""

    mysql: Server
    redis: Server
    elasticsearch: Server
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def indices(self) -> Indices:
        return Indices(self.elasticsearch)

    def connect(self, autocommit: bool = True) -> Any:
        return pymysql.connect(host="127.0.0.1", port=self.mysql.port, user="root", autocommit=autocommit)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def make(self) -> None:
        """Two thirds of the keys have a row."""
        self.drop()
        with self.connect(autocommit=False) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {SCHEMA}")
            cursor.execute(f"CREATE TABLE {SCHEMA}.beacon (id INT PRIMARY KEY, n BIGINT NOT NULL)")
            cursor.execute(f"INSERT INTO {SCHEMA}.beacon VALUES (1, 0)")
            for table in TABLES:
                cursor.execute(f"CREATE TABLE {SCHEMA}.{table} ({COLUMNS})")
                rows = []
                for key in range(KEYS):
                    if key % 3:
                        seq = self.ledger.number()
                        self.ledger.note(table, key, Entry(seq, True))
                        self.ledger.committed[table, key] = seq
                        rows.append((key, seq, mark_of(key, seq), text_of(key, seq)))
                cursor.executemany(f"INSERT INTO {SCHEMA}.{table} VALUES (%s, %s, %s, %s)", rows)
            connection.commit()

    def drop(self) -> None:
        for database in (SCHEMA, STORE):
            self.ask(f"DROP DATABASE IF EXISTS {database}")
        redis.Redis(port=self.redis.port).flushall()
        self.indices.drop([f"rp_{name}" for name in (*NAMES, "beacon")])

    # -- what must be, and what is ------------------------------------------------------------------------------

    def wait_until_equal(self) -> None:
        keys = list(range(KEYS))

        def is_equal() -> bool:
            readers = self.readers()
            for name, table in NAMES.items():
                rows = self.ask(f"SELECT id, seq, mark FROM {SCHEMA}.{table}")
                wanted = {key: mark for key, seq, mark in rows if is_shown(name, seq)}
                for store in STORES:
                    found = readers[store].look(name, keys)
                    shown = {key: one.mark for key, one in found.items() if one.mark is not None}
                    differing = [key for key in keys if shown.get(key) != wanted.get(key)]
                    told = [f"{key}: should be {wanted.get(key)}, is {shown.get(key)}" for key in differing[:5]]
                    assert not differing, f"{store}:{name}: {len(differing)} keys: {told}"
            return True

        wait_for("every view equals its table", is_equal)

    def readers(self) -> dict[str, Reader]:
        made: tuple[Reader, ...] = (TableReader(self), KeyReader(self), DocumentReader(self))
        return dict(zip(STORES, made, strict=True))


class Reader:
    """Of one store, for one thread."""

    def look(self, name: str, keys: list[int]) -> dict[int, Found]:
        """What it holds of these keys of a view, tombstones too, at one moment each."""
        raise NotImplementedError

    def beacon(self) -> int:
        """The number of the newest beacon that shows."""
        raise NotImplementedError


class TableReader(Reader):
    """In MySQL."""

    def __init__(self, world: ReplayedWorld) -> None:
        self._cursor = world.connect().cursor()

    def look(self, name: str, keys: list[int]) -> dict[int, Found]:
        listed = ",".join(map(str, keys))
        self._cursor.execute(f"SELECT id, version, mark, text FROM {STORE}.rp_{name} WHERE id IN ({listed})")
        return {key: Found(*found) for key, *found in self._cursor.fetchall()}

    def beacon(self) -> int:
        self._cursor.execute(f"SELECT n FROM {STORE}.rp_beacon")
        ((number,),) = self._cursor.fetchall()
        return int(number)


class KeyReader(Reader):
    """In Redis: hashes, and the JSON documents of `some`."""

    def __init__(self, world: ReplayedWorld) -> None:
        self._client = redis.Redis(port=world.redis.port, decode_responses=True)

    def look(self, name: str, keys: list[int]) -> dict[int, Found]:
        found: dict[int, Found] = {}
        with self._client.pipeline(transaction=True) as asked:
            for key in keys:
                row = f"rp_{name}:{key}"
                asked.get(row) if name == "some" else asked.hgetall(row)
                asked.get(f"{{{row}}}:t")
            answers: list[Any] = asked.execute()
        for key, row, tombstone in zip(keys, answers[::2], answers[1::2], strict=True):
            assert not (row and tombstone), f"redis:{name} {key}: a tombstone is beside it"
            content = json.loads(row) if isinstance(row, str) else row
            if content:
                found[key] = Found(int(content["_version"]), content["mark"], content["text"])
            elif tombstone:
                found[key] = Found(int(tombstone), None)
        return found

    def beacon(self) -> int:
        return int(self._client.hget("rp_beacon:1", "n") or 0)


class DocumentReader(Reader):
    """In Elasticsearch."""

    def __init__(self, world: ReplayedWorld) -> None:
        self._indices = world.indices

    def look(self, name: str, keys: list[int]) -> dict[int, Found]:
        docs = self._indices.stored(f"rp_{name}", [str(key) for key in keys])
        return {int(doc["_id"]): self._found(doc) for doc in docs if doc.get("found")}

    @staticmethod
    def _found(doc: dict[str, Any]) -> Found:
        return Found(doc["_version"], doc["_source"].get("mark"), doc["_source"].get("text"))

    def beacon(self) -> int:
        (doc,) = self._indices.stored("rp_beacon", ["1"])
        return int(doc["_source"]["n"])


class Watch:
    """A thread a store that looks at some keys of each view, again and again, and one that lights the beacons."""

    def __init__(self, world: ReplayedWorld) -> None:
        self._world, self.checker = world, Checker(world.ledger)
        self._stop = threading.Event()
        # What was committed before each beacon, for those that a store is not known to be past.
        self._floors: list[tuple[int, dict[tuple[str, int], int]]] = [(0, {})]
        work: list[Callable[[], None]] = [self._light]
        work += [lambda of=store: self._look(of) for store in STORES]  # type: ignore[misc]
        self._threads = [threading.Thread(target=self._guarded, args=(one,)) for one in work]
        self.beacons: dict[str, int] = {}

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.checker.failures.append(f"the checker itself failed: {error!r}")

    def _light(self) -> None:
        with self._world.connect() as connection, connection.cursor() as cursor:
            for number in itertools.count(1):
                self._floors.append((number, dict(self._world.ledger.committed)))
                cursor.execute(f"UPDATE {SCHEMA}.beacon SET n = {number}")
                if self._stop.wait(0.25):
                    return

    def _look(self, store: str) -> None:
        """A batch of the stream is written in any order, a beacon in it first: that of the batch before counts."""
        reader = self._world.readers()[store]
        last, floors = reader.beacon(), dict[tuple[str, int], int]()
        for at in itertools.cycle(range(12)):
            if self._stop.wait(0.02):
                return
            seen = reader.beacon()
            if seen < last:
                self.checker.failures.append(f"{store}: the beacon went from {last} to {seen}")
            if seen > last:
                floors, last = dict(self._floors)[last], seen
                self.beacons[store] = self.beacons.get(store, 0) + 1
            keys = list(range(at, KEYS, 12))
            for name, table in NAMES.items():
                found = reader.look(name, keys)
                for key in keys:
                    self.checker.saw((store, name), key, found.get(key), floors.get((table, key), 0))


class Writers:
    """Threads that change both tables at random until stopped: rows come, change, move to other keys, go, come back."""

    def __init__(self, world: ReplayedWorld, seed: int, threads: int = 3) -> None:
        self._world, self._stop = world, threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(random.Random(seed * 100 + at), at, threads))
            for at in range(threads)
        ]
        self.committed = 0
        self.failures: list[str] = []

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, chance: random.Random, at: int, of: int) -> None:
        blocks = [start for number, start in enumerate(range(0, KEYS, BLOCK)) if number % of == at]
        try:
            with self._world.connect(autocommit=False) as connection, connection.cursor() as cursor:
                while not self._stop.wait(chance.uniform(0, 0.02)):
                    self._transaction(chance, connection, cursor, blocks)
        except Exception as error:
            self.failures.append(repr(error))

    def _transaction(self, chance: random.Random, connection: Any, cursor: Any, blocks: list[int]) -> None:
        ledger, changed = self._world.ledger, dict[tuple[str, int], int]()
        try:
            for _ in range(chance.choice((1, 1, 2, 4))):
                # A few blocks change most.
                self._change(chance, cursor, chance.choice(TABLES), chance.choice(blocks[:2] + blocks), changed)
            is_kept = chance.random() > 0.1
            connection.commit() if is_kept else connection.rollback()
        except pymysql.err.MySQLError as error:
            connection.rollback()
            ledger.roll_back(changed)
            if error.args[0] not in (1213, 1205):  # deadlock, lock wait
                raise
            return
        ledger.commit(changed) if is_kept else ledger.roll_back(changed)
        self.committed += is_kept

    def _change(
        self, chance: random.Random, cursor: Any, table: str, start: int, changed: dict[tuple[str, int], int]
    ) -> None:
        """One statement within a block."""
        ledger, seq = self._world.ledger, self._world.ledger.number()
        there = [key for key in range(start, start + BLOCK) if ledger.is_there(table, key)]
        free = [key for key in range(start, start + BLOCK) if key not in there]
        after, statement = _statement(chance, f"{SCHEMA}.{table}", seq, there, free)
        for key, is_there in after.items():
            changed.setdefault((table, key), len(ledger.entries.get((table, key), ())))
            ledger.note(table, key, Entry(seq, is_there))
        cursor.execute(statement)


def _statement(
    chance: random.Random, table: str, seq: int, there: list[int], free: list[int]
) -> tuple[dict[int, bool], str]:
    """What it makes of each key that it changes, and the statement."""
    new = f"seq = {seq}, mark = CONCAT(id, '-{seq}'), text = CONCAT('text of ', id, '-{seq}')"  # of an id set before
    kind, last = chance.random(), max([*there, *free])
    if not there or (free and kind < 0.25):
        key = chance.choice(free)
        row = f"{key}, {seq}, '{mark_of(key, seq)}', '{text_of(key, seq)}'"
        return {key: True}, f"INSERT INTO {table} VALUES ({row})"
    key = chance.choice(there)
    if kind < 0.45:
        return {key: False}, f"DELETE FROM {table} WHERE id = {key}"
    if kind < 0.6 and free:
        to = chance.choice(free)
        return {key: False, to: True}, f"UPDATE {table} SET id = {to}, {new} WHERE id = {key}"
    if kind < 0.65 and there[-1] < last:
        left = dict.fromkeys(there, False)
        moved = {one + 1: True for one in there}
        between = f"BETWEEN {there[0]} AND {last}"
        return left | moved, f"UPDATE {table} SET id = id + 1, {new} WHERE id {between} ORDER BY id DESC"
    return {key: True}, f"UPDATE {table} SET {new} WHERE id = {key}"
