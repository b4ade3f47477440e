"""Positions that a real server's binlog gives: by coordinates on it, by sets of GTIDs on any."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from typing import Any

import pytest

from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.gtid_sets import GtidSet
from ingest.binlog.source import BinlogSource
from stack import Server
from tests.contract.test_events_of_a_server import Reader, change_at_random
from viewtail.changes.errors import AnotherServerError, HistoryGoneError

FOREIGN = uuid.UUID("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa")


@pytest.fixture
def reader(mysql_server: Server) -> Reader:
    return Reader(mysql_server)


def executed(reader: Reader) -> str:
    with reader.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.gtid_executed")
        return str(cursor.fetchone()[0]).replace("\n", "")


def change(reader: Reader, chance: random.Random, count: int) -> None:
    """Transactions of this server, of another one with gaps and out of order, and tagged ones."""
    numbers = chance.sample(range(1, 10**9), count)
    for at in range(count):
        kind = chance.random()
        if kind < 0.2:
            gtid = f"{FOREIGN}:{numbers[at]}"
        elif kind < 0.3:
            gtid = f"AUTOMATIC:tag_{at % 3}"
        else:
            gtid = "AUTOMATIC"
        reader.execute(
            f"SET SESSION gtid_next = '{gtid}'",
            f"REPLACE INTO events.t VALUES ({at}, {at}, NULL, UUID())",
            "SET SESSION gtid_next = 'AUTOMATIC'",
        )


def test_the_set_of_what_was_seen_is_the_servers_own_and_exact_everywhere(reader: Reader) -> None:
    """From any position, by set, under another epoch, exactly the rest comes."""
    chance = random.Random(5)
    change(reader, chance, 30)
    change_at_random(reader, chance, 30)
    change(reader, chance, 20)
    reader.execute("FLUSH BINARY LOGS")
    change(reader, chance, 10)
    reader.read()
    assert GtidSet(reader.begin.seen).intervals == GtidSet(executed(reader)).intervals
    whole = {key: row for key, (_, row) in reader.held.items()}
    batches = [batch for batch in reader.batches if batch.end is not None]
    held: dict[Any, Any] = {}
    places = {chance.randrange(len(batches)) for _ in range(8)} | {0, len(batches) - 2}
    for at, batch in enumerate(batches):
        reader.held, reader.batches = held, []
        reader._apply(batch)
        held = dict(reader.held)
        if at in places:
            assert batch.end is not None
            reader.read(replace(batch.end, epoch=7))  # of an earlier history than 1, whatever its number
            assert reader.batches[-1].end is not None and reader.batches[-1].end.epoch == 1
            found = {key: row for key, (_, row) in reader.held.items() if key != ("t", 10**6)}
            assert found == {key: row for key, row in whole.items() if key != ("t", 10**6)}


def test_a_start_by_set_in_mid_file_gives_the_servers_own_positions(reader: Reader) -> None:
    """The server leaves events out: what their sizes add up to would be no position."""
    for number in range(40):
        reader.execute(f"INSERT INTO events.t VALUES ({number}, 0, NULL, REPEAT('x', 900))")
    begin = reader.source().now()
    assert begin.is_by_set
    reader.execute("INSERT INTO events.t VALUES (50, 0, NULL, 'behind')")
    reader.read(begin)
    assert reader.begin.end > 40 * 900
    with reader.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        file, end = cursor.fetchone()[:2]
    assert (reader.begin.file, reader.begin.end) == (file, end)
    assert [row for key, (_, row) in reader.held.items() if key == ("t", 39)] == []
    reader.execute("INSERT INTO events.t VALUES (51, 0, NULL, 'by place')")
    assert not reader.begin.is_by_set
    reader.read()  # the transaction at that place is verified
    assert ("t", 51) in reader.held


def test_a_set_that_is_not_known_is_learned_at_the_next_file(reader: Reader) -> None:
    change(reader, random.Random(6), 12)  # sets with tags are written in another way
    reader.read()
    reader.begin = replace(reader.begin, gtid_base="")
    reader.execute("INSERT INTO events.t VALUES (60, 0, NULL, 'x')")
    reader.read()
    assert reader.begin.seen == ""
    with pytest.raises(HistoryGoneError, match=r"not known.*replay --new-history"):
        reader.read(replace(reader.begin, epoch=7))
    reader.execute("FLUSH BINARY LOGS")
    reader.read()
    assert GtidSet(reader.begin.seen).intervals == GtidSet(executed(reader)).intervals


def test_transactions_that_the_server_never_had_are_noticed_on_the_dump_connection(reader: Reader) -> None:
    reader.read()
    seen = GtidSet(reader.begin.seen)
    seen.add((FOREIGN.bytes, ""), 10**15, 10**15)
    foreign = replace(reader.begin, epoch=7, gtid="", gtid_base=str(seen))
    with pytest.raises(HistoryGoneError, match=rf"divergent history.*{FOREIGN}:{10**15}"):
        reader.read(foreign)


def test_another_server_behind_the_address_ends_a_read(reader: Reader) -> None:
    reader.read()
    source = BinlogSource(
        reader._address,
        {},
        watermark_schema="viewtail",
        own_schemas=frozenset({"viewtail"}),
        epoch=1,
        identity=str(FOREIGN),
    )
    with pytest.raises(AnotherServerError, match="another server"):
        next(iter(source.read(reader.begin)))


def test_reading_goes_on_behind_every_single_transaction_by_its_coordinates(reader: Reader) -> None:
    change_at_random(reader, random.Random(9), 25)
    reader.read()
    rows = {key: row for key, (_, row) in reader.held.items() if key != ("t", 10**6)}
    ends: list[BinlogPosition] = [batch.end for batch in reader.batches if batch.end is not None]
    whole = dict(reader.held)
    for end in ends[:-1]:
        reader.held = {key: write for key, write in whole.items() if write[0] <= end.version}
        reader.read(end)
        found = {key: row for key, (_, row) in reader.held.items() if key != ("t", 10**6)}
        assert found == rows


def test_a_position_that_a_prepared_transaction_holds_back_has_not_seen_what_came_after(
    reader: Reader,
) -> None:
    """On another server the prepared one is asked for, and all behind it."""
    reader.read()
    reader.execute("INSERT INTO events.t VALUES (98, 1, NULL, 'before it')")
    before = GtidSet(executed(reader)).intervals
    reader.execute(
        "XA START 'held'",
        "INSERT INTO events.t VALUES (99, 1, NULL, 'xa')",
        "XA END 'held'",
        "XA PREPARE 'held'",
    )
    change(reader, random.Random(10), 5)
    reader.read()
    assert GtidSet(reader.begin.seen).intervals == before
    reader.execute("XA COMMIT 'held'")
    reader.held.clear()
    reader.read(replace(reader.begin, epoch=7))
    assert ("t", 99) in reader.held and ("t", 4) in reader.held
    assert GtidSet(reader.begin.seen).intervals == GtidSet(executed(reader)).intervals
