"""How fast a command that reads much works beside live traffic."""

from __future__ import annotations

from threading import Event

from projectors.catalog import Catalog
from projectors.throttle import MAX_THREADS_RUNNING, RateThrottle, SourceLoadThrottle, Throttles
from viewtail.commands.output import print_remark


def throttle_of(
    catalog: Catalog,
    stop: Event,
    what: str = "",
    *,
    rows_a_second: float = 0.0,
    max_threads_running: int = MAX_THREADS_RUNNING,
) -> Throttles:
    """No more rows a second than asked for (0: no limit), and none while the source is busy; `what` is said to wait."""
    label = f"{what}: " if what else ""
    load = SourceLoadThrottle(
        stop=stop,
        open_source=catalog.servers.open_source,
        say=lambda why: print_remark(f"{label}waiting: {why}"),
        max_threads_running=max_threads_running,
    )
    return Throttles(RateThrottle(rows_a_second, stop), load)
