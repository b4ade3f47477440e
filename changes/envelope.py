"""Messages for a topic: a change as Debezium's envelope, its key beside it, a tombstone after each delete.

Pure: the caller gives the time. What all rows of a row event share (most of the source block) is encoded once for them;
the rest is source made for the table, since this runs for every row. `envelope_columns` has the forms of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import orjson

from changes.batches import Origin
from changes.envelope_columns import NAMESPACE, expression, quoted
from changes.envelope_schemas import Schema, key_schema, value_schema
from changes.tables import Column, Table
from changes.writes import KeptChange

Message: TypeAlias = tuple[bytes, bytes | None, int]  # key, value (None: a tombstone), version
_Run: TypeAlias = Callable[[Sequence[KeptChange], str, str, int], list[Message]]

CONNECTOR = "mysql"
_OPS = {"insert": "c", "update": "u", "delete": "d", "read": "r"}


class Codec(Protocol):
    """Turns changes into the messages of one topic."""

    def messages(self, changes: Sequence[KeptChange], now_us: int) -> list[Message]:
        """The messages of changes of one view, in their order; `now_us` is microseconds since 1970."""
        ...


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
        self._source = _source_of(table, name, release)
        about_key = about_value = ""
        if with_schemas:
            about_key = _embedded(key_schema(table, key, name))
            about_value = _embedded(value_schema(table, columns, name))
        made = _compiled(table, key, columns, about_key, about_value)
        self._runs: dict[str, _Run] = {op: made[_RUNS.get(op, "rows")] for op in _OPS}
        self._end = "}" * with_schemas
        self._last: tuple[Origin | None, int] = (None, 0)  # the origin of the change before, and its row's number + 1
        self._made_at, self._ends = -1, dict[str, str]()  # what is behind the number of the row, by op

    def messages(self, changes: Sequence[KeptChange], now_us: int) -> list[Message]:
        """The messages of changes of one view, in their order: two for a delete, else one.

        `row` counts the changes of one row event, which share an origin; they may come in several calls.
        """
        found: list[Message] = []
        last_origin, row = self._last
        for run in _runs(changes):
            _, version, op, _, _, origin = run[0]
            row = row if origin is last_origin else 0
            source, end = self._around(version, op, origin, now_us)
            found += self._runs[op](run, source, end, row)
            last_origin, row = origin, row + len(run)
        self._last = last_origin, row
        return found

    def _around(self, version: int, op: str, origin: Origin, now_us: int) -> tuple[str, str]:
        """What stands in the messages of a run between the images and the number of the row, and behind it."""
        committed_us, gtid, file, start, server_id = origin
        committed = str(committed_us)
        source = self._source % (
            committed[:-3] or "0", "incremental" if op == "read" else "false", version, committed,
            committed + "000" if committed_us else "0", server_id, "null" if gtid is None else f'"{gtid}"', file, start,
        )  # fmt: skip
        if self._made_at != now_us:
            self._made_at, self._ends = now_us, {}
        if (end := self._ends.get(op)) is None:
            end = self._ends[op] = _END % (_OPS[op], now_us // 1000, now_us, now_us * 1000, self._end)
        return source, end


def _runs(changes: Sequence[KeptChange]) -> Iterator[Sequence[KeptChange]]:
    """Neighbours of one row event with one version and op."""
    begin = 0
    last_version, last_op, last_origin = None, None, None
    for at, (_, version, op, _, _, origin) in enumerate(changes):
        if origin is not last_origin or op is not last_op or version != last_version:
            if at:
                yield changes[begin:at]
            begin, last_version, last_op, last_origin = at, version, op, origin
    if changes:
        yield changes[begin:]


# --- What is the same for all messages, or for those of one row event ---

_END = ',"thread":null,"query":null},"transaction":null,"op":"%s","ts_ms":%d,"ts_us":%d,"ts_ns":%d}%s'


def _source_of(table: Table, name: str, release: str) -> str:
    """The source block up to the number of the row, as a template."""
    constant = [_constant(quoted(text)) for text in (release, CONNECTOR, name, table.schema, table.name)]
    version, connector, server, schema, table_name = constant
    return (
        f',"source":{{"version":{version},"connector":{connector},"name":{server},"ts_ms":%s,"snapshot":"%s",'
        f'"db":{schema},"sequence":"%d","ts_us":%s,"ts_ns":%s,"table":{table_name},'
        '"server_id":%d,"gtid":%s,"file":"%s","pos":%d,"row":'
    )


# --- The table's own part, as source ---

_RUNS = {"update": "updates", "delete": "deletes"}


def _compiled(
    table: Table, key: Sequence[Column], columns: Sequence[Column], about_key: str, about_value: str
) -> dict[str, Any]:
    """The functions of a table: `rows`, `updates` and `deletes` give the messages of a run of changes."""
    keys = [f"k{at}" for at in range(len(key))]
    key_template, key_parts = _object(key, keys)
    key_json = _formatted(_constant(about_key) + key_template + "}" * bool(about_key), key_parts)
    values = [f"c{at}" for at in range(len(columns))]
    row, (template, parts) = f"({''.join(f'{value}, ' for value in values)})", _object(columns, values)
    begin = _constant(about_value) + '{"before":'
    end = ["source", "row", "end"]
    before, after = (f"('null' if {name} is None else shown({name}))" for name in ("before", "after"))
    row_json = _formatted(begin + 'null,"after":' + template + "%s%s%s", parts + end)
    update_json = _formatted(begin + '%s,"after":%s%s%s%s', [before, after, *end])
    delete_json = _formatted(begin + '%s,"after":null%s%s%s', [before, *end])
    read = f"for row, (({', '.join(keys)},), version, _, {{}}, _) in enumerate(changes, first)"
    source = f"""
def rows(changes, source, end, first):
    return [
        (({key_json}).encode(), ({row_json}).encode(), version)
        {read.format(f"_, {row}")}
    ]

def shown(image):
    {row} = image
    return {_formatted(template, parts)}

def updates(changes, source, end, first):
    return [
        (({key_json}).encode(), ({update_json}).encode(), version)
        {read.format("before, after")}
    ]

def deletes(changes, source, end, first):
    found = []
    {read.format("before, _")}:
        key, value = ({key_json}).encode(), ({delete_json}).encode()
        found += ((key, value, version), (key, None, version))
    return found
"""
    namespace = dict(NAMESPACE)
    exec(compile(source, f"<envelope of {table.full_name}>", "exec"), namespace)
    return namespace


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
    """What stands before a payload that carries its schema; behind it stands '}'."""
    return f'{{"schema":{orjson.dumps(schema).decode()},"payload":'
