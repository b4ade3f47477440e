"""One table of many: which is meant, the keys that are its own in a view, and how large each of them is.

What a part's keys are, its table says and the store: rows that the view lacks, and keys that it shows of rows that are
gone. Whatever is done with a part is done with these keys, one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from ingest.canonical.chunks import CanonicalRows
from ingest.canonical.parts import exists, rows_of_parts
from ingest.canonical.rows import TableRows
from projectors.catalog import Catalog
from projectors.dead_letters import begins_with
from projectors.paused_parts import values_of
from projectors.proving.comparison import Found
from projectors.proving.reprojection import Written
from projectors.proving.view_access import ViewAccess
from projectors.views import BoundView, View
from viewtail.changes.errors import MisuseError, StopRequested, UnknownNameError
from viewtail.changes.patterns import Part
from viewtail.changes.rendering import parse_key
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Key
from viewtail.operations.given import canonical_value

KEYS_AT_ONCE = 2_000


def part_of(view: View, given: str) -> Part:
    """The part that `account_id=123` names, `a=1,b=x` where there are two braces. Raises MisuseError."""
    pattern = view.entity.pattern
    if pattern is None or not pattern.names:
        raise MisuseError(
            f"--part is for views of many tables, with braces in their names; {view.id} is of {view.entity.table}"
        )
    values = dict(pair.partition("=")[::2] for pair in given.split(","))
    if [*values] != [*pattern.names]:
        form = ",".join(f"{name}=..." for name in pattern.names)
        raise MisuseError(f"--part {given!r}: {view.id} is of {pattern.full_name}; write --part {form}")
    row = tuple(canonical_value(values[column.name], column) for column in pattern.columns)
    part = pattern.of(row)
    if part is None:
        raise UnknownNameError(f"--part {given!r}: no table of {pattern.full_name} has that in its name")
    return part


@dataclass(frozen=True, slots=True)
class KeysOfPart:
    """All entities of one part, for a replay: those of its table, then those that the view shows besides."""

    part: Part
    given: str

    @property
    def what(self) -> str:
        return f"part {self.given}"

    def count(self) -> int | None:
        return None

    def batches(self, beside: ViewAccess, version: int, after: Any) -> Iterator[tuple[list[Key], Any]]:
        for keys in _of_table(beside, self.part, version):
            yield keys, None
        for shown in shown_of(beside, self.part):
            if gone := beside.rows_now.absent(beside.view.key, shown, 1):  # the others were of the table
                yield sorted(gone), None

    def written(self, beside: ViewAccess, version: int, after: Any) -> Iterator[tuple[int, Written, Any]]:
        for keys, place in self.batches(beside, version, after):
            yield len(keys), beside.reprojection.of_keys(keys, version), place


def keys_of_part(beside: ViewAccess, part: Part, version: int) -> Iterator[list[Key]]:
    """Pages of its keys; one may come twice."""
    yield from _of_table(beside, part, version)
    yield from shown_of(beside, part)


def _of_table(beside: ViewAccess, part: Part, version: int) -> Iterator[list[Key]]:
    view = beside.view
    names = [column.name for column in view.table.columns if column in view.key]
    rows = CanonicalRows(
        TableRows(view.table.at(part)),
        names,
        open_source=beside.catalog.servers.open_source,
        shows=beside.watermarks.is_visible,
        stop=beside.stop,
        only=view.condition,
        chunk_rows=KEYS_AT_ONCE,
    )
    place: Key | None = None
    with closing(rows):
        while (chunk := rows.after(place, version)) is not None:
            place = chunk.last_key
            yield [tuple(row[names.index(column.name)] for column in view.key) for row in chunk.rows]


def shown_of(beside: ViewAccess, part: Part) -> Iterator[list[Key]]:
    """Pages of the part's keys that the view shows."""
    for page in beside.sink.keys_of_part(beside.view.id, part.values, MAX_VERSION):
        if beside.stop.is_set():
            raise StopRequested
        if page:
            yield [key for key, _ in page]


def letters_of(beside: ViewAccess, part: Part) -> list[str]:
    """The part's keys among the dead letters, as they are rendered."""
    return [name for name in sorted(beside.parked()) if begins_with(name, beside.view, part.values)]


