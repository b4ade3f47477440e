"""Damage that people and programs do to views, as data: at least 30 kinds in each store, planted over its own client.

Each is in a key that is right otherwise, and says which keys `viewtail verify` must name, and with which kind of
difference. The rows are those of damaged_world.py: persons 1 to 800, of whom those that end with 50 to 59 have NULLs
and those with 60 to 69 are in no view with a condition; nobody has the ids from 900 on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.damaged_world import SCHEMA, STORE, DamagedWorld
from tests.support.running import wait_for

MISSING, EXTRA, STALE, WRONG = "missing", "extra", "stale", "wrong"
ABOVE = 1 << 62  # a version above every watermark
MOST_OF_ELASTICSEARCH = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One kind of damage to one view."""

    view: str  # with its store
    what: str
    found: Mapping[str, str]  # by rendered key, what verify must say
    plant: Callable[[DamagedWorld], None]


def in_table(view: str, what: str, found: Mapping[str, str], *statements: str) -> Damage:
    """Statements over an index table; `{t}` in them is its name, and `{above}` a version above every watermark."""

    def plant(world: DamagedWorld) -> None:
        for statement in statements:
            world.ask(statement.replace("{t}", f"{STORE}.{view}").replace("{above}", str(ABOVE)))

    return Damage(view=f"mysql:{view}", what=what, found=found, plant=plant)


