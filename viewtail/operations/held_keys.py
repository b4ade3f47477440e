"""Tries keys again that are parked because another source has them, once that one's row, or their own, is gone.

The other source's pipeline knows nothing of this one's row. So the pipeline that parked a key asks its store now and
then who has it, and projects the row again when nobody else does, as `viewtail dead-letters redrive` would: under a
watermark, and past the same guard. Nothing is kept of it but the dead letter itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

import structlog

from offsets.mysql import Session
from offsets.views import State
from projectors.catalog import Catalog
from projectors.pipeline_run import PipelineRun
from projectors.proving.view_access import ViewAccess
from viewtail.changes.errors import MisuseError, StopRequested, ViewtailError
from viewtail.changes.rendering import parse_key
from viewtail.changes.writes import Key

_log = structlog.get_logger("viewtail.pipeline")

LOOK_EVERY_S = 2.0
KEYS_AT_ONCE = 2_000  # a page, of each view; of more that wait, the next ones are looked at sooner than that
_REST = 4.0  # times as long as a page took in which no key could go in, so that they cost their servers little
PASSED_WITHIN_S = 10.0  # a watermark; later, it is tried again


@dataclass(eq=False, kw_only=True)
class HeldKeys:
    """Those of one ownership. `run` returns when that ends, or at once where no view has a key of one source alone."""

    catalog: Catalog
    own: PipelineRun
    _after: dict[str, bytes] = field(default_factory=dict)  # of each view, up to which hash of a key it was looked

    def run(self) -> None:
        views = [view.id for view in self.own.life.views.values() if view.is_unique_over_sources]
        with closing(self.catalog.session()) as session:
            wait_s = LOOK_EVERY_S
            while views and not self.own.stop.wait(wait_s):
                try:
                    wait_s = min([self._next_page(view, session) for view in views])
                except StopRequested:
                    return

    def _next_page(self, view: str, session: Session) -> float:
        """Try those of the next keys that can go in; returns for how long to wait before the page behind, seconds."""
        began, is_tried = time.monotonic(), False
        try:
            is_tried = self._look(view, session)
        except StopRequested:
            raise
        except ViewtailError as error:
            _log.info("keys that another source had wait", view=view, error=str(error))
            return LOOK_EVERY_S
        if not self._after.get(view):  # it was the last one
            return LOOK_EVERY_S
        return 0.0 if is_tried else min(LOOK_EVERY_S, _REST * (time.monotonic() - began))

    def _look(self, view: str, session: Session) -> bool:
        """Try those of the next keys that wait which no other source has, or of which the row is gone.

        Return whether there were any.
        """
        letters = self.own.pipeline.dead_letters
        if not letters.keys_of(view) or not self.own.life.gets_changes(view):
            return False
        page = letters.on(session).waiting(view, self._after.get(view, b""), KEYS_AT_ONCE)
        self._after[view] = page[-1][0] if len(page) == KEYS_AT_ONCE else b""
        if not page:
            return False
        bound = self.own.life.views[view]  # its table may have changed since the last look
        with ViewAccess(self.catalog, bound, self.own.stop, passed_within_s=PASSED_WITHIN_S) as beside:
            if not all(kept.state == State.FILLED for _, kept in beside.keepers()):
                return False
            if free := self._due(beside, [name for _, name in page]):
                beside.reprojection.of_keys(free, beside.now())
                beside.note_ended()
                _log.info("keys were tried again that another source had", view=view, count=len(free))
            return bool(free)

    def _due(self, beside: ViewAccess, names: Sequence[str]) -> list[Key]:
        view, keys = beside.view, list[Key]()
        for name in names:
            with suppress(MisuseError):  # a key that nobody could read
                keys.append(parse_key(name, view.key))
        if not keys:
            return keys
        owners = beside.reader.owners(keys)
        gone = beside.rows_now.absent(view.key, keys, 1)  # a TRUNCATE tells no key that the view does not show
        return [key for key in keys if key in gone or owners.get(key, view.source[0]) == view.source[0]]
