"""Reads the rows that depend on changed rows: all keys where they are few, or a page of them with their rows."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse

import orjson

from offsets.fan_outs import FanOut
from projectors.derived import Dependents, DerivedRows
from projectors.derived.reading import rows_by_key
from projectors.views import BoundView
from viewtail.changes.batches import Row
from viewtail.changes.writes import Key
from viewtail.servers.sessions import Connection

MOST_APART = 20  # changed rows of one look-up of which it is asked which have many dependents


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the rows that depend on changed rows, as one snapshot shows them."""

    keys: Sequence[Key]
    rows: Mapping[Key, Row]  # of the keys that have one
    left: Sequence[Key]  # that were too large to be read with the others
    cursor: str | None  # where to go on; None: there are no more


def few_and_many(
    connection: Connection, *, rows: DerivedRows, of: Sequence[Dependents], above: int
) -> tuple[dict[Key, int], list[tuple[Dependents, int | None]]]:
    """The keys of dependents by version; and changed rows that have more than so many, with about how many."""
    versions: dict[Key, int] = {}
    many: list[tuple[Dependents, int | None]] = []
    for dependents in of:
        some, rest = _few(connection, rows, dependents, above)
        many += [(each, rows.about(connection, each.what)) for each in rest]
        for key in some:
            versions[key] = max(dependents.version, versions.get(key, 0))
    return versions, many


def _few(
    connection: Connection, rows: DerivedRows, of: Dependents, above: int
) -> tuple[Sequence[Key], list[Dependents]]:
    """The keys where there are no more than so many; else the changed rows that have them.

    Of a few changed rows each is a fan-out of its own where it has many: it may change again alone, or with others.
    """
    keys = _upto(connection, rows, of.what, above)
    if keys is not None:
        return keys, []
    each = rows.each(of.what)
    if not 1 < len(each) <= MOST_APART:
        return (), [of]
    found: list[Key] = []
    many: list[Dependents] = []
    for what in each:
        of_one = _upto(connection, rows, what, above)
        if of_one is None or len(found) + len(of_one) > above:
            many.append(Dependents(what, of.version))
        else:
            found += of_one
    return found, many


def _upto(connection: Connection, rows: DerivedRows, what: str, most: int) -> list[Key] | None:
    """The keys of all dependents; None where there are more than so many."""
    keys: dict[Key, None] = {}
    cursor: str | None = None
    for _ in range(MOST_APART):
        page = rows.dependents(connection, what, cursor, most + 1)
        keys.update(dict.fromkeys(page.keys))
        if len(keys) > most:
            return None
        if page.cursor is None:
            return [*keys]
        cursor = page.cursor
    return None  # many rows between, whatever they lead to


def page_of(
    connection: Connection, *, view: BoundView, fan_out: FanOut, limit: int, page_s: float, written: Container[Key]
) -> Page:
    """Of the changed rows one after another: a server finds the dependents of one in the order of an index.

    Those that were `written` in this pass show the change.
    """
    rows = view.derived
    assert rows is not None
    each = rows.each(fan_out.what)
    number, cursor = (0, None) if fan_out.cursor is None else orjson.loads(fan_out.cursor)
    keys: dict[Key, None] = {}
    until = time.monotonic() + page_s
    while number < len(each) and len(keys) < limit:
        page = rows.dependents(connection, each[number], cursor, limit - len(keys))
        keys.update(dict.fromkeys(filterfalse(written.__contains__, page.keys)))
        number, cursor = (number + 1, None) if page.cursor is None else (number, page.cursor)
        if time.monotonic() > until:
            break
    found, left = rows_by_key(connection, derived=rows, needed=view.needed, keys=[*keys]) if keys else ({}, [])
    behind = None if number == len(each) else orjson.dumps([number, cursor]).decode()
    return Page([*keys], found, left, behind)
