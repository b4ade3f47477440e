"""Reads rows with SELECT, in the same form as from the binlog.

A reader of text-protocol results is generated for the columns asked for: PyMySQL's own takes several times as long
a row. It opens no session and decides no transaction: the caller's connection is a PyMySQL one from
servers.sessions.open_session, whose time zone, SQL mode and character set the values rely on.

Source of the protocol: MySQL's internals manual, "Text Resultset".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from io import BytesIO
from math import inf
from typing import Any, ClassVar, Protocol, TypeAlias

import pymysql
from pymysql.constants import COMMAND, FIELD_TYPE, SERVER_STATUS
from pymysql.protocol import MysqlPacket

from ingest.charsets import decoder_of, unreadable_where_invalid
from viewtail.changes.batches import Row
from viewtail.changes.counting import counted
from viewtail.changes.errors import (
    RETRIES,
    SnapshotTooOldError,
    SourceError,
    SourceUnavailableError,
    TableGoneError,
    TookTooLongError,
    ViewtailError,
)
from viewtail.changes.masks import careful_mask_of, mask_of
from viewtail.changes.tables import TEXTS_IN_BINARY, Column, Kind, Table
from viewtail.servers.answers import LastAnswer
from viewtail.servers.literals import literal, rows_with, where_all
from viewtail.servers.sessions import TEMPORARY_NUMBERS, MySQLAddress, number_of, quote, session_error, took_too_long

# Every valid text of these character sets reaches the client as it is.
CONVERTED = frozenset(("utf8mb4", "utf8mb3", "latin1"))

# Of each column that a SELECT gives, what the server says of its type.
Form: TypeAlias = tuple[tuple[bytes, int], ...]
_TABLE_DEF_CHANGED = 1412
_NO_SUCH_TABLE = (1049, 1146)
_TYPE_AT, _SCALE_AT = 6, 7  # in the bytes of a form
_NUMBERS = {
    Kind.INTEGER: frozenset(
        (FIELD_TYPE.TINY, FIELD_TYPE.SHORT, FIELD_TYPE.INT24, FIELD_TYPE.LONG, FIELD_TYPE.LONGLONG, FIELD_TYPE.YEAR)
    ),
    Kind.DECIMAL: frozenset((FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL)),
}
_UNSIGNED = 32  # of the flags; others say how the statement was executed


def fetch_rows(
    connection: pymysql.Connection[Any],
    sql: str,
    columns: Sequence[Column],
    max_bytes: float = inf,
    look: Callable[[Form], None] = lambda _: None,
    last: LastAnswer | None = None,
) -> list[Row]:
    """The rows of `sql`, a SELECT of `select_list(columns)`, with values in canonical form.

    A text that is invalid in its character set is `Unreadable` there. All rows are held in memory: limit them
    in the statement. With `max_bytes` reading ends behind the row that reaches it: the first rows are returned, at
    least one, and the connection is closed, since the server cannot be asked to send no more. `look` gets the form of
    the rows before any is read, and may raise; where the answer is the one of before (`last`), which had no rows,
    nobody looks. The connection can be used on after a statement that the server refused; after any other error it is
    closed. Raises SourceUnavailableError, SourceError or StoreError (access denied).
    """
    session: Any = connection  # its insides have no types
    with _reading(session):
        # Through PyMySQL up to the last column definition: it knows about closed connections and refusals.
        if last is None:
            session._execute_command(COMMAND.COM_QUERY, sql)
        else:
            last.send(session, sql)
            if last.is_again(session, sql):
                return []
        look(_form_read(session, columns))
        result = _Result(session, tuple(columns), max_bytes, session._rfile.read1)
        rows = result.rows()
        if not rows and last is not None:
            last.keep()
        if not result.is_whole:
            session._force_close()
        return rows


def fetch_bounded(
    connection: pymysql.Connection[Any],
    sql: str,
    columns: Sequence[Column],
    max_bytes: float,
    look: Callable[[Form], None] = lambda _: None,
) -> tuple[list[Row], bool]:
    """The first rows, as `fetch_rows` with `max_bytes` and `look` gives them, and whether there were more.

    Those are read from the network and dropped, so that the connection can be used on: of a SELECT whose rows
    are rarely beyond the bound, in a snapshot that the next SELECT needs.
    """
    session: Any = connection
    with _reading(session):
        session._execute_command(COMMAND.COM_QUERY, sql)
        look(_form_read(session, columns))
        result = _Result(session, tuple(columns), max_bytes, session._rfile.read1)
        return result.rows(), not result.is_whole and result.drop_rest()


class Fetch:
    """A SELECT as of `fetch_rows` whose three parts stand apart, so that the server works while rows are parsed.

    Each raises as `fetch_rows` does. `send` comes behind what was sent before, `receive` when that was answered.
    """

    def __init__(self, connection: pymysql.Connection[Any], sql: str, columns: Sequence[Column]) -> None:
        self._session: Any = connection
        self._sql, self._columns = sql, tuple(columns)
        self._answer = b""

    def send(self) -> None:
        """Ask the server."""
        with _reading(self._session):
            self._session._execute_command(COMMAND.COM_QUERY, self._sql)

    def receive(self) -> None:
        """Take all of the answer, so that the next one may come."""
        with _reading(self._session):
            self._answer = _whole_answer(self._session._rfile.read1)

    def rows(self) -> list[Row]:
        """Parse what the server answered; once. The session is as it was, whatever is raised."""
        answer, self._answer = self._answer, b""
        at = 0
        try:
            for number in range(len(self._columns) + 2):  # how many columns, each of them, and their end
                begin = at + 4
                at = begin + int.from_bytes(answer[at : at + 3], "little")
                if number == 0:
                    count = MysqlPacket(answer[begin:at], self._session.encoding).read_length_encoded_integer()
                    _check_count(count, self._columns)
            rest = BytesIO(answer)
            rest.seek(at)
            return _Result(self._session, self._columns, inf, rest.read1).rows()
        except _UNREADABLE as error:
            raise _unreadable(error) from None


@contextmanager
def _reading(session: Any) -> Iterator[None]:
    """Errors of reading rows become those of viewtail's tree."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        if not _is_refusal(error):
            session._force_close()
        raise source_error(error, session) from None
    except BaseException as error:
        session._force_close()
        if isinstance(error, OSError):
            lost = pymysql.err.OperationalError(2013, f"lost while reading rows ({type(error).__name__})")
            raise source_error(lost, session) from None
        if isinstance(error, (*_UNREADABLE, AttributeError)):
            raise _unreadable(error) from None
        raise


