"""Times of a table that another tool made, whose columns have more or fewer digits of a second than declared."""

from __future__ import annotations

import pytest

from projectors.stores.index_tables.adopting import surviving
from projectors.stores.index_tables.auditing import with_digits
from projectors.stores.index_tables.table import Shape


def shape(type_: str) -> Shape:
    return Shape(type_, None, is_nullable=True)


@pytest.mark.parametrize(
    ("before", "after", "condition"),
    [
        ("datetime(6)", "datetime(3)", "c = CAST(c AS DATETIME(3))"),
        ("timestamp(6)", "timestamp", "c = CAST(c AS DATETIME(0))"),
        ("time(3)", "time", "c = CAST(c AS TIME(0))"),
        ("datetime", "datetime(6)", ""),
        ("datetime(6)", "timestamp(6)", None),
        ("datetime(6)", "date", None),
    ],
)
def test_digits_of_a_second_survive_where_none_is_cut(before: str, after: str, condition: str | None) -> None:
    assert surviving("c", shape(before), shape(after)) == condition


@pytest.mark.parametrize(
    ("time", "digits", "compared"),
    [
        ("2024-05-06 07:08:09.123000", 3, "2024-05-06 07:08:09.123"),
        ("2024-05-06 07:08:09.123456", 3, "2024-05-06 07:08:09.123456"),
        ("2024-05-06 07:08:09.000000", 0, "2024-05-06 07:08:09"),
        ("2024-05-06 07:08:09", 6, "2024-05-06 07:08:09.000000"),
        (None, 3, None),
    ],
)
def test_a_time_is_compared_with_the_declared_digits_unless_some_would_be_lost(
    time: str | None, digits: int, compared: str | None
) -> None:
    assert with_digits(time, digits) == compared
