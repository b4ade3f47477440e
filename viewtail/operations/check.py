"""Collects what the source and the stores say of their own requirements, and whether the views fit their tables.

Each server is asked by itself: one that does not answer is a finding, and the others are looked at all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache, partial

import orjson

from ingest import Orders, SourceAccess, SourceKind
from ingest.canonical import describe
from ingest.canonical.rows import TableRows
from offsets.keepers import known_views
from offsets.mysql import OwnSession
from offsets.views import State
from projectors.binding import Describe, functions_read
from projectors.catalog import Catalog, bound_for, streams_of, tables_of
from projectors.copies import refusals
from projectors.function_columns import paths
from projectors.masking import MASKS_SECRET
from projectors.projection import Projected, Projections, followed_tables
from projectors.related import Uses
from projectors.stores import NoCopy, Store, Unfit
from projectors.stores.access import Access
from projectors.stores.owners import Places
from projectors.stores.registry import STORES, needed, store_of
from projectors.views import BoundView, View
from viewtail.changes.batches import Row
from viewtail.changes.counting import counted
from viewtail.changes.errors import DeclarationError, StoreError, ViewtailError, nearest, once
from viewtail.changes.extras import how_to_install
from viewtail.changes.findings import Finding, Level, fail, ok, warn
from viewtail.changes.masks import NO_SECRET, Masks
from viewtail.changes.tables import Column
from viewtail.operations import sessions
from viewtail.operations.changed_views import refilled_in_place
from viewtail.operations.looked_up import index_findings
from viewtail.operations.people import unmasked_findings
from viewtail.servers.literals import where_all
from viewtail.servers.sessions import Connection, open_session, quote

SAMPLE_ROWS = 100  # that each function is tried with


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Everything that is looked at."""

    kind: SourceKind
    source: SourceAccess
    stores: Sequence[tuple[Store, Access]]  # those that have views, and that of viewtail's own tables
    masks: Masks = NO_SECRET

    def keeps(self, pipeline: str) -> bool:
        """Return whether a pipeline is of the source that is looked at."""
        return self.kind.keeps(self.source.name, pipeline)

    @property
    def own(self) -> Access | None:
        return next((access for store, access in self.stores if store.has_own_tables), None)


def needed_servers(catalog: Catalog, views: Sequence[View]) -> Checked:
    """Return what these views need; no server is asked."""
    stores = [store for store in STORES if store.has_own_tables or store in needed(views)]
    return Checked(
        kind=catalog.servers.kind,
        source=catalog.servers.source(),
        masks=catalog.servers.masks,
        stores=[(store, catalog.access(store)) for store in stores],
    )


def check(checked: Checked, views: Sequence[View]) -> list[Finding]:
    """Every finding, in the order of source, stores, views."""
    by_store: dict[str, list[View]] = {}
    for view in views:
        by_store.setdefault(view.store, []).append(view)
    kind, streams = checked.kind, streams_of(checked.kind, views)
    findings = list(kind.checks(checked.source, tables_of(views), _orders_of(views), streams))
    away: set[str] = set()
    for store, access in checked.stores:
        of_store = list(_of_store(store, access, by_store.get(store.name, [])))
        if any(finding.what in ("reachable", "client") and finding.level is Level.FAIL for finding in of_store):
            away.add(store.name)
        findings += of_store
    of_stores = {name: streams_of(kind, of_store) for name, of_store in by_store.items()}
    findings += sessions.findings(kind, checked.source, of_stores)
    findings += _sharing(kind, checked.source, sorted(of_stores))
    bindable = [view for view in views if not how_to_install(store_of(view).client)]
    findings += _views(checked, bindable, away)
    return list(dict.fromkeys(findings))  # a server in two roles that does not answer is one finding


def _of_store(store: Store, access: Access, views: Sequence[View]) -> Iterable[Finding]:
    if command := how_to_install(store.client):
        seen = f"the Python package {store.client} is not installed"
        return [fail(store.name, "client", seen, "viewtail reaches the store with it", command)]
    return store.checks(access, views)