INDEX_TABLES = (
    in_table("d_email", "a row is gone", {"1": MISSING}, "DELETE FROM {t} WHERE id = 1"),
    in_table("d_email", "a tombstone in its place", {"2": MISSING}, "UPDATE {t} SET email = NULL WHERE id = 2"),
    in_table(
        "d_email", "a newer tombstone", {"3": MISSING}, "UPDATE {t} SET email = NULL, version = {above} WHERE id = 3"
    ),
    in_table("d_email", "another value", {"4": WRONG}, "UPDATE {t} SET email = 'else' WHERE id = 4"),
    in_table("d_email", "another case", {"5": WRONG}, "UPDATE {t} SET email = UPPER(email) WHERE id = 5"),
    in_table("d_email", "a blank behind", {"6": WRONG}, "UPDATE {t} SET email = CONCAT(email, ' ') WHERE id = 6"),
    in_table("d_email", "an empty text", {"7": WRONG}, "UPDATE {t} SET email = '' WHERE id = 7"),
    in_table("d_email", "a zero", {"8": WRONG}, "UPDATE {t} SET email = '0' WHERE id = 8"),
    in_table("d_email", "a NUL behind", {"9": WRONG}, "UPDATE {t} SET email = CONCAT(email, CHAR(0)) WHERE id = 9"),
    in_table("d_email", "a version above all", {"10": WRONG}, "UPDATE {t} SET version = {above} WHERE id = 10"),
    in_table("d_email", "that where no value is", {"750": WRONG}, "UPDATE {t} SET version = {above} WHERE id = 750"),
    in_table(
        "d_email",
        "that and another value",
        {"11": WRONG},
        "UPDATE {t} SET version = {above}, email = 'else' WHERE id = 11",
    ),
    in_table(
        "d_email",
        "the largest version",
        {"12": WRONG},
        "UPDATE {t} SET version = 18446744073709551615, email = 'else' WHERE id = 12",
    ),
    in_table("d_email", "version 0", {"13": WRONG}, "UPDATE {t} SET version = 0, email = 'else' WHERE id = 13"),
    in_table(
        "d_email",
        "swapped rows",
        {"14": WRONG, "15": WRONG},
        "UPDATE {t} SET email = IF(id = 14, 'u15@example.org', 'u14@example.org') WHERE id IN (14, 15)",
    ),
    in_table(
        "d_email",
        "an older value",
        {"16": WRONG},
        "UPDATE {t} SET version = version - 1, email = 'older' WHERE id = 16",
    ),
    in_table(
        "d_email", "a row under another key", {"17": MISSING, "917": EXTRA}, "UPDATE {t} SET id = 917 WHERE id = 17"
    ),
    in_table("d_email", "a value where NULL is", {"50": WRONG}, "UPDATE {t} SET email = 'some' WHERE id = 50"),
    in_table("d_email", "an empty text where NULL is", {"51": WRONG}, "UPDATE {t} SET email = '' WHERE id = 51"),
    in_table("d_email", "a row of nobody", {"901": EXTRA}, "INSERT INTO {t} (id, email, version) VALUES (901, 'x', 5)"),
    in_table(
        "d_email",
        "a newer row of nobody",
        {"902": EXTRA},
        "INSERT INTO {t} (id, email, version) VALUES (902, 'x', {above})",
    ),
    in_table(
        "d_email", "version 0 of nobody", {"903": EXTRA}, "INSERT INTO {t} (id, email, version) VALUES (903, '', 0)"
    ),
    in_table(
        "d_email",
        "a deleted row put back",
        {"799": EXTRA},
        "UPDATE {t} SET email = 'u799@example.org', version = version - 1 WHERE id = 799",
    ),
    in_table(
        "d_email",
        "a deleted row put back as newer",
        {"800": EXTRA},
        "UPDATE {t} SET email = 'u800@example.org', version = {above} WHERE id = 800",
    ),
    in_table("d_many", "a number off by one", {"1": WRONG}, "UPDATE {t} SET visits = 0 WHERE id = 1"),
    in_table("d_many", "a NULL for a number", {"2": WRONG}, "UPDATE {t} SET visits = NULL WHERE id = 2"),
    in_table("d_many", "a DECIMAL off by its least", {"3": WRONG}, "UPDATE {t} SET price = price - 0.01 WHERE id = 3"),
    in_table("d_many", "a FLOAT off by its least", {"4": WRONG}, "UPDATE {t} SET ratio = 4.5000005 WHERE id = 4"),
    in_table(
        "d_many",
        "a moment off by a millisecond",
        {"5": WRONG},
        "UPDATE {t} SET seen = seen + INTERVAL 1000 MICROSECOND WHERE id = 5",
    ),
    in_table(
        "d_many", "bytes without the zero behind", {"6": WRONG}, "UPDATE {t} SET token = LEFT(token, 3) WHERE id = 6"
    ),
    in_table("d_many", "NULL for bytes", {"7": WRONG}, "UPDATE {t} SET token = NULL WHERE id = 7"),
    in_table("d_many", "no bytes for NULL", {"50": WRONG}, "UPDATE {t} SET token = '' WHERE id = 50"),
    in_table("d_many", "zero for NULL", {"51": WRONG}, "UPDATE {t} SET price = 0 WHERE id = 51"),
    in_table("d_many", "a blank for no text", {"41": WRONG}, "UPDATE {t} SET name = ' ' WHERE id = 41"),
    in_table("d_many", "NULL for no text", {"141": WRONG}, "UPDATE {t} SET name = NULL WHERE id = 141"),
    in_table(
        "d_many",
        "all values gone",
        {"8": MISSING},
        "UPDATE {t} SET name = NULL, visits = NULL, price = NULL, ratio = NULL, seen = NULL, token = NULL WHERE id = 8",
    ),
    in_table(
        "d_many",
        "a row that the condition leaves out",
        {"61": EXTRA},
        "REPLACE INTO {t} (id, name, visits, version) VALUES (61, 'name 61', 1, 7)",
    ),
    in_table("d_place", "a duplicate by collation", {"ABC:1": EXTRA}, "INSERT INTO {t} VALUES ('ABC', 1, 'ABC 1', 5)"),
    in_table("d_place", "a duplicate by padding", {"abc :2": EXTRA}, "INSERT INTO {t} VALUES ('abc ', 2, 'abc 2', 5)"),
    in_table("d_place", "a duplicate by accent", {"pqŕ:3": EXTRA}, "INSERT INTO {t} VALUES ('pqŕ', 3, 'pqr 3', 5)"),
    in_table(
        "d_place",
        "a key in another case",
        {"x:1": MISSING, "X:1": EXTRA},
        "UPDATE {t} SET code = 'X' WHERE code = 'x' AND n = 1",
    ),
    in_table("d_place", "a key beyond the BMP", {"😀:1": EXTRA}, "INSERT INTO {t} VALUES ('😀', 1, 'x', 5)"),
    in_table(
        "d_place",
        "a wrong second part",
        {"y:1": MISSING, "y:-1": EXTRA},
        "UPDATE {t} SET n = -1 WHERE code = 'y' AND n = 1",
    ),
    in_table(
        "d_latin", "a key that the source cannot have", {"ключ": EXTRA}, "INSERT INTO {t} VALUES ('ключ', 'x', 5)"
    ),
    in_table(
        "d_latin", "a folded key", {"café": MISSING, "CAFÉ": EXTRA}, "UPDATE {t} SET code = 'CAFÉ' WHERE code = 'café'"
    ),
    in_table("d_raw", "a binary key is gone", {"00000001": MISSING}, "DELETE FROM {t} WHERE id = X'00000001'"),
    in_table(
        "d_raw",
        "a binary key with a blank for a zero",
        {"61622020": EXTRA},
        "INSERT INTO {t} VALUES (X'61622020', '61620000', 5)",
    ),
    in_table(
        "d_raw",
        "a wrong title of a binary key",
        {"7a7afffe": WRONG},
        "UPDATE {t} SET title = 'x' WHERE id = X'7a7afffe'",
    ),
    in_table(
        "d_draft", "an older version", {"1": STALE}, "UPDATE {t} SET body = 'old', version = version - 2 WHERE id = 1"
    ),
    in_table("d_draft", "other values at its version", {"2": WRONG}, "UPDATE {t} SET body = 'x' WHERE id = 2"),
    in_table("d_draft", "a version above the row's", {"3": WRONG}, "UPDATE {t} SET version = version + 2 WHERE id = 3"),
    in_table(
        "d_draft", "that and other values", {"4": WRONG}, "UPDATE {t} SET version = {above}, body = 'x' WHERE id = 4"
    ),
    in_table(
        "d_draft",
        "a tombstone above the row",
        {"5": MISSING},
        "UPDATE {t} SET version = version + 1, body = NULL WHERE id = 5",
    ),
    in_table("d_draft", "a draft of nothing", {"901": EXTRA}, "INSERT INTO {t} VALUES (901, 'x', 4)"),
    in_table(
        "d_draft",
        "a deleted draft put back",
        {"99": EXTRA},
        "UPDATE {t} SET body = 'draft 99', version = version - 1 WHERE id = 99",
    ),
    in_table(
        "d_cell",
        "an older cell",
        {"r1": STALE},
        "UPDATE {t} SET body = 'cell 1 1', version = version - 2 WHERE row_key = 'r1'",
    ),
    in_table("d_cell", "a wrong cell", {"r2": WRONG}, "UPDATE {t} SET body = 'x' WHERE row_key = 'r2'"),
    in_table("d_cell", "a cell is gone", {"r3": MISSING}, "DELETE FROM {t} WHERE row_key = 'r3'"),
    in_table("d_nobody", "a row of an empty table", {"1": EXTRA}, "INSERT INTO {t} VALUES (1, 'x', 5)"),
    in_table("d_nowhere", "a row of an empty view", {"1": EXTRA}, "REPLACE INTO {t} VALUES (1, 'u1@example.org', 5)"),
)


