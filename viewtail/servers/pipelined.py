"""Statements sent on one connection before the first is answered, and prepared ones.

MySQL reads the next packet when it has finished the last, so a flight costs one round trip, and the server works while
the following statements are still being made. A statement that fails does not keep the server from executing those
behind it: send only what can be rolled back as a whole (a transaction that the flight does not commit).

PyMySQL waits after each statement and has no prepared ones. This module uses its private names, as `answers.py` and
ingest/canonical/rows.py do; tests/integration/test_flight.py, test_answers.py and test_canonical.py fail when one of
them changes its meaning.
"""

from __future__ import annotations

import select
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from decimal import Decimal
from enum import Enum
from typing import Any, TypeAlias

import pymysql
from pymysql.constants import COMMAND

from viewtail.servers.sessions import Connection

Value: TypeAlias = "int | float | str | bytes | Decimal | None"

_PREPARED = struct.Struct("<xIHH").unpack_from  # statement id, columns of a result, parameters
_PACKET_HEAD = struct.Struct("<IB").pack  # length in three bytes, packet number 0, command
_PACK_HEAD = struct.Struct("<IBI").pack  # statement id, no cursor, one execution
_PACK_DOUBLE = struct.Struct("<d").pack
_FLUSH_BYTES = 1 << 15
_LARGEST_BODY = 0xFFFFFF - 1  # with the command's byte, what fits into one packet
_64_BITS = (1 << 64) - 1


class Parameter(Enum):
    """The type of a parameter, as its byte and the flag of its sign stand in an execution."""

    NULL = b"\x06\0"
    SIGNED = b"\x08\0"  # BIGINT
    UNSIGNED = b"\x08\x80"
    DOUBLE = b"\x05\0"
    BLOB = b"\xfc\0"
    STRING = b"\xfd\0"
    DECIMAL = b"\xf6\0"  # as text


class Flight:
    """Statements under way on a connection that nobody else uses until `land`."""

    def __init__(self, connection: Connection) -> None:
        self._connection: Any = connection
        self._sent: deque[int] = deque()  # of each statement, the packet number that its answer will have
        self._packets: list[bytes] = []  # not yet given to the socket
        self._waiting_bytes = 0

    def send(self, statement: bytes) -> None:
        """Send a statement without a result set. Raises pymysql's error when the connection is gone."""
        self._command(COMMAND.COM_QUERY, statement)

    def execute(self, packed: bytes) -> None:
        """The same for a prepared statement of this connection, with the values that `Prepared.packed` made ready."""
        self._command(COMMAND.COM_STMT_EXECUTE, packed)

    def _command(self, command: int, body: bytes) -> None:
        """Small ones go to the socket together: a call for each costs more than making it."""
        if len(body) >= _LARGEST_BODY:
            self.flush()
            self._connection._execute_command(command, body)
            self._sent.append(self._connection._next_seq_id)
            return
        self._packets.append(_PACKET_HEAD(len(body) + 1, command) + body)
        self._sent.append(1)
        self._waiting_bytes += len(body)
        if self._waiting_bytes >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Give the socket what it was not given yet."""
        if self._packets:
            self._must_be_open()
            self._connection._write_bytes(b"".join(self._packets))
            self._packets, self._waiting_bytes = [], 0

    def land(self) -> list[int | pymysql.err.MySQLError]:
        """Wait for the answers, in order: affected rows, or the error that the server answered.

        Raises pymysql's error when the connection breaks: then nothing is known of any of them.
        """
        return [*self.answers()]

    def answers(self) -> Iterator[int | pymysql.err.MySQLError]:
        """The same one by one; until the last was taken, the connection is of no use but to be closed."""
        self.flush()
        while self._sent:
            self._must_be_open()
            self._connection._next_seq_id = self._sent.popleft()
            try:
                yield self._connection._read_query_result()
            except pymysql.err.MySQLError as error:
                if not self._connection.open:
                    raise
                yield error

    def _must_be_open(self) -> None:
        if not self._connection.open:
            raise pymysql.err.InterfaceError(0, "the connection is closed")

    @property
    def is_under_way(self) -> bool:
        """Return whether an answer was not taken."""
        return bool(self._sent or self._packets)

    def has_answer(self) -> bool:
        """Return whether the server began to answer, while no answer was taken; True too where none is to come."""
        socket = self._connection._sock
        if socket is None or not self._sent:
            return True
        poll = select.poll()
        poll.register(socket, select.POLLIN)
        return bool(poll.poll(0))


class Prepared:
    """A statement that the server has parsed, with values for its question marks."""

    def __init__(self, connection: Connection, statement: str) -> None:
        self.connection = connection
        inside: Any = connection
        inside._execute_command(COMMAND.COM_STMT_PREPARE, statement)
        self._id, columns, self._parameters = _PREPARED(inside._read_packet().get_all_data())
        for count in (self._parameters, columns):
            for _ in range(count + 1 if count else 0):  # a definition each, and the packet that ends them
                inside._read_packet()

    def packed(self, values: Sequence[Value]) -> bytes:
        """Return what COM_STMT_EXECUTE sends for these values, each of the type that its Python type says."""
        assert len(values) == self._parameters
        nulls, types, packed = 0, [], []
        for at, value in enumerate(values):
            if value is None:
                nulls |= 1 << at
                types.append(Parameter.NULL.value)
            elif isinstance(value, int):
                types.append(Parameter.SIGNED.value if value < 1 << 63 else Parameter.UNSIGNED.value)
                packed.append((value & _64_BITS).to_bytes(8, "little"))
            elif isinstance(value, float):
                types.append(Parameter.DOUBLE.value)
                packed.append(_PACK_DOUBLE(value))
            else:
                if isinstance(value, bytes):
                    types.append(Parameter.BLOB.value)
                elif isinstance(value, str):
                    types.append(Parameter.STRING.value)
                    value = value.encode()
                else:
                    types.append(Parameter.DECIMAL.value)
                    value = f"{value:f}".encode()
                packed.append(b"\xfe" + len(value).to_bytes(8, "little") + value)
        bitmap = nulls.to_bytes((len(values) + 7) // 8, "little")
        return self.execution(bitmap, b"".join(types), packed)

    def execution(self, nulls: bytes, types: bytes, packed: Sequence[bytes]) -> bytes:
        """Return COM_STMT_EXECUTE's parts: a bit for each NULL, two bytes of type for each value, the other values."""
        return b"".join((_PACK_HEAD(self._id, 0, 1), nulls, b"\1", types, *packed))

    def close(self) -> None:
        """Give it back to the server, unless the connection is gone and took it along. Nothing may be under way."""
        if self.connection.open:
            inside: Any = self.connection
            inside._execute_command(COMMAND.COM_STMT_CLOSE, self._id.to_bytes(4, "little"))
