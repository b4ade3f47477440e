"""Makes messages for a topic: a change as Debezium's envelope, its key beside it, a tombstone after each delete.

It is pure: the caller gives the time. The text that all rows of a row event share (most of the source block) is encoded
once for them. The rest is code made for the table, since this runs for every row. `envelope_columns` has the forms of
the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import orjson

from viewtail.changes.batches import Origin
from viewtail.changes.envelope_columns import NAMESPACE, expression, quoted
from viewtail.changes.envelope_schemas import Schema, key_schema, value_schema
from viewtail.changes.tables import Column, Table
from viewtail.changes.writes import KeptChange

Message: TypeAlias = tuple[bytes, bytes | None, int]  # key, value (None: a tombstone), version
_Made: TypeAlias = Callable[
    [Sequence[KeptChange], Mapping[str, str], Origin | None, int], tuple[list[Message], Origin | None, int]
]

CONNECTOR = "mysql"
_OPS = {"insert": "c", "update": "u", "delete": "d", "read": "r"}


class Envelope:
    """Debezium's envelope as JSON, for the rows of one view.

    Args:
        table: where the rows are from.
        key: the columns of the key, in key order.
        columns: those that the view shows, in order.
        name: what Debezium calls the logical server; also the beginning of the schemas' names.
        release: of viewtail.
        with_schemas: each key and value carries its Kafka Connect schema.
    """

    def __init__(
        self,
        table: Table,
        key: Sequence[Column],
        columns: Sequence[Column],
        *,
        name: str,
        release: str,
        with_schemas: bool = False,
    ) -> None:
        about_key = about_value = ""
        if with_schemas:
            about_key = _embedded(key_schema(table, key, name))
            about_value = _embedded(value_schema(table, columns, name))
        source = _source_of(table, name, release)
        self._made = _compiled(table, key, columns, source, about_key, about_value)
        self._closing = "}" * with_schemas
        self._last: tuple[Origin | None, int] = (None, 0)  # origin of the last change, number of the next row
        self._made_at, self._ends = -1, dict[str, str]()  # what is behind the number of the row, by op

    def messages(self, changes: Sequence[KeptChange], now_us: int) -> list[Message]:
        """The messages of changes of one view, in their order: two for a delete, else one.

        `row` counts the changes of one row event, which share an origin; they may come in several calls.
        """
        if self._made_at != now_us:
            self._made_at = now_us
            times = now_us // 1000, now_us, now_us * 1000, self._closing
            self._ends = {op: _END % (letter, *times) for op, letter in _OPS.items()}
        messages, origin, row = self._made(changes, self._ends, *self._last)
        self._last = origin, row
        return messages


# --- What is the same for all messages, or for those of one row event ---

_END = ',"thread":null,"query":null},"transaction":null,"op":"%s","ts_ms":%d,"ts_us":%d,"ts_ns":%d}%s'


def _source_of(table: Table, name: str, release: str) -> str:
    """The source block up to the number of the row, as Python source over the parts of an origin."""
    constant = [_constant(quoted(text)) for text in (release, CONNECTOR, name, table.schema, table.name)]
    version, connector, server, schema, table_name = constant
    return _formatted(
        f',"source":{{"version":{version},"connector":{connector},"name":{server},"ts_ms":%s,"snapshot":"%s",'
        f'"db":{schema},"sequence":"%s","ts_us":%s,"ts_ns":%s,"table":{table_name},'
        '"server_id":%s,"gtid":%s,"file":"%s","pos":%s,"row":',
        [
            "committed[:-3] or '0'", "'incremental' if op == 'read' else 'false'", "version", "committed",
            "committed + '000' if committed_us else '0'", "server_id", """'null' if gtid is None else f'"{gtid}"'""",
            "file", "start",
        ],
    )  # fmt: skip


# --- The table's own part, as source ---


def _compiled(
    table: Table, key: Sequence[Column], columns: Sequence[Column], source: str, about_key: str, about_value: str
) -> _Made:
    """Compile the function that makes the messages of changes, and the next call's `last_origin` and `row`."""
    keys = [f"k{at}" for at in range(len(key))]
    key_template, key_parts = _object(key, keys)
    key_json = _formatted(_constant(about_key) + key_template + "}" * bool(about_key), key_parts)
    values = [f"c{at}" for at in range(len(columns))]
    image, (template, parts) = f"({''.join(f'{value}, ' for value in values)})", _object(columns, values)
    begin = _constant(about_value) + '{"before":'
    end = ["source", "row", "end"]
    before, after = (f"('null' if {name} is None else shown({name}))" for name in ("before", "after"))
    row_json = _formatted(begin + 'null,"after":' + template + "%s%s%s", parts + end)
    any_json = _formatted(begin + '%s,"after":%s%s%s%s', [before, after, *end])
    text = f"""
def shown(image):
    {image} = image
    return {_formatted(template, parts)}

def messages(changes, ends, last_origin, row):
    found, last_version, last_op = [], None, None
    add = found.append
    for ({", ".join(keys)},), version, op, before, after, origin in changes:
        if origin is not last_origin:
            last_origin, row, last_version = origin, 0, None
        if version != last_version or op is not last_op:
            last_version, last_op, end = version, op, ends[op]
            committed_us, gtid, file, start, server_id = origin
            committed = str(committed_us)
            source = {source}
        if op == "insert" or op == "read":
            {image} = after
            add((({key_json}).encode(), ({row_json}).encode(), version))
        else:
            key = ({key_json}).encode()
            add((key, ({any_json}).encode(), version))
            if op == "delete":
                add((key, None, version))
        row += 1
    return found, last_origin, row
"""
    namespace = dict(NAMESPACE)
    exec(compile(text, f"<envelope of {table.full_name}>", "exec"), namespace)
    made: _Made = namespace["messages"]
    return made


def _object(columns: Sequence[Column], values: Sequence[str]) -> tuple[str, list[str]]:
    """The JSON object of a row whose values have these names: a template, and the source of what goes into it."""
    members = [_constant(quoted(column.name)) + ":%s" for column in columns]
    parts = [
        f"('null' if {value} is None else {expression(column, value)})"
        for column, value in zip(columns, values, strict=True)
    ]
    return "{" + ",".join(members) + "}", parts


def _constant(text: str) -> str:
    """A text as it stands in a template."""
    return text.replace("%", "%%")


def _formatted(template: str, parts: Sequence[str]) -> str:
    """Source that fills the template; Python compiles it as it does an f-string."""
    return f"{template!r} % ({', '.join(parts)},)"


def _embedded(schema: Schema) -> str:
    """Return the text before a payload that carries its schema; behind the payload stands '}'."""
    return f'{{"schema":{orjson.dumps(schema).decode()},"payload":'
