"""A statement that is asked again and again, whose answer is mostly the one of before.

To compare an answer's bytes costs a fraction of reading its columns and rows.

Source of the protocol: MySQL's internals manual, "Text Resultset".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pymysql
from pymysql.constants import COMMAND

_EOF = 0xFE
_BESIDE_ROWS = 3  # packets of an answer beside its columns and rows: the number of columns, and two ends


class LastAnswer:
    """The server's last answer to a statement; of one session at a time."""

    def __init__(self) -> None:
        self._known = ("", b"")  # a statement, and its answer as it was read; b"": none was
        self._came = ("", b"")  # the same of the last answer, which is being read
        self._packed = ("", b"")  # a statement as it is sent
        self._rows: Sequence[Any] = ()

    def ask(self, session: Any, statement: str) -> Sequence[Any]:
        """Return the rows of a statement, as PyMySQL reads them. Raises PyMySQL's errors."""
        self.send(session, statement)
        if not self.is_again(session, statement):
            session._read_query_result()
            self._rows = session._result.rows or ()
            self.keep()
        return self._rows

    def send(self, session: Any, statement: str) -> None:
        """Ask the server; nothing of an answer is left to read. Raises PyMySQL's errors.

        A statement whose answer is known goes as the packet that it was before: PyMySQL makes it anew each time.
        """
        if statement != self._known[0] or not session.open:
            session._execute_command(COMMAND.COM_QUERY, statement)
            return
        if statement != self._packed[0]:
            self._packed = statement, _packet(statement.encode(session.encoding))
        session._next_seq_id = 1  # of the answer
        try:
            session._sock.sendall(self._packed[1])
        except OSError as error:
            raise _lost(session, error) from None

    def is_again(self, session: Any, statement: str) -> bool:
        """Return whether the server answers as it did to the same statement before; then the answer has been read past.

        To be called behind `send`, before anything of its answer is read, with the timeout that sending it left. False
        leaves the answer to the caller, who says `keep` once it was read. The session's status stays as it was before.
        Raises PyMySQL's errors.
        """
        try:
            found: bytes = session._rfile.peek()
        except OSError as error:
            raise _lost(session, error) from None
        self._came = (statement, found)
        if found and self._came == self._known:
            session._rfile.read(len(found))
            return True
        self._known = ("", b"")
        return False

    def keep(self) -> None:
        """The answer that came last was read, and need not be when it comes again."""
        if _is_whole(self._came[1]):
            self._known = self._came


def _lost(session: Any, error: OSError) -> pymysql.err.MySQLError:
    """Close the session; return the error that PyMySQL raises for a lost connection."""
    session._force_close()
    return pymysql.err.OperationalError(2013, f"lost while waiting ({type(error).__name__})")


def _packet(statement: bytes) -> bytes:
    """Return the packet of a statement below 16 MiB, which no caller comes near."""
    return (len(statement) + 1).to_bytes(3, "little") + bytes((0, COMMAND.COM_QUERY)) + statement


def _is_whole(answer: bytes) -> bool:
    """Return whether these bytes are all of an answer that has columns, and nothing more."""
    at = last = count = 0
    while len(answer) >= at + 5:
        last, count = at + 4, count + 1
        at = last + int.from_bytes(answer[at : at + 3], "little")
    if not answer or at != len(answer) or not 0 < answer[4] < 251:  # an error, or columns beyond counting
        return False
    return count >= answer[4] + _BESIDE_ROWS and answer[last] == _EOF and len(answer) - last < 9
