"""Looks at the whole deployment now and then, as `viewtail status` does: for what no single pipeline's process sees.

Each `viewtail run` has one thread of it for each source. Nobody waits for it: the metrics show what it saw last, people
are told of what is not well (notifying/), and a server that is away is asked again in its next round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import structlog

from ingest import Margin
from projectors.servers import Servers
from viewtail import declarations, settings
from viewtail.changes.errors import ViewtailError, place_of
from viewtail.composition import judged
from viewtail.notifying.notifier import Notifier
from viewtail.operations.collecting import collected
from viewtail.servers.patience import QUESTION
from viewtail.shards import Target

_log = structlog.get_logger("viewtail.run")

LOOK_EVERY_S = 60.0
FIRST_LOOKS_S = 5.0  # until it has seen a pipeline
TELL_EVERY_S = 10.0  # where people are told: by the one process that has the lock, and others ask for it
END_WITHIN_S = 1.0
STALE_AFTER_S = 3 * LOOK_EVERY_S  # what nobody could see for so long is not known any more


class DeploymentWatch:
    """The thread of one source."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._loaded = target.settings.asked_with(QUESTION)
        self._servers = self._loaded.servers()
        self._notifier = _notifier(target, self._loaded, self._servers)
        self._margins: Mapping[str, Margin] = {}
        self._margins_at = 0.0  # monotonic
        self._every_s = LOOK_EVERY_S if self._notifier is None else TELL_EVERY_S
        self._look_at = 0.0  # monotonic; 0: it has seen no pipeline yet
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="deployment watch", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Do not look any more; a server that is being asked may keep the thread for a while."""
        self._stop.set()

    def join(self, within_s: float) -> None:
        if self._thread.is_alive():
            self._thread.join(within_s)

    def margins(self) -> Mapping[str, Margin]:
        """By pipeline, as it was seen a moment ago: how long the source keeps what it needs next."""
        return self._margins if time.monotonic() - self._margins_at < STALE_AFTER_S else {}

    def _run(self) -> None:
        while not self._stop.wait(FIRST_LOOKS_S if self._look_at == 0.0 else self._every_s):
            try:
                self._round()
            except ViewtailError as error:  # it is in the log and in `status` by its pipelines
                _log.debug("the deployment was not looked at", error=str(error))
            except Exception as error:  # the next round may do
                where = f"{type(error).__name__}{place_of(error)}"
                _log.error("looking at the deployment failed; please report it", error=where)
        if self._notifier is not None:
            self._notifier.close()

    def _round(self) -> None:
        """Look, where it is time for that: always where this process is the one that tells people."""
        telling = None if self._notifier is None else self._notifier.session()
        if telling is None and time.monotonic() < self._look_at:
            return
        seen = collected(self._servers)
        if not seen.pipelines:
            return
        self._look_at = time.monotonic() + LOOK_EVERY_S
        if seen.source_error is None:  # else what was seen last is the best that is known, for a while
            self._margins = {self._target.names(name): margin for name, margin in seen.margins.items()}
            self._margins_at = time.monotonic()
        if telling is not None and self._notifier is not None:
            declared = declarations.declared_sources(self._loaded)
            self._notifier.tell(telling, judged(self._loaded, seen, declared))


def end(watches: Sequence[DeploymentWatch]) -> None:
    """Stop them all. None is waited for longer than `END_WITHIN_S`, however many there are."""
    for watch in watches:
        watch.stop()
    deadline = time.monotonic() + END_WITHIN_S
    for watch in watches:
        watch.join(max(0.0, deadline - time.monotonic()))


def _notifier(target: Target, loaded: settings.Settings, servers: Servers) -> Notifier | None:
    if loaded.notify.url is None:
        return None
    return Notifier(
        settings=loaded.notify,
        open_own=servers.open_own,
        database=servers.database,
        source="#topics" if servers.kind.is_shared_out else servers.source_name,
        keeps=servers.keeps,
        console=loaded.console.url,
        deployment=None if target.is_source else target.shard,
    )