_UNREADABLE = (ValueError, IndexError, struct.error)


def _unreadable(error: BaseException) -> SourceError:
    return SourceError(
        f"the server's answer to a SELECT cannot be read ({type(error).__name__}), and nothing of it was taken. "
        "If it happens again, report it with the server's version"
    )


def _form_read(session: Any, columns: Sequence[Column]) -> Form:
    """Take the head of an answer, up to its rows."""
    _check_count(session._read_packet().read_length_encoded_integer(), columns)
    form = tuple(_form_of(session._read_packet().get_all_data()) for _ in columns)
    session._read_packet()  # EOF
    return form


def _check_count(count: int | None, columns: Sequence[Column]) -> None:
    if count != len(columns):
        raise SourceError(
            f"a SELECT of {counted(len(columns), 'columns')} gave {count}; this is a fault in viewtail, report it"
        )


def _form_of(definition: bytes) -> tuple[bytes, int]:
    """Character set, length, type and digits of a column, and whether it is unsigned: the end of its definition."""
    return definition[-12:-5] + definition[-3:-2], definition[-5] & _UNSIGNED


def check_numbers(columns: Sequence[Column], form: Form) -> None:
    """Raises SourceError where what the server calculates is another number than these columns are.

    Its table was altered, and the stream has not come to that: texts are added up inexactly, and compared as texts.
    """
    for column, (of_type, _) in zip((column.stored for column in columns), form, strict=True):
        type_, scale = of_type[_TYPE_AT], of_type[_SCALE_AT]
        is_same = type_ in _NUMBERS.get(column.kind, (type_,))
        if not is_same or (column.kind is Kind.DECIMAL and scale != column.scale):
            raise SourceError(
                f"the server has another type for {column.name} than {column.type_name}: its table was altered, and "
                "the changes that were read do not tell it yet"
            )


