"""What a source answers when a pipeline asks where to go on: given its offset, and the witness of its store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from changes.positions import Position


@dataclass(frozen=True, slots=True)
class GoOn:
    """Read on after this position.

    `kept` is the version up to which the store shows its writes: a backfill that ended above it is lost there. None:
    the witness does not tell.
    """

    position: Position
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """The store lost writes that the offset says are durable: read again after this position. `kept` as in GoOn."""

    position: Position
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class BackfillAgain:
    """The store lost writes that the source no longer has: backfill its views, and read on after this position."""

    position: Position
    reason: str
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """The store holds another server's writes, which this server continues: begin an epoch above that one."""

    above: int


Resuming: TypeAlias = GoOn | ReadAgain | BackfillAgain | BeginEpoch
