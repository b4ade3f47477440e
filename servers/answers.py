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
        self._statement = ""
        self._bytes = b""  # empty: what came last is not known as a whole
        self._rows: Sequence[Any] = ()

    def ask(self, session: Any, statement: str) -> Sequence[Any]:
        """Its rows, as PyMySQL reads them. Raises PyMySQL's errors."""
        session._execute_command(COMMAND.COM_QUERY, statement)
        if not self.is_again(session, statement):
            self._rows = ()
            session._read_query_result()
            self._rows = session._result.rows or ()
        return self._rows

    def is_again(self, session: Any, statement: str) -> bool:
        """Whether the server answers as it did to the same statement before; then the answer has been read past.

        To be called when the statement was sent, before anything of its answer is read. False leaves the answer to the
        caller, who says `forget` where it is to be read the next time too. Raises PyMySQL's errors.
        """
        before, self._bytes = self._bytes, b""
        try:
            found: bytes = session._rfile.peek()
        except OSError as error:  # as PyMySQL tells it
            session._force_close()
            raise pymysql.err.OperationalError(2013, f"lost while waiting ({type(error).__name__})") from None
        is_again = bool(found) and found == before and statement == self._statement
        if is_again:
            session._rfile.read(len(found))
        if is_again or _is_whole(found):
            self._statement, self._bytes = statement, found
        return is_again

    def forget(self) -> None:
        """The next answer is another one, whatever it is."""
        self._bytes = b""


def _is_whole(answer: bytes) -> bool:
    """Whether these bytes are all of an answer that has columns, and nothing more."""
    at = last = count = 0
    while len(answer) >= at + 5:
        last, count = at + 4, count + 1
        at = last + int.from_bytes(answer[at : at + 3], "little")
    if not answer or at != len(answer) or not 0 < answer[4] < 251:  # an error, or columns beyond counting
        return False
    return count >= answer[4] + _BESIDE_ROWS and answer[last] == _EOF and len(answer) - last < 9