def _orders_of(views: Sequence[View]) -> Orders:
    named: dict[tuple[str, str], set[str]] = {}
    for view in views:
        if view.entity.order is not None:
            named.setdefault(view.entity.schema_and_table, set()).add(view.entity.order)
    return named


def is_well(findings: Sequence[Finding]) -> bool:
    """Return whether viewtail can run: warnings do not count."""
    return all(finding.level is not Level.FAIL for finding in findings)


def _views(checked: Checked, views: Sequence[View], away: Set[str]) -> list[Finding]:
    """`away`: the stores that do not answer, which is a finding already. They are not waited for again."""
    try:
        with closing(open_session(checked.source.address(), role="source")) as connection:
            describing = cache(partial(describe, connection))
            bound, wrong = _bound(checked, views, describing)
            fit = [ok("views", f"view {view.id}", f"fits its table{_functions(view)}") for view in bound]
            fit += unmasked_findings(bound)
            fit += [finding for view in bound for finding in (*_remarks(view), *_tried(connection, view))]
        indexes = list(index_findings(checked.source, bound))
        kept = _kept_by_others(checked, bound, away)
        return wrong + fit + indexes + kept + _beside(checked, bound) + _refilled(checked, bound, away)
    except ViewtailError:
        return []  # the source was not reachable, which is a finding already


def _bound(checked: Checked, views: Sequence[View], describing: Describe) -> tuple[list[BoundView], list[Finding]]:
    """Return the views that fit their tables, each by itself where not all do, and everything that is wrong."""
    try:
        return bound_for(checked.kind, views, describing, checked.masks), []
    except DeclarationError as error:
        lines = str(error).splitlines()
    bound = list[BoundView]()
    for view in views:
        try:
            bound += bound_for(checked.kind, [view], describing, checked.masks)
        except DeclarationError as error:
            lines += str(error).splitlines()
    why, states = "the view cannot work", _states(checked)
    problems = (line.partition(": ") for line in lines)
    return bound, [fail("views", what, seen, why, _to_mend(what, seen, states)) for what, _, seen in problems]


def _states(checked: Checked) -> dict[str, State]:
    """How each view is, by id, as far as that is known."""
    if checked.own is not None:
        with suppress(ViewtailError), closing(OwnSession(checked.own.open_own)) as session:
            return {view: record.state for (_, view), record in known_views(session, checked.own.database).items()}
    return {}


def _to_mend(what: str, seen: str, states: Mapping[str, State]) -> str:
    """What mends a view that does not fit its table."""
    if MASKS_SECRET not in seen:
        return "change views.py"
    view = what.removeprefix("view ")
    replay = f". It is halted, so then also: viewtail replay {view}" if states.get(view) is State.HALTED else ""
    return f"{MASKS_SECRET}=..., then restart `viewtail run`{replay}"


def _sharing(kind: SourceKind, source: SourceAccess, stores: Sequence[str]) -> list[Finding]:
    """Others that the source would share its parts out to, and that are not of this deployment."""
    others: dict[str, list[str]] = {}
    with suppress(ViewtailError):  # a source that is away is a finding already
        for sharer in kind.sharers(source, stores) or ():
            if sharer.is_of_another:
                others.setdefault(sharer.store, []).append(sharer.client)
    why = "parts of the source are shared out among both, and each misses the changes that the other one reads"
    mend = "give one of the two a consumer group of its own: VIEWTAIL_SOURCE__GROUP=NAME"
    return [
        fail(
            "source", f"consumer group of {store}", f"has members of another deployment: {', '.join(names)}", why, mend
        )
        for store, names in sorted(others.items())
    ]


def _kept_by_others(checked: Checked, views: Sequence[BoundView], away: Set[str]) -> list[Finding]:
    """Views whose place in their store is another deployment's. Nothing is claimed."""
    if any(store.has_own_tables and store.name in away for store, _ in checked.stores):
        return []  # they say who this deployment is
    findings: list[Finding] = []
    for store, access in checked.stores:
        of_store = [view for view in views if view.view.store == store.name]
        if of_store and store.name not in away:
            findings += _places_of(store, access, of_store)
    return findings


