"""The list of stores. A new store is a folder beside this file and one line in STORES."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields

from projectors.stores import Store
from projectors.stores.elasticsearch.store import ElasticsearchStore
from projectors.stores.index_tables.store import IndexTablesStore
from projectors.stores.redis.store import RedisStore
from projectors.stores.topics.store import TopicsStore
from projectors.views import Entity, View

# The order is that of pipelines in reports, of settings, and of the server ids of the pipelines' readers.
STORES: tuple[Store, ...] = (IndexTablesStore(), RedisStore(), ElasticsearchStore(), TopicsStore())


def store_named(name: str) -> Store:
    """The store of that name."""
    return next(store for store in STORES if store.name == name)


def store_of(view: View) -> Store:
    """The store that a view is in."""
    return store_named(view.store)


def needed(views: Iterable[View]) -> list[Store]:
    """The stores of these views, in the registry's order."""
    names = {view.store for view in views}
    return [store for store in STORES if store.name in names]


def with_topics(views: Sequence[View]) -> list[View]:
    """The same views: those whose rows are made of several know the topic of the same entity among them."""
    topics = [view for view in views if store_of(view).keeps_every_change]
    whole = sorted((topic for topic in topics if topic.where is None), key=lambda topic: bool(topic.shown))
    return [
        view.kept_from(next((topic for topic in whole if _is_same(topic.entity, view.entity)), None))
        if view.entity.is_derived and view not in topics
        else view
        for view in views
    ]


def _is_same(entity: Entity, other: Entity) -> bool:
    """Whether their rows are the same: how often they are written is no part of them."""
    return type(entity) is type(other) and all(
        getattr(entity, field.name) == getattr(other, field.name)
        for field in fields(entity)
        if field.name != "at_most_every"
    )
