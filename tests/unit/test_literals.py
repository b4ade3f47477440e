"""SQL text for keys."""

from __future__ import annotations

from viewtail.changes.tables import Column, Kind
from viewtail.servers.literals import one_of, rows_with


def column(kind: Kind, declared: str, charset: str | None = None) -> Column:
    return Column(name="k", kind=kind, declared=declared, is_nullable=False, charset=charset)


def test_keys_are_a_list() -> None:
    number, raw = column(Kind.INTEGER, "bigint unsigned"), column(Kind.BYTES, "binary(2)")
    text = column(Kind.TEXT, "varchar(9)", "utf8mb4")
    for condition in (one_of, rows_with):
        assert condition([number], [(1,), (18446744073709551615,)]) == "`k` IN (1, 18446744073709551615)"
        assert condition([raw], [(b"\x00a",), (b"",)]) == "`k` IN (X'0061', X'')"
        assert condition([text, number], [("a'", 1), ("b", 2)]) == "(`k`, `k`) IN (('a''', 1), ('b', 2))"


def test_keys_of_types_that_a_list_compares_otherwise_are_compared_one_by_one() -> None:
    year, text = column(Kind.INTEGER, "year"), column(Kind.TEXT, "varchar(9)", "utf8mb4")
    for condition in (one_of, rows_with):
        assert condition([year], [(0,), (2024,)]) == "(`k` = 0) OR (`k` = 2024)"
        assert condition([year, text], [(1, "a")]) == "(`k` = 1 AND `k` = 'a')"
