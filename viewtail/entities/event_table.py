"""The table of event-sourced entities: one row an event, a version an entity, an id a command.

Two unique keys keep all promises: (entity_id, version) lets one of two writers of an entity through, and
(entity_id, command_id) lets a command take effect once. Nothing else has to be right for that: no lock, no owner.
An entity's oldest events may be archived, and its newest never: its events in the table have no gap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import orjson
import pymysql

from viewtail.changes.errors import MisuseError
from viewtail.changes.tables import full_name, names_of
from viewtail.entities.commands import MOST_COMMAND_ID, MOST_ENTITY_ID, MOST_NAME, Command
from viewtail.servers.facts import ServerFacts
from viewtail.servers.pipelined import Flight
from viewtail.servers.sessions import NO_RIGHTS, Connection, number_of, quote

BYTES_A_STATEMENT = 1 << 20  # of JSON, plus one event: below any server's max_allowed_packet
NOT_AS_MADE = frozenset({1049, 1054, 1146})  # MySQL's numbers: no such database, column, table
NO_TABLE = 1146
NOT_TO_BE_ASKED = NO_RIGHTS | {NO_TABLE}
_LOCKED_TOO_LONG = 1205
NOTHING = b"null"  # the state of an entity without events
KEY, VERSION = "entity_id", "version"  # columns that name an event
COMMAND_KEY = "entity_command"  # the unique key of (entity_id, command_id)


# An event of an entity: its version, 0 where there is none; the state then, as JSON; and the version of the entity's
# oldest event that is in the table, those below being archived. A plain tuple, since a worker makes and keeps ten
# thousand a second: Python's garbage collector looks at each object of a class again and again, and not at these.
Newest: TypeAlias = tuple[int, bytes, int]


class Recorded(NamedTuple):
    """The effect of a command when it was handled; an Event has the same fields."""

    version: int
    name: str
    request: bytes
    response: bytes


class Event(NamedTuple):
    """The event to write for a command."""

    command: Command
    version: int
    response: bytes
    state: bytes

    @property
    def name(self) -> str:
        return self.command.name

    @property
    def request(self) -> bytes:
        return self.command.request_text

    @property
    def size(self) -> int:
        return len(self.command.request_text) + len(self.response) + len(self.state)


@dataclass(frozen=True, slots=True)
class EventTable:
    """Statements over one such table; `name` is 'database.table'."""

    name: str

    def __post_init__(self) -> None:
        if (names := names_of(self.name)) is None:
            raise MisuseError(f"{self.name!r}: name the table with its database, as in bank.account")
        object.__setattr__(self, "name", full_name(*names))

    @property
    def schema_and_table(self) -> tuple[str, str]:
        """'bank.account' -> ('bank', 'account')"""
        names = names_of(self.name)
        assert names is not None
        return names

    @property
    def quoted(self) -> str:
        """The table's name for SQL statements."""
        return quote(*self.schema_and_table)

    def ddl(self, facts: ServerFacts) -> str:
        """Return the statement that creates the table where it is missing."""
        text = f"CHARACTER SET utf8mb4 COLLATE {facts.binary_collation} NOT NULL"  # 'a' and 'a ' are two entities
        return (
            f"CREATE TABLE IF NOT EXISTS {self.quoted} (\n"
            "  event_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY COMMENT 'Rises over all entities',\n"
            f"  entity_id VARCHAR({MOST_ENTITY_ID}) {text} COMMENT 'Whose event it is',\n"
            "  version BIGINT UNSIGNED NOT NULL COMMENT '1 for the first event of an entity, without gaps',\n"
            f"  command_id VARCHAR({MOST_COMMAND_ID}) {text} COMMENT 'Chosen by who sent it',\n"
            f"  command_name VARCHAR({MOST_NAME}) {text} COMMENT 'Which command it was',\n"
            "  -- Its three documents, and its keys, are called as programs know them. viewtail: ignore VT109\n"
            # Stored as text: MySQL's JSON type changes some numbers to their neighbours.
            "  request LONGTEXT CHARACTER SET utf8mb4 NOT NULL COMMENT 'What was asked' CHECK (JSON_VALID(request)),\n"
            "  -- viewtail: ignore VT109\n"
            "  response LONGTEXT CHARACTER SET utf8mb4 NOT NULL\n"
            "    COMMENT 'What the command was answered, the first time and ever after' CHECK (JSON_VALID(response)),\n"
            "  -- viewtail: ignore VT109\n"
            "  state JSON NOT NULL COMMENT 'That of the entity after the command',\n"
            "  committed_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'When it was written',\n"
            "  UNIQUE KEY entity_version (entity_id, version), -- viewtail: ignore VT108\n"
            f"  UNIQUE KEY {COMMAND_KEY} (entity_id, command_id) -- viewtail: ignore VT108\n"
            ") ENGINE=InnoDB COMMENT 'Events of entities, one a command'"
        )

    def exists(self, connection: Connection) -> bool:
        """Return whether there is a table of that name."""
        named = "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        return bool(_rows(connection, named, self.schema_and_table))

    def look(self, connection: Connection) -> None:
        """Raise PyMySQL's errors if the table is missing, lacks a column, or may not be read."""
        columns = "event_id, entity_id, version, command_id, command_name, request, response, state"
        _rows(connection, f"SELECT {columns} FROM {self.quoted} LIMIT 0", ())

    def newest(self, connection: Connection, entity_ids: Collection[str]) -> dict[str, Newest]:
        """Return the version and state of the newest event of each of these entities that has one."""
        if not entity_ids:
            return {}
        rows = _rows(
            connection,
            "SELECT e.entity_id, e.version, e.state, n.first FROM "
            f"(SELECT entity_id, MAX(version) AS version, MIN(version) AS first FROM {self.quoted} "
            f"WHERE entity_id IN ({_marks(entity_ids)}) GROUP BY entity_id) n STRAIGHT_JOIN {self.quoted} e "
            "ON e.entity_id = n.entity_id AND e.version = n.version",
            list(entity_ids),
        )
        return {entity: (version, state.encode(), first) for entity, version, state, first in rows}

    def at(self, connection: Connection, entity_id: str, version: int) -> Newest | None:
        """The state that an entity had at a version; None where no such event is in the table."""
        for at_version, state in _rows(
            connection,
            f"SELECT version, state FROM {self.quoted} WHERE entity_id = %s AND version = %s",
            [entity_id, version],
        ):
            return at_version, state.encode(), at_version
        return None

    def recorded(self, connection: Connection, commands: Sequence[Command]) -> dict[tuple[str, str], Recorded]:
        """The commands among these that were handled, by entity and command id."""
        # Of a thousand a join takes a third of the time that the server needs for as many conditions. Where of two
        # collations one is binary, both servers compare in that.
        text = f"VARCHAR({MOST_COMMAND_ID}) CHARACTER SET utf8mb4 PATH"
        rows = _rows(
            connection,
            "SELECT e.entity_id, e.command_id, e.version, e.command_name, e.request, e.response "
            f"FROM JSON_TABLE(%s, '$[*]' COLUMNS (entity_id {text} '$[0]', command_id {text} '$[1]')) c "
            f"STRAIGHT_JOIN {self.quoted} e FORCE INDEX ({COMMAND_KEY}) "
            "ON e.entity_id = c.entity_id AND e.command_id = c.command_id",
            [orjson.dumps([(command.entity_id, command.command_id) for command in commands]).decode()],
        )
        return {
            (entity, command): Recorded(version, name, request.encode(), response.encode())
            for entity, command, version, name, request, response in rows
        }

    def are_there(self, connection: Connection, versions: Mapping[str, int]) -> bool:
        """Return whether each of these entities has its event of this version."""
        if not versions:
            return True
        counts = _rows(
            connection,
            f"SELECT COUNT(*) FROM JSON_TABLE(%s, '$[*]' COLUMNS (entity_id VARCHAR({MOST_ENTITY_ID}) "
            "CHARACTER SET utf8mb4 PATH '$[0]', version BIGINT UNSIGNED PATH '$[1]')) n "
            f"STRAIGHT_JOIN {self.quoted} e FORCE INDEX (entity_version) "
            "ON e.entity_id = n.entity_id AND e.version = n.version",
            [orjson.dumps([*versions.items()]).decode()],
        )
        return bool(counts == [(len(versions),)])

    def last(self, connection: Connection, entity_ids: Collection[str]) -> dict[str, int]:
        """Return the version of the newest event of each of these entities that has one."""
        if not entity_ids:
            return {}
        return dict(
            _rows(
                connection,
                f"SELECT entity_id, MAX(version) FROM {self.quoted} FORCE INDEX (entity_version) "
                f"WHERE entity_id IN ({_marks(entity_ids)}) GROUP BY entity_id",
                list(entity_ids),
            )
        )

    def send(self, flight: Flight, events: Iterable[Event]) -> None:
        """Insert them in the open transaction, in few statements. Raises PyMySQL's errors where the session is gone."""
        columns = "version, entity_id, command_id, command_name, request, response, state"
        head = f"INSERT INTO {self.quoted} ({columns}) VALUES ".encode()
        rows: list[bytes] = []
        size = 0
        for event in events:
            rows.append(_literals(event))
            size += len(rows[-1])
            if size > BYTES_A_STATEMENT:
                flight.send(head + b", ".join(rows))
                rows, size = [], 0
        if rows:
            flight.send(head + b", ".join(rows))


