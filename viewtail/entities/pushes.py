"""The views that show a worker's commits at once: views of its table with `push=True`, in the settings' views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from viewtail.changes.errors import ViewtailError
from viewtail.entities.event_table import KEY, VERSION, EventTable

if TYPE_CHECKING:
    from projectors.views import View
    from viewtail.settings import Settings

_log = structlog.get_logger("viewtail.push")


class Pushing(Protocol):
    """Pushes to the views of one store."""

    def announce(self, newest: Mapping[str, int]) -> None:
        """Announce, by entity, the newest version that is about to be committed. Never waits and never raises."""

    def hand(self, newest: Mapping[str, int]) -> None:
        """Hand over, by entity, the newest version that was committed. Never waits and never raises."""

    def close(self) -> None:
        """Push what waits."""


class Pushes:
    """The pushing of one worker, to all stores."""

    def __init__(self, pushing: Sequence[Pushing] = ()) -> None:
        self._pushing = pushing

    def announce(self, newest: Mapping[str, int]) -> None:
        """Announce, by entity, the newest version that is about to be committed."""
        for pushing in self._pushing:
            pushing.announce(newest)

    def hand(self, newest: Mapping[str, int]) -> None:
        """Hand over, by entity, the newest version that was committed."""
        for pushing in self._pushing:
            pushing.hand(newest)

    def close(self) -> None:
        for pushing in self._pushing:
            pushing.close()


def pushes_of(table: EventTable, settings: Settings) -> Pushes:
    """The pushing to a table's views that ask for it. If the views cannot be loaded, it logs that and pushes to none.

    A program without views, that names none in its settings either, pushes to none."""
    if "views" not in settings.model_fields_set and not (Path("views.py").exists() or Path("views").is_dir()):
        return Pushes()
    try:
        views = _views_of(table, settings)
        settings.check_stores(views)
    except ViewtailError as error:
        _log.warning("nothing is pushed, views get what their pipelines bring", table=table.name, why=str(error))
        return Pushes()
    if not views:
        return Pushes()
    from viewtail.composition import deploy
    from viewtail.entities.pushing import Committed, Pusher

    committed, deploy_now = Committed(table=table.quoted, key=KEY, version=VERSION), partial(deploy, settings)
    stores = dict.fromkeys(view.store for view in views)
    return Pushes(
        [Pusher(store, committed, [bound for bound in views if bound.store == store], deploy_now) for store in stores]
    )


def _views_of(table: EventTable, settings: Settings) -> list[View]:
    from viewtail import declarations

    return [view for view in declarations.load(settings.views) if view.push and view.entity.is_of(table.name)]
