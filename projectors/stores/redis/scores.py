"""Scores of a sorted set: numbers, and times as seconds since 1970 in UTC. A score is a double, as Redis keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from projectors.stores import Unfit
from projectors.stores.redis.views import RedisSortedSet
from projectors.views import BoundView
from viewtail.changes.tables import Column, Kind

_BEGIN = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


def score_problems(view: BoundView) -> Iterator[str]:
    """Yield why a sorted set's score column cannot hold scores."""
    if not isinstance(view.view, RedisSortedSet):
        return
    (column,) = (candidate for candidate in view.values if candidate.name == view.view.score)
    if score_text(column) is None:
        yield (
            f"RedisSortedSet({view.view.name!r}): score column {column.name} is {column.type_name}; it must be a "
            "number, a DATE, a DATETIME or a TIMESTAMP"
        )


def score_text(column: Column) -> Callable[[Any], str] | None:
    """The function that converts a value to the text of its score, and raises Unfit; None if it cannot be a score."""
    by_kind: dict[Kind, Callable[[Any], str]] = {
        Kind.INTEGER: _integer,
        Kind.DECIMAL: lambda value: repr(float(value)),
        Kind.FLOAT: repr,
        Kind.DOUBLE: repr,
        Kind.DATE: _moment,
        Kind.DATETIME: _moment,
        Kind.TIMESTAMP: _moment,
    }
    return by_kind.get(column.kind)


def _integer(value: int) -> str:
    if int(float(value)) != value:
        raise Unfit("its score is a whole number beyond 2^53 that no double holds exactly")
    return str(value)


def _moment(text: str) -> str:
    try:
        micros = (datetime.fromisoformat(text) - _BEGIN) // _MICROSECOND
    except ValueError:
        raise Unfit("its score is a date that does not exist") from None
    seconds, rest = divmod(micros, 1_000_000)
    return repr(micros / 1_000_000) if rest else str(seconds)
