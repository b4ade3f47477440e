"""Updates that hold of a JSON column only what changed (binlog_row_value_options = PARTIAL_JSON).

Behind each before-image stand options and a bit for each JSON column; a column whose bit is set has a list of
differences in place of its value. They are applied to the before-image's value, as a replica does.

Source of the form: Rows_event::unpack_row's value options, and Json_diff_vector::read_binary (sql-common/json_diff.cc).
"""

from __future__ import annotations

import re
import struct
from functools import partial

import orjson

from ingest.binlog.json_binary import MalformedJsonError, Tree, to_text, to_tree, tree_text
from ingest.binlog.packed_integers import Buffer, integer
from ingest.binlog.row_decoder import compile_decoder
from ingest.binlog.stream_errors import BACKFILL_TABLE
from ingest.binlog.table_fit import kind_of
from ingest.binlog.table_map import TableMap
from ingest.charsets import unreadable_where_invalid
from viewtail.changes.batches import Followed, Row
from viewtail.changes.errors import TableUnreadableError
from viewtail.changes.masks import careful_mask_of
from viewtail.changes.patterns import Part
from viewtail.changes.tables import Kind

_PARTIAL_JSON = 1  # the only value option
_REPLACE, _INSERT, _REMOVE = range(3)
_LEG = re.compile(r'\.(?:"((?:[^"\\]|\\.)*)"|([^.\[\]"]+))|\[(?:(last)(?:-(\d+))?|(\d+))\]', re.DOTALL)
Path = list[str | int]


class PartialUpdates:
    """Reads such events of one table."""

    def __init__(self, table_map: TableMap, followed: Followed, part: Part | None = None) -> None:
        self._table = table_map.full_name
        self._decoder = compile_decoder(table_map, followed, is_json_raw=True, part=part)
        json_columns = [column for column in table_map.columns if kind_of(column) is Kind.JSON]
        self._bit_bytes = (len(json_columns) + 7) // 8
        self._places = [  # bit, the value's place in a row, for those that are followed
            (bit, followed.columns.index(column.name), column.name)
            for bit, column in enumerate(json_columns)
            if column.name in followed.columns
        ]
        columns = [followed.table.column(name) for _, _, name in self._places]
        self._masks = {column.name: careful_mask_of(column) for column in columns if column is not None and column.mask}

    def decode(self, buffer: Buffer, start: int, end: int) -> list[Row]:
        """Return rows before, after, before, after, ...; texts that are invalid are `Unreadable`.

        Raises TableUnreadableError when the bytes do not fit the table, or the differences not the value.
        """
        rows: list[Row] = []
        try:
            while start < end:
                at = self._decoder.row_end(buffer, start, end)
                before = self._decoder.decode_carefully(buffer, start, at)[0]
                options, at = integer(buffer, at)
                if options > _PARTIAL_JSON:
                    raise MalformedJsonError(f"value options {options}")
                bits = 0
                if options:
                    bits = int.from_bytes(buffer[at : at + self._bit_bytes], "little")
                    at += self._bit_bytes
                start = self._decoder.row_end(buffer, at, end)
                after = self._decoder.decode_carefully(buffer, at, start)[0]
                rows += self._with_texts(before, after, bits)
        except (IndexError, struct.error, MalformedJsonError, orjson.JSONDecodeError) as error:
            raise TableUnreadableError(
                f"{self._table}: a partial JSON update does not fit the row before it ({error}). Run SET GLOBAL "
                f"binlog_row_value_options = '', then {BACKFILL_TABLE}"
            ) from None
        return rows

    def _with_texts(self, before: Row, after: Row, bits: int) -> tuple[Row, Row]:
        old, new = list(before), list(after)
        for bit, place, name in self._places:
            raw, changed = before[place], after[place]
            text = unreadable_where_invalid(to_text, name)
            old[place] = None if raw is None else text(raw)
            if changed is not None and bits >> bit & 1:
                if raw is None:
                    raise MalformedJsonError("differences from NULL")
                new[place] = unreadable_where_invalid(partial(_changed_text, raw), name)(changed)
            elif changed is not None:
                new[place] = text(changed)
            if name in self._masks:
                mask = self._masks[name]
                old[place], new[place] = (None if of[place] is None else mask(of[place]) for of in (old, new))
        return tuple(old), tuple(new)


def _changed_text(raw: bytes, differences: bytes) -> str:
    tree, at = to_tree(raw), 0
    while at < len(differences):
        operation = differences[at]
        length, at = integer(differences, at + 1)
        path = _path(str(_taken(differences, at, length), "utf-8"))
        at += length
        value: Tree = ""
        if operation in (_REPLACE, _INSERT):
            length, at = integer(differences, at)
            value = to_tree(_taken(differences, at, length))
            at += length
        elif operation != _REMOVE:
            raise MalformedJsonError(f"operation {operation}")
        tree = _changed(tree, path, operation, value)
    return tree_text(tree)


def _changed(tree: Tree, path: Path, operation: int, value: Tree) -> Tree:
    parent: Tree = ""
    place: str | int | None = None  # of `child` in `parent`; None for the document itself
    child = tree
    for at, leg in enumerate(path):
        if leg in (0, -1) and not isinstance(child, list):
            continue  # anything but an array is taken for one with this single element
        parent, place = child, leg
        if operation == _INSERT and at == len(path) - 1:
            return _inserted(tree, parent, leg, value)
        if not _is_there(parent, leg):
            raise MalformedJsonError("a path that leads nowhere")
        child = parent[leg]  # type: ignore[index]
    if place is None:
        if operation != _REPLACE:
            raise MalformedJsonError("an operation on the whole document that is no replacement")
        return value
    if operation == _REPLACE:
        parent[place] = value  # type: ignore[index]
    else:
        del parent[place]  # type: ignore[arg-type,union-attr]
    return tree


def _is_there(parent: Tree, leg: str | int) -> bool:
    if isinstance(parent, list):
        return isinstance(leg, int) and -len(parent) <= leg < len(parent)
    return isinstance(parent, dict) and leg in parent


def _inserted(tree: Tree, parent: Tree, leg: str | int, value: Tree) -> Tree:
    if isinstance(parent, list) and isinstance(leg, int):
        parent.insert(leg, value)
    elif isinstance(parent, dict) and isinstance(leg, str) and leg not in parent:
        parent[leg] = value
    else:
        raise MalformedJsonError("an insertion where it cannot stand")
    return tree


def _path(text: str) -> Path:
    """'$.a."b c"[2][last-1]' -> ['a', 'b c', 2, -2]."""
    path: Path = []
    at = 1
    while at < len(text):
        match = _LEG.match(text, at)
        if match is None:
            break
        quoted, name, last, before_last, index = match.groups()
        if name is not None:
            path.append(name)
        elif quoted is not None:
            path.append(str(orjson.loads(f'"{quoted}"')))
        else:
            path.append(-int(before_last or 0) - 1 if last else int(index))
        at = match.end()
    if text[:1] != "$" or at != len(text):
        raise MalformedJsonError("a path that cannot be read")
    return path


def _taken(raw: bytes, at: int, length: int) -> bytes:
    if at + length > len(raw):
        raise MalformedJsonError("differences that end too early")
    return raw[at : at + length]
