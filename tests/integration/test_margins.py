"""How long a server keeps the binlog that a pipeline needs: by its age, and on MariaDB by the size of all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from ingest import Margin, SourceAccess
from ingest.binlog.connection import connect_to
from ingest.binlog.continuity import binlog_sizes
from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.kind import BinlogKind, BinlogSettings
from ingest.binlog.margins import Binlogs as ServerBinlogs
from ingest.binlog.times import begun_s
from ingest.limits import Limits
from stack import Server
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import Connection, MySQLAddress, open_session, value_of

KEEPS_S = 100_000
SETTINGS = ("binlog_expire_logs_seconds", "binlog_expire_logs_auto_purge", "max_binlog_total_size")


@dataclass
class Binlogs:
    """Those of a server, and a session that may be at another time."""

    address: MySQLAddress
    session: Connection
    name: str

    def set(self, setting: str, value: object) -> None:
        self.session.query(f"SET GLOBAL {setting} = {value}")

    def rotate(self) -> None:
        self.session.query("FLUSH BINARY LOGS")

    def files(self) -> list[str]:
        return [*binlog_sizes(self.session)]

    def margin(self, file: str, later_s: float = 0.0) -> Margin:
        """Of a pipeline that needs the file, asked so many seconds from now."""
        self.session.query("SET timestamp = DEFAULT")
        self.session.query(f"SET timestamp = {int(value_of(self.session, 'SELECT UNIX_TIMESTAMP()') + later_s)}")
        found = ServerBinlogs.of(self.session)
        margin = found.margin(file, partial(begun_s, connect_to(self.address, 2.0, found.identity)))
        assert margin is not None
        return margin


@pytest.fixture(params=["mysql", "mariadb"])
def binlogs(request: pytest.FixtureRequest) -> Iterator[Binlogs]:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
    with closing(open_session(address, role="source")) as session, session.cursor() as cursor:
        cursor.execute("SHOW GLOBAL VARIABLES WHERE variable_name IN %s", (SETTINGS,))
        before: list[tuple[str, str]] = list(cursor.fetchall())
        found = Binlogs(address, session, request.param)
        found.set("binlog_expire_logs_seconds", KEEPS_S)
        found.rotate()
        yield found
        for setting, value in before:
            found.set(setting, value)


def test_a_pipeline_at_the_binlog_that_is_written_has_all_the_time_however_old_that_is(binlogs: Binlogs) -> None:
    for later_s in (0, 10 * KEEPS_S):
        margin = binlogs.margin(binlogs.files()[-1], later_s)
        assert (margin.left_s, margin.keeps_s, margin.limit) == (KEEPS_S, KEEPS_S, "binlog_expire_logs_seconds")
        assert not margin.is_low and margin.ratio == 1.0


def test_a_pipeline_that_needs_an_older_one_has_less_from_when_the_next_was_begun(binlogs: Binlogs) -> None:
    needed = binlogs.files()[-1]
    binlogs.rotate()
    binlogs.rotate()
    assert binlogs.margin(needed).left_s == pytest.approx(KEEPS_S, abs=60) and not binlogs.margin(needed).is_low
    late = binlogs.margin(needed, 0.6 * KEEPS_S)
    assert late.left_s == pytest.approx(0.4 * KEEPS_S, abs=60) and late.is_low
    gone = binlogs.margin(needed, 2 * KEEPS_S)
    assert gone.left_s == 0 and gone.is_low and gone.ratio == 0


def test_a_binlog_that_is_not_there_any_more_has_no_time_left(binlogs: Binlogs) -> None:
    assert binlogs.margin("binlog.000000").left_s == 0


def test_a_server_that_removes_nothing_by_itself_sets_no_limit(binlogs: Binlogs) -> None:
    if binlogs.name == "mysql":
        binlogs.set("binlog_expire_logs_auto_purge", "OFF")
    else:
        binlogs.set("binlog_expire_logs_seconds", 0)
    with pytest.raises(AssertionError):
        binlogs.margin(binlogs.files()[-1])


def test_the_size_of_all_binlogs_counts_where_the_server_has_a_limit_of_it(binlogs: Binlogs) -> None:
    needed = binlogs.files()[0]
    binlogs.rotate()
    total = sum(binlog_sizes(binlogs.session).values())
    with binlogs.session.cursor() as cursor:
        cursor.execute("SHOW GLOBAL VARIABLES LIKE 'max_binlog_total_size'")
        if cursor.fetchone() is None:  # MySQL has none, and MariaDB before 11.4
            assert binlogs.margin(needed).limit == "binlog_expire_logs_seconds"
            return
    binlogs.set("max_binlog_total_size", int(total * 1.25))
    low = binlogs.margin(needed)
    assert low.limit == "max_binlog_total_size" and low.is_low and low.ratio == pytest.approx(0.2, abs=0.02)
    written = binlogs.margin(binlogs.files()[-1])
    assert not written.is_low and written.ratio == 1.0
    binlogs.set("max_binlog_total_size", total * 20)
    assert not binlogs.margin(needed).is_low


def test_the_kind_of_source_asks_for_its_pipelines_and_leaves_places_of_other_servers_out(binlogs: Binlogs) -> None:
    kind, file = BinlogKind(), binlogs.files()[-1]
    binlogs.rotate()
    identity = value_of(binlogs.session, facts_of(binlogs.session).identity)
    here = BinlogPosition(epoch=1, file=file, end=4, start=4, server=identity)
    at = {"redis": here, "mysql": replace(here, file=binlogs.files()[-1]), "kafka": replace(here, server="other")}
    access = SourceAccess(
        section=BinlogSettings(), limits=Limits(), address=lambda: binlogs.address, primary=lambda: binlogs.address,
        own=binlogs.address, own_database="viewtail",
    )  # fmt: skip
    before = _connections(binlogs.session)
    found: Any = kind.margins(access, at, {})
    asked = _connections(binlogs.session)
    assert found.keys() == {"redis", "mysql"} and found["mysql"].left_s == KEEPS_S
    assert found["redis"].left_s == pytest.approx(KEEPS_S, abs=60)
    # Neither the server nor a dump is asked twice in a moment.
    assert kind.margins(access, at, {}) == found
    assert (asked - before, _connections(binlogs.session) - asked) == (2, 0)


def _connections(session: Connection) -> int:
    """How many there were since the server began."""
    with session.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Connections'")
        return int((cursor.fetchone() or ("", 0))[1])
