"""Finds the tables of an entity of many without which a view can be kept, where all of them together do not fit it.

A table may have been changed while nobody read the stream, which then has not come to the statement yet. Most tables of
a pattern are alike to the last detail, so forms are tried, not tables: first one that the view was kept with, as the
fingerprint tells, then those that most tables have. Tables of a form that does not fit beside these are unfit.
"""

from __future__ import annotations

from collections.abc import Iterable

from ingest.canonical.parts import of_parts
from ingest.canonical.tables import forms_of_parts
from offsets.view_parts import MOST_ASIDE
from projectors.binding import bind
from projectors.servers import Servers
from projectors.views import BoundView, View
from viewtail.changes.errors import DeclarationError
from viewtail.changes.patterns import Part
from viewtail.changes.tables import Table
from viewtail.changes.writes import Key
from viewtail.servers.sessions import asking


def unfit_parts(servers: Servers, view: View, fingerprint: str, aside: frozenset[Key]) -> dict[Part, str]:
    """Each table that keeps the view from being bound, and why; {} where that is no matter of some tables.

    Args:
        fingerprint: of the view as it was kept last.
        aside: the values of those that are set aside already.
    """
    pattern = view.entity.pattern
    if pattern is None or not pattern.sets_aside or servers.kind.polls:
        return {}
    with asking(servers.source().address(), role="source") as connection:
        forms = forms_of_parts(connection, pattern, aside)
    fitting = [form for form in forms if (_bound(servers, view, [form[0]]))[0] is not None]
    fitting.sort(key=lambda form: not _is_as_before(servers, view, form[0], fingerprint))
    kept: list[Table] = []
    unfit: dict[Part, str] = {}
    for table, parts in [*fitting, *(form for form in forms if form not in fitting)]:
        bound, why = _bound(servers, view, [*kept, table])
        if bound is not None:
            kept.append(table)
        else:
            unfit |= dict.fromkeys(parts, why)
    return unfit if kept and len(unfit) + len(aside) <= MOST_ASIDE else {}


def _is_as_before(servers: Servers, view: View, table: Table, fingerprint: str) -> bool:
    bound, _ = _bound(servers, view, [table])
    return bound is not None and bound.fingerprint == fingerprint


def _bound(servers: Servers, view: View, tables: Iterable[Table]) -> tuple[BoundView | None, str]:
    """The view as it would be with these tables alone, or why it could not be."""
    pattern = view.entity.pattern
    assert pattern is not None, "the caller has asked"
    try:
        table = of_parts(pattern, [*tables])
        (bound,) = bind([view], lambda *_: table, servers.masks)
    except DeclarationError as error:
        return None, str(error)
    return bound, ""
