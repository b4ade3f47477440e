"""Keys that are of one source at a time: how they are written, what refuses them, and that waiting halts no view."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from ingest.canonical.parts import of_parts
from projectors.binding import bind
from projectors.dead_letters import PARKED_IN_A_ROW, Parking
from projectors.stores import lives_elsewhere
from projectors.stores.redis.keys import RedisKeys
from projectors.views import BoundView
from viewtail import Entity, IndexTable, RedisHash, RedisSet, SearchIndex
from viewtail.changes.errors import DeclarationError, MisuseError
from viewtail.changes.patterns import pattern_of
from viewtail.changes.rendering import key_renderer, parse_key, render_key
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Parked, ViewWrites, Write
from viewtail.operations.audit import require_plain_keys
from viewtail.operations.given import key_of, key_of_text, other_reading, plain_key_of_text

BYTES = Column(name="id", kind=Kind.BYTES, declared="varbinary(4)", is_nullable=False, length=4)
NUMBER = Column(name="number", kind=Kind.INTEGER, declared="int", is_nullable=False)
EMAIL = Column(name="email", kind=Kind.TEXT, declared="varchar(40)", is_nullable=True, charset="utf8mb4", length=40)
TAGS = Column(name="tags", kind=Kind.JSON, declared="json", is_nullable=True)
IS_LIVE = Column(name="is_live", kind=Kind.INTEGER, declared="int", is_nullable=True)
USER = Table(schema="shop", name="user", columns=(BYTES, NUMBER, EMAIL, TAGS, IS_LIVE), primary_key=("id", "number"))


def described(schema: str, name: str) -> Table:
    pattern = pattern_of(schema, name)
    assert pattern is not None
    return of_parts(pattern, [USER], [pattern.sample])


def entity(**more: Any) -> Entity:
    return Entity("shop.user", sources=["eu", "us"], unique_over_sources=True, **more)


def bound(view: Any = None, source: str = "eu") -> BoundView:
    (found,) = bind([(view or IndexTable("i", entity(), value="email")).of_source(source)], described)
    return found


def test_a_key_is_written_without_its_sources_name_and_is_read_as_that_sources() -> None:
    key = bound().key
    assert [column.name for column in key] == ["source", "id", "number"] and bound().source == ("eu",)
    assert render_key(("eu", b"a", 7), key) == "61:7" == key_renderer(key)(("eu", b"a", 7))
    assert parse_key("61:7", key) == ("eu", b"a", 7) == key_of_text("0x61:7", key) == key_of((b"a", 7), bound())
    assert parse_key("61:7", bound(source="us").key) == ("us", b"a", 7)
    with pytest.raises(MisuseError, match=r"has 3 parts, but it is written ID:NUMBER \(2\)"):
        parse_key("eu:61:7", key)
    with pytest.raises(MisuseError, match=r"is \(id, number\): 2 values, not 3"):
        key_of(("eu", b"a", 7), bound())
    with pytest.raises(MisuseError, match="two ways: hexadecimal digits of column id"):
        plain_key_of_text("61:7", key)
    assert "column id is 0x61" in str(other_reading("61:7", key))
    (plain,) = bind([IndexTable("i", Entity("shop.user", sources="eu"), value="email").of_source("eu")], described)
    assert render_key(("eu", b"a", 7), plain.key) == "eu:61:7" and plain.fingerprint != bound().fingerprint


def test_what_does_not_note_which_source_a_key_is_of_is_refused_with_what_to_do() -> None:
    for view, what in (
        (RedisSet("u", entity(), key="of:{email}"), "the members of a RedisSet do not note which source a key is of"),
        (IndexTable("i", entity(), value="tags", each="VARCHAR(10)"), "with each=, an index table does not note"),
    ):
        with pytest.raises(
            DeclarationError,
            match=f"unique_over_sources=True: {what}.*in an IndexTable, a RedisHash, a RedisJson or a SearchIndex",
        ):
            bound(view)
    with pytest.raises(DeclarationError, match=r"column is_live.*is kept under this name"):
        bound(IndexTable("i", entity(), value="is_live"))
    with pytest.raises(DeclarationError, match="unique_over_sources is for rows of several servers"):
        Entity("shop.user", unique_over_sources=True)
    with pytest.raises(DeclarationError, match="goes with no append_only=True"):
        entity(version="number", append_only=True)


def test_what_another_tool_keeps_is_neither_compared_with_such_a_view_nor_taken_over() -> None:
    for view in (IndexTable("i", entity(), value="email"), RedisHash("u", entity(), fields=["email"])):
        with pytest.raises(MisuseError, match="with unique_over_sources=True each row says which source it is of"):
            require_plain_keys(bound(view))
        require_plain_keys(bound(type(view)("p", Entity("shop.user", sources="eu"), **_shows(view))))


def _shows(view: Any) -> dict[str, Any]:
    return {"value": "email"} if isinstance(view, IndexTable) else {"fields": ["email"]}


def test_an_id_of_a_document_is_as_long_as_the_key_without_the_source() -> None:
    wide = replace(BYTES, kind=Kind.TEXT, declared="varchar(120)", length=120, charset="utf8mb4")

    def describe(schema: str, name: str) -> Table:
        pattern = pattern_of(schema, name)
        assert pattern is not None
        return of_parts(pattern, [replace(USER, columns=(wide, EMAIL), primary_key=("id",))], [pattern.sample])

    fields = {"email": "keyword"}
    bind([SearchIndex("u", entity(), fields=fields).of_source("eu")], describe)  # 480 bytes
    with pytest.raises(DeclarationError, match="can be 737 bytes long"):
        bind([SearchIndex("u", Entity("shop.user", sources="eu"), fields=fields).of_source("eu")], describe)


def test_redis_keys_have_no_source_but_the_values_say_it() -> None:
    (plain,) = bind([RedisHash("u", entity(), fields=["email"], key="user:{id}:{number}").of_source("eu")], described)
    assert RedisKeys(plain).redis_key(("eu", b"a", 7)) == "user:61:7"
    for field, why in (("_source", "keeps the source of a key"), ("_version", "keeps its version")):
        with pytest.raises(DeclarationError, match=f"column {field} has the name under which viewtail {why}"):
            bind([RedisHash("u", entity(), fields=[field]).of_source("eu")], with_column_named(field))
    with pytest.raises(DeclarationError, match=r"{source} is not one of the key columns {id}, {number}"):
        bound(RedisHash("u", entity(), fields=["email"], key="user:{source}:{id}:{number}"))


def with_column_named(name: str) -> Any:
    """A description of the table with a column of this name."""
    table = replace(USER, columns=(*USER.columns, replace(EMAIL, name=name)))

    def describe(schema: str, of: str) -> Table:
        pattern = pattern_of(schema, of)
        assert pattern is not None
        return of_parts(pattern, [table], [pattern.sample])

    return describe


def test_keys_that_wait_for_another_source_halt_no_view_however_many_there_are() -> None:
    letters, halt, view = Mock(), Mock(), bound()
    parking = Parking(letters, halt)

    def refused(reason: str) -> list[Parked]:
        return [Parked(view.id, f"61:{number}", 5, reason) for number in range(PARKED_IN_A_ROW)]

    waits = lives_elsewhere(view, (("eu", b"a", 7), Write(5, ("x",))), "us")
    assert waits.key == "61:7" and waits.reason.startswith("its key lives on the source us, and this row is on eu. ")
    writes = ViewWrites(view.id, {("eu", b"a", number): Write(5, ("x",)) for number in range(PARKED_IN_A_ROW)})
    for _ in range(3):
        parking.park([writes], [], refused(waits.reason))
    assert letters.record.call_count == 3 and not halt.called
    parking.park([writes], [], refused("it does not fit"))
    assert halt.called
