"""Index tables of values that a function makes: the types, the values that fit them, and the declaration."""

from __future__ import annotations

import pickle
import zlib
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from projectors.binding import bind, declaration_hash
from projectors.projection import Projections, followed_tables
from projectors.stores import Unfit
from projectors.stores.index_tables.computed import value_column, values_of
from projectors.stores.index_tables.views import IndexTable
from projectors.stores.redis.views import RedisHash, RedisJson
from projectors.views import BoundView, Entity
from viewtail.changes.batches import DELETE, INSERT, UPDATE, RowChanges
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind, Table

USER = Table(
    schema="shop",
    name="user",
    columns=(
        Column(name="id", kind=Kind.INTEGER, declared="bigint", is_nullable=False),
        Column(name="kind", kind=Kind.TEXT, declared="varchar(20)", is_nullable=False, charset="utf8mb4", length=20),
        Column(name="body", kind=Kind.BYTES, declared="mediumblob", is_nullable=True),
        Column(name="note", kind=Kind.TEXT, declared="text", is_nullable=True, charset="utf8mb4"),
        Column(name="size", kind=Kind.INTEGER, declared="int", is_nullable=False),
        Column(name="pad", kind=Kind.BYTES, declared="binary(8)", is_nullable=False, length=8),
        Column(name="doc", kind=Kind.JSON, declared="json", is_nullable=True),
    ),
    primary_key=("id",),
)
user = Entity("shop.user", body="body", codec="json")


def bound(view: IndexTable) -> BoundView:
    (found,) = bind([view], lambda *_: USER)
    return found


def fitted(type_: str, value: Any) -> Any:
    column = value_column("v", type_)
    assert column is not None
    return values_of(value, [column])[0]