def in_redis(view: str, what: str, found: Mapping[str, str], *commands: tuple[Any, ...]) -> Damage:
    """Commands whose first argument is a key of the view without its name; `:t` at its end makes it the tombstone's."""

    def plant(world: DamagedWorld) -> None:
        for command, key, *arguments in commands:
            name = f"{view}:".encode() + (key if isinstance(key, bytes) else key.encode())
            if name.endswith(b":t"):
                name = b"{" + name.removesuffix(b":t") + b"}:t"
            world.redis.execute_command(command, name, *arguments)

    return Damage(view=f"redis:{view}", what=what, found=found, plant=plant)


def as_version(number: int) -> str:
    return f"{number:019d}"


def as_json(version: object, **members: Any) -> str:
    return json.dumps({"_version": version, **members}, separators=(",", ":"))


def edited(view: str, what: str, key: str, change: Callable[[dict[str, Any]], Any], kind: str = WRONG) -> Damage:
    """A Redis JSON document that was read, changed and written again."""

    def plant(world: DamagedWorld) -> None:
        document = json.loads(world.redis.get(f"{view}:{key}"))
        change(document)
        world.redis.set(f"{view}:{key}", json.dumps(document, separators=(",", ":"), ensure_ascii=False))

    return Damage(view=f"redis:{view}", what=what, found={key: kind}, plant=plant)


def replaced(view: str, what: str, key: str, before: bytes, after: bytes, kind: str = WRONG) -> Damage:
    """Bytes of a Redis JSON document that are others now."""

    def plant(world: DamagedWorld) -> None:
        document = world.redis.get(f"{view}:{key}")
        assert before in document
        world.redis.set(f"{view}:{key}", document.replace(before, after, 1))

    return Damage(view=f"redis:{view}", what=what, found={key: kind}, plant=plant)


def older_schema(document: dict[str, Any], *missing: str) -> None:
    """As a declaration made it that had other fields: some are missing, one is there that was dropped."""
    for name in missing:
        del document[name]
    document["nick"] = "older"


