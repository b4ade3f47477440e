"""Makes Kafka Connect's schemas of an envelope, which a message may carry.

Debezium's MySQL connector and Kafka Connect's JSON converter write the same for the forms of `envelope_columns`, but
for the columns' defaults, which are left out here: a reader would put those in the place of NULL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from viewtail.changes.envelope_columns import is_point, is_single
from viewtail.changes.tables import Column, Kind, Table

Schema: TypeAlias = dict[str, Any]


# --- Kafka Connect: an envelope and its key ---


def key_schema(table: Table, key: Sequence[Column], name: str) -> Schema:
    """The schema of a message's key, as Kafka Connect's JSON converter writes it."""
    fields = [connect_schema(column, is_key=True) for column in key]
    return {"type": "struct", "fields": fields, "optional": False, "name": f"{name}.{table.full_name}.Key"}


def value_schema(table: Table, columns: Sequence[Column], name: str) -> Schema:
    """The schema of a message's value, as Kafka Connect's JSON converter writes it, without columns' defaults."""
    row = {
        "type": "struct",
        "fields": [connect_schema(column) for column in columns],
        "optional": True,
        "name": f"{name}.{table.full_name}.Value",
    }
    fields = [
        {**row, "field": "before"},
        {**row, "field": "after"},
        _SOURCE_SCHEMA,
        _TRANSACTION_SCHEMA,
        _field("op", "string"),
        *(_field(field, "int64", optional=True) for field in ("ts_ms", "ts_us", "ts_ns")),
    ]
    envelope = f"{name}.{table.full_name}.Envelope"
    return {"type": "struct", "fields": fields, "optional": False, "name": envelope, "version": 2}


def _field(name: str, type_: str, *, optional: bool = False) -> Schema:
    return {"type": type_, "optional": optional, "field": name}


_SNAPSHOT_VALUES = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
_SOURCE_SCHEMA = {
    "type": "struct",
    "fields": [
        _field("version", "string"),
        _field("connector", "string"),
        _field("name", "string"),
        _field("ts_ms", "int64"),
        {
            "type": "string", "optional": True, "name": "io.debezium.data.Enum", "version": 1,
            "parameters": {"allowed": _SNAPSHOT_VALUES}, "default": "false", "field": "snapshot",
        },
        _field("db", "string"),
        _field("sequence", "string", optional=True),
        _field("ts_us", "int64", optional=True),
        _field("ts_ns", "int64", optional=True),
        _field("table", "string", optional=True),
        _field("server_id", "int64"),
        _field("gtid", "string", optional=True),
        _field("file", "string"),
        _field("pos", "int64"),
        _field("row", "int32"),
        _field("thread", "int64", optional=True),
        _field("query", "string", optional=True),
    ],
    "optional": False,
    "name": "io.debezium.connector.mysql.Source",
    "version": 1,
    "field": "source",
}  # fmt: skip
_TRANSACTION_SCHEMA = {
    "type": "struct",
    "fields": [
        _field("id", "string"), _field("total_order", "int64"), _field("data_collection_order", "int64"),
    ],
    "optional": True,
    "name": "event.block",
    "version": 1,
    "field": "transaction",
}  # fmt: skip


# --- Kafka Connect: a column ---


def connect_schema(column: Column, *, is_key: bool = False) -> Schema:
    """The schema of a column's field as Kafka Connect's JSON converter writes it."""
    kind = _integer(column) if column.kind is Kind.INTEGER else _CONNECT[column.kind](column)
    is_optional = (column.is_nullable and not is_key) or kind.get("doc") == _ALWAYS_OPTIONAL
    return {**kind, "optional": is_optional, "field": column.name}


def _integer(column: Column) -> Schema:
    name = re.split("[( ]", column.declared.lower(), maxsplit=1)[0]
    if name == "bit":
        if column.length == 1:
            return {"type": "boolean"}
        length = {"length": str(column.length)}
        return {"type": "bytes", "name": "io.debezium.data.Bits", "version": 1, "parameters": length}
    if name == "year":
        return {"type": "int32", "name": "io.debezium.time.Year", "version": 1}
    return {"type": _INTEGERS.get(name, ("int64", "int64"))[column.is_unsigned]}


def _labelled(name: str) -> Callable[[Column], Schema]:
    return lambda column: {
        "type": "string", "name": name, "version": 1,
        "parameters": {"allowed": ",".join(map(escaped_label, column.labels))},
    }  # fmt: skip


def escaped_label(label: str) -> str:
    """Return a label as Debezium reads it in a statement; it writes rows of the binlog with that, too."""
    return label.translate(_ESCAPED)


def _named(type_: str, name: str = "") -> Callable[[Column], Schema]:
    return lambda _: {"type": type_, "name": name, "version": 1} if name else {"type": type_}


def _shape(column: Column) -> Schema:
    srid: Schema = {"type": "int32", "optional": True, "field": "srid"}
    if is_point(column):
        fields = [{"type": "double", "optional": False, "field": axis} for axis in ("x", "y")]
        fields += [{"type": "bytes", "optional": True, "field": "wkb"}, srid]
        name, about = "io.debezium.data.geometry.Point", "Geometry (POINT)"
    else:
        fields = [{"type": "bytes", "optional": False, "field": "wkb"}, srid]
        name, about = "io.debezium.data.geometry.Geometry", _ALWAYS_OPTIONAL
    return {"type": "struct", "fields": fields, "name": name, "version": 1, "doc": about}


_ALWAYS_OPTIONAL = "Geometry"  # of such a schema: it is optional for a NOT NULL column too
_ESCAPED = {ord("\\"): "\\\\", ord(","): "\\,", 0: "\\0", ord("\n"): "\\n", ord("\r"): "\\r"}
_INTEGERS = {  # column type: (Connect's type, and when unsigned)
    "tinyint": ("int16", "int16"),
    "smallint": ("int16", "int32"),
    "mediumint": ("int32", "int32"),
    "int": ("int32", "int64"),
    "bigint": ("int64", "int64"),
}
_FLOATS = {
    "type": "array",
    "items": {"type": "float", "optional": False},
    "name": "io.debezium.data.FloatVector",
    "version": 1,
}
_CONNECT: dict[Kind, Callable[[Column], Schema]] = {
    Kind.DECIMAL: _named("string"),
    Kind.FLOAT: lambda column: {"type": "float" if is_single(column) else "double"},
    Kind.DOUBLE: _named("double"),
    Kind.TEXT: _named("string"),
    Kind.ENUM: _labelled("io.debezium.data.Enum"),
    Kind.SET: _labelled("io.debezium.data.EnumSet"),
    Kind.BYTES: _named("string"),
    Kind.DATE: _named("string", "io.debezium.time.IsoDate"),
    Kind.TIME: _named("string", "io.debezium.time.IsoTime"),
    Kind.DATETIME: _named("string", "io.debezium.time.IsoTimestamp"),
    Kind.TIMESTAMP: _named("string", "io.debezium.time.ZonedTimestamp"),
    Kind.JSON: _named("string", "io.debezium.data.Json"),
    Kind.GEOMETRY: _shape,
    Kind.VECTOR: lambda _: {**_FLOATS},
}
