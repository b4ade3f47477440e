"""Whether the rows that derived rows are made of are found by an index, and how many depend on one changed row.

How many, is asked of a sample and of the server's statistics, for a bounded time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress

from ingest import SourceAccess
from ingest.canonical.group_sizes import GroupSizes, group_sizes
from projectors.derived.look_ups import LookUp, look_ups
from projectors.views import BoundView
from viewtail.changes.errors import ViewtailError
from viewtail.changes.findings import Finding, fail, ok, warn
from viewtail.changes.rendering import in_a_line, render_key
from viewtail.servers.facts import limit_selects
from viewtail.servers.sessions import Connection, open_session

SELECT_S = 1.0
ALL_S = 15.0
PAGED = 10_000  # rows of one value, above which they are paged in the order of the primary key, or sorted each time


def index_findings(source: SourceAccess, views: Sequence[BoundView]) -> Iterator[Finding]:
    """Yield findings for each table and columns by which its rows are found; unique keys are binding's to demand."""
    asked = [each for each in look_ups(views) if not each.is_unique]
    yield from (_missing(each) for each in asked if each.index is None)
    asked = [each for each in asked if each.index is not None]
    if not asked:
        return
    with closing(open_session(source.address(), role="source")) as connection:
        limit_selects(connection, SELECT_S)
        until = time.monotonic() + ALL_S
        for each in asked:
            yield from _of_sizes(each, _sizes(connection, each, until))


def _missing(each: LookUp) -> Finding:
    seen = f"there is none, and {', '.join(each.views)} {'finds' if len(each.views) == 1 else 'find'} rows by it"
    why = "without it each change of a row reads the whole table, while the other views of the store wait"
    return fail("views", f"index of {each.named}", seen, why, each.create_index)


def _sizes(connection: Connection, each: LookUp, until: float) -> GroupSizes | None:
    """None where they are not known in time."""
    if time.monotonic() > until or each.index is None:
        return None
    with suppress(ViewtailError):
        return group_sizes(connection, each.table, each.columns, each.index)
    return None


def _of_sizes(each: LookUp, sizes: GroupSizes | None) -> Iterator[Finding]:
    what = f"index of {each.named}"
    if sizes is None or not sizes.largest:
        yield ok("views", what, each.index)
        return
    largest = f"{'more than ' if sizes.is_more else 'about '}{sizes.largest:,}"
    average = "" if sizes.average is None else f"about {sizes.average:,.0f} rows a value, "
    at = in_a_line(render_key(sizes.values, each.columns))
    seen = f"{each.index}; {average}one in a sample has {largest} (value {at})"
    yield ok("views", what, seen)
    if each.limit is not None and sizes.largest > each.limit:
        why = f"more rows than limit={each.limit:,} of a Many park the key of the entity that has them"
        yield warn("views", f"rows of {each.named}", seen, why, "a larger limit=, or leave that relation out")
    if each.is_upward and sizes.largest > PAGED and not each.is_in_key_order:
        why = (
            "the rows that depend on one changed row are read in pages, and for each page the server sorts all of them"
        )
        yield warn("views", f"order of {each.named}", seen, why, each.create_index)
