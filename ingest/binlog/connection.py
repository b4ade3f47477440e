"""The dump connection: log in, settle checksum and heartbeat, ask for the binlog; then it is a plain socket.

python-mysql-replication does the handshake (it knows the servers' capability and checksum rituals); its event and row
decoding, its reconnect and its control connection are never reached.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pymysql
from pymysqlreplication import BinLogStreamReader

from ingest.binlog import continuity
from ingest.binlog.gtid_sets import GtidSet, is_of_mariadb
from viewtail.changes.errors import SourceUnavailableError
from viewtail.servers.facts import folds_names
from viewtail.servers.sessions import MySQLAddress, connection_arguments, logging_in, session_error, value_of

BINLOG_BEGIN = 4  # behind a file's magic number
_MOST_IN_HEADER = 1 << 32  # bytes of a file: an event's header cannot tell a later position
_COM_BINLOG_DUMP, _COM_BINLOG_DUMP_GTID = 0x12, 0x1E
# Command, position, flags, server id; no file's name behind them.
_DUMP = struct.Struct("<BIHI")
# Command, flags, server id, bytes of a file's name, position, bytes of the set.
_DUMP_BY_SET = struct.Struct("<BHIIQI")


class DumpConnection:
    """A socket on which the server sends binlog packets from (file, position) on."""

    def __init__(
        self,
        address: MySQLAddress,
        file: str,
        position: int,
        *,
        heartbeat_s: float,
        server_id: int | None,
        seen: str | None = None,
        identity: str | None = None,
    ) -> None:
        """Ask for what comes after a place in a file, or, where `seen` is given, for all that is not in that set.

        Raises AnotherServerError when the server is not the one of that identity, HistoryGoneError when the set and
        the server's do not continue each other: both are asked on this connection, since an address may lead to
        another server each time.
        """
        # A stall shows in `status` within two heartbeats: this, and half a second until the next report.
        self._timeout_s = heartbeat_s * 1.5 + 0.25
        # A number of its own for each connection: two readers with one server_id throw each other out.
        self.server_id = server_id or random.randrange(1 << 31, (1 << 32) - 1)
        self._source = f"source {address.host}:{address.port}"
        timeout_s = max(self._timeout_s, 10.0)
        settings = connection_arguments(address) | {"read_timeout": timeout_s, "write_timeout": timeout_s}
        reader: Any = BinLogStreamReader(
            connection_settings=settings,
            server_id=self.server_id,
            log_file=file,
            log_pos=position,
            resume_stream=True,
            blocking=True,
            slave_heartbeat=heartbeat_s,
            enable_logging=False,
            pymysql_wrapper=partial(_Session, address=address, server_id=self.server_id, seen=seen, identity=identity),
        )
        self._reader = reader
        try:
            reader._BinLogStreamReader__connect_to_stream()
        except pymysql.err.MySQLError as error:
            raise session_error(error, address, "source") from None
        except OSError as error:
            raise SourceUnavailableError(f"{self._source}: {error}") from None
        self.has_checksums = True  # until the first format description says whether events have some
        self.large_files: frozenset[str] = reader._stream_connection.large_files
        self.clock_ahead_us: int = reader._stream_connection.clock_ahead_us
        self.folds_names: bool | None = reader._stream_connection.folds_names
        self.socket: socket.socket = reader._stream_connection._sock
        self.socket.settimeout(self._timeout_s)

    def receive_into(self, target: memoryview) -> int:
        """Bytes received, at least one. Raises SourceUnavailableError when the server is gone or silent."""
        try:
            received = self.socket.recv_into(target)
        except TimeoutError:
            raise SourceUnavailableError(
                f"{self._source} sent nothing for {self._timeout_s:.1f} s, not even a heartbeat; reconnecting"
            ) from None
        except OSError as error:
            raise SourceUnavailableError(f"{self._source}: {error}; reconnecting") from None
        if received == 0:
            raise SourceUnavailableError(f"{self._source} closed the dump connection; reconnecting")
        return received

    def has_data(self) -> bool:
        """Return whether `receive_into` would return at once: at the end of the stream it would not."""
        pending = getattr(self.socket, "pending", None)
        if pending is not None and pending():
            return True
        return is_readable(self.socket)

    def shut_down(self) -> None:
        """End a `receive_into` that waits in another thread."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut_down()
        self.socket.close()


def connect_to(address: MySQLAddress, heartbeat_s: float, identity: str) -> Callable[[str], DumpConnection]:
    """Return what opens a dump from the beginning of a file of that server, by the file's name."""
    return lambda file: DumpConnection(
        address, file, BINLOG_BEGIN, heartbeat_s=heartbeat_s, server_id=None, identity=identity
    )


def is_readable(connection: socket.socket) -> bool:
    """Return whether bytes, or the end, wait in it; select() would refuse descriptors above 1,023."""
    waits = select.poll()
    waits.register(connection, select.POLLIN)
    return bool(waits.poll(0))


class _Session(pymysql.Connection):
    """The library's connection: looks at the server first, and asks for a dump by set where that is wanted."""

    _dump: bytes | None = None
    large_files: frozenset[str] = frozenset()
    clock_ahead_us = 0  # the server's before this process's
    folds_names: bool | None = None

    def __init__(
        self, *, address: MySQLAddress, server_id: int, seen: str | None, identity: str | None, **settings: Any
    ) -> None:
        with logging_in(address, role="source"):
            super().__init__(**settings)
        try:
            with self.cursor() as cursor:
                # Whatever the server writes now: the files before it may hold checksums, and are refused without this.
                cursor.execute("SET @source_binlog_checksum = 'CRC32', @master_binlog_checksum = 'CRC32'")
            self.clock_ahead_us = _clock_ahead_us(self)
            self.folds_names = folds_names(self)
            if identity is not None:
                continuity.check_identity(self, identity)
            if seen is not None:
                continuity.check_sets(self, seen)
                sizes = continuity.binlog_sizes(self)
                self.large_files = frozenset(file for file, size in sizes.items() if size >= _MOST_IN_HEADER)
                self._dump = _dump_packet(self, server_id, seen)
        except BaseException:
            self.close()
            raise

    def _write_bytes(self, data: bytes) -> None:
        if self._dump is not None and data[4] == _COM_BINLOG_DUMP:
            data = self._dump
        super()._write_bytes(data)  # type: ignore[misc]


def _clock_ahead_us(connection: pymysql.Connection[Any]) -> int:
    began_us = time.time_ns() // 1_000
    theirs_us = value_of(connection, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")
    return int(theirs_us) - (began_us + time.time_ns() // 1_000) // 2


def _dump_packet(connection: pymysql.Connection[Any], server_id: int, seen: str) -> bytes:
    """The packet that asks for all that is not in a set. (The library's own knows no tags.)

    MariaDB takes the set from the session, and in strict mode refuses to begin where it does not find a transaction.
    """
    if is_of_mariadb(seen):
        settings = "@slave_connect_state = %s, @slave_gtid_strict_mode = 1, @slave_gtid_ignore_duplicates = 0"
        with connection.cursor() as cursor:
            cursor.execute(f"SET {settings}", (seen,))
        body = _DUMP.pack(_COM_BINLOG_DUMP, 4, 0, server_id)
    else:
        encoded = GtidSet(seen).encoded()
        body = _DUMP_BY_SET.pack(_COM_BINLOG_DUMP_GTID, 4, server_id, 0, 4, len(encoded)) + encoded
    return struct.pack("<I", len(body)) + body
