"""TABLE_MAP events: which table the row events after them belong to, and how its columns are laid out.

Owns the parsing of the event's body, the "full row metadata" included (binlog_row_metadata=FULL), without
which names, signs and character sets are unknown. It decodes no rows and does not judge whether a column is
supported. A body that is cut short or garbled raises TableUnreadableError, never anything else.

Sources: mysql/binlog/event/rows_event.h (class Table_map_event) of MySQL 9, and what MySQL 9.7 writes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ingest.binlog import column_types as types
from ingest.binlog import packed_integers
from ingest.binlog.stream_errors import BACKFILL_TABLE
from viewtail.changes.errors import TableUnreadableError
from viewtail.changes.tables import full_name

# Types of the optional metadata fields; keys and visibility are not read.
_SIGNEDNESS, _DEFAULT_CHARSET, _COLUMN_CHARSET, _COLUMN_NAME, _SET_STR_VALUE, _ENUM_STR_VALUE = range(1, 7)
_GEOMETRY_TYPE, _, _, _ENUM_AND_SET_DEFAULT_CHARSET = range(7, 11)
_ENUM_AND_SET_COLUMN_CHARSET, _, _VECTOR_DIMENSIONALITY = range(11, 14)

_MAX_SCALE = 38  # of DECIMAL: MariaDB's limit, 30 is MySQL's
_MAX_COLUMNS = 4096  # MySQL's and MariaDB's limit


@dataclass(frozen=True, slots=True, kw_only=True)
class MapColumn:
    """One column as the server lays it out in row events."""

    name: str
    type: int  # the server's type byte; ENUM and SET are told apart from CHAR
    metadata: int  # VARCHAR, CHAR, BINARY: bytes; BLOB, JSON..: bytes of the length; DECIMAL: precision << 8 | scale;
    # ENUM, SET: bytes of the number; BIT: bits; TIME..: fractional digits
    is_nullable: bool
    is_unsigned: bool = False
    collation: int | None = None  # id of the collation of character columns, 63 for binary ones
    labels: tuple[bytes, ...] = ()  # of ENUM and SET, in the column's character set
    detail: int = 0  # GEOMETRY: the geometry type; VECTOR: dimensions

    @property
    def type_name(self) -> str:
        """The type's name, for messages."""
        return types.NAMES.get(self.type, f"type {self.type}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMap:
    """A table as it was when the rows that follow were written."""

    schema: str
    name: str
    columns: tuple[MapColumn, ...]

    @property
    def full_name(self) -> str:
        return full_name(self.schema, self.name)

    def column(self, name: str) -> MapColumn | None:
        return next((column for column in self.columns if column.name == name), None)


def names(body: bytes | bytearray) -> tuple[str, str]:
    """Schema and table name, without parsing the rest. `body`: the bytes after the header, without the checksum."""
    try:
        middle = 9 + body[8]
        end = middle + 2 + body[middle + 1]
        if end >= len(body) or body[middle] or body[end]:
            raise _garbled("names are not terminated")
        return str(body[9:middle], "utf-8"), str(body[middle + 2 : end], "utf-8")
    except (IndexError, UnicodeDecodeError):
        raise _garbled("it ends within the table's name") from None


def parse(body: bytes | bytearray, character: frozenset[int] = types.MYSQL_CHARACTER) -> TableMap:
    """The whole event. `body`: the bytes after the header, without the checksum.

    `character`: the types that the server counts among those with a character set, column_types.MYSQL_CHARACTER or
    MARIADB_CHARACTER.

    Raises TableUnreadableError when the server does not send column names, and when the bytes make no sense.
    """
    schema, name = names(body)
    reader = _Reader(body, full_name(schema, name))
    try:
        return _parse(reader, schema, name, character)
    except (IndexError, UnicodeDecodeError, struct.error, ValueError, OverflowError):
        raise reader.garbled("its bytes contradict each other") from None


def _parse(reader: _Reader, schema: str, name: str, character: frozenset[int]) -> TableMap:
    reader.take(8)  # table id, flags
    reader.take(reader.byte() + 1)
    reader.take(reader.byte() + 1)
    count = reader.length()
    if not 0 < count <= _MAX_COLUMNS:
        raise reader.garbled(f"it claims {count} columns")
    type_bytes, metadata = _types(reader, reader.take(count), _Reader(reader.text(), reader.table))
    nullable = int.from_bytes(reader.take((count + 7) // 8), "little")
    optional = _Optional(reader, type_bytes, character)
    if optional.names is None:
        raise TableUnreadableError(
            f"{reader.table}: the binlog names no columns of it; run SET GLOBAL binlog_row_metadata=FULL on the "
            f"source (and put it into its configuration), then {BACKFILL_TABLE}"
        )
    columns = tuple(
        MapColumn(
            name=optional.names[index],
            type=type_bytes[index],
            metadata=metadata[index],
            is_nullable=bool(nullable >> index & 1),
            is_unsigned=optional.unsigned.get(index, False),
            collation=optional.collations.get(index),
            labels=optional.labels.get(index, ()),
            detail=optional.details.get(index, 0),
        )
        for index in range(count)
    )
    return TableMap(schema=schema, name=name, columns=columns)


def _types(reader: _Reader, raw_types: bytes, raw: _Reader) -> tuple[list[int], list[int]]:
    type_bytes, metadata = [], []
    for position, type_ in enumerate(raw_types, 1):
        if type_ not in types.METADATA_SIZE:
            raise TableUnreadableError(
                f"{reader.table}: column {position} has the type {type_} ({types.NAMES.get(type_, 'unknown')}), whose "
                "layout viewtail does not know; drop that column or stop following the table"
            )
        true_type, true_metadata = _metadata(reader, raw, type_, position)
        type_bytes.append(true_type)
        metadata.append(true_metadata)
    if not raw.is_done():
        raise reader.garbled("it has more column metadata than columns")
    return type_bytes, metadata


def _metadata(reader: _Reader, raw: _Reader, type_: int, position: int) -> tuple[int, int]:
    """A column's true type and its metadata, as `MapColumn` has them."""
    if type_ in (types.STRING, types.ENUM, types.SET, types.VAR_STRING):
        return _string_type(type_, raw.byte(), raw.byte())
    if type_ == types.NEWDECIMAL:
        digits, scale = raw.byte(), raw.byte()
        if not 0 < digits <= 65 or scale > min(digits, _MAX_SCALE):
            raise reader.garbled(f"column {position} is DECIMAL({digits},{scale})")
        return type_, digits << 8 | scale
    if type_ == types.BIT:
        bits = raw.byte() + raw.byte() * 8
        if not 0 < bits <= 64:
            raise reader.garbled(f"column {position} is BIT({bits})")
        return type_, bits
    number = int.from_bytes(raw.take(types.METADATA_SIZE[type_]), "little")
    if number > types.MOST_METADATA.get(type_, 1 << 16):
        raise reader.garbled(f"column {position} has metadata {number}")
    return type_, number


def _string_type(type_: int, first: int, second: int) -> tuple[int, int]:
    # CHAR hides its real type in the metadata, and bits 8 and 9 of long lengths, inverted, in bits 4 and 5 of
    # that byte (Field_string::do_save_field_metadata).
    if first & 0x30 != 0x30:
        return first | 0x30, second | ((first & 0x30) ^ 0x30) << 4
    return first if first in (types.ENUM, types.SET, types.STRING) else type_, second


class _Optional:
    """The optional metadata: a sequence of (type, length, value), unknown types skipped."""

    def __init__(self, reader: _Reader, type_bytes: Sequence[int], character: frozenset[int]) -> None:
        self.names: list[str] | None = None
        self.unsigned: dict[int, bool] = {}
        self.collations: dict[int, int] = {}
        self.labels: dict[int, tuple[bytes, ...]] = {}
        self.details: dict[int, int] = {}
        self._types = type_bytes
        self._fields: dict[int, Callable[[_Reader], None]] = {
            _SIGNEDNESS: self._read_signs,
            _COLUMN_NAME: self._read_names,
            _DEFAULT_CHARSET: partial(self._read_default_collations, character),
            _COLUMN_CHARSET: partial(self._read_numbers, self.collations, character),
            _ENUM_AND_SET_DEFAULT_CHARSET: partial(self._read_default_collations, (types.ENUM, types.SET)),
            _ENUM_AND_SET_COLUMN_CHARSET: partial(self._read_numbers, self.collations, (types.ENUM, types.SET)),
            _SET_STR_VALUE: partial(self._read_labels, types.SET),
            _ENUM_STR_VALUE: partial(self._read_labels, types.ENUM),
            _GEOMETRY_TYPE: partial(self._read_numbers, self.details, (types.GEOMETRY,)),
            _VECTOR_DIMENSIONALITY: partial(self._read_numbers, self.details, (types.VECTOR,)),
        }
        while not reader.is_done():
            field, value = reader.byte(), _Reader(reader.text(), reader.table)
            if field in self._fields:
                self._fields[field](value)
                if not value.is_done():
                    raise value.garbled(f"metadata field {field} is longer than its columns need")

    def _read_names(self, value: _Reader) -> None:
        self.names = [str(value.text(), "utf-8") for _ in self._types]

    def _read_default_collations(self, type_bytes: Iterable[int], value: _Reader) -> None:
        """A default, then (number among these columns, collation) for those that differ."""
        columns = self._of(type_bytes)
        self.collations |= dict.fromkeys(columns, value.length())
        while not value.is_done():
            column = columns[value.length()]
            self.collations[column] = value.length()

    def _read_numbers(self, numbers: dict[int, int], type_bytes: Iterable[int], value: _Reader) -> None:
        numbers |= {index: value.length() for index in self._of(type_bytes)}

    def _read_labels(self, type_: int, value: _Reader) -> None:
        for index in self._of((type_,)):
            self.labels[index] = tuple(value.text() for _ in range(value.length()))

    def _read_signs(self, value: _Reader) -> None:
        raw = value.rest()
        # Some servers leave YEAR out: with it in, a YEAR, which is always unsigned, comes out as signed.
        for type_bytes in (types.NUMERIC, types.NUMERIC - {types.YEAR}):
            columns = self._of(type_bytes)
            if (len(columns) + 7) // 8 == len(raw):
                self.unsigned = dict(zip(columns, _bits_high_first(raw, len(columns)), strict=True))
                if all(self.unsigned.get(index, True) for index in self._of((types.YEAR,))):
                    return
        raise value.garbled("it has more or fewer signs than numeric columns")

    def _of(self, type_bytes: Iterable[int]) -> list[int]:
        return [index for index, type_ in enumerate(self._types) if type_ in type_bytes]


def _bits_high_first(raw: bytes, count: int) -> Iterator[bool]:
    return (bool(raw[index >> 3] << (index & 7) & 0x80) for index in range(count))


class _Reader:
    """Takes bytes from the front and raises when there are none left."""

    def __init__(self, body: bytes | bytearray, table: str) -> None:
        self.table = table
        self._body = bytes(body)
        self._at = 0

    def is_done(self) -> bool:
        return self._at == len(self._body)

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._body):
            raise self.garbled("it is cut short")
        taken = self._body[self._at : end]
        self._at = end
        return taken

    def rest(self) -> bytes:
        return self.take(len(self._body) - self._at)

    def byte(self) -> int:
        return self.take(1)[0]

    def length(self) -> int:
        """A length-encoded integer."""
        try:
            length, self._at = packed_integers.integer(self._body, self._at)
        except IndexError:
            raise self.garbled("it holds a length that cannot be") from None
        return length

    def text(self) -> bytes:
        """Bytes after their length."""
        return self.take(self.length())

    def garbled(self, why: str) -> TableUnreadableError:
        return _garbled(why, self.table)


def _garbled(why: str, table: str = "") -> TableUnreadableError:
    where = f"{table}: " if table else ""
    return TableUnreadableError(
        f"{where}the table map event is garbled: {why}. Look at the binlog with mysqlbinlog; when it is sound, "
        "report this with the server's version"
    )