_ABOVE = as_version(ABOVE)
REDIS = (
    in_redis("d_hash", "a hash is gone", {"1": MISSING}, ("DEL", "1")),
    in_redis("d_hash", "a tombstone in its place", {"2": MISSING}, ("DEL", "2"), ("SET", "2:t", as_version(9))),
    in_redis("d_hash", "a newer tombstone", {"3": MISSING}, ("DEL", "3"), ("SET", "3:t", _ABOVE)),
    in_redis("d_hash", "a tombstone that is no version", {"4": MISSING}, ("DEL", "4"), ("SET", "4:t", "gone")),
    in_redis("d_hash", "a tombstone that is a list", {"5": MISSING}, ("DEL", "5"), ("RPUSH", "5:t", "x")),
    in_redis("d_hash", "a tombstone beside", {"6": WRONG}, ("SET", "6:t", as_version(9))),
    in_redis("d_hash", "a newer tombstone beside", {"7": WRONG}, ("SET", "7:t", _ABOVE)),
    in_redis("d_hash", "a string", {"8": WRONG}, ("DEL", "8"), ("SET", "8", "x")),
    in_redis("d_hash", "an empty string", {"9": WRONG}, ("DEL", "9"), ("SET", "9", "")),
    in_redis("d_hash", "a list", {"10": WRONG}, ("DEL", "10"), ("RPUSH", "10", "x")),
    in_redis("d_hash", "a set", {"11": WRONG}, ("DEL", "11"), ("SADD", "11", "x")),
    in_redis("d_hash", "a sorted set", {"12": WRONG}, ("DEL", "12"), ("ZADD", "12", 1, "x")),
    in_redis("d_hash", "a stream", {"13": WRONG}, ("DEL", "13"), ("XADD", "13", "*", "a", "b")),
    in_redis("d_hash", "no version", {"14": WRONG}, ("HDEL", "14", "_version")),
    in_redis("d_hash", "an empty version", {"15": WRONG}, ("HSET", "15", "_version", "")),
    in_redis("d_hash", "a version that is no number", {"16": WRONG}, ("HSET", "16", "_version", "x" * 19)),
    in_redis("d_hash", "a short version", {"17": WRONG}, ("HSET", "17", "_version", "12345")),
    in_redis("d_hash", "a long version", {"18": WRONG}, ("HSET", "18", "_version", "0" * 20)),
    in_redis("d_hash", "a version above all", {"19": WRONG}, ("HSET", "19", "_version", _ABOVE)),
    in_redis("d_hash", "the largest version", {"20": WRONG}, ("HSET", "20", "_version", "9" * 19, "name", "x")),
    in_redis("d_hash", "version 0", {"21": WRONG}, ("HSET", "21", "_version", as_version(0), "name", "x")),
    in_redis("d_hash", "a field too many", {"22": WRONG}, ("HSET", "22", "age", "5")),
    in_redis("d_hash", "an empty field too many", {"50": WRONG}, ("HSET", "50", "email", "")),
    in_redis("d_hash", "a zero where NULL is", {"51": WRONG}, ("HSET", "51", "price", "0")),
    in_redis("d_hash", "a field is gone", {"23": WRONG}, ("HDEL", "23", "email")),
    in_redis("d_hash", "an empty field is gone", {"41": WRONG}, ("HDEL", "41", "name")),
    in_redis("d_hash", "a field that is no UTF-8", {"24": WRONG}, ("HSET", "24", b"\xff\xfe", "x")),
    in_redis("d_hash", "a value that is no UTF-8", {"25": WRONG}, ("HSET", "25", "name", b"\xc3\x28")),
    in_redis("d_hash", "another case", {"26": WRONG}, ("HSET", "26", "email", "U26@example.org")),
    in_redis("d_hash", "a blank behind", {"27": WRONG}, ("HSET", "27", "name", "name 27 ")),
    in_redis("d_hash", "1.0 for 1", {"29": WRONG}, ("HSET", "29", "visits", "1.0")),
    in_redis("d_hash", "true for 1", {"31": WRONG}, ("HSET", "31", "visits", "true")),
    in_redis("d_hash", "fewer digits", {"32": WRONG}, ("HSET", "32", "price", "32.250")),
    in_redis("d_hash", "bytes without the zero behind", {"33": WRONG}, ("HSET", "33", "token", "033")),
    in_redis(
        "d_hash", "a moment off by a millisecond", {"34": WRONG}, ("HSET", "34", "seen", "2024-01-02 03:04:34.035")
    ),
    in_redis("d_hash", "swapped fields", {"35": WRONG}, ("HSET", "35", "name", "u35@example.org", "email", "name 35")),
    in_redis(
        "d_hash",
        "an older declaration's fields, at its version",
        {"39": WRONG},
        ("HDEL", "39", "about", "seen"),
        ("HSET", "39", "nick", "n39", "visits", "one"),
    ),
    in_redis("d_hash", "one that had a field less", {"40": WRONG}, ("HDEL", "40", "about")),
    in_redis(
        "d_hash",
        "swapped rows",
        {"36": WRONG, "37": WRONG},
        ("RENAME", "36", "d_hash:swap"),
        ("RENAME", "37", "d_hash:36"),
        ("RENAME", "swap", "d_hash:37"),
    ),
    in_redis("d_hash", "JSON spelled otherwise", {"38": WRONG}, ("HSET", "38", "about", '{"n":38,"x":[1,"a"]}')),
    in_redis("d_hash", "a hash of nobody", {"901": EXTRA}, ("HSET", "901", "_version", as_version(5), "name", "x")),
    in_redis("d_hash", "a newer hash of nobody", {"902": EXTRA}, ("HSET", "902", "_version", _ABOVE, "name", "x")),
    in_redis("d_hash", "a list of nobody", {"903": EXTRA}, ("RPUSH", "903", "x")),
    in_redis("d_hash", "an empty string of nobody", {"904": EXTRA}, ("SET", "904", "")),
    in_redis("d_hash", "no version of nobody", {"905": EXTRA}, ("HSET", "905", "name", "x")),
    in_redis(
        "d_hash",
        "a deleted row put back",
        {"799": EXTRA},
        ("DEL", "799:t"),
        ("HSET", "799", "_version", as_version(5), "name", "name 799"),
    ),
    in_redis(
        "d_hash",
        "a deleted row put back beside its tombstone",
        {"800": EXTRA},
        ("HSET", "800", "_version", as_version(5), "name", "name 800"),
    ),
    in_redis("d_json", "a document is gone", {"1": MISSING}, ("DEL", "1")),
    in_redis("d_json", "an empty text", {"2": WRONG}, ("SET", "2", "")),
    in_redis("d_json", "no JSON", {"3": WRONG}, ("SET", "3", "hello")),
    in_redis("d_json", "an array", {"4": WRONG}, ("SET", "4", "[1]")),
    in_redis("d_json", "a number", {"5": WRONG}, ("SET", "5", "5")),
    in_redis("d_json", "a document cut short", {"6": WRONG}, ("SETRANGE", "6", 40, "\0\0\0")),
    in_redis(
        "d_json", "cut short behind a newer version", {"7": WRONG}, ("SET", "7", '{"_version":"' + _ABOVE + '","n')
    ),
    in_redis("d_json", "a newer version without an end", {"8": WRONG}, ("SET", "8", '{"_version":"' + _ABOVE)),
    in_redis("d_json", "a hash", {"9": WRONG}, ("DEL", "9"), ("HSET", "9", "_version", _ABOVE)),
    in_redis("d_json", "a version that is a number", {"10": WRONG}, ("SET", "10", '{"_version":5,"name":"name 10"}')),
    in_redis("d_json", "no version", {"11": WRONG}, ("SET", "11", '{"name":"name 11"}')),
    in_redis(
        "d_json",
        "two versions",
        {"12": WRONG},
        ("SET", "12", '{"_version":"' + _ABOVE + '","name":"x","_version":"0000000000000000005"}'),
    ),
    replaced("d_json", "the version elsewhere", "13", b'{"_version":', b'{ "_version":'),
    edited("d_json", "a version above all", "14", lambda d: d.update(_version=_ABOVE)),
    edited("d_json", "that and another value", "15", lambda d: d.update(_version=_ABOVE, name="x")),
    edited("d_json", "1.0 for 1", "17", lambda d: d.update(visits=1.0)),
    edited("d_json", "true for 1", "19", lambda d: d.update(visits=True)),
    edited("d_json", "a text for 1", "21", lambda d: d.update(visits="1")),
    edited("d_json", "a number for a DECIMAL", "22", lambda d: d.update(price=22.25)),
    edited("d_json", "a NULL member is gone", "50", lambda d: d.pop("email")),
    edited("d_json", "an empty text for NULL", "51", lambda d: d.update(email="")),
    edited("d_json", "NULL for a value", "23", lambda d: d.update(email=None)),
    edited("d_json", "a member too many", "24", lambda d: d.update(age=5)),
    edited("d_json", "another value deep inside", "25", lambda d: d.update(about={"n": 25, "x": [1, "b"]})),
    edited("d_json", "an older value", "26", lambda d: d.update(_version=as_version(5), name="older")),
    edited(
        "d_json", "an older declaration's members, at its version", "30", lambda d: older_schema(d, "about", "seen")
    ),
    edited("d_json", "one that had a member less", "31", lambda d: d.pop("token")),
    edited("d_made", "what an older function made, at its version", "3", lambda d: d.update(name=d.pop("n"))),
    edited("d_draft", "an older declaration's member, at its version", "6", lambda d: d.update(title="x")),
    replaced("d_json", "bytes that are no UTF-8", "27", b"name 27", b"name \xff7"),
    replaced("d_json", "a NUL in a text", "28", b"name 28", b"name 28\\u0000"),
    in_redis("d_json", "a newer tombstone beside", {"29": WRONG}, ("SET", "29:t", _ABOVE)),
    in_redis("d_json", "a document of nobody", {"901": EXTRA}, ("SET", "901", as_json(as_version(5), name="x"))),
    in_redis("d_json", "no JSON of nobody", {"902": EXTRA}, ("SET", "902", "x")),
    in_redis("d_json", "an empty text of nobody", {"903": EXTRA}, ("SET", "903", "")),
    edited("d_made", "another value", "1", lambda d: d.update(v=2)),
    edited("d_made", "a float off by its least", "2", lambda d: d.update(r=2.5000000000000004)),
    in_redis(
        "d_made",
        "a row that the condition leaves out",
        {"61": EXTRA},
        ("SET", "61", as_json(as_version(5), n="name 61")),
    ),
    in_redis(
        "d_place",
        "a duplicate by collation",
        {"ABC:1": EXTRA},
        ("HSET", "ABC:1", "_version", as_version(5), "title", "abc 1"),
    ),
    in_redis(
        "d_place",
        "a duplicate by padding",
        {"abc :2": EXTRA},
        ("HSET", "abc :2", "_version", as_version(5), "title", "abc 2"),
    ),
    in_redis("d_place", "a key in another case", {"x:1": MISSING, "X:1": EXTRA}, ("RENAME", "x:1", "d_place:X:1")),
    in_redis(
        "d_latin",
        "a key that the source cannot have",
        {"ключ": EXTRA},
        ("HSET", "ключ", "_version", as_version(5), "title", "x"),
    ),
    in_redis("d_raw", "a wrong title of a binary key", {"7a7afffe": WRONG}, ("HSET", "7a7afffe", "title", "x")),
    in_redis(
        "d_raw",
        "a binary key of nothing",
        {"61622020": EXTRA},
        ("HSET", "61622020", "_version", as_version(5), "title", "x"),
    ),
    in_redis(
        "d_day",
        "an impossible day",
        {"2024-02-31": EXTRA},
        ("HSET", "2024-02-31", "_version", as_version(5), "title", "x"),
    ),
    edited("d_draft", "an older version", "1", lambda d: d.update(_version=as_version(18), body="old"), STALE),
    edited("d_draft", "other values at its version", "2", lambda d: d.update(body="x")),
    edited("d_draft", "a version above the row's", "3", lambda d: d.update(_version=as_version(62))),
    in_redis("d_draft", "a tombstone above the row", {"5": MISSING}, ("DEL", "5"), ("SET", "5:t", as_version(101))),
    in_redis("d_draft", "a draft of nothing", {"901": EXTRA}, ("SET", "901", as_json(as_version(4), body="x"))),
    in_redis("d_cell", "an older cell", {"r1": STALE}, ("HSET", "r1", "_version", as_version(22), "body", "cell 1 1")),
    in_redis("d_cell", "a cell is gone", {"r3": MISSING}, ("DEL", "r3")),
    in_redis(
        "d_nobody", "a row of an empty table", {"1": EXTRA}, ("HSET", "1", "_version", as_version(5), "title", "x")
    ),
    in_redis(
        "d_nowhere", "a row of an empty view", {"1": EXTRA}, ("HSET", "1", "_version", as_version(5), "email", "u1")
    ),
)


