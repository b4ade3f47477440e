"""A form that a table had is made of its table map, and of no more than can be told exactly."""

from __future__ import annotations

import pytest

from ingest.binlog import column_types as types
from ingest.binlog.own_forms import form_of
from ingest.binlog.table_map import MapColumn, TableMap
from viewtail.changes.batches import Followed, Forms
from viewtail.changes.errors import TableUnreadableError
from viewtail.changes.tables import Column, Kind, Table

ID = Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False)
NAME = Column(name="name", kind=Kind.TEXT, declared="varchar(20)", is_nullable=True, charset="utf8mb4", length=20)
TOKEN = Column(name="token", kind=Kind.TEXT, declared="uuid", is_nullable=True, charset="ascii", length=36)
SEEN_ID = MapColumn(name="id", type=types.LONG, metadata=0, is_nullable=False)
SEEN_NAME = MapColumn(name="name", type=types.VARCHAR, metadata=80, is_nullable=True, collation=255)
SEEN_TOKEN = MapColumn(name="token", type=types.STRING, metadata=16, is_nullable=True, collation=types.BINARY_COLLATION)
AMBIGUOUS = (16, 4)


def followed(*columns: Column, former: tuple[Column, ...] = ()) -> Followed:
    table = Table(schema="shop", name="t", columns=columns, primary_key=("id",))
    return Followed(table, tuple(one.name for one in columns), forms=Forms(fixed=frozenset({"id"}), former=former))


def seen(*columns: MapColumn) -> TableMap:
    return TableMap(schema="shop", name="t", columns=columns)


def test_a_table_that_is_as_described_is_read_as_described() -> None:
    now = followed(ID, NAME)
    assert form_of(seen(SEEN_NAME, SEEN_ID), now) is now


def test_a_column_that_was_not_there_is_absent_and_one_that_was_there_is_as_it_was() -> None:
    now = followed(ID, NAME, former=(TOKEN,))
    form = form_of(seen(SEEN_ID, SEEN_TOKEN), now, AMBIGUOUS)
    assert form.of is now and form.table.columns == (ID, TOKEN) and form.columns == ("id", "token")


def test_a_column_that_nobody_was_shown_stays_unread() -> None:
    form = form_of(seen(SEEN_ID, SEEN_TOKEN), followed(ID, NAME))
    assert form.columns == ("id",)


def test_a_column_of_another_type_has_the_type_that_it_had() -> None:
    unsigned = MapColumn(name="name", type=types.LONGLONG, metadata=0, is_nullable=True, is_unsigned=True)
    (_, name) = form_of(seen(SEEN_ID, unsigned), followed(ID, NAME)).table.columns
    assert (name.kind, name.declared, name.is_unsigned) == (Kind.INTEGER, "bigint unsigned", True)


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (SEEN_TOKEN, "whether it was BINARY(16), UUID, INET4 or INET6 is not in the binlog"),
        (MapColumn(name="token", type=types.TYPED_ARRAY, metadata=0, is_nullable=True), "cannot read typed array"),
    ],
)
def test_a_type_that_cannot_be_told_is_refused_with_its_column(column: MapColumn, why: str) -> None:
    text = Column(name="token", kind=Kind.TEXT, declared="char(36)", is_nullable=True, charset="utf8mb4", length=36)
    with pytest.raises(TableUnreadableError) as raised:
        form_of(seen(SEEN_ID, column), followed(ID, text), AMBIGUOUS)
    assert why in str(raised.value) and raised.value.columns == {"token"}
