"""Rules for topics: what cannot work in Kafka."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from projectors.stores.topics.views import AT_LEAST_ONCE, Topic
from projectors.views import BoundView
from viewtail.changes.published import POSITIONS, REPLAYS

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def problems(view: BoundView) -> Iterator[str]:
    """Yield why Kafka cannot hold the view."""
    name = view.view.name
    if not _NAME.fullmatch(name) or name in (".", ".."):
        yield f"{name!r} is no name of a topic: it has 1 to 249 letters, digits, '.', '_' and '-' of ASCII"
    if view.view.entity.append_only:
        yield (
            f"rows of {view.table.full_name} share a key, and may come in another order than their versions, so that "
            "readers would take an older one for the newest; key the topic by the primary key, without append_only"
        )
    if view.derived is not None and topic_of(view).delivery == AT_LEAST_ONCE:
        yield (
            "its rows are made of several tables or rows, and are published exactly once only, since some of them are "
            "published page by page, beside the position; leave out delivery='at_least_once'"
        )
    if name in (POSITIONS, REPLAYS) or name.startswith("__"):
        yield f"the topic {name} is not for views: viewtail or Kafka uses it; give the view another name"


def problems_between(views: Sequence[BoundView]) -> Iterable[tuple[BoundView, str]]:
    """Yield topics whose names differ only in '.' and '_': Kafka refuses them, because its metrics mix them up."""
    seen: dict[str, BoundView] = {}
    for view in views:
        other = seen.setdefault(view.view.name.replace(".", "_"), view)
        if other is not view:
            yield view, f"its topic's name differs from that of {other.id} in '.' and '_' alone, which Kafka refuses"


def transactional_id(database: str, pipeline: str) -> str:
    """The transactional id of a pipeline of the deployment whose own tables are in `database`."""
    return f"viewtail.{database}.{pipeline}"


def topic_of(view: BoundView) -> Topic:
    """The view's declaration as a Topic."""
    assert isinstance(view.view, Topic)
    return view.view
