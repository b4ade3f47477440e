"""Reads changes from the messages of a topic: those that `envelope` wrote, and those of Debezium's MySQL connector.

It is pure. A message gives the change of one row, with exactly the values that the table has: a view fed so equals its
table. A value that is not known exactly makes the row `Refused`, naming the column, so that its key parks. Anything
that is no change of the table raises MalformedEnvelopeError; no text of it holds a row's values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from typing import Any, TypeAlias

import orjson

from viewtail.changes.batches import (
    DELETE,
    INSERT,
    UPDATE,
    Followed,
    Refused,
    Row,
    RowChanges,
    Unreadable,
    unreadable_in,
)
from viewtail.changes.debezium_values import LostValueError, Writer, debezium, is_alike
from viewtail.changes.envelope_columns import characters_of, integers_of, is_bit, is_year, quoted
from viewtail.changes.envelope_schemas import Schema
from viewtail.changes.envelope_values import CLOCKS, DAYS, NOT_TAKEN, MissingFieldError, Read, decimal_pattern, own
from viewtail.changes.errors import ViewtailError
from viewtail.changes.masks import is_masked, mask_of
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.versions import MAX_FILE_NUMBER, MAX_POSITION, MAX_VERSION, base_version

Change: TypeAlias = RowChanges | Refused
_Fields: TypeAlias = Mapping[str, Schema]  # of a row's columns, by name
_Reads: TypeAlias = Mapping[str, Read]
_ReadRow: TypeAlias = Callable[[Any], Row]

_KINDS = {"c": INSERT, "r": INSERT, "u": UPDATE, "d": DELETE}
_LOOK = "look at what writes the topic"
_RESTART = f": if the table was altered, restart viewtail, else {_LOOK}"
_FOREIGN_EPOCH = 1  # of versions made of places in a binlog that viewtail did not read
_MOST_SCHEMAS = 100  # kept; each ALTER of a table makes a new one


class MalformedEnvelopeError(ViewtailError):
    """A message that is no change of the table. The text says what was seen, and no values of rows."""


class KeyOnlyDeleteError(MalformedEnvelopeError):
    """A delete without the row: viewtail found the key in the topic, and no longer in the table."""


class EnvelopeReader:
    """Reads the messages of one table.

    Args:
        followed: the table, and the columns that are wanted.
        key: the columns of the entity's key; a message must hold them.
        shows_default_for_null: Kafka Connect's replace.null.with.default where a Debezium connector writes the topic.
            While it is on, as it is by default, a column's default cannot be told from NULL.
    """

    def __init__(self, followed: Followed, key: Sequence[Column], *, shows_default_for_null: bool = True) -> None:
        columns = [followed.table.column(name) for name in followed.columns]
        self._followed = followed
        self._columns = [column for column in columns if column is not None]
        self._key = frozenset(column.name for column in key)
        self._shows_default_for_null = shows_default_for_null
        self._own: _Reads = {column.name: _or_null(_own(column), column) for column in self._columns}
        self._own_row = _row_of(self._columns, self._own, _unmasked(self._columns))
        self._read_own = _message_of(followed, self._own_row)
        self._debezium: dict[tuple[bytes, bool], tuple[_Reads, _ReadRow]] = {}  # by schema, and whether of a snapshot
        self._schemas: dict[bytes, _Fields] = {}  # by what stands before a payload
        # Of the last message: what stands before its payload, what names its schema, and whether viewtail wrote it.
        self._last_start, self._last_schema = b"\n", b""
        self._is_own = True

    @property
    def own_row(self) -> _ReadRow:
        """Read an image as viewtail writes it; raise one of NOT_TAKEN for any other."""
        return self._own_row

    def read(self, value: bytes, version: int | None = None) -> Change:
        """Return the change that a message holds. `version` wins over the message's own.

        The message's own version is `source.sequence`, as viewtail writes it; without one the place in the binlog.
        Raises MalformedEnvelopeError. A tombstone has no value to read.
        """
        schema, payload = self._without_schema(value) if value.startswith(_WITH_SCHEMA) else (b"", value)
        if self._is_own:
            try:
                return self._read_own(payload, version)
            except NOT_TAKEN:
                pass
        return self._carefully(payload, schema, version)

    def _without_schema(self, value: bytes) -> tuple[bytes, bytes]:
        """Return the bytes that name the schema, and the payload."""
        is_end = value.endswith(b"}")
        if is_end and value.startswith(self._last_start):  # the schema is long, and the same as before
            return self._last_schema, value[len(self._last_start) : -1]
        if len(self._schemas) >= _MOST_SCHEMAS:
            self._schemas.clear()
            self._debezium.clear()
            self._last_start = b"\n"
        start, _, payload = value.partition(_PAYLOAD)
        schema = _schema_in(start) if is_end else None
        if schema is not None:
            fields, payload = _fields_of(schema), payload[:-1]
            self._last_start, self._last_schema = start + _PAYLOAD, start
        else:
            schema, start, payload = _taken_apart(value)
            fields = _fields_of(schema)
        self._schemas[start] = fields
        return start, payload

    def _carefully(self, payload: bytes, schema: bytes, version: int | None) -> Change:
        message = _loaded(payload)
        source, op = _source_and_op(message, self._followed.table)
        self._is_own = source.get("sequence") is not None
        if self._is_own:
            said, reads, read_row = _sequence(source), self._own, self._own_row
        else:
            said = 0 if version is not None else _place(source, op)
            reads, read_row = self._of_debezium(schema, op == "r")
        kind, images = _images(_KINDS[op], message.get("before"), message.get("after"))
        said = said if version is None else version
        try:
            return RowChanges(self._followed, kind, said, [read_row(image) for image in images])
        except (LostValueError, *NOT_TAKEN):
            rows = [self._row(image, reads) for image in images]
        bad = unreadable_in(value for row in rows for value in row)
        if bad is None:
            return RowChanges(self._followed, kind, said, rows)
        return Refused(self._followed, kind, said, rows, bad.reason)

    def _of_debezium(self, schema: bytes, is_snapshot: bool) -> tuple[_Reads, _ReadRow]:
        ways = self._debezium.get((schema, is_snapshot))
        if ways is None:
            writer = Writer(
                is_snapshot=is_snapshot,
                fields=self._schemas[schema] if schema else None,
                shows_default_for_null=self._shows_default_for_null,
            )
            reads = {column.name: _masking(debezium(column.stored, writer), column) for column in self._columns}
            plain = {column.name for column in self._columns if column.mask is None and is_alike(column, writer)}
            ways = self._debezium[schema, is_snapshot] = reads, _row_of(self._columns, reads, plain)
        return ways

    def _row(self, image: Any, reads: _Reads) -> Row:
        if not isinstance(image, dict):
            raise _malformed("it lacks the row before or after the change")
        return tuple([self._value(column, image, reads[column.name]) for column in self._columns])

    def _value(self, column: Column, image: Mapping[str, Any], read: Read) -> Any:
        try:
            if column.name in image:
                return read(image[column.name])
            cause, remedy = "is not in the message", _RESTART
        except LostValueError as lost:
            cause, remedy = str(lost), ""
        except MissingFieldError as error:
            cause, remedy = f"has rows without {error}", _RESTART
        except NOT_TAKEN:
            cause, remedy = f"holds what {column.declared} cannot hold", _RESTART
        if column.name in self._key:
            raise _malformed(f"column {column.name} of the key {cause}")
        return Unreadable(column.name, cause + remedy)


# --- What stands around the rows ---

_WITH_SCHEMA, _PAYLOAD = b'{"schema":', b',"payload":'


def _malformed(seen: str) -> MalformedEnvelopeError:
    return MalformedEnvelopeError(f"the message cannot be read: {seen}; {_LOOK}")


def _loaded(value: bytes) -> Any:
    try:
        return orjson.loads(value)
    except ValueError:
        raise _malformed("it is no JSON, or nested too deeply") from None


def _source_and_op(message: Any, table: Table) -> tuple[dict[str, Any], str]:
    source, op = (message.get("source"), message.get("op")) if isinstance(message, dict) else (None, None)
    if not isinstance(source, dict) or not isinstance(op, str):
        raise _malformed("it is no change of a row in Debezium's envelope")
    if (source.get("db"), source.get("table")) != (table.schema, table.name):
        raise _malformed(f"it is of another table than {table.full_name}")
    if op not in _KINDS:
        raise _malformed("its op is none of c, r, u and d")
    return source, op


def _sequence(source: Mapping[str, Any]) -> int:
    text = source["sequence"]
    if isinstance(text, str) and re.fullmatch("[0-9]{1,19}", text) and int(text) <= MAX_VERSION:
        return int(text)
    raise _malformed("its source.sequence is no version")


def _place(source: Mapping[str, Any], op: str) -> int:
    """Return a version from where the event begins; viewtail's own, from its end, is larger: views may move over.

    One event deletes a key before it inserts it again, where keys move up. An event has more than 32 bytes, so the
    insert has the next version, and whatever comes behind the event has a larger one.
    """
    file, position = source.get("file"), source.get("pos")
    if isinstance(file, str) and type(position) is int and 0 <= position <= MAX_POSITION:
        base = _base(file)
        if base is not None:
            return (base | position >> 4) + (op == "c")
    raise _malformed("its source does not say a place in a binlog")


@lru_cache(maxsize=100)
def _base(file: str) -> int | None:
    """Return the version that a binlog file's versions begin with; None if the name is not that of a binlog file."""
    number = re.fullmatch(r"[^\n]*\.([0-9]{1,10})", file)
    if number is None or int(number[1]) > MAX_FILE_NUMBER:
        return None
    return base_version(_FOREIGN_EPOCH, int(number[1]))


