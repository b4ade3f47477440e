"""What viewtail left in its stores, written to text files, and put back into other servers.

A recording is a folder of views.py, source.sql (the canonical tables), viewtail.sql (viewtail's own database, index
tables included), redis.jsonl and elasticsearch.jsonl. Coordinates belong to one server, so the files have placeholders
for them: `<server>`, `<run>` (of Redis) and, for the first, second ... place in the binlog that an offset or a witness
names, `<file 1>`, `<start 1>`, `<end 1>`, `<gtid 1>` and `<base 1>`. Nothing of viewtail is imported: any version can
be recorded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from socket import gethostname
from typing import Any
from urllib.parse import quote

import pymysql
import redis
from pymysql.converters import escape_string

from tests.support.asking import ask
from tests.support.world import World

SOURCE, OWN = "shop", "viewtail"  # databases
_INDICES = "viewtail*"  # a second copy's is viewtail.2-NAME
_PLACE_COLUMNS = ("binlog_file", "end_position", "start_position", "gtid", "gtid_base")
_POSITION_COLUMN = "position"
_PARTS = ("file", "end", "start", "gtid", "base")
_WITNESS = re.compile(r'"file":"([^"]*)","end":(\d+),"start":(\d+),"gtid":"([^"]*)","gtid_base":"([^"]*)"')
_PLACEHOLDER = re.compile(r"<(?:server|run|(?:file|end|start|gtid|base) (\d+))>")
_SETTINGS = ("number_of_shards", "auto_expand_replicas", "translog")
_POSITION = "viewtail_position"  # the field of a witness in Elasticsearch
_VERSION = re.compile(r"\b\d{16,19}\b")


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place in a binlog, as offsets and witnesses name it; places order as the binlog does."""

    file: str
    end: int
    start: int
    gtid: str
    base: str


class _Unquoted(str):
    """A placeholder of a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
    """What the placeholders stand for in the servers that are recorded."""

    server: str
    run: str
    places: list[Place]

    def text(self, text: str) -> str:
        text = _WITNESS.sub(self._witness, text)
        # The host's name is nobody's concern.
        text = re.sub(rf"\b{re.escape(gethostname())}\b", "recorder", text)
        return text.replace(self.server, "<server>").replace(self.run, "<run>")

    def row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of viewtail's own tables."""
        marked = {name: self.text(value) if isinstance(value, str) else value for name, value in row.items()}
        if row.get(_PLACE_COLUMNS[0]) is not None:
            number = self.places.index(Place(*(row[name] for name in _PLACE_COLUMNS))) + 1
            for name, part in zip(_PLACE_COLUMNS, _PARTS, strict=True):
                kind = _Unquoted if isinstance(row[name], int) else str
                marked[name] = kind(f"<{part} {number}>")
        return marked

    def _witness(self, found: re.Match[str]) -> str:
        number = self.places.index(_place_of(found)) + 1
        return (
            f'"file":"<file {number}>","end":<end {number}>,"start":<start {number}>,"gtid":"<gtid {number}>",'
            f'"gtid_base":"<base {number}>"'
        )


def _place_of(found: re.Match[str]) -> Place:
    return Place(found[1], int(found[2]), int(found[3]), found[4], found[5])


# --- Writing a recording ---


