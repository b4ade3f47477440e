"""Waits until pipelines have passed this moment of their source: what was committed before it is durable there."""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import closing

from offsets.pipelines import ids
from projectors.asked_watermarks import AskedWatermarks
from projectors.catalog import Catalog
from viewtail.changes.errors import ViewtailError
from viewtail.operations.status import pipelines_now


def passed_now(catalog: Catalog, pipelines: Collection[str], timeout_s: float) -> int:
    """The version of this moment, once each of these pipelines has passed it; 0 where there are none.

    Raises ViewtailError, with what keeps them from it, where one has not passed it in time.
    """
    if not pipelines:
        return 0
    with closing(catalog.session()) as session:
        numbers = ids(session, catalog.database, pipelines)
    watermarks = AskedWatermarks(
        catalog.marks,
        open_store=catalog.servers.open_own,
        database=catalog.database,
        pipelines=numbers.values,
        trouble=lambda: None,
        say=lambda _: None,
        is_visible_needed=False,
    )
    with closing(watermarks):
        version = watermarks.now_within(threading.Event(), timeout_s)
    if version is None:
        raise _late(catalog, pipelines, timeout_s)
    return version


def _late(catalog: Catalog, pipelines: Collection[str], timeout_s: float) -> ViewtailError:
    now = pipelines_now(catalog)
    known = [now[name] for name in sorted(pipelines) if name in now]
    said = "; ".join(f"{one.name} is {one.state}" + (f": {one.error}" if one.error else "") for one in known)
    return ViewtailError(
        f"{', '.join(sorted(pipelines))} did not come to this moment of the source in {timeout_s:.0f} s "
        f"({said or 'not known'}). Nothing was looked at. Repeat the command when `viewtail status` says that they are "
        "well"
    )