def _places_of(store: Store, access: Access, views: Sequence[BoundView]) -> Iterator[Finding]:
    """Ask for one store's views. A question that fails is a finding; one without an answer is the last."""
    asked = views[0].id
    try:
        places = store.places(access, asked)
        if places is None:
            return
        with closing(places):
            for view in views:
                asked = view.id
                yield from _place_of(places, view)
    except ViewtailError as error:
        yield _unknown_place(asked, error)


def _place_of(places: Places, view: BoundView) -> Iterator[Finding]:
    why = "`viewtail run` halts such a view: two deployments would overwrite each other, and readers see either"
    mend = "another name, the other deployment, or --take-over, as it says above"
    try:
        if (seen := places.refusal(view)) is not None:
            yield fail("views", f"view {view.id}, its place", seen, why, mend)
        elif places.remark is not None:
            why = "`viewtail run` takes the place, and would overwrite what another deployment keeps there"
            mend = "nothing, if no other viewtail keeps a view there; or another name"
            yield warn("views", f"view {view.id}, its place", places.remark, why, mend)
    except StoreError as error:  # another view's place may be another matter
        yield _unknown_place(view.id, error)


def _unknown_place(view: str, error: ViewtailError) -> Finding:
    why = "`viewtail run` asks the same before it writes, and goes no further without an answer"
    seen = f"not known whose its place is: {once(error)}"
    return fail("views", f"view {view}, its place", seen, why, "as it says above")


def _beside(checked: Checked, views: Sequence[BoundView]) -> list[Finding]:
    """Find what `on_change = "beside"` does not do, and which changed views `run` refuses for that."""
    own = checked.own
    if own is None or own.limits.on_change != "beside":
        return []
    mend = "give it a new name when you change it, or set VIEWTAIL_RUN__ON_CHANGE=in_place"
    findings = []
    for view in views:
        if why := store_of(view.view).no_copies(view.view):
            seen = "VIEWTAIL_RUN__ON_CHANGE=beside has no effect on it: a changed declaration changes it in place"
            findings.append(warn("views", f"view {view.id}, on_change", seen, why, "nothing, or a new name"))
        elif checked.kind.is_shared_out:
            seen = "VIEWTAIL_RUN__ON_CHANGE=beside, and the view is kept from Kafka"
            why = "several pipelines keep it, so it has no second copy: `viewtail run` refuses to begin when it changes"
            findings.append(warn("views", f"view {view.id}, on_change", seen, why, mend))
    refused: dict[str, NoCopy] = {}
    with suppress(ViewtailError), closing(OwnSession(own.open_own)) as session:  # one that is away is a finding already
        refused = refusals(session, own.database, views, checked.keeps)
    why = "`viewtail run` does not begin with such a change: readers would see it half done"
    findings += [fail("views", f"view {name}, on_change", no.why, why, no.mend) for name, no in refused.items()]
    return findings


def _refilled(checked: Checked, views: Sequence[BoundView], away: Set[str]) -> list[Finding]:
    """Return what the next run would backfill in place."""
    views = [view for view in views if view.view.store not in away]
    own = checked.own
    if own is None:
        return []
    accesses = {store.name: access for store, access in checked.stores}
    with suppress(ViewtailError), closing(OwnSession(own.open_own)) as session:  # one that is away is a finding already
        return list(refilled_in_place(session, own, accesses, views, checked.keeps))
    return []


def _functions(bound: BoundView) -> str:
    """Return which columns the functions of a view ask for."""
    read = functions_read(bound.view)
    if read.why_all:
        return f"; uses every column of it, for {read.why_all}"
    used = ", ".join(paths(read.uses, bound.view.entity.related))
    return f"; its functions use {used}" if used else ""


def _remarks(bound: BoundView) -> Iterator[Finding]:
    """Yield what is known without a row of its table."""
    yield from _previous(bound)
    yield from _misnamed(bound)
    for seen, why, mend in store_of(bound.view).surprises(bound):
        yield warn("views", f"view {bound.id}", seen, why, mend)


def _previous(bound: BoundView) -> Iterator[Finding]:
    if bound.previous_misfit:
        why = "a copy that this declaration made gets no changes, so there is no way back to it"
        mend = "mend it, or take previous= out of views.py"
        yield warn("views", f"view {bound.id}, previous", f"{bound.previous_misfit}: it has no effect", why, mend)


