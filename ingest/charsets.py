"""Texts of every character set of the server, read as the server itself converts them.

Where Python's codecs differ from MySQL's mappings, `charset_tables` says how, code by code; a text that the two read
alike takes Python's codec. A code to which the server gives no character is invalid here: SELECT would show '?'.
"""

from __future__ import annotations

from codecs import charmap_decode
from collections.abc import Callable
from functools import cache
from typing import Any

from ingest.charset_tables import AMBIGUOUS, DIFFERENCES
from viewtail.changes.batches import Unreadable

Decode = Callable[[bytes | bytearray], str]

_PLAIN = {"utf8mb4": "utf-8", "utf8mb3": "utf-8", "ascii": "ascii", "utf16": "utf-16-be", "utf16le": "utf-16-le",
          "utf32": "utf-32-be"}  # fmt: skip
_MULTI_BYTE = frozenset(("big5", "cp932", "eucjpms", "euckr", "gb18030", "gb2312", "gbk", "sjis", "ujis"))
_LONGEST_CODE = 4
_LAST_OF_TWO_BYTES = "\uffff"
_NO_CHARACTER = "\ufffe"  # what charmap_decode takes for a hole

READABLE = frozenset((*_PLAIN, *DIFFERENCES, "ucs2"))  # character sets whose texts are read exactly
ONE_TO_ONE = READABLE - AMBIGUOUS  # those in which two texts are never one in Unicode


@cache
def decoder_of(charset: str) -> Decode:
    """The function from a text's bytes to the text; it raises UnicodeDecodeError for invalid ones.

    Raises KeyError for a character set that is not READABLE.
    """
    if charset in _PLAIN:
        codec = _PLAIN[charset]
        return lambda raw: raw.decode(codec)
    if charset == "ucs2":
        return _ucs2
    if charset in _MULTI_BYTE:
        return _multi_byte(charset)
    table = single_byte_table(charset)
    return lambda raw: charmap_decode(raw, "strict", table)[0]


def can_hold(charset: str, text: str) -> bool:
    """Whether a text can be written in a character set: elsewhere the server refuses to compare it with one of that."""
    if text.isascii():
        return True
    if charset in ("utf8mb3", "ucs2") and max(text) > _LAST_OF_TWO_BYTES:
        return False
    if charset in _PLAIN or charset == "ucs2":
        return _can_encode(_PLAIN.get(charset, "utf-16-be"), text)
    if (table := single_byte_table(charset)) is not None:
        return _NO_CHARACTER not in text and set(text) <= set(table)
    codec, differences = DIFFERENCES[charset]
    own = {*_patches(differences).values()}
    return _can_encode(codec, "".join(character for character in text if character not in own))


def _can_encode(codec: str, text: str) -> bool:
    try:
        text.encode(codec)
    except UnicodeEncodeError:
        return False
    return True


def unreadable_where_invalid(read: Callable[[Any], str], column: str) -> Callable[[Any], str | Unreadable]:
    """The same function, but that it gives `Unreadable` for bytes that are invalid in their character set."""

    def careful(raw: Any) -> str | Unreadable:
        try:
            return read(raw)
        except UnicodeDecodeError:
            return Unreadable(column)

    return careful


@cache
def single_byte_table(charset: str) -> str | None:
    """Make charmap_decode's table of the codes 0 to 255; None where codes have several bytes."""
    if charset not in DIFFERENCES or charset in _MULTI_BYTE:
        return None
    codec, differences = DIFFERENCES[charset]
    patches = _patches(differences)
    codes = (bytes([number]) for number in range(256))
    return "".join(
        patches[code] or _NO_CHARACTER if code in patches else code.decode(codec, "replace").replace("�", _NO_CHARACTER)
        for code in codes
    )


def _ucs2(raw: bytes | bytearray) -> str:
    text = raw.decode("utf-16-be")
    if 2 * len(text) != len(raw):  # two codes that UTF-16 would take together are no characters here
        raise UnicodeDecodeError("ucs2", bytes(raw), 0, len(raw), "it has surrogates")
    return text


def _multi_byte(charset: str) -> Decode:
    codec, differences = DIFFERENCES[charset]
    patches = _patches(differences)
    # Characters that the codec may have read from a code which the server reads otherwise.
    suspects = {character for code in patches if (character := _of_codec(code, codec)) is not None}

    def decode(raw: bytes | bytearray) -> str:
        try:
            text = raw.decode(codec)
        except UnicodeDecodeError:
            if not patches:
                raise
        else:
            if suspects.isdisjoint(text):
                return text
        return _code_by_code(bytes(raw), charset, codec, patches)

    return decode


def _code_by_code(raw: bytes, charset: str, codec: str, patches: dict[bytes, str | None]) -> str:
    characters, at = [], 0
    while at < len(raw):
        for length in range(1, _LONGEST_CODE + 1):
            code = raw[at : at + length]
            character = patches[code] if code in patches else _of_codec(code, codec)
            if character is not None:
                break
        else:
            raise UnicodeDecodeError(charset, raw, at, at + 1, "the server has no character for it")
        characters.append(character)
        at += len(code)
    return "".join(characters)


def _of_codec(code: bytes, codec: str) -> str | None:
    try:
        character = code.decode(codec)
    except UnicodeDecodeError:
        return None
    return character if len(character) == 1 else None


def _patches(differences: str) -> dict[bytes, str | None]:
    patches: dict[bytes, str | None] = {}
    for token in differences.split():
        codes, _, character = token.partition("=")
        first, _, count = codes.partition("+")
        for step in range(int(count or 1)):
            code = (int(first, 16) + step).to_bytes(len(first) // 2, "big")
            patches[code] = None if character == "-" else chr(int(character, 16) + step)
    return patches
