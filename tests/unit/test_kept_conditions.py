"""What is told and kept of a condition that an operator wrote: of people's data no value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest

from projectors.binding import bind
from projectors.stores.index_tables.views import IndexTable
from projectors.views import BoundView, Entity
from viewtail.changes.errors import MisuseError, SourceError, TableGoneError, TookTooLongError
from viewtail.changes.masks import Masks
from viewtail.changes.tables import Column, Kind, Table
from viewtail.operations.kept_conditions import kept_condition, without_values
from viewtail.operations.replay_keys import Where

SECRET = b"no one will ever guess this"
TABLE = Table(
    schema="shop",
    name="user",
    columns=(
        Column(name="id", declared="int", kind=Kind.INTEGER, is_nullable=False),
        Column(name="email", declared="varchar(100)", kind=Kind.TEXT, is_nullable=False, tags=("PPI",)),
        Column(name="plan", declared="varchar(20)", kind=Kind.TEXT, is_nullable=False),
    ),
    primary_key=("id",),
)


def bound(tags: frozenset[str] = frozenset({"PPI"}), **more: Any) -> BoundView:
    (view,) = bind([IndexTable("v", Entity("shop.user"), value="plan", **more)], lambda *_: TABLE, Masks(tags, SECRET))
    return view


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("email = 'ada@x'", "email = ?"),
        ("email='it''s' AND plan<>\"a\"\"b\"", "email=? AND plan<>?"),
        ("`it's` = 'ada' OR `a``b`=5", "`it's` = ? OR `a``b`=?"),
        ("id IN (1,-2.5e3,.5,0xADA,0b11) AND x1 = X'ada' AND n = N'ada'", "id IN (?,-?,?,?,?) AND x1 = X? AND n = N?"),
        ("email = _utf8mb4'ada' /* ada's */ AND id=5 -- 'ada", "email = _utf8mb4? ? AND id=? ?"),
        ("id = 5--3 # ada\nOR plan IS NULL", "id = ?--? ?\nOR plan IS NULL"),
        ("email = 'ada", "email = ?"),
        ("id > 5 /* ada", "id > ? ?"),
        (r"plan = 'a\' OR email = 'ada", "?"),  # with NO_BACKSLASH_ESCAPES the text ends before OR
        ("e.email LIKE 'ada%'", "e.email LIKE ?"),
        ("born = DATE'1907-03-04' OR born > 1907-03-04", "born = DATE? OR born > ?-?-?"),
    ],
)
def test_no_value_stays_of_a_condition(condition: str, kept: str) -> None:
    assert without_values(condition) == kept


def test_a_condition_over_peoples_data_is_kept_without_values_and_told_from_others() -> None:
    condition = "email = 'ada@x'"
    kept = kept_condition(condition, bound(), SECRET)
    assert kept.startswith("email = ? (") and kept == kept_condition(condition, bound(), SECRET)
    others = [kept_condition(condition, bound(), b"another"), kept_condition("email = 'ben@x'", bound(), SECRET)]
    assert len({kept, *others}) == 3
    assert kept_condition(condition, bound(), b"") != kept_condition(condition, bound(), b""), "it could be guessed"
    assert kept_condition(condition, bound(unmasked=["email"]), SECRET) == kept
    assert kept_condition(condition, bound(frozenset()), SECRET) == condition
    assert Where(condition, 1, kept=kept).what == f"where {kept}" and Where(condition, 1).what == f"where {condition}"


class Rows:
    """A reader of rows that meets an error."""

    def __init__(self, error: Exception, cause: Exception | None = None) -> None:
        self._error, self._cause = error, cause

    def after(self, place: Any, version: int) -> None:
        try:
            if self._cause is not None:
                raise self._cause
        except pymysql.err.MySQLError:
            raise self._error from None
        raise self._error


class Beside:
    def __init__(self, rows: Rows) -> None:
        self.view, self._rows, self.reprojection = bound(), rows, self

    def of_pieces(self, read: Callable[[Any], Any], place: Any, version: int, pieces: int) -> None:
        read(place)

    def rows_where(self, condition: str, names: Any, rows: int) -> Rows:
        return self._rows


def said(rows: Rows, kept: str) -> Iterator[str]:
    where = Where("email = 'ada@x'", 1, kept=kept)
    for read in (where.batches, where.written):
        with pytest.raises((MisuseError, SourceError)) as raised:
            list(read(Beside(rows), 1, None))  # type: ignore[arg-type]
        yield str(raised.value)


def test_no_error_has_a_value_of_peoples_data() -> None:
    cause = pymysql.err.OperationalError(1105, "XPATH syntax error: 'ben@x'")
    refused = SourceError("127.0.0.1 refused to read canonical rows: 1105 XPATH syntax error: 'ben@x'")
    for text in said(Rows(refused, cause), "email = ? (0123)"):
        assert "ben@x" not in text and "1105" in text
    for text in said(Rows(TookTooLongError("slow")), "email = ? (0123)"):
        assert "ada@x" not in text and "email = ? (0123)" in text
    for text in said(Rows(TableGoneError("no shop.user")), "email = ? (0123)"):
        assert text == "no shop.user"
    assert {*said(Rows(refused, cause), "")} == {str(refused)}
