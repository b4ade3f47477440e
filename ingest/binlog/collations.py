"""Knows the character set of each collation number in the binlog.

The numbers are fixed in the servers: those of MySQL 9 as `SELECT ID, CHARACTER_SET_NAME FROM
information_schema.COLLATIONS` gives them, and MariaDB's own above 1000 (strings/ctype-uca.h, nopad variants).
"""

from __future__ import annotations

_MYSQL = {
    "armscii8": "32 64", "ascii": "11 65", "big5": "1 84", "binary": "63", "cp1250": "26 34 44 66 99",
    "cp1251": "14 23 50-52", "cp1256": "57 67", "cp1257": "29 58-59", "cp850": "4 80", "cp852": "40 81",
    "cp866": "36 68", "cp932": "95-96", "dec8": "3 69", "eucjpms": "97-98", "euckr": "19 85", "gb18030": "248-250",
    "gb2312": "24 86", "gbk": "28 87", "geostd8": "92-93", "greek": "25 70", "hebrew": "16 71", "hp8": "6 72",
    "keybcs2": "37 73", "koi8r": "7 74", "koi8u": "22 75", "latin1": "5 8 15 31 47-49 94", "latin2": "2 9 21 27 77",
    "latin5": "30 78", "latin7": "20 41-42 79", "macce": "38 43", "macroman": "39 53", "sjis": "13 88",
    "swe7": "10 82", "tis620": "18 89", "ucs2": "35 90 128-151 159", "ujis": "12 91", "utf16": "54-55 101-124",
    "utf16le": "56 62", "utf32": "60-61 160-183", "utf8mb3": "33 76 83 192-215 223",
    "utf8mb4": "45-46 224-247 255-323",  # from 255 on also the numbers that MySQL keeps for new ones
}  # fmt: skip
_MARIADB_NOPAD = 1024  # added to the number of the padding collation
# Croatian, myanmar, thai.
_MARIADB_UCA = {576: "utf8mb3", 608: "utf8mb4", 640: "ucs2", 672: "utf16", 736: "utf32"}
_MARIADB_UCA1400 = {2048: "utf8mb3", 2304: "utf8mb4", 2560: "ucs2", 2816: "utf16", 3072: "utf32"}  # 256 each


def _numbers(ranges: str) -> list[int]:
    numbers: list[int] = []
    for part in ranges.split():
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


_CHARSETS = {number: name for name, ranges in _MYSQL.items() for number in _numbers(ranges)}
_CHARSETS |= {number + _MARIADB_NOPAD: name for number, name in _CHARSETS.items()}
_CHARSETS |= {first + step: name for first, name in _MARIADB_UCA.items() for step in range(3)}
_CHARSETS |= {first + step: name for first, name in _MARIADB_UCA1400.items() for step in range(256)}


def charset_of(collation: int | None) -> str:
    """'utf8mb4', 'latin1', 'binary', ...; 'unknown (collation N)' for a number viewtail does not know."""
    if collation is None:
        return "unknown (not sent)"
    return _CHARSETS.get(collation) or f"unknown (collation {collation})"
