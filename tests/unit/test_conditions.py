"""Conditions in declarations: what is read, how it is written anew, and what is refused with what may be written."""

from __future__ import annotations

import pytest

from projectors.derived.conditions import condition_of
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind, Table


def column(name: str, kind: Kind, declared: str, charset: str | None = None, labels: tuple[str, ...] = ()) -> Column:
    return Column(name=name, kind=kind, declared=declared, is_nullable=True, charset=charset, labels=labels)


ORDERS = Table(
    schema="shop",
    name="order",
    columns=(
        column("id", Kind.INTEGER, "bigint"),
        column("status", Kind.TEXT, "varchar(20)", "utf8mb4"),
        column("amount", Kind.DECIMAL, "decimal(12,2)"),
        column("weight", Kind.DOUBLE, "double"),
        column("state", Kind.ENUM, "enum('paid','open')", "utf8mb4", ("paid", "open")),
        column("old", Kind.TEXT, "varchar(20)", "latin1"),
        column("token", Kind.BYTES, "varbinary(16)"),
        column("at", Kind.TIMESTAMP, "timestamp"),
        column("day", Kind.DATE, "date"),
        column("doc", Kind.JSON, "json"),
        column("where", Kind.UNSUPPORTED, "point"),
    ),
    primary_key=("id",),
)


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("status = 'paid' AND amount > 0", "(`status` = 'paid' AND `amount` > 0)"),
        ('status="it\'s" || id<>-1', "(`status` = 'it''s' OR `id` <> -1)"),
        ("0 < amount", "`amount` > 0"),
        ("NOT id = 1 OR id = 2 AND id = 3", "((NOT `id` = 1) OR (`id` = 2 AND `id` = 3))"),
        ("id IN (1, 2) AND status NOT IN ('a')", "(`id` IN (1, 2) AND (NOT `status` IN ('a')))"),
        ("at IS NULL OR amount IS NOT NULL", "(`at` IS NULL OR (NOT `amount` IS NULL))"),
        ("amount BETWEEN .5 AND 2", "`amount` BETWEEN 0.5 AND 2"),
        ("status <=> 'a' AND (id >= 1)", "(`status` <=> 'a' AND `id` >= 1)"),
        (r"status = 'a\\b\n'", "`status` = 'a\\\\b\n'"),
        ("token = 'a' OR token = 0xfff", "(`token` = X'61' OR `token` = X'0fff')"),
        ("at >= '2024-02-29 10:00' AND day = '0000-00-00'", "(`at` >= '2024-02-29 10:00' AND `day` = '0000-00-00')"),
        ("weight < 1e-3", "`weight` < 0.001e0"),
        ("state = 'paid' AND id = TRUE", "(`state` = 'paid' AND `id` = 1)"),
        ("doc IS NULL", "`doc` IS NULL"),
    ],
)
def test_a_condition_is_written_anew_with_quoted_names_and_literals(text: str, sql: str) -> None:
    assert condition_of(text, ORDERS).sql == sql


def test_a_condition_knows_its_columns_in_the_order_of_the_table() -> None:
    condition = condition_of("amount > 0 AND (status = 'a' OR status = 'b' OR NOT id IS NULL)", ORDERS)
    assert [column.name for column in condition.columns] == ["id", "status", "amount"]


def test_a_condition_of_very_many_parts_is_read() -> None:
    assert condition_of(" OR ".join(f"id = {number}" for number in range(3_000)), ORDERS).sql.count("OR") == 2_999


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no single condition"),
        ("id = 1; DROP TABLE x", "no single condition"),
        ("id =", "cannot be read"),
        ("key = 1", "near 'key'.*in backticks"),
        ("id = 1 -- only the first", "has a comment"),
        ("id = 1 /*! OR 1 = 1 */", "has a comment"),
        ("LENGTH(status) = 1", r"LENGTH\(status\) = 1 is not read; a condition compares columns with constants"),
        ("at > NOW()", r"at > NOW\(\) is not read"),
        ("day = CURRENT_DATE", "is not read"),
        ("id = amount", "id = amount is not read"),
        ("id = 1 + 1", "is not read"),
        ("id IN (SELECT 1)", "is not read"),
        ("EXISTS (SELECT 1)", "is not read"),
        ("status LIKE 'a%'", "is not read"),
        ("id", "id is not read"),
        ("1 = 1", "is not read"),
        ("1 < id < 3", "is not read"),
        ("NOT (id = 1) = 2", "is not read"),
        ("id IS TRUE", "is not read"),
        ("id = ?", "is not read"),
        ("id = @x", "is not read"),
        ("id = - -1", "is not read"),
        ("weight = 1e999", "is not read"),
        ("status COLLATE utf8mb4_bin = 'a'", "is not read"),
        ("status = 'a' 'b'", "is not read"),
        ("status = _latin1'a'", "is not read"),
        ("id = 1 XOR id = 2", "is not read"),
        ("(id, amount) = (1, 2)", "is not read"),
        ("id = NULL", "write IS NULL"),
        ("id IN (1, NULL)", "write IS NULL"),
        ("shop.id = 1", "names its table; write id"),
        ("statsu = 'a'", "shop.order has no column statsu; did you mean status"),
        ("STATUS = 'a'", "no column STATUS; did you mean status"),
        ("`where` IS NULL", "column where is POINT, which viewtail cannot read"),
        ("id = '1'", "column id is BIGINT, and is compared with numbers, without quotes"),
        ("amount IN (1, '2')", "column amount is DECIMAL"),
        ("amount > 1e3", "exact numbers, without an exponent"),
        (f"amount > {'9' * 66}", "more than 65 digits"),
        ("status = 1", r"column status is VARCHAR\(20\), and is compared with texts, in quotes"),
        ("state = 1", "compared with texts"),
        ("state = 'payed'", "never has the value 'payed'; did you mean paid"),
        ("old = '世'", "in the character set latin1, which cannot hold '世'"),
        ("token = 1", r"compared with a text or X'\.\.\.'"),
        ("at > '2024-13-01'", "compared with 'YYYY-MM-DD HH:MM:SS', in UTC"),
        ("at > 20240101", "compared with 'YYYY-MM-DD HH:MM:SS'"),
        ("day = '2023-02-29'", "compared with 'YYYY-MM-DD'"),
        ("day = '2024-02-29 10:00:00'", "compared with 'YYYY-MM-DD'"),
        ("doc = '{}'", "can only be said whether it IS NULL"),
    ],
)
def test_what_is_no_plain_comparison_is_refused_with_what_was_seen_and_what_may_be_written(text: str, why: str) -> None:
    with pytest.raises(DeclarationError, match=why) as refused:
        condition_of(text, ORDERS)
    assert str(refused.value).startswith(f"where={text!r} of shop.order: ")
