"""Messages are Debezium's envelope, field for field, and what it has no place for stays exact."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.envelopes import (
    ID,
    KEPT,
    NAME,
    ORIGIN,
    PRICE,
    VALUES,
    VERSION,
    column,
    deleted,
    envelope,
    inserted,
    shown,
    table,
    updated,
)
from viewtail.changes.batches import UNKNOWN
from viewtail.changes.envelope import Envelope
from viewtail.changes.envelope_columns import shortest
from viewtail.changes.envelope_json_schema import json_schemas
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import KeptChange

NOW_US = 1_700_000_001_000_007


def messages(of: Table, *changes: KeptChange, with_schemas: bool = False) -> list[tuple[Any, Any, int]]:
    """Key and value parsed, and the version."""
    return [
        (json.loads(key), None if value is None else json.loads(value), version)
        for key, value, version in envelope(of, with_schemas=with_schemas).messages(changes, NOW_US)
    ]


def test_an_insert_is_an_envelope_with_the_row_after_it() -> None:
    ((key, value, version),) = messages(table(NAME), inserted(5, "ann"))
    assert (key, version) == ({"id": 5}, VERSION)
    assert value == {
        "before": None,
        "after": {"id": 5, "c": "ann"},
        "source": {
            "version": "0.1.0",
            "connector": "mysql",
            "name": "shop",
            "ts_ms": 1_700_000_000_123,
            "snapshot": "false",
            "db": "shop",
            "sequence": str(VERSION),
            "ts_us": 1_700_000_000_123_456,
            "ts_ns": 1_700_000_000_123_456_000,
            "table": "user",
            "server_id": 1,
            "gtid": "3e11fa47-71ca-11e1-9e33-c80aa9429562:23",
            "file": "binlog.000007",
            "pos": 1234,
            "row": 0,
            "thread": None,
            "query": None,
        },
        "transaction": None,
        "op": "c",
        "ts_ms": 1_700_000_001_000,
        "ts_us": 1_700_000_001_000_007,
        "ts_ns": 1_700_000_001_000_007_000,
    }


def test_an_update_holds_the_row_before_and_after() -> None:
    ((_, value, _),) = messages(table(NAME), updated((5, "ann"), (5, None)))
    assert (value["op"], value["before"], value["after"]) == ("u", {"id": 5, "c": "ann"}, {"id": 5, "c": None})


def test_an_image_that_is_not_known_is_null() -> None:
    of = table(NAME)
    update, delete, _ = messages(of, updated(None, (5, "ann")), KeptChange((5,), 1, "delete", None, None))
    assert (update[1]["before"], update[1]["after"]) == (None, {"id": 5, "c": "ann"})
    assert (delete[1]["before"], delete[1]["after"], delete[1]["op"]) == (None, None, "d")


def test_a_tombstone_follows_a_delete() -> None:
    (key, value, version), tombstone = messages(table(NAME), deleted(5, "ann"))
    assert (value["op"], value["before"], value["after"]) == ("d", {"id": 5, "c": "ann"}, None)
    assert tombstone == (key, None, version) == ({"id": 5}, None, VERSION)


def test_a_row_that_a_backfill_read_is_marked_as_debezium_marks_an_incremental_snapshot() -> None:
    ((_, value, _),) = messages(table(NAME), KeptChange((5,), 3, "read", None, (5, "ann"), UNKNOWN))
    assert (value["op"], value["source"]["snapshot"], value["before"]) == ("r", "incremental", None)
    assert [value["source"][field] for field in ("ts_ms", "ts_ns", "gtid", "file", "pos")] == [0, 0, None, "", 0]


def test_the_rows_of_a_row_event_are_numbered_and_the_next_event_begins_again() -> None:
    changes = [inserted(1, "a"), inserted(2, "b"), updated((3, "c"), (3, "d")), deleted(4, "e")]
    changes += [inserted(5, "f", origin=ORIGIN._replace(start=2000))]
    found = [value["source"] for _, value, _ in messages(table(NAME), *changes) if value]
    assert [(source["pos"], source["row"]) for source in found] == [
        (1234, 0),
        (1234, 1),
        (1234, 2),
        (1234, 3),
        (2000, 0),
    ]


def test_each_row_has_its_own_version_where_a_column_gives_it() -> None:
    found = messages(
        table(NAME), inserted(1, "a", version=20), inserted(2, "b", version=22), inserted(3, "c", version=22)
    )
    assert [version for _, _, version in found] == [20, 22, 22]
    assert [(value["source"]["sequence"], value["source"]["row"]) for _, value, _ in found] == [
        ("20", 0),
        ("22", 1),
        ("22", 2),
    ]


def test_each_call_says_its_own_time() -> None:
    made = envelope(table(NAME))
    found = [json.loads(made.messages([inserted(1, "a")], now_us)[0][1] or b"")["ts_us"] for now_us in (5, 6, 6, 5)]
    assert found == [5, 6, 6, 5]


def test_no_changes_are_no_messages() -> None:
    assert envelope(table(NAME)).messages([], NOW_US) == []


@pytest.mark.parametrize("value", VALUES, ids=shown)
def test_a_value_is_as_debezium_has_it(value: tuple[Column, Any, Any]) -> None:
    each, held, wanted = value
    of = Table(schema="shop", name="user", columns=(column(Kind.INTEGER, "int", "id"), each), primary_key=("id",))
    assert repr(_shown(of, held)) == repr(wanted)


@pytest.mark.parametrize("value", KEPT, ids=shown)
def test_a_value_that_debezium_has_no_place_for_stays_exact(value: tuple[Column, Any, Any]) -> None:
    each, held, wanted = value
    assert repr(_shown(table(each), held)) == repr(wanted)


def _shown(of: Table, held: Any) -> Any:
    """The JSON of a value, which is the same in every image of every kind of change."""
    changes = [inserted(5, held), updated((5, held), (5, held)), deleted(5, held)]
    images = [value[image] for _, value, _ in messages(of, *changes) if value for image in ("before", "after")]
    found = [list(image.values())[-1] for image in images if image]
    assert len(found) == 4 and len({repr(each) for each in found}) == 1
    return found[0]


def test_keys_are_objects_of_the_key_columns_in_key_order() -> None:
    place = column(Kind.TEXT, "varchar(9)", "place", is_nullable=False, length=9)
    of = table(place, PRICE)
    made = Envelope(of, [PRICE, place, ID], of.columns, name="s", release="1")
    change = KeptChange((Decimal("1.50"), 'a"b', 5), 1, "insert", None, (5, 'a"b', Decimal("1.50")))
    ((key, value, _),) = made.messages([change], NOW_US)
    assert key == b'{"c":"1.50","place":"a\\"b","id":5}'
    assert value is not None and json.loads(value)["after"] == {"id": 5, "place": 'a"b', "c": "1.50"}


@pytest.mark.parametrize("odd", ["100%", "%s", "{x}", 'q"', "it's", "back\\slash", "é😀", "new\nline"])
def test_names_may_hold_anything(odd: str) -> None:
    each = column(Kind.INTEGER, "int", odd)
    of = Table(schema=odd, name=odd, columns=(ID, each), primary_key=("id",))
    for with_schemas in (False, True):
        made = Envelope(of, [each], of.columns, name=odd, release=odd, with_schemas=with_schemas)
        for op in ("insert", "update", "delete", "read"):
            (key, value, _), *_ = made.messages([KeptChange((7,), 1, op, (5, 7), (5, 7))], NOW_US)
            assert value is not None
            key, whole = json.loads(key), json.loads(value)
            whole = whole["payload"] if with_schemas else whole
            assert (key["payload"] if with_schemas else key) == {odd: 7}
            assert (whole["before"] or whole["after"]) == {"id": 5, odd: 7}
            assert {whole["source"][field] for field in ("db", "table", "name", "version")} == {odd}


def test_a_message_with_its_schema_has_the_same_payload() -> None:
    of = table(NAME)
    changes = [inserted(5, "ann"), updated((5, "ann"), (5, None)), deleted(5, None)]
    plain, whole = messages(of, *changes), messages(of, *changes, with_schemas=True)
    assert len(plain) == len(whole) == 4
    for (key, value, version), (key_with, value_with, version_with) in zip(plain, whole, strict=True):
        assert (key_with["payload"], version_with) == (key, version)
        assert (value_with and value_with["payload"]) == value
    (key, value, _), *_ = whole
    assert key["schema"]["fields"] == [{"type": "int32", "optional": False, "field": "id"}]
    assert [field["field"] for field in value["schema"]["fields"]] == list(value["payload"])
    names = [key["schema"]["name"], value["schema"]["name"], value["schema"]["fields"][0]["name"]]
    assert names == ["shop.shop.user.Key", "shop.shop.user.Envelope", "shop.shop.user.Value"]


def test_fields_are_optional_as_debezium_has_them() -> None:
    """Those of a key never are, those of GEOMETRY but POINT always."""
    columns = [column(Kind.INTEGER, "int", "n"), column(Kind.INTEGER, "int", "m", is_nullable=False)]
    columns += [column(Kind.GEOMETRY, kind, kind, is_nullable=False) for kind in ("geometry", "polygon", "point")]
    of = table(*columns)
    made = Envelope(of, columns[:2], of.columns, name="s", release="1", with_schemas=True)
    ((key, value, _),) = made.messages([KeptChange((1, 2), 1, "insert", None, (5, 1, 2, None, None, None))], NOW_US)
    assert value is not None
    fields = [json.loads(key)["schema"]["fields"], json.loads(value)["schema"]["fields"][1]["fields"]]
    assert [{field["field"]: field["optional"] for field in part} for part in fields] == [
        {"n": False, "m": False},
        {"id": False, "n": True, "m": False, "geometry": True, "polygon": True, "point": False},
    ]


def test_the_json_schema_leaves_labels_open_that_the_server_cannot_show() -> None:
    of = table(column(Kind.ENUM, "enum(...)", labels=("a?", "b")))
    is_valid = jsonschema.Draft202012Validator(json_schemas(of, [ID], of.columns, name="shop")["value"]).is_valid
    ((_, value, _),) = messages(of, inserted(5, "a😀"))
    assert is_valid(value) and not is_valid({**value, "after": {"id": 5, "c": 7}})


@pytest.mark.parametrize("with_schemas", [False, True])
def test_the_json_schema_holds_for_every_message_and_for_no_other_value(with_schemas: bool) -> None:
    values = [*VALUES[1:], *KEPT]
    of = table(*(replace(each, name=f"c{at}") for at, (each, _, _) in enumerate(values)))
    schemas = json_schemas(of, [ID], of.columns, name="shop", with_schemas=with_schemas)
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    is_key, is_value = (jsonschema.Draft202012Validator(schemas[part]).is_valid for part in ("key", "value"))
    row, nulls = (5, *(held for _, held, _ in values)), (5, *(None for _ in values))
    changes = [inserted(*row), updated(row, nulls), deleted(*row), KeptChange((5,), 1, "read", None, row, UNKNOWN)]
    found = messages(of, *changes, with_schemas=with_schemas)
    assert len(found) == 5 and all(is_key(key) and (value is None or is_value(value)) for key, value, _ in found)
    message = found[0][1]
    payload = message["payload"] if with_schemas else message
    for name, of_column in payload["after"].items():
        payload["after"][name] = {"no": "value"}
        assert not is_value(message), name
        payload["after"][name] = of_column
    del payload["source"]
    assert not is_value(message)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_has_the_fewest_digits_that_give_it_back(value: float) -> None:
    text = shortest(value)
    assert struct.pack("f", float(text)) == struct.pack("f", value)
    digits = len(f"{float(text):e}".replace(".", "").partition("e")[0].strip("-0"))
    assert all(struct.pack("f", float(f"{value:.{fewer}g}")) != struct.pack("f", value) for fewer in range(6, digits))
