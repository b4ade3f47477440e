"""What the examples compare views with their tables by: it reads the stores as any program would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pymysql
import redis
from elasticsearch import Elasticsearch, helpers

Rows = dict[str, dict[str, Any]]  # key as text -> what the view shows
DATABASE = "viewtail"
MISSING = "missing"
_SHOWN = 5


class Stores:
    """Plain clients. `elasticsearch` is None where there is none."""

    def __init__(self, connection: pymysql.Connection[Any], redis_url: str, elasticsearch_url: str | None) -> None:
        self.mysql = connection
        self.redis = redis.Redis.from_url(redis_url)
        self.elasticsearch = Elasticsearch(elasticsearch_url) if elasticsearch_url else None

    def close(self) -> None:
        self.redis.close()
        if self.elasticsearch is not None:
            self.elasticsearch.close()


def differences(wanted: Rows, found: Rows) -> list[str]:
    """The keys that are not the same on both sides, at most a few of each kind spelled out."""
    missing = [f"{key} is in the table and not in the view" for key in wanted.keys() - found.keys()]
    extra = [f"{key} is in the view and not in the table" for key in found.keys() - wanted.keys()]
    other = [
        f"{key} should be {wanted[key]}, is {found[key]}"
        for key in wanted.keys() & found.keys()
        if wanted[key] != found[key]
    ]
    told = [line for kind in (missing, extra, other) for line in sorted(kind)[:_SHOWN]]
    more = len(missing) + len(extra) + len(other) - len(told)
    return [*told, f"and {more} more"] if more else told


def select(connection: pymysql.Connection[Any], statement: str, key: str) -> Rows:
    """The rows of a statement by one column, JSON columns parsed."""
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(statement)
        rows = cursor.fetchall()
    connection.commit()
    for row in rows:
        for column in ("alternate_names", "neighbours"):
            if column in row:
                row[column] = json.loads(row[column])
    return {str(row[key]): row for row in rows}


def search_documents(client: Elasticsearch, index: str) -> Rows:
    """All documents of an index, each without its nulls."""
    client.indices.refresh(index=index)
    hits = helpers.scan(client, index=index, query={"query": {"match_all": {}}}, size=5000)
    return {hit["_id"]: _without_nulls(hit["_source"]) for hit in hits}


def _without_nulls(document: Mapping[str, Any]) -> dict[str, Any]:
    """To Elasticsearch null and an absent field are the same (manual, null_value)."""
    return {name: value for name, value in document.items() if value is not None}
