"""The form that a table had when its rows changed, made from the table map where the table is another one now.

For readers that want each change as it was (`Followed.forms`). A table map has all that a description has, but for
what the server does not tell: MariaDB shows UUID, INET4 and INET6 as BINARY. Those are known from the description, or
from an earlier one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from ingest.binlog import column_types as types
from ingest.binlog.collations import charset_of
from ingest.binlog.stream_errors import BACKFILL_TABLE
from ingest.binlog.table_fit import is_as_described, kind_of, labels_of
from ingest.binlog.table_map import MapColumn, TableMap
from viewtail.changes.batches import Followed, Forms
from viewtail.changes.errors import TableUnreadableError
from viewtail.changes.masks import masked
from viewtail.changes.tables import Column, Kind

_GEOMETRIES = ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon")
_SIZED = ("", "tiny", "", "medium", "long")  # TEXT and BLOB, by the bytes of their length


def form_of(table_map: TableMap, followed: Followed, ambiguous: Collection[int] = ()) -> Followed:
    """The form that the rows of a table map have: `followed` itself, or one of its `forms`.

    Args:
        ambiguous: lengths of a BINARY that may be another type.

    Raises TableUnreadableError where the type of a column can no longer be told.
    """
    forms = followed.forms
    if forms is None or not forms.fixed <= {seen.name for seen in table_map.columns}:
        return followed  # whoever makes the decoder says what is missing
    columns = tuple(_columns(table_map, followed, forms, ambiguous))
    wanted = frozenset(followed.columns)
    if {*columns} == {column for column in followed.table.columns if column.name in wanted}:
        return followed
    table = replace(followed.table, columns=columns)
    return Followed(table, tuple(column.name for column in columns), followed.keys, of=followed)


def _columns(table_map: TableMap, followed: Followed, forms: Forms, ambiguous: Collection[int]) -> Iterator[Column]:
    """The columns of these rows that are followed, or were before they were dropped."""
    wanted, former = frozenset(followed.columns), frozenset(column.name for column in forms.former)
    for seen in table_map.columns:
        described = followed.table.column(seen.name)
        if seen.name in forms.fixed:
            assert described is not None
            yield described
        elif seen.name in wanted or (described is None and seen.name in former):
            candidates = _candidates(seen.name, described, forms)
            stored = _column(table_map, seen, [candidate.stored for candidate in candidates], ambiguous)
            yield _masked_alike(stored, described, candidates)


def _candidates(name: str, described: Column | None, forms: Forms) -> Sequence[Column]:
    earlier = (column for column in forms.former if column.name == name)
    return [*earlier] if described is None else [described, *earlier]


def _masked_alike(stored: Column, described: Column | None, candidates: Sequence[Column]) -> Column:
    """The column with the mask that it has now; where it is gone, and ever had one, with that."""
    if described is not None and described.stored == stored:
        return described
    masks = [column.mask for column in ([described] if described is not None else candidates)]
    mask = next((mask for mask in masks if mask is not None), None)
    return stored if mask is None else masked(stored, mask.how, mask.secret)


def _column(table_map: TableMap, seen: MapColumn, candidates: Iterable[Column], ambiguous: Collection[int]) -> Column:
    """Describe a column as one of the candidates does, or as the table map does."""
    for candidate in candidates:
        if is_as_described(seen, candidate):
            return candidate
    where, kind = f"{table_map.full_name}, column {seen.name}", kind_of(seen)
    why = ""
    if kind is Kind.UNSUPPORTED:
        charset = f" in the character set {charset_of(seen.collation)}" if seen.collation is not None else ""
        why = f"viewtail cannot read {seen.type_name}{charset} exactly"
    elif kind is Kind.BYTES and seen.type == types.STRING and seen.metadata in ambiguous:
        why = f"whether it was BINARY({seen.metadata}), UUID, INET4 or INET6 is not in the binlog"
    if why:
        error = TableUnreadableError(
            f"{where}: it was another column when these rows changed, and {why}. Changes of that form are not "
            f"published. When viewtail has read beyond the ALTER TABLE (lag 0), {BACKFILL_TABLE}"
        )
        error.columns = frozenset({seen.name})
        raise error
    return _described(seen, kind)


def _described(seen: MapColumn, kind: Kind) -> Column:
    is_text = kind in (Kind.TEXT, Kind.ENUM, Kind.SET)
    labels = labels_of(seen) if kind in (Kind.ENUM, Kind.SET) else ()
    is_temporal = kind in (Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP)
    is_short = seen.type in (types.VARCHAR, types.VAR_STRING, types.STRING, types.VARCHAR_COMPRESSED)
    decimals = seen.metadata & 0xFF if kind is Kind.DECIMAL else 0
    return Column(
        name=seen.name,
        kind=kind,
        declared=_declared(seen, kind, labels),
        is_nullable=seen.is_nullable,
        charset=charset_of(seen.collation) if is_text else None,
        is_unsigned=seen.is_unsigned,
        length=seen.metadata if is_short or seen.type == types.BIT else 0,
        precision=seen.metadata >> 8 if kind is Kind.DECIMAL else 0,
        scale=seen.metadata if is_temporal else decimals,
        labels=labels,
    )


def _declared(seen: MapColumn, kind: Kind, labels: Iterable[str]) -> str:
    """The type as information_schema prints it; of a text as many characters as it has bytes."""
    name, metadata = seen.type_name.lower(), seen.metadata
    match kind:
        case Kind.INTEGER:
            return _of_integer(seen)
        case Kind.DECIMAL:
            return f"decimal({metadata >> 8},{metadata & 0xFF})"
        case Kind.TIME | Kind.DATETIME | Kind.TIMESTAMP:
            return f"{name}({metadata})" if metadata else name
        case Kind.ENUM | Kind.SET:
            return f"{name}({','.join(_quoted(label) for label in labels)})"
        case Kind.TEXT | Kind.BYTES:
            return _of_characters(seen, kind)
        case Kind.GEOMETRY:
            return _of_geometry(seen)
        case Kind.VECTOR:
            return f"vector({seen.detail})"
    return name


def _of_integer(seen: MapColumn) -> str:
    if seen.type == types.BIT:
        return f"bit({seen.metadata})"
    name = seen.type_name.lower()
    return f"{name} unsigned" if seen.is_unsigned and seen.type != types.YEAR else name


def _of_geometry(seen: MapColumn) -> str:
    """A kind of geometry that is not known is any."""
    return _GEOMETRIES[seen.detail] if seen.detail < len(_GEOMETRIES) else "geometry"


def _of_characters(seen: MapColumn, kind: Kind) -> str:
    is_text = kind is Kind.TEXT
    if seen.type == types.STRING:
        return f"{'char' if is_text else 'binary'}({seen.metadata})"
    if seen.type in (types.VARCHAR, types.VAR_STRING, types.VARCHAR_COMPRESSED):
        return f"{'varchar' if is_text else 'varbinary'}({seen.metadata})"
    return _SIZED[seen.metadata] + ("text" if is_text else "blob")


def _quoted(label: str) -> str:
    return "'" + label.replace("'", "''") + "'"
