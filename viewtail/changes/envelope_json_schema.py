"""Makes JSON Schemas (draft 2020-12) of the messages that `envelope` writes, for people and other programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from viewtail.changes.envelope_columns import characters_of, integers_of, is_bit, is_point
from viewtail.changes.envelope_schemas import Schema
from viewtail.changes.tables import Column, Kind, Table

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schemas(
    table: Table, key: Sequence[Column], columns: Sequence[Column], *, name: str, with_schemas: bool = False
) -> dict[str, Schema]:
    """The schemas of a message's `key` and of its `value`; the arguments are those of `Envelope`.

    A tombstone is a message without a value: no schema holds for it.
    """
    row = _object({column.name: json_schema(column) for column in columns})
    key_object = _object({column.name: _COLUMNS[column.kind](column) for column in key})
    value = _envelope(table, row, name)
    return {
        "key": _titled(f"{name}.{table.full_name}.Key", key_object, with_schemas),
        "value": _titled(f"{name}.{table.full_name}.Envelope", value, with_schemas),
    }


def json_schema(column: Column) -> Schema:
    """The JSON Schema of a column's value in a row."""
    schema = _COLUMNS[column.kind](column)
    return {"anyOf": [schema, {"type": "null"}]} if column.is_nullable else schema


def _titled(title: str, schema: Schema, with_schemas: bool) -> Schema:
    body = _object({"schema": {"type": "object"}, "payload": schema}) if with_schemas else schema
    return {"$schema": _DRAFT, "title": title, **body}


def _object(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _envelope(table: Table, row: Schema, name: str) -> Schema:
    image = {"anyOf": [row, {"type": "null"}]}
    times = {field: _since_1970() for field in ("ts_ms", "ts_us", "ts_ns")}
    source = {
        "version": {"type": "string"},
        "connector": {"const": "mysql"},
        "name": {"const": name},
        "ts_ms": _since_1970(),
        "snapshot": {"enum": ["false", "incremental"]},
        "db": {"const": table.schema},
        "sequence": {"type": "string", "pattern": "^[0-9]{1,19}$"},
        "ts_us": _since_1970(),
        "ts_ns": _since_1970(),
        "table": {"const": table.name},
        "server_id": {"type": "integer", "minimum": 0},
        "gtid": {"type": ["string", "null"]},
        "file": {"type": "string"},
        "pos": {"type": "integer", "minimum": 0},
        "row": {"type": "integer", "minimum": 0},
        "thread": {"type": "null"},
        "query": {"type": "null"},
    }
    return _object({
        "before": image, "after": image, "source": _object(source), "transaction": {"type": "null"},
        "op": {"enum": ["c", "u", "d", "r"]}, **times,
    })  # fmt: skip


def _since_1970() -> Schema:
    return {"type": "integer", "minimum": 0}


def _integer(column: Column) -> Schema:
    if is_bit(column):
        return {"type": "boolean"} if column.length == 1 else _base64(column)
    low, high = integers_of(column)
    return {"type": "integer", "minimum": low, "maximum": high}


def _decimal(column: Column) -> Schema:
    fraction = rf"\.[0-9]{{{column.scale}}}" if column.scale else ""
    return {"type": "string", "pattern": f"^-?[0-9]{{1,{column.precision}}}{fraction}$"}


def _number(_: Column) -> Schema:
    return {"type": "number"}


def _text(column: Column) -> Schema:
    return {"type": "string", "maxLength": characters_of(column)}


def _label(column: Column) -> Schema:
    if any("?" in label for label in column.labels):  # which may stand for what the server could not show
        return {"type": "string"}
    return {"enum": [*dict.fromkeys((*column.labels, ""))]}


def _labels(_: Column) -> Schema:
    return {"type": "string"}


def _base64(_: Column) -> Schema:
    return {"type": "string", "contentEncoding": "base64"}


def _date(_: Column) -> Schema:
    return {"type": "string", "pattern": f"^{_DAY}Z?$"}


def _time(column: Column) -> Schema:
    return {"type": "string", "pattern": rf"^-?[0-9]{{2,3}}:[0-5][0-9]:[0-5][0-9]{_fraction(column)}Z?$"}


def _moment(column: Column) -> Schema:
    clock = rf"{_CLOCK}{_fraction(column)}"
    return {"type": "string", "pattern": f"^{_DAY}(T{clock}Z| {clock})$"}


def _fraction(column: Column) -> str:
    return rf"(\.[0-9]{{1,{column.scale}}})?" if column.scale else ""


def _json(_: Column) -> Schema:
    return {"type": "string", "contentMediaType": "application/json"}


def _shape(column: Column) -> Schema:
    axes: dict[str, Schema] = {axis: {"type": "number"} for axis in ("x", "y")} if is_point(column) else {}
    srid = {"type": ["integer", "null"]}
    return _object({**axes, "wkb": _base64(column), "srid": srid})


def _vector(_: Column) -> Schema:
    return {"type": "array", "items": {"type": "number"}}


_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = "[0-2][0-9]:[0-5][0-9]:[0-5][0-9]"
_COLUMNS: dict[Kind, Callable[[Column], Schema]] = {
    Kind.INTEGER: _integer,
    Kind.DECIMAL: _decimal,
    Kind.FLOAT: _number,
    Kind.DOUBLE: _number,
    Kind.TEXT: _text,
    Kind.ENUM: _label,
    Kind.SET: _labels,
    Kind.BYTES: _base64,
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.DATETIME: _moment,
    Kind.TIMESTAMP: _moment,
    Kind.JSON: _json,
    Kind.GEOMETRY: _shape,
    Kind.VECTOR: _vector,
}
