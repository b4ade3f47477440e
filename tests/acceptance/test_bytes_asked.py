"""What commands and Python take for a column of bytes that holds texts, and for values that no row can have."""

from __future__ import annotations

from collections.abc import Iterator

import pymysql
import pytest

import viewtail
from stack import Server
from tests.support.running import Run, addresses, in_this_process, wait_for
from viewtail.changes.errors import MisuseError

SCHEMA = "bytes_asked"
VIEWS = f"""
from viewtail import Entity, IndexTable, RedisHash
page = Entity("{SCHEMA}.page")
views = [
    IndexTable("page_by_lang", page, value=["lang", "size"]),
    RedisHash("page", page, fields=["lang"]),
]
"""
TITLES = {b"de": b"de", b"tide": b"tide", b"\xde": b"\xde", b"0x": b"long, and longer"}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, mysql_server: Server, redis_server: Server) -> Iterator[Run]:
    connection = pymysql.connect(host="127.0.0.1", port=mysql_server.port, user="root", autocommit=True)
    with connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {SCHEMA}")
        cursor.execute(
            f"CREATE TABLE {SCHEMA}.page (id VARBINARY(16) PRIMARY KEY, lang VARBINARY(16), title VARBINARY(30),"
            " size TINYINT NOT NULL DEFAULT 7)"
        )
        for lang, title in TITLES.items():
            cursor.execute(f"INSERT INTO {SCHEMA}.page (id, lang, title) VALUES (%s, %s, %s)", (lang, lang, title))
        environ = addresses(mysql_server, redis_server) | {"VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/{SCHEMA}_own"}
        run = Run(tmp_path_factory.mktemp("asked"), VIEWS, environ)
        run.start()
        try:
            wait_for("filled views", lambda: run.command("status").returncode == 0, 60)
            assert run.stop() == 0
        except BaseException:
            print(run.log)
            run.kill()
            raise
        yield run
        cursor.execute(f"DROP DATABASE {SCHEMA}")
        cursor.execute(f"DROP DATABASE {SCHEMA}_own")


@pytest.mark.parametrize(
    ("value", "lang"), [("de", b"de"), ("tide", b"tide"), ("0xde", b"\xde"), ("0x6465", b"de"), ("0x3078", b"0x")]
)
def test_find_takes_the_text_of_bytes_and_bytes_behind_0x(
    asked: Run, monkeypatch: pytest.MonkeyPatch, value: str, lang: bytes
) -> None:
    done = asked.command("find", "page_by_lang", value)
    assert done.returncode == 0 and f"0x{lang.hex()}" in done.stdout, done.stderr
    in_this_process(asked, monkeypatch)
    for given in (value, lang):
        assert [row["lang"] for row in viewtail.find("page_by_lang", given)] == [lang]


def test_find_says_how_bytes_are_written_where_no_row_has_the_text(asked: Run) -> None:
    done = asked.command("find", "page_by_lang", "74696465")
    assert "nothing found" in done.stderr
    assert "'74696465' was looked for as a text, 0x3734363936343635; bytes are written 0x74696465" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("find page_by_lang 0xd", "value '0xd' does not fit column lang (varbinary(16)): expected at most 16 bytes"),
        ("find page_by_lang seventeen-letters", "expected at most 16 bytes: as a text, or as 0x and two hexadecimal"),
        ("find page_by_lang de 128", "column size (tinyint): expected a whole number from -128 to 127"),
        ("get page tide", "the text 'tide' is written 0x74696465"),
        ("why page tide", "the text 'tide' is written 0x74696465"),
        ("wait page tide", "the text 'tide' is written 0x74696465"),
        ("replay page --key tide", "the text 'tide' is written 0x74696465"),
        (f"forget {SCHEMA}.page tide", "the text 'tide' is written 0x74696465"),
        ("dead-letters redrive page tide", "the text 'tide' is written 0x74696465"),
        ("get page 0011223344556677889900112233445566", "expected at most 16 bytes"),
    ],
)
def test_what_no_row_can_have_is_refused_with_the_allowed_forms(asked: Run, words: str, said: str) -> None:
    done = asked.command(*words.split())
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_a_key_of_bytes_is_taken_with_0x_and_as_it_is_rendered(asked: Run) -> None:
    for key in ("74696465", "0x74696465"):
        assert "0x74696465" in asked.command("get", "redis:page", key).stdout
    missing = asked.command("get", "redis:page", "7469")
    assert missing.returncode == 1
    assert "The text '7469' is written 0x37343639" in missing.stderr
    forgotten = asked.command("forget", f"{SCHEMA}.page", "0x6465")
    assert forgotten.returncode == 2 and "its row is still in" in forgotten.stderr, "that of the text"


def test_a_text_key_that_may_be_hexadecimal_is_refused_where_nobody_sees_which_was_taken(
    asked: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = r"written '0xde', and the text is written '0x6465'"
    for command in (("forget", f"{SCHEMA}.page", "de", "--yes"), ("wait", "page", "de")):
        done = asked.command(*command)
        assert done.returncode == 2 and both in done.stderr, "no proof, and no wait, of a key that was not meant"
    in_this_process(asked, monkeypatch)
    for ask in (lambda: viewtail.get("page", "de"), lambda: viewtail.wait_for("page", "de")):
        with pytest.raises(MisuseError, match=both):
            ask()
    for given, key in (("0xde", b"\xde"), ("0x6465", b"de"), (b"de", b"de")):
        record = viewtail.get("page", given)
        assert record is not None and record.key == (key,)


def test_a_key_in_a_tuple_from_python_is_no_text_that_could_be_hexadecimal(
    asked: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(asked, monkeypatch)
    assert viewtail.get("page", (b"de",)) is not None and viewtail.get("page", ("0x6465",)) is not None
    with pytest.raises(MisuseError, match=r"expected bytes, as b'\.\.\.' or '0x'.*the text is written '0x6465'"):
        viewtail.get("page", ("de",))
