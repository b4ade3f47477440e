"""Six views of two real tables: the world's cities and countries, as the demo loads them (schema `geo`).

Keep them up to date with: VIEWTAIL_VIEWS=examples.geo.views:views viewtail run
"""

from collections.abc import Mapping
from typing import Any

from viewtail import Entity, IndexTable, RedisHash, RedisJson, SearchIndex

city = Entity("geo.city")
country = Entity("geo.country")


def country_card(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a page about a country shows, nested as the page wants it."""
    return {
        "name": row["name"],
        "capital": row["capital"],
        "people": {"count": row["population"], "per_km2": density(row)},
        "money": {"code": row["currency_code"], "name": row["currency_name"]},
        "languages": row["languages"].split(",") if row["languages"] else [],
        "neighbours": row["neighbours"],
    }


def density(row: Mapping[str, Any]) -> float | None:
    return round(row["population"] / row["area_km2"], 2) if row["area_km2"] else None


def city_document(row: Mapping[str, Any]) -> dict[str, Any]:
    """A city as one looks for it: by any of its names, in any script."""
    return {
        "name": row["name"],
        "names": row["alternate_names"],
        "country": row["country"],
        "population": row["population"],
        "location": {"lat": row["latitude"], "lon": row["longitude"]},
    }


def is_town(row: Mapping[str, Any]) -> bool:
    return bool(row["population"] >= 5000)


tables_and_keys = [
    IndexTable("city_by_country", city, value="country"),
    IndexTable("city_by_timezone", city, value=["timezone", "population"]),
    RedisHash("city", city, fields=["name", "country", "population", "timezone"]),
    RedisJson("country", country, document=country_card),
]

searches = [
    SearchIndex(
        "cities",
        city,
        document=city_document,
        where=is_town,
        fields={
            "name": "text",
            "names": "text",
            "country": "keyword",
            "population": "long",
            "location": "geo_point",
        },
    ),
    SearchIndex("countries", country, fields={"name": "text", "capital": "text", "continent": "keyword"}),
]

views = [*tables_and_keys, *searches]