def _schema_in(start: bytes) -> Any:
    """Return the schema in the bytes before a payload, if they hold that and nothing else."""
    try:
        schema = orjson.loads(start + b"}")
    except ValueError:
        return None
    return schema["schema"] if schema.keys() == {"schema"} else None


def _taken_apart(value: bytes) -> tuple[Any, bytes, bytes]:
    """Return the schema of a message with another layout than Kafka Connect's, and it and the payload as bytes."""
    message = _loaded(value)
    try:
        schema, payload = message["schema"], message["payload"]
        return schema, orjson.dumps(schema), orjson.dumps(payload)
    except (KeyError, TypeError):  # orjson writes less deep than it reads
        raise _malformed("it is no change of a row in Debezium's envelope") from None


def _fields_of(schema: Any) -> _Fields:
    """The fields of a row, from the schema of an envelope."""
    try:
        (row,) = (field for field in schema["fields"] if field["field"] == "after")
        return {field["field"]: field for field in row["fields"]}
    except (TypeError, ValueError, LookupError):
        raise _malformed("its schema is not that of an envelope") from None


# --- The table's own part, as source ---


def _row_of(columns: Sequence[Column], reads: _Reads, plain: Collection[str]) -> _ReadRow:
    """Compile a function: it makes a row of its image, or raises one of NOT_TAKEN, or LostValueError.

    For columns in `plain` the value's JSON is the value; the commonest kinds of the others are read without a call.
    """
    names = [f"c{at}" for at in range(len(columns))]
    values = [
        _inlined(column, name, at) if column.name in plain else f"read{at}({name})"
        for at, (column, name) in enumerate(zip(columns, names, strict=True))
    ]
    source = f"""
def row(image):
    {"".join(f"{name}, " for name in names)} = {"pick(image)" if len(names) > 1 else "(pick(image),)"}
    return ({"".join(f"{value}, " for value in values)})
"""
    namespace: dict[str, Any] = {
        "pick": itemgetter(*(column.name for column in columns)), "no": _no, "Decimal": Decimal, "days": DAYS,
        "clocks": CLOCKS,
    }  # fmt: skip
    for at, column in enumerate(columns):
        namespace[f"read{at}"] = reads[column.name]
        if column.kind is Kind.DECIMAL:
            namespace[f"matches{at}"] = decimal_pattern(column).fullmatch
    exec(compile(source, "<rows of envelopes>", "exec"), namespace)
    row: _ReadRow = namespace["row"]
    return row