ZONE = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("type_", "given", "value"),
    [
        ("VARCHAR(3)", "😀😀😀", "😀😀😀"),
        ("VARCHAR(3)", "", ""),
        ("VARCHAR(3)", None, None),
        ("TINYINT", -128, -128),
        ("int unsigned", 2**32 - 1, 2**32 - 1),
        ("BIGINT", 5.0, 5),
        ("BIGINT", Decimal("7"), 7),
        ("BOOLEAN", True, 1),
        ("BOOLEAN", 0, 0),
        ("DECIMAL(5,2)", 1.1, Decimal("1.10")),
        ("DECIMAL(40,0)", 10**39, Decimal(10**39)),
        ("DECIMAL(5,2)", -0.0, Decimal(0)),
        ("DOUBLE", 0.1, 0.1),
        ("DOUBLE", 3, 3.0),
        ("DOUBLE", Decimal("0.1"), 0.1),
        ("DATE", date(2024, 2, 29), "2024-02-29"),
        ("DATE", "2024-02-29", "2024-02-29"),
        ("DATE", "0000-00-00", "0000-00-00"),
        ("DATETIME", datetime(2024, 1, 2, 3, 4, 5), "2024-01-02 03:04:05"),
        ("DATETIME", "2024-01-02 03:04:05", "2024-01-02 03:04:05"),
        ("DATETIME(3)", datetime(2024, 1, 2, 3, 4, 5, 120000), "2024-01-02 03:04:05.120"),
        ("DATETIME(6)", datetime(24, 1, 2, tzinfo=UTC), "0024-01-02 00:00:00.000000"),
        ("DATETIME(3)", "2024-01-02 03:04:05.1", "2024-01-02 03:04:05.100"),
        ("DATETIME", datetime(2024, 1, 2, 1, tzinfo=ZONE), "2024-01-01 23:00:00"),
        ("BINARY(2)", b"\0\xff", b"\0\xff"),
        ("VARBINARY(2)", bytearray(b"a"), b"a"),
    ],
)
def test_a_value_that_fits_its_type_is_taken(type_: str, given: Any, value: Any) -> None:
    found = fitted(type_, given)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("type_", "given", "reason"),
    [
        ("VARCHAR(3)", "abcd", "has 4 characters, and the view's values are VARCHAR(3)"),
        ("VARCHAR(3)", "\ud800", "lone surrogate"),
        ("VARCHAR(3)", b"a", "of the type bytes"),
        ("VARCHAR(3)", 5, "a number"),
        ("VARCHAR(3)", ["a"], "a list"),
        ("VARCHAR(3)", {"a": 1}, "an object"),
        ("VARCHAR(3)", True, "true or false"),
        ("TINYINT", 128, "outside the range"),
        ("INT", 1.5, "no whole number"),
        ("INT", "1", "a text"),
        ("INT", True, "true or false"),
        ("INT", float("nan"), "not finite"),
        ("INT", Decimal("sNaN"), "not finite"),
        ("INT UNSIGNED", -1, "outside the range"),
        ("BIGINT", Decimal("1E+999999"), "outside the range"),
        ("BOOLEAN", 2, "a number"),
        ("BOOLEAN", "1", "a text"),
        ("DECIMAL(5,2)", 1.123, "more digits"),
        ("DECIMAL(5,2)", 1000, "outside the range"),
        ("DECIMAL(5,2)", float("inf"), "not finite"),
        ("DOUBLE", True, "true or false"),
        ("DOUBLE", "1", "a text"),
        ("DOUBLE", 2**53 + 1, "more digits than fit"),
        ("DOUBLE", 10**400, "outside the range"),
        ("DOUBLE", Decimal("1e999"), "not finite"),
        ("DOUBLE", Decimal("sNaN"), "not finite"),
        ("DATE", datetime(2024, 1, 2), "of the type datetime"),
        ("DATE", "2024-1-2", "of another form"),
        ("DATE", 5, "a number"),
        ("DATETIME", date(2024, 1, 2), "of the type date"),
        ("DATETIME", "2024-01-02T03:04:05", "of another form"),
        ("DATETIME", datetime(2024, 1, 2, 3, 4, 5, 1), "a longer fraction"),
        ("DATETIME", "2024-01-02 03:04:05.5", "of another form"),
        ("DATETIME(3)", datetime(2024, 1, 2, 3, 4, 5, 120001), "a longer fraction"),
        ("BINARY(2)", b"a", "has 1 bytes"),
        ("BINARY(2)", b"abc", "has 3 bytes"),
        ("VARBINARY(2)", b"abc", "has 3 bytes"),
        ("VARBINARY(2)", "ab", "a text"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_never_cut(type_: str, given: Any, reason: str) -> None:
    with pytest.raises(Unfit) as misfit:
        fitted(type_, given)
    assert reason in str(misfit.value) and str(misfit.value).startswith("the value of v ")


@pytest.mark.parametrize(
    "type_",
    [
        "VARCHAR",
        "VARCHAR(0)",
        "CHAR(3)",
        "TEXT",
        "FLOAT",
        "INT(11)",
        "INT; DROP TABLE x",
        "DATETIME(7)",
        "VARBINARY(9999)",
        "DECIMAL(66,2)",
        "JSON",
        "",
        "INTEGERS",
    ],
)
def test_a_type_that_no_index_has_is_refused_with_the_name_of_the_view(type_: str) -> None:
    with pytest.raises(DeclarationError, match=r"IndexTable\('v'\): values: the type of email is one of VARCHAR"):
        IndexTable("v", user, values={"email": type_}, of=lambda row: row["body"])


TWO = [value_column("a", "INT"), value_column("b", "VARCHAR(3)")]


@pytest.mark.parametrize(
    ("made", "values"),
    [
        ({"a": 1, "b": "x"}, (1, "x")),
        ({"b": "x"}, (None, "x")),
        ((1, None), (1, None)),
        ([1, "x"], (1, "x")),
        (None, (None, None)),
        ({}, (None, None)),
    ],
)
def test_of_several_columns_a_dict_or_a_tuple_is_taken(made: Any, values: Any) -> None:
    assert values_of(made, [one for one in TWO if one]) == values


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({"a": 1, "secret": 2}, "a name that the view does not declare"),
        ((1,), "it has 1 value,"),
        ("ab", "a dict or a tuple"),
        (5, "a dict or a tuple"),
    ],
)
def test_of_several_columns_anything_else_is_refused(made: Any, reason: str) -> None:
    with pytest.raises(Unfit, match=reason) as misfit:
        values_of(made, [one for one in TWO if one])
    assert "secret" not in str(misfit.value)


# --- The projection ---


def by_email(**more: Any) -> BoundView:
    view = IndexTable(
        "by_email", user, values={"email": "VARCHAR(20)"}, of=lambda row: row["body"] and row["body"]["email"], **more
    )
    return bound(view)


def projected(view: BoundView, *events: tuple[int, list[tuple[Any, ...]]]) -> tuple[dict[Any, Any], list[Any]]:
    """Rows are of the columns that the view needs, in the table's order."""
    followed = followed_tables([view])
    (table,) = followed.values()
    projections = Projections([view], followed)
    writes, parked = {}, []
    for version, (kind, rows) in enumerate(events, 1):
        found = projections._by_view[view.id]
        found.apply([RowChanges(table, kind, version, rows)], writes, parked)
    return writes, parked


