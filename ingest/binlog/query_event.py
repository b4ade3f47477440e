"""Reads query events: the statement as its session wrote it, and what the event says about that session.

A statement is in the character set of its client, which the event names; what a server generates is in UTF-8 whatever
the event says [M], so a text that is both is given in both readings.

Source of the form: Query_event and its status variables (libs/mysql/binlog/event/statement_events.h) of MySQL 9, and
sql/log_event.h of MariaDB 10.11.
"""

from __future__ import annotations

from codecs import charmap_decode
from dataclasses import dataclass

from ingest.binlog.collations import charset_of
from ingest.binlog.packed_integers import Buffer
from ingest.binlog.transaction_layouts import BEGIN_TAIL
from ingest.charset_tables import DIFFERENCES
from ingest.charsets import decoder_of, single_byte_table

QUERY_FIXED_BYTES = 13
LOAD_FIXED_BYTES = 26  # of EXECUTE_LOAD_QUERY, a query event with the number of a file and a place in it
_FLAGS_BEFORE_BODY = 2
_USES_TEMPORARY_TABLES = 0x04  # LOG_EVENT_THREAD_SPECIFIC_F

_SQL_MODE, _CHARSET, _INVOKER, _DATABASES = 1, 4, 11, 12
_TEXTS = {2: 2, 5: 1, 6: 1}  # status variables with a length before them: bytes beside the text
_SIZES = {0: 4, _SQL_MODE: 8, 3: 4, _CHARSET: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 16: 1, 17: 8, 18: 2, 19: 1, 20: 1,
          21: 1, 128: 3}  # fmt: skip
_TOO_MANY = 254  # databases to be listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query event."""

    texts: tuple[str, ...]  # the statement with its comments; a second reading where the first may be wrong
    database: str  # the session's
    sql_mode: int  # the session's; 0 where the event lacks it
    databases: frozenset[str] | None  # that a statement may have changed; None: not listed, or too many
    uses_temporary_tables: bool  # it may be about one, whatever table it names


def parse(buffer: Buffer, b: int, end: int, fixed_bytes: int) -> Query:
    """`buffer[b:end]` is the event's body without its checksum, and behind its header."""
    status_at = b + fixed_bytes
    at = status_at + int.from_bytes(buffer[b + 11 : b + 13], "little")
    behind_database = at + buffer[b + 8] + 1
    variables = _status(bytes(buffer[status_at:at]))
    collation = int.from_bytes(variables.get(_CHARSET, b"")[:2], "little")
    flags = int.from_bytes(buffer[b - _FLAGS_BEFORE_BODY : b], "little")
    databases = variables.get(_DATABASES)
    return Query(
        texts=readings(bytes(buffer[behind_database:end]), charset_of(collation)),
        database=buffer[at : behind_database - 1].decode("utf-8", "replace"),
        sql_mode=int.from_bytes(variables.get(_SQL_MODE, b""), "little"),
        databases=None if databases is None else frozenset(databases[1:].decode("utf-8", "replace").split("\0")[:-1]),
        uses_temporary_tables=bool(flags & _USES_TEMPORARY_TABLES),
    )


def is_begin(buffer: Buffer, b: int, end: int) -> bool:
    """Return whether a query event's statement is BEGIN and nothing else; its lengths must add up."""
    return (
        buffer[end - len(BEGIN_TAIL) : end] == BEGIN_TAIL
        and b + QUERY_FIXED_BYTES + (buffer[b + 11] | buffer[b + 12] << 8) + buffer[b + 8] + 6 == end
    )


def _status(raw: bytes) -> dict[int, bytes]:
    """The status variables by number, up to the first that is not known."""
    variables: dict[int, bytes] = {}
    at = 0
    while at < len(raw):
        number, at = raw[at], at + 1
        if number in _SIZES:
            size = _SIZES[number]
        elif at == len(raw):
            break
        elif number in _TEXTS:
            size = _TEXTS[number] + raw[at]
        elif number == _INVOKER:
            size = 1 + raw[at]
            size += 1 + int.from_bytes(raw[at + size : at + size + 1], "little")
        elif number == _DATABASES and raw[at] != _TOO_MANY:
            size = _end_of_names(raw, at) - at
        else:
            break
        variables[number] = raw[at : at + size]
        at += size
    return variables


def _end_of_names(raw: bytes, at: int) -> int:
    """Find the end of a count and as many names, each with a zero at its end."""
    end = at + 1
    for _ in range(raw[at]):
        end = raw.find(b"\0", end) + 1 or len(raw)
    return end


def readings(raw: bytes, charset: str) -> tuple[str, ...]:
    """A text that a client of that character set wrote, or else the server."""
    if raw.isascii() or charset not in DIFFERENCES:
        return (raw.decode("utf-8", "replace"),)
    clients = _in_charset(raw, charset)
    try:
        return clients, raw.decode("utf-8")
    except UnicodeDecodeError:
        return (clients,)


def _in_charset(raw: bytes, charset: str) -> str:
    """Read a text, though its strings may hold codes that the character set has no character for."""
    try:
        return decoder_of(charset)(raw)
    except UnicodeDecodeError:
        table = single_byte_table(charset)
        if table is None:
            return raw.decode(DIFFERENCES[charset][0], "replace")
        return charmap_decode(raw, "replace", table)[0]
