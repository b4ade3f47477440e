"""Which views show at once what a worker has committed: those of its table with `push=True`, in the settings' views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from viewtail.changes.errors import ViewtailError
from viewtail.changes.tables import matches
from viewtail.entities.event_table import KEY, VERSION, EventTable

if TYPE_CHECKING:
    from projectors.views import View
    from viewtail.settings import Settings

_log = structlog.get_logger("viewtail.push")


class Pushing(Protocol):
    """To the views of one store."""

    def announce(self, newest: Mapping[str, int]) -> None:
        """By entity the newest version that is about to be committed. Never waits and never raises."""

    def hand(self, newest: Mapping[str, int]) -> None:
        """The same once it was committed."""

    def close(self) -> None:
        """Push what waits."""


class Pushes:
    """Of one worker."""

    def __init__(self, pushing: Sequence[Pushing] = ()) -> None:
        self._pushing = pushing

    def announce(self, newest: Mapping[str, int]) -> None:
        """By entity the newest version that is about to be committed."""
        for one in self._pushing:
            one.announce(newest)

    def hand(self, newest: Mapping[str, int]) -> None:
        """The same once it was committed."""
        for one in self._pushing:
            one.hand(newest)

    def close(self) -> None:
        for one in self._pushing:
            one.close()


def pushes_of(table: EventTable, settings: Settings) -> Pushes:
    """To the views of a table that ask for it; to none where the views cannot be loaded, which is told in the log.

    A program that names no views, where none are, has none.
    """
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
        [Pusher(store, committed, [one for one in views if one.store == store], deploy_now) for store in stores]
    )


def _views_of(table: EventTable, settings: Settings) -> list[View]:
    from viewtail import declarations

    return [view for view in declarations.load(settings.views) if view.push and matches(view.entity.table, table.name)]
