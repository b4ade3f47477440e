"""Every view against its table, row by row, with code of its own: it reads the stores as any program would.

What a view should hold is computed here from `SELECT`; of viewtail nothing is used but the document function of the
declarations, which is the user's. Returned is what differs, by view.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from examples.comparing import DATABASE, Rows, Stores, differences, select
from examples.geo.views import country_card


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
