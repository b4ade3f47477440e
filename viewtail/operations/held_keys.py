"""Tries keys again that are parked because another source has them, once that one's row, or their own, is gone.

The other source's pipeline knows nothing of this one's row. So the pipeline that parked a key asks its store now and
then who has it, and projects the row again when nobody else does, as `viewtail dead-letters redrive` would: under a
watermark, and past the same guard. Nothing is kept of it but the dead letter itself.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from offsets import dead_letters
from offsets.views import State
from projectors.catalog import Catalog
from projectors.pipeline_run import PipelineRun
from projectors.proving.view_access import ViewAccess
from viewtail.changes.errors import MisuseError, StopRequested, ViewtailError
from viewtail.changes.rendering import parse_key
from viewtail.changes.writes import Key

_log = structlog.get_logger("viewtail.pipeline")

LOOK_EVERY_S = 2.0
KEYS_AT_ONCE = 2_000  # of each view; of more that wait, the next ones are looked at the next time
PASSED_WITHIN_S = 10.0  # a watermark; later, it is tried again


@dataclass(eq=False, kw_only=True)
class HeldKeys:
    """Those of one ownership. `run` returns when that ends, or at once where no view has a key of one source alone."""

    catalog: Catalog
    own: PipelineRun
    _after: dict[str, bytes] = field(default_factory=dict)  # of each view, up to which hash of a key it was looked

    def run(self) -> None:
        views = [view.id for view in self.own.life.views.values() if view.is_unique_over_sources]
        while views and not self.own.stop.wait(LOOK_EVERY_S):
            for view in views:
                try:
                    self._look(view)
                except StopRequested:
                    return
                except ViewtailError as error:
                    _log.info("keys that another source had wait", view=view, error=str(error))

    def _look(self, view: str) -> None:
        """Try those of the next keys that wait which no other source has, or of which the row is gone."""
        if not self.own.pipeline.dead_letters.keys_of(view) or not self.own.life.gets_changes(view):
            return
        bound = self.own.life.views[view]  # its table may have changed since the last look
        with ViewAccess(self.catalog, bound, self.own.stop, passed_within_s=PASSED_WITHIN_S) as beside:
            is_filled = all(kept.state == State.FILLED for _, kept in beside.keepers())
            if is_filled and (free := self._due(beside)):
                beside.reprojection.of_keys(free, beside.now())
                _log.info("keys were tried again that another source had", view=view, count=len(free))

    def _due(self, beside: ViewAccess) -> list[Key]:
        view, keys = beside.view, list[Key]()
        for _, kept in beside.keepers():
            after = self._after.get(view.id, b"")
            page = dead_letters.waiting(beside.session, self.catalog.database, kept.id, after, KEYS_AT_ONCE)
            self._after[view.id] = page[-1][0] if len(page) == KEYS_AT_ONCE else b""
            for _, name in page:
                with suppress(MisuseError):  # a key that nobody could read
                    keys.append(parse_key(name, view.key))
        if not keys:
            return keys
        owners = beside.reader.owners(keys)
        gone = beside.rows_now.absent(view.key, keys, 1)  # a TRUNCATE tells no key that the view does not show
        return [key for key in keys if key in gone or owners.get(key, view.source[0]) == view.source[0]]