def test_values_are_those_of_the_function_and_the_body_is_a_dict() -> None:
    view = by_email()
    assert view.needed == ("id", "body") and [column.declared for column in view.values] == ["varchar(20)"]
    writes, parked = projected(
        view, (INSERT, [(1, b'{"email": "a@b"}'), (2, None), (3, b'{"email": null}')]), (DELETE, [(2, None)])
    )
    assert writes == {(1,): (1, ("a@b",)), (2,): (2, None), (3,): (1, (None,))} and parked == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"secret", "the body in column body cannot be read as json: it is no JSON, or nested too deep"),
        (b'["secret"]', "the body in column body cannot be read as json: it holds a list, not an object (a dict)"),
        (
            b'{"email": "secret, and far too long for it"}',
            "of returned what the view cannot hold: the value of email has",
        ),
        (b'{"secret": 1}', "of raised KeyError for 'email'"),
    ],
)
def test_a_row_that_cannot_be_projected_parks_its_key_alone(body: bytes, reason: str) -> None:
    writes, parked = projected(by_email(), (INSERT, [(1, body), (2, b'{"email": "b"}')]))
    assert writes == {(2,): (1, ("b",))}
    (letter,) = parked
    assert letter.key == "1" and letter.reason.startswith(reason) and "secret" not in letter.reason


def test_a_value_of_a_class_that_raises_parks_its_key() -> None:
    class Evil(int):
        def __ge__(self, other: object) -> bool:
            raise RuntimeError("secret")

        __le__ = __ge__

    view = bound(IndexTable("v", user, values={"n": "INT"}, of=lambda row: Evil(row["size"])))
    _, (letter,) = projected(view, (INSERT, [(1, 5)]))
    assert letter.reason == "of returned a value that raised RuntimeError when it was read"


def test_a_body_is_not_read_of_a_row_that_where_leaves_out_without_it() -> None:
    view = by_email(where=lambda row: row["kind"] == "user")
    assert view.needed == ("id", "kind", "body")
    writes, parked = projected(view, (INSERT, [(1, "cell", b"\0"), (2, "user", b'{"email": "b"}'), (3, "user", b"\0")]))
    assert writes == {(2,): (1, ("b",))} and [letter.key for letter in parked] == ["3"]


def test_where_sees_the_body_too() -> None:
    view = by_email(where=lambda row: row["body"]["email"].endswith("org"))
    writes, parked = projected(view, (INSERT, [(1, b'{"email": "a.org"}'), (2, b'{"email": "b"}'), (3, b"\0")]))
    assert writes == {(1,): (1, ("a.org",))} and [letter.key for letter in parked] == ["3"]


def test_a_row_whose_bad_body_is_mended_and_that_leaves_the_view_leaves_it() -> None:
    """What the view shows of it is from before the bad body."""
    view = by_email(where=lambda row: row["body"]["email"] != "")
    good, bad, outside = (1, b'{"email": "a"}'), (1, b"\0"), (1, b'{"email": ""}')
    writes, parked = projected(view, (INSERT, [good]), (UPDATE, [good, bad]), (UPDATE, [bad, outside]))
    assert writes == {(1,): (3, None)} and [letter.version for letter in parked] == [2]


def test_a_bad_body_that_stays_as_it_is_brings_no_new_letter() -> None:
    writes, parked = projected(by_email(), (UPDATE, [(1, b"\0"), (1, b"\0")]))
    assert (writes, parked) == ({}, [])


def test_a_list_that_a_function_makes_has_a_row_for_each_value() -> None:
    view = bound(IndexTable("v", user, value="tag", each="VARCHAR(5)", of=lambda row: row["body"]["tags"]))
    writes, parked = projected(
        view, (INSERT, [(1, b'{"tags": ["b", "a"]}'), (2, b'{"tags": null}'), (3, b'{"tags": ["secret"]}')])
    )
    assert writes == {(1,): (1, ('["b", "a"]',)), (2,): (1, (None,))}
    (letter,) = parked
    why = "value 1 of its list has 6 characters, and the view's values are VARCHAR(5)"
    assert letter.reason == f"of returned what the view cannot hold: {why}"


