"""The guarded upsert of one index table, as prepared statements for a few block sizes.

Rows travel as parameters: the server has less to parse than in a statement's text, and nothing is quoted. The packer of
a view's rows is compiled from its columns, since packing value by value costs more than the server's part of an upsert.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from offsets import Owner
from projectors.stores import Item, takes_equal_versions
from projectors.stores.index_tables.table import IndexTableShape, table_name
from projectors.views import BoundView
from viewtail.changes.tables import Column, Kind
from viewtail.servers.facts import ServerFacts
from viewtail.servers.pipelined import Parameter, Prepared
from viewtail.servers.sessions import Connection, quote

Packer: TypeAlias = Callable[[Sequence[Item]], tuple[int, list[bytes]]]

# Rows per statement. Larger statements were not faster, and neither were four sizes. With two sizes, drains and
# backfills take a sixth more processor time, and batches of 100 rows two thirds more.
BLOCKS = (256, 16, 1)
MAX_PARAMETERS = 65_535  # of one statement


class Upsert:
    """The upserts of one view on one connection, each of at most `max_bytes`."""

    is_alone = True  # a single statement writes a row
    is_row_whole = True  # and one row of one table has all that the view shows of an entity

    def __init__(self, shape: IndexTableShape, facts: ServerFacts, max_bytes: int) -> None:
        self.view: BoundView = shape.view
        self._width = len(shape.columns)
        insert = f"INSERT INTO {shape.table} ({', '.join(quote(column.name) for column in shape.columns)}) VALUES"
        row = f"({', '.join('?' * self._width)})"
        guard = f"{facts.upsert_alias} {on_duplicate(shape, facts)}"
        statements = {size: f"{insert} {', '.join([row] * size)} {guard}" for size in BLOCKS}
        # If the fence was raised, the version is NULL, which its column refuses. The other values stay parameters of
        # VALUES: those of a SELECT get a type of their own first, which changes some of them.
        self._owned = (
            f"{insert} ({'?, ' * (self._width - 1)}(SELECT CAST(? AS UNSIGNED) FROM ",
            f" AS owner WHERE owner.id = ? AND owner.fence = ? LOCK IN SHARE MODE)) {guard}",
        )
        self._statements = {
            size: statement
            for size, statement in statements.items()
            if size == 1 or (len(statement.encode()) <= max_bytes and size * self._width <= MAX_PARAMETERS)
        }
        types = [_parameter(column) for column in (*self.view.key, *self.view.values)]
        self._types = b"".join(parameter.value for parameter in (*types, Parameter.SIGNED))  # the version comes last
        self._pack = compile_rows(self.view.key, self.view.values)
        self._no_values = (None,) * len(self.view.values)
        self._prepared: dict[int, Prepared] = {}

    def make_ready(self, connection: Connection, rows: int) -> None:
        """Prepare the statements for so many rows; it waits for the server, so no answer may be pending."""
        for size in set(self._cut(rows)):
            prepared = self._prepared.get(size)
            if prepared is None or prepared.connection is not connection:
                self._prepared[size] = Prepared(connection, self._statements[size])

    def sizes(self, rows: int) -> list[int]:
        """The block sizes in which at most so many rows are sent."""
        return [size for size in self._statements if size <= rows]

    def executions(self, items: list[Item]) -> Iterator[tuple[list[Item], bytes | None]]:
        """Yield blocks of the items, each with the bytes that execute it: None if a value cannot be packed."""
        at = 0
        for size in self._cut(len(items)):
            some = items[at : at + size]
            at += size
            yield some, self.single(some[0]) if size == 1 else self._block(some)

    def single(self, item: Item) -> bytes | None:
        """The bytes that execute one item; None if a text in it has a lone surrogate, which is no character."""
        try:
            return self._prepared[1].packed(self.parameters(item))
        except UnicodeEncodeError:
            return None

    def why_unfit(self, item: Item) -> str:
        """The reason why an item cannot be packed, for people."""
        return "MySQL cannot hold it: the text has a lone surrogate, which is no character"

    def parameters(self, item: Item) -> tuple[Any, ...]:
        """The values for the parameters of one row."""
        key, (version, values) = item
        return (*key, *(self._no_values if values is None else values), version)

    def owned_by(self, owner: Owner) -> str:
        """The statement for one row that changes nothing unless it finds the owner, whose id and fence come last."""
        return owner.table.join(self._owned)

    def forget(self) -> None:
        """Close the prepared statements on the server."""
        for prepared in self._prepared.values():
            prepared.close()
        self._prepared = {}

    def _cut(self, rows: int) -> Iterator[int]:
        """The block sizes in which so many rows are sent."""
        for size in self._statements:
            count, rows = divmod(rows, size)
            yield from itertools.repeat(size, count)

    def _block(self, items: list[Item]) -> bytes | None:
        try:
            nulls, pieces = self._pack(items)
        except (UnicodeEncodeError, struct.error):
            return None  # sent one by one they show which row it is
        bitmap = nulls.to_bytes((len(items) * self._width + 7) // 8, "little")
        return self._prepared[len(items)].execution(bitmap, self._types * len(items), pieces)


def one_of_keys(of: str, key: Sequence[Column], size: int) -> str:
    """The condition for `size` keys; not every server reads a list of row constructors as a range."""
    names = [f"{of}{quote(column.name)}" for column in key]
    if len(names) == 1:
        return f"{names[0]} IN ({', '.join('?' * size)})"
    return " OR ".join([f"({' AND '.join(f'{name} = ?' for name in names)})"] * size)


def on_duplicate(shape: IndexTableShape, facts: ServerFacts) -> str:
    """The guard: an ON DUPLICATE KEY UPDATE that takes each value over only from a newer version."""
    above = ">=" if takes_equal_versions(shape.view) else ">"

    def new(column: str) -> str:
        return facts.new_value.format(column=quote(column))

    def old(column: str) -> str:
        return quote(table_name(shape.view), column)

    newer = f"{new(shape.version_name)} {above} {old(shape.version_name)}"
    newest = {name: f"IF({newer}, {new(name)}, {old(name)})" for name in (*shape.value_names, shape.version_name)}
    if (writer := shape.writer_name) is not None:  # NULL, which the column refuses, for a row that another one wrote
        newest[shape.version_name] = f"IF({new(writer)} = {old(writer)}, {newest[shape.version_name]}, NULL)"
    # The version comes last: if it were assigned first, `newer` would be false for the values.
    changes = ", ".join(f"{quote(name)} = {value}" for name, value in newest.items())
    return f"ON DUPLICATE KEY UPDATE {changes}"


def compile_rows(key: Sequence[Column], values: Sequence[Column]) -> Packer:
    """Compile a function that packs (key, (version, values)) pairs: it returns the bits of NULL parameters and the
    bytes.

    The bits are in the order of the parameters: key, values, version, row after row. The function raises
    UnicodeEncodeError and struct.error for values that the columns' parameters cannot hold."""
    keys = [f"k{at}" for at in range(len(key))]
    names = [f"v{at}" for at in range(len(values))]
    lines = [
        "def pack(items):",
        "    nulls, at, pieces = 0, 0, []",
        "    add = pieces.append",
        f"    for ({''.join(f'{name}, ' for name in keys)}), (version, values) in items:",
    ]
    for name, column in zip(keys, key, strict=True):
        lines += _packing(name, column, " " * 8)
    lines += [
        "        if values is None:",
        f"            nulls |= {(1 << len(names)) - 1} << at + {len(keys)}",
        "        else:",
        f"            {''.join(f'{name}, ' for name in names)}= values" if names else "            pass",
    ]
    for number, (name, column) in enumerate(zip(names, values, strict=True), len(keys)):
        lines += [
            f"            if {name} is None:",
            f"                nulls |= 1 << at + {number}",
            "            else:",
            *_packing(name, column, " " * 16),
        ]
    lines += ["        add(signed(version))", f"        at += {len(keys) + len(names) + 1}"]
    lines.append("    return nulls, pieces")
    namespace: dict[str, Any] = {
        "signed": struct.Struct("<q").pack,
        "unsigned": struct.Struct("<Q").pack,
        "double": struct.Struct("<d").pack,
        "LENGTHS": [bytes([length]) for length in range(251)],
    }
    exec(compile("\n".join(lines), "<packer of rows>", "exec"), namespace)
    packer: Packer = namespace["pack"]
    return packer


