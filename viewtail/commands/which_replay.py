"""Which replay is meant by what stands behind `viewtail replay`, and whether that goes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import typer

from viewtail.commands import replay
from viewtail.commands.replay_keys import How, Selected, replay_keys
from viewtail.commands.stretch import replay_since


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """As given on the command line."""

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
        """Whether one view is named, and nothing else."""
        return len(self.views) == 1 and not self.all_views


def run(config: Path | None, asked: Asked) -> int:
    """Do it; returns the exit code. Raises BadParameter for what does not go together."""
    if asked.into is not None:
        return _since(config, asked, asked.into)
    asked.selected.check()
    if asked.is_new_history:
        return _new_history(config, asked)
    if asked.is_take_over:
        return _take_over(config, asked)
    if asked.selected.is_some:
        return _entities(config, asked)
    return _whole(config, asked)


def _since(config: Path | None, asked: Asked, into: str) -> int:
    if asked.selected.since is None or asked.is_new_history or not asked.is_of_one:
        raise typer.BadParameter("write: viewtail replay VIEW --since TIME --into TOPIC", param_hint="--into")
    return replay_since(config, asked.views[0], asked.selected.since, into)


def _new_history(config: Path | None, asked: Asked) -> int:
    if asked.views or asked.all_views or asked.selected.is_some:
        raise typer.BadParameter("it is for every view; leave VIEW and --all out", param_hint="--new-history")
    return replay.replay_new_history(config)


def _take_over(config: Path | None, asked: Asked) -> int:
    if not asked.views or asked.all_views or asked.selected.is_some or asked.how.is_dry_run:
        raise typer.BadParameter("name the views, and no entities: viewtail replay VIEW", param_hint="--take-over")
    return replay.take_over(config, asked.views, is_yes=asked.how.is_yes, is_awaited=asked.is_awaited)


def _entities(config: Path | None, asked: Asked) -> int:
    if not asked.is_of_one:
        raise typer.BadParameter("some entities are those of one view: name it", param_hint="VIEW")
    return replay_keys(config, asked.views[0], asked.selected, asked.how)


def _whole(config: Path | None, asked: Asked) -> int:
    if asked.how.is_dry_run:
        return replay.would_replay(config, asked.views, all_views=asked.all_views)
    return replay.replay(
        config,
        asked.views,
        all_views=asked.all_views,
        is_yes=asked.how.is_yes,
        rows_a_second=ceil(asked.how.rows_a_second),  # 0.5 is not 0, which is no limit
        is_awaited=asked.is_awaited,
    )