def landed(flight: Flight, *, asked: bool = False) -> pymysql.err.MySQLError | None:
    """Wait until all of it is done. Raises PyMySQL's first error: 1062 where another writer was first.

    Where one waited for another's lock in vain, those behind it would, too: then they are still under way.
    Where the last statement only `asked` for a table that is missing, or is not for this user, that error is returned.
    """
    first: pymysql.err.MySQLError | None = None
    last: pymysql.err.MySQLError | None = None
    for answer in flight.answers():
        if not isinstance(answer, pymysql.err.MySQLError):
            continue
        if asked and not flight.is_under_way and number_of(answer) in NOT_TO_BE_ASKED:
            last = answer  # all others may have ended the transaction
            continue
        first = first or answer
        if number_of(answer) == _LOCKED_TOO_LONG:
            raise answer
    if first is not None:
        raise first
    return last


def _literals(event: Event) -> bytes:
    """Return a row's literals, for sessions as viewtail opens them. PyMySQL's own take six times as long.

    No NUL is in an id, nor in JSON as it stands: so one text is escaped in place of six.
    """
    command, version, response, state = event
    names = "\0".join((command.entity_id, command.command_id, command.name)).encode()
    text = b"\0".join((names, command.request_text, response, state))
    text = text.replace(b"\\", b"\\\\").replace(b"'", b"\\'").replace(b"\0", b"', '")
    return b"(%d, '%b')" % (version, text)


def read_in_one_snapshot(connection: Connection) -> None:
    """Read everything in the transaction as of one moment, so that an event archived meanwhile is found once."""
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def _marks(values: Collection[object]) -> str:
    return ", ".join(["%s"] * len(values))


def _rows(connection: Connection, statement: str, values: Sequence[object]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())
