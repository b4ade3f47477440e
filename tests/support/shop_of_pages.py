"""The shop that the pages for readers are about: customers, their orders, and the lines of these."""

from __future__ import annotations

from collections.abc import Iterable

CUSTOMERS, ADA = 300, 7  # the first has the numbers 1 to 300; customer 7 is the one that pages ask about

TABLES = """
CREATE DATABASE shop;
CREATE TABLE shop.customer (
  id INT PRIMARY KEY, name VARCHAR(50) NOT NULL, email VARCHAR(100), city VARCHAR(50) NOT NULL
);
CREATE TABLE shop.order (
  id INT PRIMARY KEY, customer_id INT NOT NULL, status VARCHAR(10) NOT NULL, ordered_at DATETIME NOT NULL,
  INDEX (customer_id), INDEX (status)
);
CREATE TABLE shop.order_line (
  order_id INT, line_no INT, title VARCHAR(50) NOT NULL, amount DECIMAL(10,2) NOT NULL,
  PRIMARY KEY (order_id, line_no)
)"""


def statements() -> list[str]:
    """That make the tables and fill them; each customer has an order, and those up to 20 have a second one."""
    orders = [*range(1, CUSTOMERS + 1), *range(CUSTOMERS + 1, CUSTOMERS + 21)]
    return [
        *TABLES.split(";"),
        _insert("customer", (_customer(n) for n in range(1, CUSTOMERS + 1))),
        _insert("order", (_order(n) for n in orders)),
        _insert("order_line", (line for n in orders for line in _lines(n))),
    ]


def _customer(number: int) -> str:
    name = "Ada Lovelace" if number == ADA else f"Customer {number}"
    return f"({number}, '{name}', 'c{number}@example.org', '{'London' if number % 2 else 'Lisbon'}')"


def _order(number: int) -> str:
    customer = number if number <= CUSTOMERS else number - CUSTOMERS
    status = "paid" if number % 3 else "open"
    return f"({number}, {customer}, '{status}', '2026-11-01 08:00:00' + INTERVAL {number} MINUTE)"


def _lines(number: int) -> list[str]:
    if number == ADA:
        return [f"({number}, 1, 'Green tea', 4.50)", f"({number}, 2, 'Kettle', 19.90)"]
    return [f"({number}, 1, '{'Mug' if number % 50 == ADA else 'Coffee beans'}', 8.00)"]


def _insert(table: str, rows: Iterable[str]) -> str:
    return f"INSERT INTO shop.{table} VALUES {', '.join(rows)}"