def _is_refusal(error: pymysql.err.MySQLError) -> bool:
    # The server's own numbers; the client's for lost connections begin at 2000, and 0 is a closed one.
    return 1000 <= number_of(error) < 2000 or number_of(error) >= 3000


def source_error(error: pymysql.err.MySQLError, connection: pymysql.Connection[Any]) -> ViewtailError:
    """The error of viewtail's tree for one that reading from the source met."""
    address = MySQLAddress(host=str(connection.host), port=connection.port or 3306, user=user_of(connection))
    if took_too_long(error):
        return TookTooLongError(
            f"{address} ended a SELECT of rows ({number_of(error)}): it took longer than its session allows. {RETRIES}"
        )
    if number_of(error) == _TABLE_DEF_CHANGED:
        return SnapshotTooOldError(
            f"{address} cannot show a table in a snapshot from before it was altered ({number_of(error)}). {RETRIES}"
        )
    if number_of(error) in _NO_SUCH_TABLE:
        said = f"{number_of(error)} {error.args[1]}"
        return TableGoneError(f"{address}: {said}. Restart viewtail, so that it reads which tables there are")
    mapped = session_error(error, address, "source")
    is_final = _is_refusal(error) and number_of(error) not in TEMPORARY_NUMBERS
    if not is_final or not isinstance(mapped, SourceUnavailableError):
        return mapped
    message = str(error.args[1]) if len(error.args) > 1 else type(error).__name__
    return SourceError(
        f"{address} refused to read canonical rows: {number_of(error)} {message}. If the table was changed meanwhile, "
        "restart viewtail so that it reads the table's definition again"
    )


