"""Chooses the views that a `viewtail run` keeps: all, the topics that it publishes, or those projected from topics."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from projectors.stores.registry import store_of
from projectors.views import View
from viewtail.changes.errors import MisuseError
from viewtail.settings import Settings


class Role(StrEnum):
    """The part of a deployment that a `run` does; `all` where one machine is enough."""

    ALL = "all"
    TAIL = "tail"
    PROJECT = "project"


def views_of(role: Role, settings: Settings, views: Sequence[View]) -> list[View]:
    """Return those that a `run` in this role keeps. Raises MisuseError where there is none."""
    is_shared = settings.source_kind.is_shared_out
    if role is Role.TAIL and is_shared:
        raise MisuseError(
            "--role tail reads a binlog and publishes it: set VIEWTAIL_SOURCE__URL=mysql://USER:PASSWORD@HOST:3306. "
            "For views of what is published: viewtail run --role project"
        )
    if role is Role.ALL and not is_shared:
        return list(views)
    publishes = role is Role.TAIL
    kept = [view for view in views if store_of(view).keeps_every_change is publishes]
    if not kept:
        what = "topic (Topic)" if publishes else "view of another store than Kafka"
        raise MisuseError(f"--role {role}: there is nothing to do: views.py declares no {what}")
    return kept
