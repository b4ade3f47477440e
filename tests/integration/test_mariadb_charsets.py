"""Every character set and collation that MariaDB lists, against its own conversion: as MySQL's, code by code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pymysql
import pytest

from ingest.binlog.collations import charset_of
from ingest.charsets import READABLE, decoder_of
from stack.server import Server
from tests.support.charset_tables import CODECS, codes

pytestmark = pytest.mark.mariadb


@pytest.fixture(scope="module")
def cursor(mariadb_server: Server) -> Iterator[Any]:
    connection: Any = pymysql.connect(
        host=mariadb_server.host, port=mariadb_server.port, user="root", charset="utf8mb4"
    )
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = '', max_error_count = 0")
        yield cursor
    connection.close()


def test_every_collation_of_the_server_names_its_character_set(cursor: Any) -> None:
    cursor.execute(
        "SELECT id, character_set_name FROM information_schema.collation_character_set_applicability "
        "WHERE id IS NOT NULL"
    )
    listed = cursor.fetchall()
    assert len(listed) > 1000
    assert [(number, name) for number, name in listed if charset_of(number) != name] == []
    assert {name for _, name in listed} - READABLE == {"binary"}


@pytest.mark.parametrize("charset", sorted(set(CODECS) - {"gb18030"}))  # which it has not
def test_each_code_is_read_as_the_server_reads_it(cursor: Any, charset: str) -> None:
    asked = list(codes(charset))
    wanted = characters(cursor, charset, asked)
    decode = decoder_of(charset)
    for code in asked:
        if code in wanted:
            assert decode(code) == wanted[code], code.hex()
        elif code[:1] not in wanted:
            with pytest.raises(UnicodeDecodeError):
                decode(code)


def characters(cursor: Any, charset: str, asked: Sequence[bytes]) -> dict[bytes, str]:
    """What the server turns each code into; those without a character are left out."""
    found: dict[bytes, str] = {}
    for first in range(0, len(asked), 20_000):
        rows = ", ".join(f"(x'{code.hex()}')" for code in asked[first : first + 20_000])
        cursor.execute(
            f"WITH v(c) AS (VALUES {rows}) "
            f"SELECT c, HEX(CONVERT(CAST(c AS CHAR CHARACTER SET {charset}) USING utf32)) FROM v"
        )
        for code, shown in cursor.fetchall():
            if len(code) > 1 and code[:1] in found:
                continue  # a character and more behind it
            if shown and len(shown) == 8 and (shown != "0000003F" or code == b"?"):
                found[code] = chr(int(shown, 16))
    return found
