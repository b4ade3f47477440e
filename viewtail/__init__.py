"""viewtail keeps views of MySQL tables: declare them with the classes here, read them with the functions.

views = [IndexTable("user_by_email", Entity("shop.user"), value="email")]
viewtail.find("user_by_email", "ada@example.org")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import viewtail.own_packages  # noqa: F401  before all others of ours: it decides where they come from
from viewtail.late_names import late

if TYPE_CHECKING:
    from projectors.related import Count, Many, Max, Min, One, Sum
    from projectors.stores import SearchPage
    from projectors.stores.elasticsearch.views import SearchIndex
    from projectors.stores.index_tables.views import IndexTable, MySQLTable
    from projectors.stores.redis.views import RedisHash, RedisJson, RedisSet, RedisSortedSet
    from projectors.stores.topics.views import Topic
    from projectors.views import Entity, Group, View
    from viewtail.changes.errors import WaitedTooLongError
    from viewtail.operations.reading import Record, Rows
    from viewtail.settings import Settings

__all__ = [
    "Count",
    "Entity",
    "Group",
    "IndexTable",
    "Many",
    "Max",
    "Min",
    "MySQLTable",
    "One",
    "RedisHash",
    "RedisJson",
    "RedisSet",
    "RedisSortedSet",
    "SearchIndex",
    "Sum",
    "Topic",
    "WaitedTooLongError",
    "find",
    "get",
    "search",
    "wait_for",
]

# Every module of viewtail imports this package before itself, so this one imports none of them.
__getattr__ = late(
    __name__,
    {
        **dict.fromkeys(("Count", "Many", "Max", "Min", "One", "Sum"), "projectors.related"),
        "Entity": "projectors.views",
        "Group": "projectors.views",
        "IndexTable": "projectors.stores.index_tables.views",
        "MySQLTable": "projectors.stores.index_tables.views",
        "RedisHash": "projectors.stores.redis.views",
        "RedisJson": "projectors.stores.redis.views",
        "RedisSet": "projectors.stores.redis.views",
        "RedisSortedSet": "projectors.stores.redis.views",
        "SearchIndex": "projectors.stores.elasticsearch.views",
        "Topic": "projectors.stores.topics.views",
        "WaitedTooLongError": "viewtail.changes.errors",
    },
)


def find(view: str | View, *values: Any, settings: Settings | None = None, limit: int = 100) -> Rows:
    """The canonical rows of the entities with these values, as dicts: of an IndexTable or a RedisSet view in key order.

    The index gives the keys, the rows are fetched from the source and kept when they have the values now.
    `values` are those of the view's first value columns; `settings` are by default the environment's and
    viewtail.toml's. `.has_more` of the result says whether the limit cut it, `.remark` why rows may be missing.
    Raises MisuseError, SourceUnavailableError, StoreUnavailableError, StoreError.
    """
    from viewtail.operations.reading import is_found_in
    from viewtail.reading import open_reader

    return open_reader(view, settings, is_found_in).find(values, limit)


def get(view: str | View, key: Any, *, settings: Settings | None = None) -> Record | None:
    """Return what a view has under an entity's key, with its version; None when it has nothing.

    `key` is the rendered key (text), one value, or a tuple of the key columns' values. Give bytes for a column of
    bytes: a text that may be hexadecimal digits too raises MisuseError, which says how each is written.
    """
    from viewtail.reading import open_reader

    return open_reader(view, settings).get(key)


def search(
    view: str | View,
    query: str,
    *,
    fields: Sequence[str] | None = None,
    page: int = 1,
    size: int = 10,
    settings: Settings | None = None,
) -> SearchPage:
    """One page of the documents of a SearchIndex view that match a simple query string, best first.

    A query has at most 10,000 characters; a longer one raises MisuseError.
    """
    from viewtail.operations.reading import is_searched
    from viewtail.reading import open_reader

    return open_reader(view, settings, is_searched).search(query, fields=fields, page=page, size=size)


def wait_for(
    view: str | View,
    key: Any = None,
    *,
    version: int | None = None,
    position: str | None = None,
    gtid: str | None = None,
    within_s: float = 10.0,
    settings: Settings | None = None,
) -> float:
    """Wait until a view has everything that is committed by now, so that it shows what you wrote; seconds it took.

    Instead it can be a version of one entity (`key`), or a position or GTID of the source. A parked `key` raises, since
    waiting does not help. Raises WaitedTooLongError after `within_s` seconds, ViewtailError, MisuseError.
    """
    from viewtail.waiting import wait_for as wait

    return wait(view, key, version=version, position=position, gtid=gtid, within_s=within_s, settings=settings)