def _packing(name: str, column: Column, indent: str) -> list[str]:
    """The lines that add a value which is not NULL, in the form of its parameter type."""
    parameter = _parameter(column)
    if parameter in (Parameter.SIGNED, Parameter.UNSIGNED, Parameter.DOUBLE):
        return [f"{indent}add({parameter.name.lower()}({name}))"]
    encoded = {
        Parameter.BLOB: name,
        Parameter.STRING: f"{name}.encode()",
        Parameter.DECIMAL: f"f'{{{name}:f}}'.encode()",
    }[parameter]
    return [
        f"{indent}data = {encoded}",
        f"{indent}size = len(data)",
        f"{indent}add(LENGTHS[size] + data if size < 251 else b'\\xfe' + size.to_bytes(8, 'little') + data)",
    ]


def _parameter(column: Column) -> Parameter:
    if column.kind is Kind.INTEGER:
        has_sign = not column.is_unsigned and not column.declared.startswith("bit")
        return Parameter.SIGNED if has_sign else Parameter.UNSIGNED
    if column.kind in (Kind.FLOAT, Kind.DOUBLE):
        return Parameter.DOUBLE
    if column.kind is Kind.DECIMAL:
        return Parameter.DECIMAL
    return Parameter.BLOB if column.kind in (Kind.BYTES, Kind.GEOMETRY, Kind.VECTOR) else Parameter.STRING