@contextmanager
def source_errors(connection: pymysql.Connection[Any]) -> Iterator[None]:
    """Raise what a statement on the source meets as an error of viewtail's tree."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        raise source_error(error, connection) from None


def user_of(connection: pymysql.Connection[Any]) -> str:
    """The user that a session is logged in as."""
    user = connection.user
    return user.decode(errors="replace") if isinstance(user, bytes) else str(user)


_READ_BYTES = 1 << 18
_LARGEST_PACKET = 0xFFFFFF  # a packet of this length goes on in the next one
_EOF, _ERROR = 0xFE, 0xFF
_END_BYTES = 9  # of the packet behind the last row, its header included


class _Result:
    """The row packets of one SELECT, read in large pieces and parsed in place."""

    def __init__(
        self, connection: Any, columns: tuple[Column, ...], max_bytes: float, read: Callable[[int], bytes]
    ) -> None:
        self.is_whole = True
        self._left = max_bytes
        self._connection = connection
        self._columns = columns
        self._parse = _compiled(columns, is_careful=False)
        self._read = read
        self._rows: list[Row] = []
        self._behind = b""

    @property
    def _is_full(self) -> bool:
        return self._left <= 0 and bool(self._rows)

    def rows(self) -> list[Row]:
        data = b""
        while True:
            if self._is_full:
                self.is_whole, self._behind = False, data
                return self._rows
            at = self._complete_rows(data)
            data = data[at:]
            self._left -= at
            if len(data) >= 4:
                length = int.from_bytes(data[:3], "little")
                if length == _LARGEST_PACKET:
                    data = data if self._is_full else self._large_row(data)
                    continue
                if len(data) >= 4 + length:
                    self._end(data, length)
                    return self._rows
                # read1 gives what is there: joining it piece by piece would copy a large row again and again
                data = _with_more(data, 4 + length - len(data), self._read)
            else:
                data = _with_more(data, 4 - len(data), self._read)

    def drop_rest(self) -> bool:
        """Read to the end what `rows` left, and keep nothing; whether there was a row."""
        dropped, last = 0, b""
        for packets in _packets(self._behind, 1, self._read):
            dropped, last = dropped + len(packets), packets or last
        end = last[-_END_BYTES:]
        self._end(end, _END_BYTES - 4)
        return dropped > _END_BYTES

    def _complete_rows(self, data: bytes) -> int:
        before = len(self._rows)
        try:
            return self._parse(data, 0, len(data), self._rows.append)
        except UnicodeDecodeError:
            del self._rows[before:]
            return _compiled(self._columns, is_careful=True)(data, 0, len(data), self._rows.append)

    def _large_row(self, data: bytes) -> bytes:
        """Take a row of several packets from the front of `data`; what follows it is given back."""
        pieces = []
        length = _LARGEST_PACKET
        while length == _LARGEST_PACKET:
            data = _with_more(data, 4 - len(data), self._read)
            length = int.from_bytes(data[:3], "little")
            data = _with_more(data, 4 + length - len(data), self._read)
            pieces.append(data[4 : 4 + length])
            data = data[4 + length :]
        # The parser looks at lengths only to know whether a row is complete, so that one header serves.
        row = b"".join([b"\0\0\0\0", *pieces])
        self._left -= len(row)
        parse = _compiled(self._columns, is_careful=True, is_single=True)
        if parse(row, 0, len(row), self._rows.append) != len(row):
            raise ValueError("a large row has bytes left")
        return data

    def _end(self, data: bytes, length: int) -> None:
        packet = data[4 : 4 + length]
        if packet[0] == _ERROR:
            if len(data) != 4 + length:
                raise ValueError("bytes behind an error packet")
            pymysql.err.raise_mysql_exception(packet)
        if packet[0] != _EOF or length >= 9 or len(data) != 4 + length:
            raise ValueError("a row does not end where its packet does")
        status = int.from_bytes(packet[3:5], "little")
        if status & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS:
            raise ValueError("a second result")
        self._connection.server_status = status


def _whole_answer(read: Callable[[int], bytes]) -> bytes:
    """All packets of the answer to a SELECT, up to the second end, behind the rows. Raises the error that it holds."""
    return b"".join(_packets(b"", 2, read))


def _packets(data: bytes, ends: int, read: Callable[[int], bytes]) -> Iterator[bytes]:
    """`data` and what comes behind it up to so many ends, whole packets a piece. Raises the error that it holds."""
    is_continued = False
    while True:
        missing, at = 1, 0
        while len(data) > at + 4:
            stop = at + 4 + (data[at] | data[at + 1] << 8 | data[at + 2] << 16)
            if stop > len(data):
                missing = stop - len(data)
                break
            first, length, was_continued = data[at + 4], stop - at - 4, is_continued
            is_continued = length == _LARGEST_PACKET
            if first == _ERROR and not was_continued:
                pymysql.err.raise_mysql_exception(data[at + 4 : stop])
            at = stop
            if first == _EOF and length < 9 and not was_continued:
                ends -= 1
                if ends == 0:
                    yield data
                    return
        yield data[:at]
        data = _with_more(data[at:], missing, read)


def _with_more(data: bytes, missing: int, read: Callable[[int], bytes]) -> bytes:
    """Read at least so many bytes more; join them at the end: piece by piece a large row would be copied often."""
    pieces = [data]
    while missing > 0:
        piece = read(max(_READ_BYTES, missing))
        if not piece:
            raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


# --- What is asked for ---


def select_list(columns: Sequence[Column]) -> str:
    """The expressions behind SELECT with which `fetch_rows` gives these columns' values as the binlog does."""
    return ", ".join(_expression(column) for column in columns)


def select_of(table: Table, expressions: str, where: str) -> str:
    """The SELECT of a table's rows; `where` is as `where_all` gives it.

    One of a pattern's tables has no column of the braces: `expressions_of` has their values, and for conditions that an
    operator wrote they are put beside the table's own columns.
    """
    name, constants = quote(table.schema, table.name), _constants(table)
    if any(of in where.lower() for of in map(str.lower, constants)):
        named = ", ".join(f"{value} AS {quote(of)}" for of, value in constants.items())
        name = f"(SELECT {named}, r.* FROM {name} r) r"
    return f"SELECT {expressions} FROM {name}{where}"


def expressions_of(table: Table, columns: Sequence[Column]) -> str:
    """As `select_list`, of one table, which may be one of a pattern's."""
    constants = _constants(table)
    return ", ".join(constants.get(column.name) or _expression(column) for column in columns)


