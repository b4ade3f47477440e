"""The real Debezium connector still writes what was recorded of it, which test_debezium_recording.py compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stack.server import Server
from tests.support.debezium import history, record, recorded

pytestmark = [pytest.mark.kafka, pytest.mark.mysql]
# They are of one run: when it was, and where in the binlog of the server.
OF_A_RUN = ("ts_ms", "ts_us", "ts_ns", "file", "pos", "gtid", "thread")


def test_the_recording_is_what_the_connector_writes(tmp_path: Path, mysql_server: Server, kafka_server: Server) -> None:
    found, kept = history(mysql_server, kafka_server, tmp_path), recorded()
    record(found, tmp_path / "again")
    again = recorded(tmp_path / "again")
    assert again.table == kept.table and [column.default for column in again.table.columns] == [
        column.default for column in kept.table.columns
    ]
    assert [change[:1] + change[2:5] for change in again.changes] == [
        change[:1] + change[2:5] for change in kept.changes
    ]
    assert set(again.topics) == set(kept.topics) == {"default", "default_whole", "viewtail", "viewtail_whole"}
    for topic, messages in kept.topics.items():
        assert [(_masked(key), _masked(value)) for key, value in again.topics[topic]] == [
            (_masked(key), _masked(value)) for key, value in messages
        ]


def _masked(text: bytes | None) -> Any:
    """Without what is of one run."""
    found = None if text is None else json.loads(text)
    payload = found.get("payload", found) if found else {}
    for part in (payload, payload.get("source", {})):
        for name in OF_A_RUN:
            part.pop(name, None)
    return found
