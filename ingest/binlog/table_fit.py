"""Checks that a table of the binlog still fits its description: each followed column is there, with the values it had.

Types and character sets are those of the table map (table_map.py, collations.py); the description is from
information_schema (ingest/canonical/tables.py).
"""

from __future__ import annotations

import re

from ingest.binlog import column_types as types
from ingest.binlog import mariadb_types
from ingest.binlog.collations import charset_of
from ingest.binlog.stream_errors import BACKFILL_TABLE
from ingest.binlog.table_map import MapColumn, TableMap
from ingest.charsets import READABLE, decoder_of
from viewtail.changes.batches import Followed
from viewtail.changes.errors import TableUnreadableError
from viewtail.changes.tables import Column, Kind

_ABOVE_BMP = re.compile("[\U00010000-\U0010ffff]")


def kind_of(column: MapColumn) -> Kind:
    """Tell what a column of the binlog holds; Kind.UNSUPPORTED when viewtail cannot read it."""
    type_ = column.type
    if type_ in types.STRINGS:
        if column.collation == types.BINARY_COLLATION:
            return Kind.BYTES
        return Kind.TEXT if charset_of(column.collation) in READABLE else Kind.UNSUPPORTED
    if type_ in (types.ENUM, types.SET) and charset_of(column.collation) not in READABLE:
        return Kind.UNSUPPORTED
    return types.KINDS.get(type_, Kind.UNSUPPORTED)


def check_fits(table_map: TableMap, name: str, followed: Followed) -> None:
    """Raises TableUnreadableError where a followed column is gone, is not read exactly, or has other values now."""
    where = f"{table_map.full_name}, column {name}"
    seen, described = table_map.column(name), followed.table.column(name)
    if described is None:
        raise TableUnreadableError(f"{where}: the table's description lacks it; this is a fault in viewtail, report it")
    described = described.stored
    if seen is None:
        raise TableUnreadableError(
            f"{where}: rows of the binlog lack it: it was dropped, or they are older than it. Take it out of the views "
            f"(or put it back), then {BACKFILL_TABLE}"
        )
    kind = described.kind if is_text_in_binary(seen, described) else kind_of(seen)
    if kind is Kind.UNSUPPORTED:
        charset = f" in the character set {charset_of(seen.collation)}" if seen.collation is not None else ""
        raise TableUnreadableError(
            f"{where}: viewtail cannot read {seen.type_name}{charset} exactly. Take the column out of the views, or "
            f"convert it ({'to utf8mb4' if charset else 'ALTER TABLE ... FORCE renews old formats'})"
        )
    difference = _difference(seen, kind, described)
    if difference:
        raise TableUnreadableError(
            f"{where}: it was {described.declared} when its views were set up, and {difference}. Restart viewtail, so "
            f"that it reads the table's definition again, and {BACKFILL_TABLE}"
        )


def is_as_described(seen: MapColumn, described: Column) -> bool:
    """Return whether a column of the binlog is the described one to the last detail; a wider type is another one."""
    kind = described.kind if is_text_in_binary(seen, described) else kind_of(seen)
    if kind is Kind.UNSUPPORTED or _difference(seen, kind, described) or seen.is_nullable > described.is_nullable:
        return False
    declared = re.split("[( ]", described.declared.lower(), maxsplit=1)[0]
    if kind is Kind.INTEGER:
        is_of_length = seen.type != types.BIT or seen.metadata == described.length
        return is_of_length and declared == seen.type_name.lower()
    return kind is not Kind.GEOMETRY or (declared == "point") == (seen.detail == types.POINT)


def is_text_in_binary(seen: MapColumn, described: Column) -> bool:
    """Return whether it is one of MariaDB's types that the binlog shows as BINARY."""
    return (
        seen.type == types.STRING
        and seen.collation == types.BINARY_COLLATION
        and mariadb_types.SIZES.get(described.declared) == seen.metadata
    )


def _difference(seen: MapColumn, kind: Kind, described: Column) -> str | None:
    # Only what changes the values that the views hold already, or what a value means, counts. A wider integer
    # or text, a label added at the end, another supported character set do not.
    if kind is not described.kind:
        return f"is now {seen.type_name} ({kind.value} instead of {described.kind.value})"
    digits = seen.metadata & 0xFF
    match kind:
        case Kind.INTEGER if seen.type in types.INTEGER_BYTES and seen.is_unsigned != described.is_unsigned:
            return "is now unsigned" if seen.is_unsigned else "is now signed"
        case Kind.DECIMAL if digits != described.scale:
            return f"has now {digits} digits after the point"
        case Kind.TIME | Kind.DATETIME | Kind.TIMESTAMP if seen.metadata != described.scale:
            return f"has now {seen.metadata} digits of the second's fraction"
        case Kind.BYTES if seen.type == types.STRING and seen.metadata != described.length:
            return f"is now BINARY({seen.metadata}), padded to another length"
        case Kind.ENUM | Kind.SET if _has_other_labels(seen, described):
            return "has other labels now"
    return None


def _has_other_labels(seen: MapColumn, described: Column) -> bool:
    """Labels at the end of one alone were added, or are yet to be: what was described may be newer than the rows."""
    # information_schema shows a label's characters above U+FFFF as question marks [M, MySQL 9.7].
    shown = [_ABOVE_BMP.sub("?", label) for label in labels_of(seen)]
    return any(now != other for now, other in zip(shown, described.labels, strict=False))


def labels_of(column: MapColumn) -> tuple[str, ...]:
    """Decode the labels of an ENUM or SET; () where one is invalid in its character set."""
    try:
        return tuple(map(decoder_of(charset_of(column.collation)), column.labels))
    except UnicodeDecodeError:
        return ()