def _constants(table: Table) -> dict[str, str]:
    """Of one of a pattern's tables, by the name of its column each value that its name has."""
    if table.part is None:
        return {}
    columns = zip(table.columns, table.part.values, strict=False)
    return {column.name: _constant(value, column) for column, value in columns}


def _constant(value: Any, column: Column) -> str:
    text = literal(value, column)
    return text if column.kind is Kind.INTEGER else f"CONVERT({text} USING utf8mb4) COLLATE {column.collation}"


class ReadableRows(Protocol):
    """Rows that are read as if they were of one table. Where a snapshot is needed, the caller begins it.

    `where`, as `where_all` gives it, and what comes `behind` (ORDER BY, LIMIT) are over the table's key. The rows of a
    pattern's tables are read by key, or table by table.
    """

    needs_snapshot: ClassVar[bool]  # several SELECTs make a row

    @property
    def table(self) -> Table:
        """The table that the rows are of, or would be of."""

    def fetch(
        self, connection: Any, columns: Sequence[Column], where: str = "", behind: str = "", max_bytes: float = inf
    ) -> list[Row]:
        """Their values in these columns; see `fetch_rows`."""

    def keys(self, connection: Any, columns: Sequence[Column], where: str = "", behind: str = "") -> list[Row]:
        """The same of columns of the key alone, which may cost less."""

    def having(
        self, connection: Any, columns: Sequence[Column], of: Sequence[Column], keys: Sequence[Row], only: str = ""
    ) -> list[Row]:
        """The same of the rows with one of these keys over the columns `of`, which meet the condition `only`."""
        read = self.keys if columns == of else self.fetch
        return read(connection, columns, where_all(only, rows_with(of, keys)))


@dataclass(frozen=True, slots=True)
class TableRows(ReadableRows):
    """The rows of a table as the server has it, or of all that a pattern stands for: of those by key alone."""

    needs_snapshot: ClassVar[bool] = False
    table: Table

    def fetch(
        self, connection: Any, columns: Sequence[Column], where: str = "", behind: str = "", max_bytes: float = inf
    ) -> list[Row]:
        statement = f"{select_of(self.table, expressions_of(self.table, columns), where)}{behind}"
        return fetch_rows(connection, statement, columns, max_bytes)

    def keys(self, connection: Any, columns: Sequence[Column], where: str = "", behind: str = "") -> list[Row]:
        return self.fetch(connection, columns, where, behind)

    def having(
        self, connection: Any, columns: Sequence[Column], of: Sequence[Column], keys: Sequence[Row], only: str = ""
    ) -> list[Row]:
        table = self.table
        if table.pattern is None or table.part is not None:
            return ReadableRows.having(self, connection, columns, of, keys, only)
        rows: list[Row] = []
        for of_part, some, in_part in _by_part(table, of, keys):
            with suppress(TableGoneError):  # and its rows with it
                rows += ReadableRows.having(TableRows(of_part), connection, columns, some, in_part, only)
        return rows


def _by_part(
    table: Table, of: Sequence[Column], keys: Sequence[Row]
) -> Iterator[tuple[Table, Sequence[Column], Sequence[Row]]]:
    """Of a pattern, each table that may have some of these keys, and what is left of them there."""
    pattern = table.pattern
    assert pattern is not None
    width = len(pattern.names)
    if not width:  # its tables are not told apart by what is in a row
        yield from ((of_part, of, keys) for of_part in table.each)
        return
    by_part: dict[Row, list[Row]] = {}
    for key in keys:
        by_part.setdefault(tuple(key[:width]), []).append(key[width:])
    for values, in_part in by_part.items():
        if (part := pattern.of(values)) is not None:
            yield table.at(part), of[width:], in_part


def reading(column: Column) -> tuple[object, ...]:
    """Describe how values are asked for and understood; where it differs, an earlier reader would read wrong values."""
    return _expression(column), column.kind, column.charset if _has_codec(column) else None, column.mask


def _has_codec(column: Column) -> bool:
    return column.kind is Kind.TEXT and column.charset not in CONVERTED


