"""Looks at the whole deployment now and then, as `viewtail status` does: for what no single pipeline's process sees.

Each `viewtail run` has one thread of it for each source. Nobody waits for it: the metrics show what it saw last, and a
server that is away is asked again in its next round.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import structlog

from ingest import Margin
from viewtail import settings
from viewtail.changes.errors import ViewtailError, place_of
from viewtail.operations.collecting import collected
from viewtail.operations.findings import Findings
from viewtail.servers.patience import QUESTION

_log = structlog.get_logger("viewtail.run")

ROUND_S = 60.0
FIRST_ROUNDS_S = 5.0  # until it has seen a pipeline
END_WITHIN_S = 1.0


class DeploymentWatch:
    """The thread of one source.

    Args:
        names: how a pipeline is called among those of all deployments of this run.
    """

    def __init__(self, loaded: settings.Settings, names: Callable[[str], str]) -> None:
        self._loaded = loaded.asked_with(QUESTION)
        self._names = names
        self._margins: Mapping[str, Margin] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="deployment watch", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(END_WITHIN_S)

    def margins(self) -> Mapping[str, Margin]:
        """By pipeline, as it was seen last: how long the source keeps what it needs next."""
        return self._margins

    def _run(self) -> None:
        pause_s = FIRST_ROUNDS_S
        while not self._stop.wait(pause_s):
            try:
                pause_s = self._round()
            except ViewtailError as error:  # it is in the log and in `status` by its pipelines
                _log.debug("the deployment was not looked at", error=str(error))
            except Exception as error:  # the next round may do
                where = f"{type(error).__name__}{place_of(error)}"
                _log.error("looking at the deployment failed; please report it", error=where)

    def _round(self) -> float:
        """Look once; return how long to rest."""
        seen = collected(self._loaded.servers())
        self._keep(seen)
        return ROUND_S if seen.pipelines else FIRST_ROUNDS_S

    def _keep(self, seen: Findings) -> None:
        if seen.source_error is None:  # else what was seen last is the best that is known
            self._margins = {self._names(name): margin for name, margin in seen.margins.items()}