def _inlined(column: Column, name: str, at: int) -> str:
    """Source of a column's value."""
    if column.kind is Kind.INTEGER and not is_bit(column) and not is_year(column):
        low, high = integers_of(column)
        value = f"{name} if {name}.__class__ is int and {low} <= {name} <= {high} else no()"
    elif column.kind is Kind.TEXT:
        value = f"{name} if {name}.__class__ is str and len({name}) <= {characters_of(column)} else no()"
    elif column.kind is Kind.DECIMAL:
        value = f"Decimal({name}) if matches{at}({name}) else no()"
    elif column.kind in (Kind.DATETIME, Kind.TIMESTAMP) and not column.scale:
        parts = f"days[{name}[:10]] + ' ' + clocks[{name}[11:19]]"
        value = f"{parts} if {name}[10] == 'T' and {name}[19:] == 'Z' else read{at}({name})"
    else:
        return f"read{at}({name})"
    return f"None if {name} is None else {value}" if column.is_nullable else value


def _message_of(followed: Followed, row: _ReadRow) -> Callable[[bytes, int | None], RowChanges]:
    """Return a function that reads a message, or raises one of NOT_TAKEN if it is not quite as viewtail writes it.

    Most of a message is behind its images, and is the same for all rows of a row event but for the row's number: it is
    compared with that of the last message, and read only where it differs.
    """
    end_of, kinds, loads = _end_of(followed.table), {op.encode(): kind for op, kind in _KINDS.items()}, orjson.loads
    start = end = b"\n"
    kind = said = size = 0

    def read(value: bytes, version: int | None) -> RowChanges:
        nonlocal start, end, kind, said, size
        images, _, tail = value.rpartition(b',"source":')
        if not (tail.startswith(start) and tail.endswith(end) and tail[size : -len(end)].isdigit()):
            parts = end_of(tail)
            if parts is None:
                raise ValueError
            before, sequence, behind, op = parts.groups()
            said = _version(sequence)
            kind, start, end, size = kinds[op], before, behind, len(before)
        image = loads(images + b"}")
        if kind == INSERT:
            rows = [row(image["after"])]
        elif kind == DELETE:
            rows = [row(image["before"])]
        else:
            rows = [row(image["before"]), row(image["after"])]
        change = (followed, kind, said if version is None else version, rows, b"", 0)
        return tuple.__new__(RowChanges, change)  # as RowChanges(*change), in less time

    return read


