"""Every view against its table, row by row, with code of its own: it reads the stores as any program would.

What a view should hold is computed here from `SELECT`; of viewtail nothing is used but the two document functions of
the declarations, which are the user's. Returned is what differs, by view.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pymysql
import redis
from elasticsearch import Elasticsearch, helpers

from examples.geo.views import city_document, country_card, is_town

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


def compare(stores: Stores) -> Iterator[tuple[str, int, list[str]]]:
    """(view, rows compared, differences) for each view."""
    cities = select(stores.mysql, "SELECT * FROM geo.city", "id")
    countries = select(stores.mysql, "SELECT * FROM geo.country", "iso")
    for view, wanted, read in (
        ("mysql:city_by_country", _only(cities, "country"), _index("city_by_country")),
        ("mysql:city_by_timezone", _only(cities, "timezone", "population"), _index("city_by_timezone")),
        ("redis:city", _only(cities, "name", "country", "population", "timezone"), _hashes),
        ("redis:country", {key: country_card(row) for key, row in countries.items()}, _documents),
    ):
        yield view, len(wanted), differences(wanted, read(stores))
    if stores.elasticsearch is not None:
        towns = {key: city_document(row) for key, row in cities.items() if is_town(row)}
        shown = _only(countries, "name", "capital", "continent")
        for index, documents in (("cities", towns), ("countries", shown)):
            wanted = {key: _without_nulls(document) for key, document in documents.items()}
            found = search_documents(stores.elasticsearch, index)
            yield f"elasticsearch:{index}", len(wanted), differences(wanted, found)


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


def _only(rows: Rows, *columns: str) -> Rows:
    return {key: {column: row[column] for column in columns} for key, row in rows.items()}


def _index(table: str) -> Callable[[Stores], Rows]:
    """The entries of an index table; one whose values are NULL is a tombstone, no entry."""

    def read(stores: Stores) -> Rows:
        rows = select(stores.mysql, f"SELECT * FROM {DATABASE}.{table}", "id")
        entries = {
            key: {name: value for name, value in row.items() if name not in ("id", "version")}
            for key, row in rows.items()
        }
        return {key: entry for key, entry in entries.items() if any(value is not None for value in entry.values())}

    return read


def _hashes(stores: Stores) -> Rows:
    found: Rows = {}
    keys = list(stores.redis.scan_iter(match="city:*", count=5000))
    for at in range(0, len(keys), 5000):
        some = keys[at : at + 5000]
        pipe = stores.redis.pipeline(transaction=False)
        for key in some:
            pipe.hgetall(key)
        for key, fields in zip(some, pipe.execute(), strict=True):
            row = {name.decode(): value.decode() for name, value in fields.items()}
            row.pop("_version")
            found[key.decode().removeprefix("city:")] = {**row, "population": int(row["population"])}
    return found


def _documents(stores: Stores) -> Rows:
    found: Rows = {}
    for key in stores.redis.scan_iter(match="country:*", count=1000):
        text = stores.redis.get(key)
        assert isinstance(text, bytes)
        found[key.decode().removeprefix("country:")] = _without_version(json.loads(text))
    return found


def _without_version(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "_version"}


def search_documents(client: Elasticsearch, index: str) -> Rows:
    """All documents of an index, each without its nulls."""
    client.indices.refresh(index=index)
    hits = helpers.scan(client, index=index, query={"query": {"match_all": {}}}, size=5000)
    return {hit["_id"]: _without_nulls(hit["_source"]) for hit in hits}


def _without_nulls(document: Mapping[str, Any]) -> dict[str, Any]:
    """To Elasticsearch null and an absent field are the same (manual, null_value)."""
    return {name: value for name, value in document.items() if value is not None}
