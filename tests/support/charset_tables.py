"""Compares MySQL's character sets with Python's codecs, code by code, and writes down where they differ.

    python -m tests.support.charset_tables > ingest/charset_tables.py

The answers are the server's: CONVERT of every code that a character set can have, alone. A code that the server
refuses, or turns into a question mark that it is not, has no character. Nothing of a codec is taken on trust.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pymysql

import stack.mysql
from stack.server import Server

# The codecs that come near; with the same number of differences the first one is taken.
CODECS: dict[str, Sequence[str]] = {
    "armscii8": ("latin-1",), "big5": ("big5", "cp950"), "cp1250": ("cp1250",), "cp1251": ("cp1251",),
    "cp1256": ("cp1256",), "cp1257": ("cp1257",), "cp850": ("cp850",), "cp852": ("cp852",), "cp866": ("cp866",),
    "cp932": ("cp932",), "dec8": ("latin-1",), "eucjpms": ("euc_jp",), "euckr": ("cp949", "euc_kr"),
    "gb18030": ("gb18030",), "gb2312": ("gb2312",), "gbk": ("gbk",), "geostd8": ("latin-1",),
    "greek": ("iso8859-7",), "hebrew": ("iso8859-8",), "hp8": ("hp-roman8",), "keybcs2": ("cp437", "cp852"),
    "koi8r": ("koi8-r",), "koi8u": ("koi8-u",), "latin1": ("cp1252",), "latin2": ("iso8859-2",),
    "latin5": ("iso8859-9",), "latin7": ("iso8859-13",), "macce": ("mac-latin2",), "macroman": ("mac-roman",),
    "sjis": ("shift_jis", "cp932"), "swe7": ("latin-1",), "tis620": ("tis-620",), "ujis": ("euc_jp",),
}  # fmt: skip
_DOUBLE = ("big5", "cp932", "eucjpms", "euckr", "gb18030", "gb2312", "gbk", "sjis", "ujis")
_TRIPLE = ("eucjpms", "ujis")  # behind the byte 8f
_LINE = 84
_FOUR = 126 * 10 * 126 * 10  # codes of four bytes in gb18030

Mapping = dict[bytes, str]


def codes(charset: str, step: int = 1) -> Iterator[bytes]:
    """Every code that could be one of a character set; of the four-byte ones each `step`th."""
    for number in range(256):
        yield bytes([number])
    if charset in _DOUBLE:
        for number in range(0x8000, 0x10000):
            yield number.to_bytes(2, "big")
    if charset in _TRIPLE:
        for number in range(0x8F8080, 0x900000):
            yield number.to_bytes(3, "big")
    if charset == "gb18030":
        for number in range(0, _FOUR, step):
            yield bytes(
                (
                    0x81 + number // 12600,
                    0x30 + number // 1260 % 10,
                    0x81 + number // 10 % 126,
                    0x30 + number % 10,
                )
            )


def characters(cursor: Any, charset: str, asked: Sequence[bytes]) -> Mapping:
    """What the server turns each code into; those without a character are left out."""
    cursor.execute("SET SESSION sql_mode = '', max_error_count = 0")  # a refused code is a warning for each
    found: Mapping = {}
    for first in range(0, len(asked), 50_000):
        some = asked[first : first + 50_000]
        rows = ", ".join(f"ROW(x'{code.hex()}')" for code in some)
        cursor.execute(
            f"SELECT c, HEX(CONVERT(CAST(c AS CHAR CHARACTER SET {charset}) USING utf32)) FROM (VALUES {rows}) v(c)"
        )
        for code, shown in cursor.fetchall():
            if len(code) > 1 and code[:1] in found:
                continue  # a character and more behind it
            if shown and len(shown) == 8 and (shown != "0000003F" or code == b"?"):
                found[code] = chr(int(shown, 16))
    return found


def differences(charset: str, codec: str, asked: Sequence[bytes], found: Mapping) -> dict[bytes, str | None]:
    """Codes that the codec reads otherwise than the server; None: the server does not read them."""
    made = {}
    for code in asked:
        try:
            theirs: str | None = code.decode(codec)
        except UnicodeDecodeError:
            theirs = None
        if theirs is not None and len(theirs) > 1:
            continue  # characters of one byte each, which are compared by themselves
        if theirs != found.get(code):
            made[code] = found.get(code)
    return made


def _tokens(made: dict[bytes, str | None]) -> Iterator[str]:
    runs: list[tuple[bytes, str | None, int]] = []
    for code, character in made.items():
        if runs:
            first, start, count = runs[-1]
            is_next = len(first) == len(code) and int.from_bytes(code, "big") == int.from_bytes(first, "big") + count
            if is_next and character == (start and chr(ord(start) + count)):
                runs[-1] = (first, start, count + 1)
                continue
        runs.append((code, character, 1))
    for code, start, count in runs:
        yield f"{code.hex()}{f'+{count}' if count > 1 else ''}={f'{ord(start):04x}' if start else '-'}"


def _lines(tokens: Iterator[str]) -> Iterator[str]:
    line = ""
    for token in tokens:
        if len(line) + len(token) > _LINE:
            yield line + " "
            line = ""
        line += f" {token}" if line else token
    if line:
        yield line


def written(server: Server) -> str:
    """The module ingest/charset_tables.py as it is right for this server."""
    cursor = _cursor(server)
    cursor.execute("SELECT VERSION()")
    version = cursor.fetchone()[0]
    made, twice = [], []
    for charset, codecs in CODECS.items():
        asked = list(codes(charset))
        found = characters(cursor, charset, asked)
        if len(set(found.values())) < len(found):
            twice.append(charset)
        tried = {codec: differences(charset, codec, asked, found) for codec in codecs}
        codec = min(tried, key=lambda codec: len(tried[codec]))
        lines = list(_lines(_tokens(tried[codec])))
        told = f'"{"".join(lines)}"'
        if len(lines) > 1:
            told = '"""' + "".join(f"\n        {line.strip()}" for line in lines) + '\n    """'
        made.append(f'    "{charset}": ("{codec}", {told}),')
    return _MODULE.format(version=version, differences="\n".join(made), twice=", ".join(f'"{name}"' for name in twice))


_MODULE = '''"""MySQL's character sets, where Python's codecs differ. Written by tests/support/charset_tables.py.

The source is what MySQL {version} itself answers for every code. `a1=0587`: the code a1 is U+0587; `a1+3=0587`: a1 is
U+0587 and so on, three codes; `a1=-`: the server has no character for it.
"""

from __future__ import annotations

# fmt: off
# By character set: the codec that comes nearest, and where it differs.
DIFFERENCES: dict[str, tuple[str, str]] = {{
{differences}
}}
# fmt: on

# Some character of theirs has two codes.
AMBIGUOUS = frozenset(({twice}))
'''


def _cursor(server: Server) -> Any:

    return pymysql.connect(host=server.host, port=server.port, user="root", autocommit=True).cursor()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        server = stack.mysql.start(Path(folder) / "mysql")
        try:
            print(written(server), end="")
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