def _end_of(table: Table) -> Callable[[bytes], re.Match[bytes] | None]:
    """Return a function that matches the text behind the images: up to the row's number, the version, the rest, the op.

    `envelope.Envelope` writes it so. Parsing it as JSON takes longer than all the rest of a message.
    """
    schema, name = (re.escape(quoted(text)).encode() for text in (table.schema, table.name))
    text, number = rb'"[^"\\\x00-\x1f\x80-\xff]*"', b"(?:0|[1-9][0-9]*)"
    source = (
        rb'\{"version":%b,"connector":%b,"name":%b,"ts_ms":%b,"snapshot":%b,"db":%b,"sequence":"([0-9]{1,19})",'
        rb'"ts_us":%b,"ts_ns":%b,"table":%b,"server_id":%b,"gtid":(?:null|%b),"file":%b,"pos":%b,"row":'
        % (text, text, text, number, text, schema, number, number, name, number, text, text, number)
    )
    rest = rb',"thread":null,"query":null\},"transaction":null,"op":"([cdru])","ts_ms":%b,"ts_us":%b,"ts_ns":%b\}' % (
        number,
        number,
        number,
    )
    return re.compile(b"(%b)%b(%b)" % (source, number, rest)).fullmatch


def _version(text: bytes) -> int:
    version = int(text)
    return version if version <= MAX_VERSION else int(_no())


def _no() -> Any:
    raise ValueError


def _own(column: Column) -> Read:
    """What viewtail wrote: masked already, but for a message from before the column was."""
    if column.mask is None:
        return own(column)
    how, read = column.mask.how, _masking(own(column.stored), column)
    return lambda value: value if is_masked(value, how) else read(value)


def _masking(read: Read, column: Column) -> Read:
    """The same, of a value that is masked then."""
    if column.mask is None:
        return read
    mask = mask_of(column)

    def masked(parsed: Any) -> Any:
        value = read(parsed)
        return None if value is None else mask(value)

    return masked


def _unmasked(columns: Sequence[Column]) -> frozenset[str]:
    return frozenset(column.name for column in columns if column.mask is None)


def _or_null(read: Read, column: Column) -> Read:
    if not column.is_nullable:
        return read
    return lambda value: None if value is None else read(value)


def _images(kind: int, before: Any, after: Any) -> tuple[int, list[Any]]:
    """Return the images of one row, and the kind of change that they make of it. Raises KeyOnlyDeleteError."""
    if kind == DELETE and before is None:
        raise KeyOnlyDeleteError(*_malformed("it lacks the row before the change").args)
    if kind == UPDATE and before is None:
        kind = INSERT  # the old row is not known
    return kind, {INSERT: [after], UPDATE: [before, after], DELETE: [before]}[kind]