# --- What is done with them ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A part, compared with its table."""

    entities: int
    found: Sequence[Found]
    parked: Sequence[str]


def compare(beside: ViewAccess, part: Part) -> Compared:
    """Compare all of its entities. Raises ViewtailError, StopRequested."""
    beside.check()
    beside.require_place()
    beside.require_not_paused(part.values)
    comparison, seen = beside.comparison(), set[Key]()
    found: list[Found] = []
    parked: list[str] = []
    for page in keys_of_part(beside, part, beside.now()):
        keys = [key for key in page if key not in seen]
        seen.update(keys)
        settled = comparison.settle(keys)
        found += settled.found
        parked += settled.parked
    return Compared(entities=len(seen), found=found, parked=parked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What became of one part in one view."""

    view: str
    buried: int  # keys that the view still showed
    letters: int  # dead letters that were dropped
    left: Sequence[str]  # what is there all the same; () is the proof that nothing is


def require_gone(catalog: Catalog, view: View, part: Part) -> None:
    """Raises MisuseError while the part's table is there: its rows would come again."""
    if view.entity.pattern is not None and view.entity.pattern.only is not None:
        raise MisuseError(
            f"{view.id}: --part is all that it shows of one server, whose table is there still. To take a server out, "
            f"declare the view under another name without it, then: viewtail forget {view.id}"
        )
    for open_, where in ((catalog.servers.open_primary, "the primary"), (catalog.servers.open_source, "the source")):
        with closing(open_()) as connection:
            if exists(connection, part):
                raise MisuseError(
                    f"the table {part.full_name} is still there, on {where}: viewtail forgets what was made of a table "
                    f"that is gone, and would make it again. First: DROP TABLE {part.full_name}"
                )


def forget(beside: ViewAccess, part: Part) -> Forgotten:
    """Bury what the view still shows of a part whose table is gone, and look whether anything is left."""
    beside.check()
    beside.require_not_paused(part.values)
    version, buried = beside.now(), 0
    for page in list(shown_of(beside, part)):
        beside.reprojection.of_gone_table(page, version)
        buried += len(page)
    letters = letters_of(beside, part)
    for some in _parsed(beside.view, letters):
        beside.reprojection.of_gone_table(some, version)
    left = [f"{len(page)} keys" for page in shown_of(beside, part)]
    left += [f"the dead letter of {name}" for name in letters_of(beside, part)]
    return Forgotten(view=beside.view.id, buried=buried, letters=len(letters), left=left)


def _parsed(view: BoundView, names: Sequence[str]) -> Iterator[list[Key]]:
    for at in range(0, len(names), KEYS_AT_ONCE):
        yield [parse_key(name, view.key) for name in names[at : at + KEYS_AT_ONCE]]


# --- How large each is ---


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus:
    """One part of a view."""

    values: tuple[Any, ...]
    table: str
    rows: int  # about, by the server's statistics
    parked: int
    paused: str = ""  # since when, and by whom


def largest(beside: ViewAccess, limit: int) -> tuple[int, list[PartStatus]]:
    """How many parts there are, and the ones that are paused, those with parked keys, then the largest."""
    pattern, parked = beside.view.view.entity.pattern, dict[tuple[Any, ...], int]()
    assert pattern is not None
    width = len(pattern.names)
    for name in beside.parked():
        with suppress(MisuseError):
            values = parse_key(name, beside.view.key)[:width]
            parked[values] = parked.get(values, 0) + 1
    with closing(beside.catalog.servers.open_source()) as connection:
        rows = rows_of_parts(connection, pattern)
    paused = {values_of(beside.view.view, record): str(record) for record in beside.paused}
    listed = [
        PartStatus(
            values=part.values,
            table=part.full_name,
            rows=count,
            parked=parked.get(part.values, 0),
            paused=paused.get(part.values, ""),
        )
        for part, count in rows.items()
    ]
    listed.sort(key=lambda part: (not part.paused, -part.parked, -part.rows, part.values))
    return len(listed), listed[:limit]