def dump(world: World, into: Path) -> None:
    """Write all files but views.py."""
    own = _tables(world, OWN)
    in_redis, in_search = list(_redis_entries(world)), list(_search_entries(world))
    witnesses = [entry["string"] for entry in in_redis if "string" in entry]
    witnesses += [entry["source"].get(_POSITION, "") for entry in in_search if "source" in entry]
    places = {_place_of(found) for text in witnesses for found in _WITNESS.finditer(text)}
    for row in own["pipeline"].rows:
        if _POSITION_COLUMN in row:
            places |= {_place_of(found) for found in _WITNESS.finditer(row[_POSITION_COLUMN])}
        else:  # before positions were texts
            places.add(Place(*(row[name] for name in _PLACE_COLUMNS)))
    marks = _Marks(
        server=ask(world.mysql, "SELECT @@server_uuid")[0][0],
        run=_client(world).info("server")["run_id"],
        places=sorted(places),
    )
    tables = {name: _Table(table.ddl, [marks.row(row) for row in table.rows]) for name, table in own.items()}
    (into / "source.sql").write_text(_script(SOURCE, _tables(world, SOURCE)))
    (into / "viewtail.sql").write_text(_script(OWN, tables))
    for name, entries in (("redis", in_redis), ("elasticsearch", in_search)):
        lines = "".join(json.dumps(_marked(entry, marks), ensure_ascii=False) + "\n" for entry in entries)
        (into / f"{name}.jsonl").write_text(lines)


@dataclass(frozen=True, slots=True)
class _Table:
    ddl: str
    rows: list[dict[str, Any]]


def _tables(world: World, database: str) -> dict[str, _Table]:
    found = {}
    connection = world.connect()
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SHOW TABLES FROM {database}")
        for name in sorted(name for row in cursor.fetchall() for name in row.values()):
            cursor.execute(f"SHOW CREATE TABLE {database}.`{name}`")
            ddl = cursor.fetchone()["Create Table"]
            cursor.execute(f"SELECT * FROM {database}.`{name}` ORDER BY 1")
            found[name] = _Table(ddl, list(cursor.fetchall()))
    connection.close()
    return found


def _script(database: str, tables: Mapping[str, _Table]) -> str:
    statements = [f"CREATE DATABASE {database} CHARACTER SET utf8mb4", f"USE {database}"]
    for name, table in tables.items():
        statements.append(table.ddl)
        for row in table.rows:
            columns = ", ".join(f"`{column}`" for column in row)
            values = ", ".join(_literal(value) for value in row.values())
            statements.append(f"INSERT INTO `{name}` ({columns}) VALUES ({values})")
    return "".join(f"{statement};\n" for statement in statements)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, int | _Unquoted):
        return str(value)
    return f"'{escape_string(str(value))}'"


def _client(world: World) -> Any:
    return redis.Redis(port=world.redis.port, decode_responses=True)


def _redis_entries(world: World) -> Iterator[dict[str, Any]]:
    client = _client(world)
    for key in sorted(client.scan_iter(count=1000)):
        assert client.ttl(key) == -1, f"{key} expires, which a recording does not keep"
        if client.type(key) == "hash":
            yield {"key": key, "hash": client.hgetall(key)}
        else:
            yield {"key": key, "string": client.get(key)}


def _search_entries(world: World) -> Iterator[dict[str, Any]]:
    for index, made in sorted(world.search("GET", f"/{_INDICES}").items()):
        settings = {name: made["settings"]["index"][name] for name in _SETTINGS}
        body = {
            "settings": {"index": settings},
            "mappings": made["mappings"],
            "aliases": made["aliases"],
        }
        yield {"index": index, "body": body}
        for identity, (source, version) in sorted(documents(world, index).items()):
            yield {"index": index, "id": identity, "version": version, "source": source}


def _marked(thing: Any, marks: _Marks) -> Any:
    if isinstance(thing, str):
        return marks.text(thing)
    if isinstance(thing, dict):
        return {name: _marked(value, marks) for name, value in thing.items()}
    return thing


def documents(world: World, index: str) -> dict[str, tuple[dict[str, Any], int]]:
    """Every document of an index, tombstones and the witness included, with its version."""
    world.search("POST", f"/{index}/_refresh")
    hits = world.search("GET", f"/{index}/_search?size=10000&version=true")["hits"]["hits"]
    return {hit["_id"]: (hit["_source"], hit["_version"]) for hit in hits}


# --- Putting it back ---


