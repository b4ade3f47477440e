"""Decides which replay the arguments of `viewtail replay` ask for, and refuses those that do not go together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from math import ceil

import typer

from viewtail.changes.errors import MisuseError
from viewtail.commands import replay
from viewtail.commands.binlog_range import moment_of, replay_since
from viewtail.commands.replay_keys import How, Selected, replay_keys
from viewtail.settings import Settings

Work = Callable[[Settings], int]  # of one deployment; returns the exit code


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The arguments of `viewtail replay`, as given on the command line."""

    views: Sequence[str]
    all_views: bool
    selected: Selected
    into: str | None
    is_new_history: bool
    is_take_over: bool
    how: How
    is_awaited: bool

    @property
    def is_of_one(self) -> bool:
        """Return True if exactly one view is named."""
        return len(self.views) == 1 and not self.all_views


def work_of(asked: Asked) -> Work:
    """Return what each deployment is to do. Raises MisuseError, BadParameter for what does not go together."""
    if asked.into is not None:
        return _since(asked, asked.into)
    asked.selected.check()
    if asked.is_new_history:
        return _new_history(asked)
    if asked.is_take_over:
        return _take_over(asked)
    if asked.selected.is_some:
        return _entities(asked)
    return _whole(asked)


def _since(asked: Asked, into: str) -> Work:
    if asked.selected.since is None or asked.is_new_history or not asked.is_of_one:
        raise typer.BadParameter("write: viewtail replay VIEW --since TIME --into TOPIC", param_hint="--into")
    moment = moment_of(asked.selected.since, datetime.now(UTC))
    return partial(replay_since, name=asked.views[0], moment=moment, topic=into)


def _new_history(asked: Asked) -> Work:
    if asked.views or asked.all_views or asked.selected.is_some:
        raise typer.BadParameter("it is for every view; leave VIEW and --all out", param_hint="--new-history")
    return replay.replay_new_history


def _take_over(asked: Asked) -> Work:
    if not asked.views or asked.all_views or asked.selected.is_some or asked.how.is_dry_run:
        raise typer.BadParameter("name the views, and no entities: viewtail replay VIEW", param_hint="--take-over")
    return partial(replay.take_over, names=asked.views, is_yes=asked.how.is_yes, is_awaited=asked.is_awaited)


def _entities(asked: Asked) -> Work:
    if not asked.is_of_one:
        raise typer.BadParameter("some entities are those of one view: name it", param_hint="VIEW")
    return partial(replay_keys, name=asked.views[0], selected=asked.selected, how=asked.how)


def _whole(asked: Asked) -> Work:
    if asked.views and asked.all_views:
        raise MisuseError("name the views to replay, or say --all, which is all of them: not both")
    if not asked.views and not asked.all_views:
        raise MisuseError("name the views to replay (`viewtail replay VIEW ...`), or say --all, which is all of them")
    if asked.how.is_dry_run:
        return partial(replay.would_replay, names=asked.views, all_views=asked.all_views)
    return partial(
        replay.replay,
        names=asked.views,
        all_views=asked.all_views,
        is_yes=asked.how.is_yes,
        rows_a_second=ceil(asked.how.rows_a_second),  # 0.5 is not 0, which is no limit
        is_awaited=asked.is_awaited,
    )