def in_index(view: str, what: str, found: Mapping[str, str], *requests: tuple[str, str, Any]) -> Damage:
    """Requests: a method, an id with what follows it, and a body."""

    def plant(world: DamagedWorld) -> None:
        for method, target, body in requests:
            world.indices.ask(method, f"/viewtail-{view}/_doc/{target}", body)

    return Damage(view=f"elasticsearch:{view}", what=what, found=found, plant=plant)


def indexed(
    view: str, what: str, key: str, change: Callable[[dict[str, Any]], Any], kind: str = WRONG, version: int = 0
) -> Damage:
    """A document that was read, changed and indexed again; by default with the version after its own."""

    def plant(world: DamagedWorld) -> None:
        document = world.indices.ask("GET", f"/viewtail-{view}/_doc/{key}")["_source"]
        change(document)
        given = f"?version={version}&version_type=external_gte" if version else ""
        world.indices.ask("PUT", f"/viewtail-{view}/_doc/{key}{given}", document)

    return Damage(view=f"elasticsearch:{view}", what=what, found={key: kind}, plant=plant)


def rewritten(view: str, what: str, key: str, change: Callable[[dict[str, Any]], Any], *added: str) -> Damage:
    """A document that was read, changed and indexed again at its own version, where the index knows `added` too."""

    def plant(world: DamagedWorld) -> None:
        if added:
            fields = {name: {"type": "keyword"} for name in added}
            world.indices.ask("PUT", f"/viewtail-{view}/_mapping", {"properties": fields})
        found = world.indices.ask("GET", f"/viewtail-{view}/_doc/{key}")
        change(found["_source"])
        at = f"{key}?version={found['_version']}&version_type=external_gte"
        world.indices.ask("PUT", f"/viewtail-{view}/_doc/{at}", found["_source"])

    return Damage(view=f"elasticsearch:{view}", what=what, found={key: WRONG}, plant=plant)


