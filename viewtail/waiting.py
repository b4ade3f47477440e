"""Waiting for a view from Python and from the command line: settings and declarations in, seconds out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import monotonic
from typing import Any

from ingest import TimedSource
from projectors.catalog import Catalog
from projectors.proving.view_access import ViewAccess
from projectors.views import BoundView, View
from viewtail import declarations
from viewtail.changes.errors import MisuseError
from viewtail.composition import deploy
from viewtail.operations import waiting
from viewtail.operations.given import key_of, own_keys
from viewtail.operations.reading import choose
from viewtail.operations.waiting import Wanted
from viewtail.servers.patience import COMMAND
from viewtail.settings import Settings, load


def wait_for(
    view: str | View,
    key: Any = None,
    *,
    version: int | None = None,
    position: str | None = None,
    gtid: str | None = None,
    within_s: float = 10.0,
    settings: Settings | None = None,
) -> float:
    """Wait until a view has everything that is committed by now: then it shows what you wrote.

    Args:
        view: as declared, or by its name in the views of the settings.
        key: of the entity that is read next, as `get` takes it; one that is parked raises.
        version: wait for this version of the entity instead: of its version column, or as `get` shows it.
        position, gtid: wait for this place in the source's stream instead.
        within_s: seconds.

    Returns how long it took, seconds. Raises WaitedTooLongError; ViewtailError where waiting does not help, MisuseError
    among them.
    """
    wanted = Wanted(version=version, position=position, gtid=gtid)
    wanted.check(has_key=key is not None)
    settings = (settings or load(None)).asked_with(COMMAND.within(within_s).once())
    chosen = view if isinstance(view, View) else choose(declarations.load(settings.views), view)
    settings.check_stores([chosen])
    catalog = deploy(settings, [chosen])
    (bound,) = catalog.views
    began = monotonic()
    with _begun(catalog, bound, began + within_s) as beside:
        wanted_key = None if key is None else next(iter(own_keys([key_of(key, bound)], bound)))
        waiting.wait(beside, lambda: _source(catalog, chosen), wanted_key, wanted, began + within_s)
    return monotonic() - began


def wait_for_all(views: Sequence[View], *, within_s: float, settings: Settings) -> None:
    """`wait_for` of views of one pipeline: one waits for this moment, and each must be whole then."""
    deadline = monotonic() + within_s
    if not views:
        return
    first, *others = views
    wait_for(first, within_s=within_s, settings=settings)
    if not others:
        return
    catalog = deploy(settings.asked_with(COMMAND.within(within_s).once()), others)
    for bound in catalog.views:
        with _begun(catalog, bound, deadline) as beside:
            waiting.wait_until_whole(beside, deadline)


def _begun(catalog: Catalog, view: BoundView, deadline: float) -> ViewAccess:
    """The view, once a viewtail knows it."""
    waiting.wait_until_begun(catalog, view, deadline)
    return ViewAccess(catalog, view, threading.Event())


def _source(catalog: Catalog, view: View) -> TimedSource:
    source = catalog.history_beside(view.id).reader({}, {})
    if not isinstance(source, TimedSource):
        raise MisuseError("the source of these settings is no binlog, and has no such positions")
    return source