def test_a_view_that_shows_the_body_itself_shows_its_bytes_while_where_sees_the_dict() -> None:
    shows = RedisHash("v", user, fields=["body"], where=lambda row: row["body"]["n"] > 1)
    (view,) = bind([shows], lambda *_: USER)
    writes, parked = projected(view, (INSERT, [(1, b'{"n": 1}'), (2, b'{"n": 2}'), (3, b"\0")]))
    assert writes == {(2,): (1, (b'{"n": 2}',))} and [letter.key for letter in parked] == ["3"]


def test_a_document_is_made_of_a_body_with_whatever_plain_data_it_has() -> None:
    entity = Entity("shop.user", body="body", codec="zlib+pickle")
    (view,) = bind([RedisJson("v", entity, document=lambda row: row["body"])], lambda *_: USER)
    body = {"at": datetime(2024, 1, 2, tzinfo=UTC), "raw": b"a", "of": {2, 1}, "sum": Decimal("1.50"), "t": (1, [None])}
    writes, _ = projected(view, (INSERT, [(1, zlib.compress(pickle.dumps(body))), (2, None)]))
    assert writes == {
        (1,): (1, b'{"at":"2024-01-02T00:00:00+00:00","raw":"YQ==","of":[1,2],"sum":"1.50","t":[1,[null]]}')
    }


# --- Declarations ---


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"values": {"email": "VARCHAR(5)"}}, "values= is for a function that makes them"),
        ({"values": {}, "of": len}, "values is a dict of column name to MySQL type"),
        ({"values": ["email"], "of": len}, "values is a dict of column name to MySQL type"),
        ({"values": {"a": "INT"}, "value": "b", "of": len}, "leave value= out"),
        ({"values": {"a": "INT"}, "each": "INT", "of": len}, "value='NAME', each='TYPE', of=FUNCTION"),
        ({"value": "kind", "of": len}, "of= makes values of declared types: values={'kind': 'TYPE'}"),
        ({"values": {"a": "INT"}, "of": "email"}, "of must be a function of the row"),
        ({"of": len}, "with of= write values={'NAME': 'TYPE'}"),
        ({}, "value names at least one column"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        IndexTable("v", user, **given)
    assert reason in str(refused.value) and "IndexTable('v')" in str(refused.value)


@pytest.mark.parametrize("name", ["version", "ID", "a b", "a`b", "a%b", "a" * 65])
def test_a_value_column_of_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match="needs another name"):
        bound(IndexTable("v", user, values={name: "INT"}, of=lambda row: row["size"]))


def test_an_index_that_is_too_long_is_refused() -> None:
    with pytest.raises(DeclarationError, match="InnoDB allows 3072"):
        bound(IndexTable("v", user, values={"a": "VARCHAR(1000)"}, of=lambda row: row["note"]))


@pytest.mark.parametrize(
    ("body", "codec", "reason"),
    [
        ("size", "json", "body column size of shop.user is INT; a body is kept in"),
        ("pad", "json", "body column pad of shop.user is BINARY(8); a body is kept in"),
        ("note", "zlib+json", "body column note of shop.user is TEXT, which holds texts"),
        ("doc", "zlib+pickle", "body column doc of shop.user is JSON, which holds texts"),
        ("id", "json", "body column id of shop.user is part of the key"),
        ("bodi", "json", "has no body column bodi; did you mean body?"),
    ],
)
def test_a_body_column_that_holds_no_bodies_is_refused(body: str, codec: str, reason: str) -> None:
    entity = Entity("shop.user", body=body, codec=codec)
    with pytest.raises(DeclarationError) as refused:
        bound(IndexTable("v", entity, value="kind"))
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "more", [{"body": "body"}, {"codec": "json"}, {"body": "body", "codec": "gzip"}, {"body": "", "codec": "json"}]
)
def test_half_a_body_is_refused(more: dict[str, str]) -> None:
    with pytest.raises(DeclarationError, match=r"body|codec"):
        Entity("shop.user", **more)


def test_what_makes_other_values_makes_another_declaration() -> None:
    def view(type_: str = "VARCHAR(5)", codec: str = "json", name: str = "a", of: Any = lambda row: row["body"]) -> str:
        return declaration_hash(
            IndexTable("v", Entity("shop.user", body="body", codec=codec), values={name: type_}, of=of)
        )

    other = [view("VARCHAR(6)"), view(codec="zlib+json"), view(name="b"), view(of=lambda row: row["kind"])]
    assert len({view(), *other}) == 5 and view() == view()


def test_a_codec_changes_no_view_that_shows_columns_as_they_are() -> None:
    plain = IndexTable("v", Entity("shop.user"), value="kind")
    assert declaration_hash(plain) == declaration_hash(IndexTable("v", user, value="kind"))