def _misnamed(bound: BoundView) -> Iterator[Finding]:
    relations = [name for name, _ in bound.view.entity.related]
    for path, names in _unknown(functions_read(bound.view).uses, bound.table.columns):
        near = nearest(path.rpartition(".")[2], names if "." in path else [*names, *relations])
        seen = f"its functions ask for {path}, which {bound.table.full_name} has not{near}"
        why = "row.get gives None for it in every row, and row[...] raises"
        yield warn("views", f"view {bound.id}", seen, why, "the name in views.py")


def _unknown(uses: Uses, columns: Sequence[Column], above: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield each name that is asked for and is not there, behind those of the relations above, and what is there."""
    by_name = {column.name: column for column in columns}
    for name in sorted(uses):
        column, below = by_name.get(name), uses[name]
        if column is None:
            yield f"{above}{name}", [*by_name]
        elif column.fields and below:
            yield from _unknown(below, column.fields, f"{above}{name}.")


def _first_rows(connection: Connection, view: BoundView) -> list[Row]:
    """Return as many rows as a function is tried with, in the order in which a backfill reads them."""
    columns = [column for column in view.table.columns if column.name in view.needed]
    behind = f" ORDER BY {', '.join(quote(name) for name in view.table.paging_key)} LIMIT {SAMPLE_ROWS}"
    readable = view.derived or TableRows(next(view.table.each))
    return readable.fetch(connection, columns, where_all(view.condition), behind)


def _tried(connection: Connection, view: BoundView) -> list[Finding]:
    """Return what the view's functions do with the table's first rows: what raises there would park the row's key."""
    declared = view.view
    functions = ["where"] * (declared.where is not None) + [declared.function] * (declared.document is not None)
    functions += [name for name in declared.refusing if name not in functions]
    if not functions:
        return []
    followed = followed_tables([view])
    rows = _first_rows(connection, view)
    what = f"view {view.id}, {' and '.join(functions)}"
    projected = Projections([view], followed).of_rows(view.id, rows, 1)
    refused = [letter.reason for letter in projected.parked] + _refused_by_store(view, projected)
    if declared.refusing:
        refused += _unfit(view, projected)
    mend = "each= in views.py, or the rows" if declared.refusing else "the function in views.py"
    return [_of_rows(what, len(rows), refused, mend)]


def _of_rows(what: str, row_count: int, refused: Sequence[str], mend: str) -> Finding:
    if not refused:
        return ok("views", what, f"took the table's first {counted(row_count, 'rows')}")
    reasons = Counter(refused).most_common()
    seen = "; ".join(
        f"{reason} ({count} of the table's first {counted(row_count, 'rows')})" for reason, count in reasons
    )
    if len(refused) < row_count:
        why = "keys of such rows are parked: the view does not show what they are now"
        return warn("views", what, seen, why, mend)
    return fail("views", what, seen, "a view for which no row will do halts", mend)


def _refused_by_store(view: BoundView, projected: Projected) -> list[str]:
    """Return why, for each document that the view's function made and its store would not take."""
    made = [values for of in projected.writes for _, values in of.writes.values()]
    reasons = [view.view.refuses(orjson.loads(document)) for document in made if isinstance(document, bytes)]
    return [reason for reason in reasons if reason is not None]


def _unfit(view: BoundView, projected: Projected) -> Iterator[str]:
    """Yield why, for each row whose values do not do for the view."""
    store = store_of(view.view)
    for key, (_, values) in (written for of in projected.writes for written in of.writes.items()):
        try:
            if values is not None:
                store.content(view, key, values)
        except Unfit as error:
            yield str(error)


def grants(servers: Checked, views: Sequence[View]) -> list[str]:
    """The statements that grant the rights viewtail needs, and no more: for Kafka, commands of a shell.

    Each group stands behind a comment that names its server. No server is asked, since nobody may be able to log in
    yet, and the users must exist.
    """
    lines = list(servers.kind.grants(servers.source, tables_of(views), streams_of(servers.kind, views)))
    for store, access in servers.stores:
        lines += store.grants(access, [view for view in views if view.store == store.name])
    return lines
