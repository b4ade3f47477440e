"""Every character set and collation that a server lists, against the server's own conversion."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pymysql
import pytest

from ingest.binlog.collations import charset_of
from ingest.binlog.row_decoder import compile_decoder
from ingest.binlog.table_map import parse
from ingest.canonical import describe, fetch_rows, select_list
from ingest.charset_tables import AMBIGUOUS, DIFFERENCES
from ingest.charsets import ONE_TO_ONE, READABLE, decoder_of
from stack.server import Server
from tests.support.binlog_file import TABLE_MAP, WRITE_ROWS, events, row_image
from tests.support.charset_tables import CODECS, characters, codes
from tests.support.random_rows import foreign_text
from viewtail.changes.batches import Followed, Unreadable
from viewtail.servers.literals import beyond
from viewtail.servers.sessions import MySQLAddress, open_session

pytestmark = pytest.mark.mysql
A_STEP = 97  # of gb18030's 1,587,600 codes of four bytes each 97th; all of them when the tables are written
WIDE = {"utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be", "ucs2": "utf-16-be"}


@pytest.fixture(scope="module")
def cursor(mysql_server: Server) -> Iterator[Any]:
    connection = pymysql.connect(host=mysql_server.host, port=mysql_server.port, user="root", charset="utf8mb4")
    with connection.cursor() as cursor:
        yield cursor
    connection.close()


def test_every_character_set_of_the_server_can_be_read(cursor: Any) -> None:
    cursor.execute("SELECT character_set_name FROM information_schema.character_sets")
    listed = {name for (name,) in cursor.fetchall()}
    assert len(listed) >= 41
    assert listed - READABLE == {"binary"}
    assert set(CODECS) == set(DIFFERENCES)


def test_every_collation_of_the_server_names_its_character_set(cursor: Any) -> None:
    cursor.execute("SELECT id, character_set_name FROM information_schema.collations")
    listed = cursor.fetchall()
    assert len(listed) >= 286
    assert [(number, name) for number, name in listed if charset_of(number) != name] == []


@pytest.mark.parametrize("charset", sorted(CODECS))
def test_each_code_is_read_as_the_server_reads_it(cursor: Any, charset: str) -> None:
    asked = list(codes(charset, A_STEP))
    wanted = characters(cursor, charset, asked)
    decode = decoder_of(charset)
    for code in asked:
        if code in wanted:
            assert decode(code) == decode(bytearray(code)) == wanted[code], code.hex()
        elif code[:1] not in wanted:
            with pytest.raises(UnicodeDecodeError):
                decode(code)
    assert len(set(wanted.values())) == len(wanted) or charset in AMBIGUOUS


@pytest.mark.parametrize("charset", sorted(CODECS))
def test_a_text_is_its_characters(cursor: Any, charset: str) -> None:
    """Runs of characters, since a codec may take codes together that the server takes apart."""
    wanted = characters(cursor, charset, list(codes(charset, 10_007)))
    decode, all_codes = decoder_of(charset), list(wanted)
    for some in _runs(all_codes):
        assert decode(b"".join(some)) == "".join(wanted[code] for code in some)


def _runs(some: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for length in (2, 3, 7, 50):
        for step in (1, 3, 101, 5003):
            for first in range(0, min(len(some), 3000), length):
                yield [some[(first + number * step) % len(some)] for number in range(length)]


@pytest.mark.parametrize("charset", sorted(WIDE))
def test_wide_character_sets_hold_what_the_server_says(cursor: Any, charset: str) -> None:
    numbers = [
        number for number in range(1, 0x110000, 13 if charset == "utf32" else 7) if not 0xD800 <= number < 0xE000
    ]
    if charset == "ucs2":
        numbers = [number for number in numbers if number < 0x10000]
    asked = [chr(number).encode(WIDE[charset]) for number in numbers]
    wanted = characters(cursor, charset, asked)
    decode = decoder_of(charset)
    assert [decode(code) for code in asked] == list(map(chr, numbers)) == [wanted[code] for code in asked]
    surrogates = [b"\xd8\x00", b"\xdc\x00", b"\xd8\x00\xdc\x00"] if charset == "ucs2" else []
    surrogates += [b"\x00\x00\xd8\x00", b"\x00\x11\x00\x00"] if charset == "utf32" else []
    surrogates += [b"\xd8\x00", b"\xd8\x00\x00\x41"] if charset == "utf16" else []
    assert characters(cursor, charset, surrogates or [b"\0"]) in ({}, {b"\0": "\0"})
    for code in surrogates:
        with pytest.raises(UnicodeDecodeError):
            decode(code)


# --- What a table holds ---


@pytest.fixture(scope="module")
def session(mysql_server: Server) -> Iterator[pymysql.Connection[Any]]:
    connection = open_session(MySQLAddress(host=mysql_server.host, port=mysql_server.port, user="root"), role="source")
    connection.autocommit(True)
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE charsets")
        cursor.execute("USE charsets")
        cursor.execute("SET sql_mode = ''")
    yield connection
    connection.close()


@pytest.mark.parametrize(
    ("charset", "code"),
    [("gbk", "a140"), ("cp932", "81ad"), ("sjis", "81ad"), ("cp1250", "81")],
)
def test_a_stored_code_without_a_character_is_refused_alike_by_both_ways_in(
    charset: str, code: str, mysql_server: Server, session: pymysql.Connection[Any]
) -> None:
    """SELECT would show '?'. Its neighbours are rows as any."""
    name = f"hole_{charset}"
    with session.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, c VARCHAR(9) CHARACTER SET {charset})")
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOG STATUS")
        file, start, *_ = cursor.fetchone() or ()
        cursor.execute(f"INSERT IGNORE INTO {name} VALUES (1, 'a'), (2, x'61{code}62'), (3, 'b')")
        cursor.execute(f"SELECT HEX(c) FROM {name} WHERE id = 2")
        assert cursor.fetchone() == (f"61{code}62".upper(),)
    table = describe(session, "charsets", name)
    read = fetch_rows(session, f"SELECT {select_list(table.columns)} FROM {name} ORDER BY id", table.columns)
    for event in events(mysql_server.directory / "data" / file, start):
        if event.type == TABLE_MAP:
            decoder = compile_decoder(parse(event.body), Followed(table, ("id", "c")))
        if event.type == WRITE_ROWS:
            found = row_image(event.body)
    with pytest.raises(UnicodeDecodeError):
        decoder.decode(found, len(decoder.write_image), len(found))
    logged = decoder.decode_carefully(found, len(decoder.write_image), len(found))
    for rows in (logged, read):
        assert rows[0] == (1, "a") and rows[2] == (3, "b") and isinstance(rows[1][1], Unreadable)


def test_text_keys_of_every_character_set_are_read_in_pages(session: pymysql.Connection[Any]) -> None:
    rng = random.Random(5)
    for charset in sorted(ONE_TO_ONE):
        text = foreign_text(charset, 10)
        with session.cursor() as cursor:
            cursor.execute(f"CREATE TABLE key_{charset} (k VARCHAR(10) CHARACTER SET {charset} PRIMARY KEY)")
            values = ", ".join(f"({text(rng)})" for _ in range(150))
            cursor.execute(f"INSERT IGNORE INTO key_{charset} VALUES {values}")
            cursor.execute(f"SELECT k FROM key_{charset} ORDER BY k")
            wanted = [key for (key,) in cursor.fetchall()]
        columns = describe(session, "charsets", f"key_{charset}").columns
        found: list[Any] = []
        while True:
            where = f"WHERE {beyond(columns, (found[-1],))}" if found else ""
            page = f"SELECT {select_list(columns)} FROM key_{charset} {where} ORDER BY k LIMIT 20"
            rows = fetch_rows(session, page, columns)
            found += [key for (key,) in rows]
            if len(rows) < 20:
                break
        assert found == wanted, charset