def _expression(column: Column) -> str:
    column = column.stored
    name, declared = quote(column.name), column.declared.lower()
    if column.kind is Kind.FLOAT or (column.kind is Kind.DOUBLE and declared != "double"):
        # [M] A FLOAT is printed with 6 digits, a DOUBLE ZEROFILL of -0.0 as '000-0'; the product with a
        # double is the same value, printed in full. (A sum would turn -0.0 into 0.0.)
        return f"{name} * 1e0"
    if declared.startswith("bit"):
        return f"CAST({name} AS UNSIGNED)"
    if _has_codec(column) and declared not in TEXTS_IN_BINARY:
        # The conversion for the client would turn codes without a character into '?'.
        return f"CAST({name} AS BINARY)"
    return name


# --- The parser made for some columns ---

# How a field's bytes become its value; {raw} is the slice.
_VALUES = {Kind.INTEGER: "int({raw})", Kind.DECIMAL: "Decimal({raw}.decode('ascii'))"}
_VALUES |= dict.fromkeys((Kind.FLOAT, Kind.DOUBLE), "float({raw})")
_VALUES |= dict.fromkeys((Kind.BYTES, Kind.GEOMETRY, Kind.VECTOR), "{raw}")


def _value(column: Column, number: int, names: dict[str, Any], *, is_careful: bool) -> str:
    """Give the code that turns the bytes {raw} of that column into its value; what it calls is added to `names`."""
    if column.mask is not None:
        if column.mask.how == "null":
            return "None"
        names[f"mask{number}"] = careful_mask_of(column) if is_careful else mask_of(column)
        return f"mask{number}({_value(column.stored, number, names, is_careful=is_careful)})"
    value = _VALUES.get(column.kind, "{raw}.decode()")
    decode = decoder_of((column.charset or "") if _has_codec(column) else "utf8mb4")
    if _has_codec(column):
        names[f"decode{number}"] = decode
        value = f"decode{number}({{raw}})"
    if is_careful and "decode" in value and column.kind is not Kind.DECIMAL:
        names[f"careful{number}"] = unreadable_where_invalid(decode, column.name)
        value = f"careful{number}({{raw}})"
    return value


@lru_cache(maxsize=256)
def _compiled(
    columns: tuple[Column, ...], *, is_careful: bool, is_single: bool = False
) -> Callable[[bytes, int, int, Callable[[Row], None]], int]:
    """parse(data, p, end, append) -> where the first packet begins that is no complete row.

    Stops before EOF, error and incomplete packets and those of the largest size. `is_single`: takes the one
    row that begins at p + 4 whatever its length."""
    names: dict[str, Any] = {"Decimal": Decimal, "from_bytes": int.from_bytes}
    lines = ["def parse(data, p, end, append):"]
    if is_single:
        lines.append("    if True:")
    else:
        lines += [
            "    while p + 4 < end:",
            "        n = data[p] | data[p + 1] << 8 | data[p + 2] << 16",
            "        stop = p + 4 + n",
            f"        if stop > end or n == {_LARGEST_PACKET}: return p",
            # 0xFE begins a field of 2^24 bytes and more only, which makes a packet of the largest size
            f"        if data[p + 4] >= {_EOF}: return p",
        ]
    lines.append("        q = p + 4")
    for number, column in enumerate(columns):
        value = _value(column, number, names, is_careful=is_careful)
        lines += [
            "        p = q + 1",
            "        n = data[q]",
            "        if n < 251:",
            "            q = p + n",
            f"            v{number} = {value.format(raw='data[p:q]')}",
            "        elif n == 251:",
            f"            v{number} = None",
            "            q = p",
            "        else:",
            "            size = 2 if n == 252 else 3 if n == 253 else 8",
            "            q = p + size + from_bytes(data[p:p + size], 'little')",
            "            p += size",
            f"            v{number} = {value.format(raw='data[p:q]')}",
        ]
    wanted = "".join(f"v{number}, " for number in range(len(columns)))
    if not is_single:
        lines.append("        if q != stop: raise ValueError('a row does not end where its packet does')")
    lines += [f"        append(({wanted}))", "        p = q", "    return p"]
    exec(compile("\n".join(lines), "<parser of rows>", "exec"), names)
    parse: Callable[[bytes, int, int, Callable[[Row], None]], int] = names["parse"]
    return parse
