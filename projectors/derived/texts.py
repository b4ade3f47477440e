"""What belongs to some rows: related rows as JSON texts, and numbers.

A function is compiled for each node. It unpacks a row, writes its text and puts that under what groups it, and does
nothing else. A value of a group is a tuple of its columns, or the only column's itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

import orjson

from projectors.derived.joins import TooManyRowsError, child_rows, number_rows
from projectors.derived.tree import Node, Numbers, group_columns
from viewtail.changes.batches import Row, Unreadable, bytes_of, unreadable_in
from viewtail.changes.rendering import json_text
from viewtail.changes.tables import Column

Child: TypeAlias = Node | Numbers
Values: TypeAlias = dict[str, list[Any]]  # by name, one of each row
Build: TypeAlias = Callable[..., None]

BYTES_BUILT = 64 << 20  # of texts that are put into others: each of many rows may have the same large one


def belonging_to(columns: Sequence[Column | None], children: Sequence[Child]) -> tuple[Belonging, ...]:
    """What belongs to rows of these columns; None: what groups them."""
    return tuple(OfNode(columns, child) if isinstance(child, Node) else OfNumbers(columns, child) for child in children)


def values_of(connection: Any, belonging: Sequence[Belonging], rows: Sequence[Row]) -> Values:
    """Of a Node JSON texts, of Numbers their values. Raises TooManyRowsError, source errors."""
    values: Values = {}
    for child in belonging:
        values.update(child.values(connection, rows))
    return values


class Belonging:
    """One child of rows."""

    def __init__(self, columns: Sequence[Column | None], child: Child) -> None:
        grouped_by = group_columns(child.hops[0])
        self.shown = child.shown
        self.width = len(grouped_by)
        self._group_of: Callable[[Row], Any] = itemgetter(*[columns.index(column) for column in grouped_by])

    def values(self, connection: Any, rows: Sequence[Row]) -> Values:
        """Those of each row, by name."""
        raise NotImplementedError

    def _groups(self, rows: Sequence[Row]) -> tuple[list[Any], list[tuple[Any, ...]]]:
        """The group of each row, and as keys those that may have rows."""
        groups = list(map(self._group_of, rows))
        keys = [(group,) for group in dict.fromkeys(groups)] if self.width == 1 else list(dict.fromkeys(groups))
        keys = [key for key in keys if None not in key]
        if Unreadable.made:
            keys = [key for key in keys if unreadable_in(key) is None]
        return groups, keys


class OfNode(Belonging):
    """Related rows."""

    def __init__(self, columns: Sequence[Column | None], node: Node) -> None:
        super().__init__(columns, node)
        self._node = node
        self._build = texts_into(node, self.width)
        self._belonging = belonging_to((*[None] * self.width, *node.read), node.children)
        self._key_of: Callable[[Row], Any] = itemgetter(*range(self.width))

    def values(self, connection: Any, rows: Sequence[Row]) -> Values:
        groups, keys = self._groups(rows)
        by_group = self._texts(connection, keys) if keys else {}
        absent = "[]" if self._node.is_many else None
        return {self._node.name: [by_group.get(group, absent) for group in groups]}

    def _texts(self, connection: Any, keys: Sequence[tuple[Any, ...]]) -> Mapping[Any, Any]:
        rows = child_rows(connection, self._node, keys)
        nested = values_of(connection, self._belonging, rows)
        if nested and bytes_of(chain.from_iterable(nested.values())) > BYTES_BUILT:
            raise TooManyRowsError
        unreadable: dict[Any, Unreadable] = {}
        if Unreadable.made:
            rows, nested, unreadable = self._readable(rows, nested)
        if not self._node.is_many:
            text_of: dict[Any, Any] = {}
            self._build(rows, text_of, *nested.values())
            return text_of | unreadable
        texts_of = defaultdict[Any, list[str]](list)
        self._build(rows, texts_of, *nested.values())
        return {group: self._listed(texts) for group, texts in texts_of.items()} | unreadable

    def _listed(self, texts: Sequence[str]) -> str | Unreadable:
        if len(texts) > self._node.limit:
            return Unreadable(self._node.name, f"has more than limit={self._node.limit:,} rows")
        return f"[{','.join(texts)}]"

    def _readable(self, rows: Sequence[Row], nested: Values) -> tuple[list[Row], Values, dict[Any, Unreadable]]:
        """Take the rows apart that have a value which cannot be read; their groups have that instead."""
        kept: list[int] = []
        unreadable: dict[Any, Unreadable] = {}
        for at, row in enumerate(rows):
            bad = unreadable_in(row) or unreadable_in(of_name[at] for of_name in nested.values())
            if bad is None:
                kept.append(at)
            else:
                unreadable.setdefault(self._key_of(row), Unreadable(f"{self._node.name}.{bad.column}", bad.cause))
        return (
            [rows[at] for at in kept],
            {name: [of_name[at] for at in kept] for name, of_name in nested.items()},
            unreadable,
        )


class OfNumbers(Belonging):
    """Numbers over related rows."""

    def __init__(self, columns: Sequence[Column | None], numbers: Numbers) -> None:
        super().__init__(columns, numbers)
        self._numbers = numbers

    def values(self, connection: Any, rows: Sequence[Row]) -> Values:
        groups, keys = self._groups(rows)
        found = number_rows(connection, self._numbers, keys) if keys else []
        by_group = {row[0] if self.width == 1 else row[: self.width]: row[self.width :] for row in found}
        absent = tuple([None if column.is_nullable else 0 for column in self.shown])
        of_rows = [by_group.get(group, absent) for group in groups]
        return {column.name: [numbers[at] for numbers in of_rows] for at, column in enumerate(self.shown)}


def texts_into(node: Node, width: int) -> Build:
    """The function that puts texts of rows into a dict: `build(rows, into, *nested)`.

    A row begins with its group; `nested` are its children's values, in order.
    """
    further = [column for child in node.children for column in child.shown]
    keys, read = _variables("k", width), _variables("c", len(node.read))
    nested, members = _variables("n", len(further)), _variables("m", len(further))
    names: dict[str, Any] = {"null": "null"}
    of_columns = [read[node.read.index(column)] for column in node.columns]
    fields = zip((*node.columns, *further), (*of_columns, *members), strict=True)
    content = ",".join(_member(column, variable, names) for column, variable in fields)
    row = f"({', '.join([*keys, *read])},)"
    each = f"({row}, {', '.join(members)}) in zip(rows, {', '.join(nested)})"
    group = keys[0] if width == 1 else f"({', '.join(keys)})"
    text = "f" + repr("{{" + content + "}}")
    source = f"""
def build({", ".join(["rows", "into", *nested])}):
    for {each if nested else f"{row} in rows"}:
        {f"into[{group}].append({text})" if node.is_many else f"into[{group}] = {text}"}
"""
    exec(compile(source, f"<texts of {node.path}>", "exec"), names)
    build: Build = names["build"]
    return build


def _variables(letter: str, count: int) -> list[str]:
    return [f"{letter}{at}" for at in range(count)]


def _member(column: Column, variable: str, names: dict[str, Any]) -> str:
    """A member of a JSON object in an f-string; what it calls is added to `names`."""
    text = json_text(column)
    if text is not None:
        names[f"text_{variable}"] = text
    value = variable if text is None else f"text_{variable}({variable})"
    name = orjson.dumps(column.name).decode().replace("{", "{{").replace("}", "}}")
    return f"{name}:{{{value} if {variable} is not None else null}}"
