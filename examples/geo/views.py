"""Four views of two real tables: the world's cities and countries, as tables.py loads them (schema `geo`)."""

from collections.abc import Mapping
from typing import Any

from viewtail import Entity, IndexTable, RedisHash, RedisJson

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


views = [
    IndexTable("city_by_country", city, value="country"),
    IndexTable("city_by_timezone", city, value=["timezone", "population"]),
    RedisHash("city", city, fields=["name", "country", "population", "timezone"]),
    RedisJson("country", country, document=country_card),
]
