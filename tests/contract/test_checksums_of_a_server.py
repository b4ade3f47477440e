"""Binlogs with and without checksums, whatever the server is set to when they are read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stack import Server
from tests.contract.test_events_of_a_server import Reader


@pytest.fixture(params=["mysql", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    yield Reader(server)
    Reader(server).execute("SET GLOBAL binlog_checksum = 'CRC32'")


@pytest.mark.parametrize("written", ["CRC32", "NONE"])
@pytest.mark.parametrize("now", ["CRC32", "NONE"])
def test_binlogs_are_read_whether_the_server_wrote_checksums_then_or_writes_them_now(
    reader: Reader, written: str, now: str
) -> None:
    """From a beginning by set, and from the middle of a file."""
    reader.execute(f"SET GLOBAL binlog_checksum = '{written}'")
    reader.begin = reader.source().now()
    reader.execute("INSERT INTO events.t VALUES (1, 1, NULL, 'x')")
    begin = reader.begin
    reader.read()
    middle = reader.begin
    reader.execute("INSERT INTO events.t VALUES (2, 1, NULL, 'x')", f"SET GLOBAL binlog_checksum = '{now}'")
    reader.execute("INSERT INTO events.t VALUES (3, 1, NULL, 'x')")
    for after in (begin, middle):
        reader.read(after)
        reader.assert_equal()