def aged(view: str, what: str, key: str, version: int, document: dict[str, Any], kind: str) -> Damage:
    """A document with a lower version than it had, as from a snapshot: the index forgets that one first."""

    def plant(world: DamagedWorld) -> None:
        settings = f"/viewtail-{view}/_settings"
        world.indices.ask("PUT", settings, {"index": {"gc_deletes": "0s"}})
        world.indices.ask("DELETE", f"/viewtail-{view}/_doc/{key}")

        def is_forgotten() -> bool:
            world.indices.ask("POST", f"/viewtail-{view}/_refresh")
            target = f"/viewtail-{view}/_doc/{key}?version={version}&version_type=external"
            return bool(world.indices.ask("PUT", target, document))

        wait_for("the index forgets the version of what was deleted", is_forgotten)
        world.indices.ask("PUT", settings, {"index": {"gc_deletes": None}})

    return Damage(view=f"elasticsearch:{view}", what=what, found={key: kind}, plant=plant)


_NEWER = f"?version={ABOVE}&version_type=external"
_TOMBSTONE = {"viewtail_deleted": True}
ELASTICSEARCH = (
    in_index("d_person", "a document is gone", {"1": MISSING}, ("DELETE", "1", None)),
    in_index("d_person", "a tombstone in its place", {"2": MISSING}, ("PUT", "2", _TOMBSTONE)),
    in_index("d_person", "a newer tombstone", {"3": MISSING}, ("PUT", f"3{_NEWER}", _TOMBSTONE)),
    in_index("d_person", "a tombstone with values", {"4": MISSING}, ("PUT", "4", {**_TOMBSTONE, "name": "name 4"})),
    indexed("d_person", "no tombstone, it says", "5", lambda d: d.update(viewtail_deleted=False)),
    in_index("d_person", "a tombstone in other words", {"6": WRONG}, ("PUT", "6", {"viewtail_deleted": "true"})),
    in_index("d_person", "an empty document", {"7": WRONG}, ("PUT", "7", {})),
    indexed("d_person", "another value", "8", lambda d: d.update(name="x")),
    indexed("d_person", "another case", "9", lambda d: d.update(email="U9@example.org")),
    indexed("d_person", "a blank behind", "10", lambda d: d.update(name="name 10 ")),
    indexed("d_person", "1.0 for 1", "11", lambda d: d.update(visits=1.0)),
    indexed("d_person", "a text for 1", "13", lambda d: d.update(visits="1")),
    indexed("d_person", "a list for 1", "15", lambda d: d.update(visits=[1])),
    indexed("d_made", "a fraction more than 1", "15", lambda d: d.update(v=1.5)),
    indexed("d_person", "a number for a DECIMAL", "16", lambda d: d.update(price=16.25)),
    indexed("d_person", "fewer digits", "17", lambda d: d.update(price="17.250")),
    indexed("d_person", "a float off by its least", "18", lambda d: d.update(ratio=18.500000000000004)),
    indexed("d_person", "a moment off by a millisecond", "19", lambda d: d.update(seen="2024-01-02T03:04:19.020")),
    indexed("d_person", "other bytes", "20", lambda d: d.update(token="MDIwAQ==")),
    indexed("d_person", "another value deep inside", "21", lambda d: d.update(about={"n": 21, "x": [1, "b"]})),
    indexed("d_person", "a field is gone", "22", lambda d: d.pop("email")),
    indexed("d_person", "an empty field is gone", "41", lambda d: d.pop("name")),
    indexed("d_person", "null for a field that is absent", "50", lambda d: d.update(email=None)),
    indexed("d_person", "an empty text for NULL", "51", lambda d: d.update(email="")),
    indexed("d_person", "a zero for NULL", "52", lambda d: d.update(price="0.00")),
    indexed("d_person", "swapped fields", "23", lambda d: d.update(name=d["email"], email=d["name"])),
    in_index(
        "d_person",
        "swapped rows",
        {"24": WRONG, "25": WRONG},
        ("PUT", "24", {"name": "name 25", "visits": 1}),
        ("PUT", "25", {"name": "name 24", "visits": 0}),
    ),
    indexed("d_person", "a version above all", "26", lambda d: None, version=ABOVE),
    indexed("d_person", "that and another value", "27", lambda d: d.update(name="x"), version=ABOVE),
    indexed(
        "d_person", "nearly the largest version", "28", lambda d: d.update(name="x"), version=MOST_OF_ELASTICSEARCH - 1
    ),
    indexed("d_person", "the largest version", "29", lambda d: d.update(name="x"), version=MOST_OF_ELASTICSEARCH),
    in_index("d_person", "a document of nobody", {"901": EXTRA}, ("PUT", "901", {"name": "x", "visits": 1})),
    in_index("d_person", "a newer document of nobody", {"902": EXTRA}, ("PUT", f"902{_NEWER}", {"name": "x"})),
    in_index("d_person", "an empty document of nobody", {"903": EXTRA}, ("PUT", "903", {})),
    in_index("d_person", "a deleted row put back", {"799": EXTRA}, ("PUT", "799", {"name": "name 799", "visits": 1})),
    in_index(
        "d_person", "a deleted row put back as newer", {"800": EXTRA}, ("PUT", f"800{_NEWER}", {"name": "name 800"})
    ),
    in_index("d_made", "a row that the condition leaves out", {"61": EXTRA}, ("PUT", "61", {"n": "name 61", "v": 1})),
    indexed("d_made", "null where it was written", "50", lambda d: d.pop("e")),
    in_index("d_place", "a duplicate by collation", {"ABC:1": EXTRA}, ("PUT", "ABC:1", {"title": "abc 1"})),
    in_index("d_place", "a duplicate by padding", {"abc :2": EXTRA}, ("PUT", "abc%20:2", {"title": "abc 2"})),
    in_index(
        "d_place",
        "a key in another case",
        {"x:1": MISSING, "X:1": EXTRA},
        ("DELETE", "x:1", None),
        ("PUT", "X:1", {"title": "x 1"}),
    ),
    rewritten("d_person", "an older declaration with a field less", "31", lambda d: d.pop("about")),
    rewritten("d_person", "an older declaration's fields", "32", lambda d: older_schema(d, "about", "seen"), "nick"),
    rewritten("d_made", "what an older function made", "3", lambda d: d.update(name=d.pop("n")), "name"),
    rewritten("d_draft", "an older declaration's field, at the row's version", "6", lambda d: d.update(t="x"), "t"),
    in_index("d_raw", "a binary key of nothing", {"61622020": EXTRA}, ("PUT", "61622020", {"title": "x"})),
    indexed("d_raw", "a wrong title of a binary key", "7a7afffe", lambda d: d.update(title="x")),
    aged("d_draft", "an older version", "1", 18, {"body": "old"}, STALE),
    aged("d_person", "an older value", "30", 5, {"name": "older", "visits": 0}, WRONG),
    indexed("d_draft", "a version above the row's", "3", lambda d: None, version=62),
    indexed("d_draft", "other values at its version", "2", lambda d: d.update(body="x"), version=40),
    in_index(
        "d_draft",
        "a tombstone above the row",
        {"5": MISSING},
        ("PUT", "5?version=101&version_type=external", _TOMBSTONE),
    ),
    in_index(
        "d_draft", "a draft of nothing", {"901": EXTRA}, ("PUT", "901?version=4&version_type=external", {"body": "x"})
    ),
    indexed("d_cell", "a wrong cell", "r2", lambda d: d.update(body="x"), version=44),
    in_index("d_cell", "a cell is gone", {"r3": MISSING}, ("DELETE", "r3", None)),
    in_index("d_nobody", "a row of an empty table", {"1": EXTRA}, ("PUT", "1", {"title": "x"})),
    in_index("d_nowhere", "a row of an empty view", {"1": EXTRA}, ("PUT", "1", {"email": "u1@example.org"})),
)

# Names that no key has: told as foreign, and left alone.
FOREIGN = {
    "redis:d_hash": (b"d_hash:007",),
    "redis:d_day": (b"d_day:2024-13-45", b"d_day:2024-1-1"),
    "redis:d_place": (b"d_place:%61bc:1", b"d_place:\xff\xfe:1"),
    "elasticsearch:d_person": ("007", "nobody", "+7"),
    "elasticsearch:d_place": ("%61bc:1",),
}

DELETED = (  # rows of the tables that go before anything is planted
    f"DELETE FROM {SCHEMA}.person WHERE id IN (799, 800)",
    f"DELETE FROM {SCHEMA}.draft WHERE id = 99",
    f"DELETE FROM {SCHEMA}.cell WHERE row_key IN ('r50', 'r51')",  # archived: no damage
)
