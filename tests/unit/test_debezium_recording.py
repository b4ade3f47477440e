"""Messages that a real Debezium connector once wrote, beside viewtail's of the same changes."""

from __future__ import annotations

import pytest

from tests.support.debezium import History, recorded
from tests.support.debezium_differences import (
    ALWAYS,
    OF_A_SNAPSHOT,
    OF_VALUES,
    READ_OTHERWISE,
    READ_OTHERWISE_AS_TEXT,
    read_otherwise,
    written_otherwise,
)


@pytest.fixture(scope="module")
def history() -> History:
    return recorded()


@pytest.mark.parametrize("topic", ["viewtail", "viewtail_whole"])
def test_messages_are_debeziums_but_for_the_listed_fields(history: History, topic: str) -> None:
    around, values, _ = written_otherwise(history, topic)
    snapshot = {f"of a snapshot: {field}" for field in (ALWAYS - {"source.thread"}) | OF_A_SNAPSHOT}
    assert around == ALWAYS | {"source.row"} | snapshot
    assert values == OF_VALUES


def test_schemas_are_debeziums_but_for_columns_defaults(history: History) -> None:
    _, _, schemas = written_otherwise(history, "viewtail_whole")
    assert schemas == ["certain_stamp ['default']", "counted ['default']"]


@pytest.mark.parametrize("topic", ["default", "default_whole", "viewtail", "viewtail_whole"])
def test_debeziums_messages_are_read_as_the_table_but_for_what_is_lost(history: History, topic: str) -> None:
    lost = READ_OTHERWISE_AS_TEXT if topic.startswith("viewtail") else READ_OTHERWISE
    assert read_otherwise(history, topic) == lost
