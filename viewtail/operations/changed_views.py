"""Finds what the next `viewtail run` would do to views of another declaration, or of a changed table.

`viewtail check` asks while the running viewtail still keeps them as they were; nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from offsets.keepers import known_views
from offsets.mysql import Session, transaction
from offsets.views import State, ViewRecord
from projectors.binding import declaration_hash
from projectors.read_and_written import as_live
from projectors.stores import MIXED
from projectors.stores.access import Access
from projectors.stores.registry import store_of
from projectors.views import BoundView
from viewtail.changes.errors import ViewtailError
from viewtail.changes.findings import Finding, warn

_MEND = (
    "to have readers keep what they have until a second copy is whole, as `viewtail rebuild` builds one: set "
    "VIEWTAIL_RUN__ON_CHANGE=beside before you restart `viewtail run`. Or give it another name"
)
_MEND_TYPES = (
    "nothing, if readers may see that; otherwise declare it under another name, and forget this one when nobody reads "
    "it any more. `viewtail rebuild` builds a second copy only once a run keeps the view as it is declared"
)


def refilled_in_place(
    session: Session, own: Access, accesses: dict[str, Access], views: Sequence[BoundView], keeps: Callable[[str], bool]
) -> Iterator[Finding]:
    """A warning for each view that readers have, and that the next run backfills where it is.

    Args:
        accesses: by store.
        keeps: as of `copies.refusals`.
    """
    for view, known in _known(session, own, views, keeps):
        if not (what := changed(view, known)):
            continue
        is_declared_anew = known.declaration != declaration_hash(view.view)
        has_copies = not store_of(view.view).no_copies(view.view)
        if is_declared_anew and has_copies and own.limits.on_change == "beside":
            continue
        with transaction(session, "reading where a view is") as cursor:
            live = replace(view, copy=as_live(cursor, own.database, view).copy)
        seen = f"{what} since it was filled: the next `viewtail run` backfills it again in place"
        why = _meanwhile(live, accesses)
        mend = "nothing, or a new name"
        if has_copies:
            mend = _MEND if is_declared_anew else _MEND_TYPES
        yield warn("views", f"view {view.id}, changed", seen, why, mend)


def _known(
    session: Session, own: Access, views: Sequence[BoundView], keeps: Callable[[str], bool]
) -> Iterator[tuple[BoundView, ViewRecord]]:
    """Each view that a run has kept, as it is declared and as it was kept."""
    by_id = {view.id: view for view in views}
    for (pipeline, name), known in sorted(known_views(session, own.database).items()):
        if name in by_id and keeps(pipeline):
            yield by_id[name], known


def changed(view: BoundView, known: ViewRecord) -> str:
    """Return what of it changed; '' for one that stays as it is, or that shows nothing yet."""
    if known.state in (State.NEW, State.PAUSED) or known.fingerprint == view.fingerprint:
        return ""
    if known.declaration != declaration_hash(view.view):
        return "its declaration changed"
    return "" if known.state == State.HALTED else "its table's key or columns changed"


def _meanwhile(view: BoundView, accesses: dict[str, Access]) -> str:
    store = store_of(view.view)
    with suppress(ViewtailError):  # a store that is away is a finding already
        return store.while_refilled(accesses[store.name], view)
    return MIXED