def restore(world: World, recording: Path) -> list[Place]:
    """Make the servers hold what was recorded; returns the live places that stand for the recorded ones.

    The canonical rows are written to the binlog before the places: an offset that falls back would read them again,
    with other versions than the recorded ones. viewtail's own database is not written to the binlog at all.
    """
    texts = {path.name: path.read_text() for path in recording.iterdir() if path.name != "views.py"}
    clear(world)
    _pass_recorded_files(world, texts)
    with world.cursor() as cursor:
        for statement in _statements(texts["source.sql"]):
            cursor.execute(statement)
    numbers = [int(found[1] or 0) for text in texts.values() for found in _PLACEHOLDER.finditer(text)]
    places = _new_places(world, max(numbers))
    known = {
        "<server>": ask(world.mysql, "SELECT @@server_uuid")[0][0],
        "<run>": _client(world).info("server")["run_id"],
    }
    for number, place in enumerate(places, 1):
        values = zip(_PARTS, astuple(place), strict=True)
        known |= {f"<{part} {number}>": str(value) for part, value in values}
    texts = {name: _PLACEHOLDER.sub(lambda found: known[found[0]], text) for name, text in texts.items()}
    with world.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', sql_log_bin = 0")
        for statement in _statements(texts["viewtail.sql"]):
            cursor.execute(statement)
    _fill_redis(world, [json.loads(line) for line in texts["redis.jsonl"].splitlines()])
    _fill_search(world, [json.loads(line) for line in texts["elasticsearch.jsonl"].splitlines()])
    return places


def clear(world: World) -> None:
    """Nothing of a recording is left, nor of another test's views."""
    for database in (SOURCE, OWN):
        ask(world.mysql, f"DROP DATABASE IF EXISTS {database}")
    _client(world).flushall()
    for index in world.search("GET", f"/{_INDICES}"):
        world.search("DELETE", f"/{index}")


def _statements(script: str) -> list[str]:
    return [statement for statement in script.split(";\n") if statement]


def _pass_recorded_files(world: World, texts: Mapping[str, str]) -> None:
    """Recorded versions must be below those to come: go to a binlog file whose number is above theirs."""
    versions = [int(found) for text in texts.values() for found in _VERSION.findall(text)]
    highest = max(versions) >> 32 & (1 << 21) - 1
    while int(_end(world)[0].rpartition(".")[2]) <= highest:
        ask(world.mysql, "FLUSH BINARY LOGS")


def _end(world: World) -> tuple[str, int, str]:
    """File, position and executed GTIDs at the end of the binlog."""
    row = ask(world.mysql, "SHOW BINARY LOG STATUS")[0]
    return row[0], row[1], row[4].replace("\n", "")


def _new_places(world: World, count: int) -> list[Place]:
    """So many transactions of a table that no view follows."""
    ask(world.mysql, f"CREATE TABLE {SOURCE}.elsewhere (id INT AUTO_INCREMENT PRIMARY KEY)")
    places = []
    for _ in range(count):
        _, start, before = _end(world)
        ask(world.mysql, f"INSERT INTO {SOURCE}.elsewhere VALUES ()")
        file, end, after = _end(world)
        ((gtid,),) = ask(world.mysql, f"SELECT GTID_SUBTRACT('{after}', '{before}')")
        places.append(Place(file, end, start, gtid, before))
    return places


def _fill_redis(world: World, entries: list[dict[str, Any]]) -> None:
    client = _client(world)
    for entry in entries:
        if "hash" in entry:
            client.hset(entry["key"], mapping=entry["hash"])
        else:
            client.set(entry["key"], entry["string"])


def _fill_search(world: World, entries: list[dict[str, Any]]) -> None:
    for entry in entries:
        path = f"/{entry['index']}"
        if "body" in entry:
            world.search("PUT", path, entry["body"])
        else:  # the witness is no row: its version is Elasticsearch's own
            is_row = _POSITION not in entry["source"]
            versioned = f"?version_type=external&version={entry['version']}" if is_row else ""
            world.search("PUT", f"{path}/_doc/{quote(entry['id'])}{versioned}", entry["source"])
