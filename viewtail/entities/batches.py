"""Handles commands by the batch, each on the state that the one before left, and commits a batch as one transaction.

What is assumed of an entity is read at the beginning of a batch, or remembered from the one before; the table's two
unique keys, and a look at the entities before COMMIT, decide whether it was still so at its end. If not, or where
nobody knows whether a COMMIT came through, the batch is rolled back and begins again: what of it is recorded by then is
answered from the record. So several owners of an entity are slower, and wrong never. Events may be archived meanwhile:
a batch reads the table and the archive as they were at one moment. The server writes a batch's first events while
handlers make the next.

Few commands come twice. So a batch assumes that its commands were never handled before, and the unique key of their ids
tells it where one was: then it begins again, and that one and those of the next second are looked up first. Two kinds
of commands are no matter for that key, and are always looked up before they are answered: those that write nothing, and
those of entities with archived events.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import orjson
import pymysql

from changes.errors import StoreError, StoreUnavailableError, TemporaryError, ViewtailError
from servers.sessions import TEMPORARY_NUMBERS, Connection, number_of
from viewtail.entities.archives import Archive
from viewtail.entities.commands import (
    Answer,
    Command,
    Handler,
    HandlerFailedError,
    UsedCommandIdError,
    handled,
)
from viewtail.entities.event_table import (
    COMMAND_KEY,
    NOT_AS_MADE,
    NOTHING,
    Event,
    EventTable,
    Insertion,
    Newest,
    Recorded,
    read_in_one_snapshot,
)
from viewtail.entities.pushes import Pushes
from viewtail.entities.remembered import Remembered

Outcome: TypeAlias = "Answer | ViewtailError"

_DUPLICATE = 1062
_MADE_MEANWHILE = 1412  # a table is younger than the snapshot
_NO_EVENTS = Newest(0, NOTHING, 1)
_RIGHTS = frozenset({1044, 1142, 1143, 1227})
_MOST_PAUSE_S = 1.0
LOOKED_UP_FOR_S = 1.0  # behind a command that had been handled before
MOST_BYTES = 8 << 20  # of an event
BATCH_BYTES = 16 << 20  # of events: a transaction ends behind the one that comes to it
EVENTS_AHEAD = 50  # are sent while the handlers of a batch go on
# After so long nothing more is sent ahead: what was written is locked until COMMIT. What was sent before is locked for
# so long, and for one handler more: then the batch ends.
QUICK_S, HELD_S = 0.05, 1.0
_FIRST_PAUSE_S = 0.005


class GivenUpError(Exception):
    """Somebody else finishes the batch: nothing of it may be written any more."""


class _HandledBeforeError(Exception):
    """A command of a batch that assumed that none was."""


@dataclass(eq=False, kw_only=True)
class Batches:
    """Of one thread, over a session of its own.

    Args:
        open_session: to the table's server, autocommit off.
        look: called before a handler, with the command's place in the batch, and with None before anything is
            written; may raise GivenUpError, or the ViewtailError that is the command's outcome.
        pushes: told around a COMMIT what it writes.
    """

    table: EventTable
    handlers: Mapping[str, Handler]
    open_session: Callable[[], Connection]
    look: Callable[[int | None], None] = lambda _: None
    pushes: Pushes = field(default_factory=Pushes)
    archive: Archive = field(init=False)
    _remembered: Remembered = field(default_factory=Remembered, init=False)
    _connection: Connection | None = field(default=None, init=False)
    _looks_up_until: float = field(default=0.0, init=False)  # by the monotonic clock

    def __post_init__(self) -> None:
        self.archive = Archive(self.table)

    def commit(
        self, commands: Sequence[Command], until: float, first: int = 0, looks_up: bool = False
    ) -> list[Outcome]:
        """An outcome for each command, in order, or for the first ones where their events come to BATCH_BYTES, or where
        their handlers become slow.

        `first` is the place that `look` is told of the first command. `looks_up`: no handler is called for what was
        handled before.

        A server that does not answer is asked again until the monotonic clock says `until`; a TemporaryError is the
        outcome of all then. Raises GivenUpError; any other error is an outcome of all.
        """
        pause_s = _FIRST_PAUSE_S
        looks_up = looks_up or time.monotonic() < self._looks_up_until
        while True:
            try:
                return self._once(commands, first, looks_up)
            except _HandledBeforeError:
                self._roll_back(is_kept=True)
                looks_up, self._looks_up_until = True, time.monotonic() + LOOKED_UP_FOR_S
                continue
            except pymysql.err.MySQLError as error:
                self._roll_back()
                number = number_of(error)
                if number not in (_DUPLICATE, _MADE_MEANWHILE, *TEMPORARY_NUMBERS) and not _is_broken(error):
                    return self._refused(commands, until, first, looks_up, error)
                problem: ViewtailError = StoreUnavailableError(
                    f"{self.table.name}: {number} {type(error).__name__}. Whether the command was handled is not "
                    "known: send it again under its id"
                )
            except TemporaryError as error:
                self._roll_back()
                problem = error
            except ViewtailError as error:
                self._roll_back()
                return [error] * len(commands)
            this_pause_s = random.uniform(0, pause_s)
            if time.monotonic() + this_pause_s > until:
                return [problem] * len(commands)
            time.sleep(this_pause_s)
            looks_up = True
            pause_s = min(_MOST_PAUSE_S, pause_s * 2)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            with suppress(pymysql.err.MySQLError):
                connection.close()

    def _once(self, commands: Sequence[Command], first: int, looks_up: bool) -> list[Outcome]:
        connection = self._session()
        entities = {command.entity_id for command in commands}
        remembered = self._remembered.of(entities)
        states = remembered | self.table.newest(connection, entities - remembered.keys())
        assumed = {**states}
        to_look_up = commands if looks_up else _of_archived(commands, states)
        recorded = self._recorded(connection, to_look_up, states)
        if to_look_up or len(remembered) < len(entities):  # it was asked
            connection.rollback()  # what is read behind the INSERT is of a later moment
        insertion = self.table.insertion(connection)
        try:
            outcomes, newest = self._written(commands, first, states, recorded, insertion)
            self._land(insertion, is_first_time=not looks_up)
        except BaseException:
            if insertion.is_under_way:  # its answers would be taken for those of what comes next
                self.close()
            raise
        in_vain: list[Command] = []  # and not looked up
        if not looks_up:
            told = zip(commands, outcomes, strict=False)
            in_vain = [
                one
                for one, outcome in told
                if not isinstance(outcome, Answer) and (one.entity_id, one.command_id) not in recorded
            ]
        if newest or remembered or in_vain:
            if newest:
                self.pushes.announce(newest)  # before the next question: they can be read already
            if self._recorded(connection, in_vain, states):  # taken once: that answer counts
                raise _HandledBeforeError
            self._check_was_first(connection, entities, assumed, states, {*newest})
            self.look(None)
            connection.commit()
            if newest:
                self.pushes.hand(newest)
            self._remembered.keep(states)
        return outcomes

    def _written(
        self,
        commands: Sequence[Command],
        first: int,
        states: dict[str, Newest],
        recorded: dict[tuple[str, str], Recorded],
        insertion: Insertion,
    ) -> tuple[list[Outcome], dict[str, int]]:
        """The outcomes, and the version of the newest event of each entity that got one; to be landed.

        While handlers are quick, the server writes the first events meanwhile.
        """
        outcomes: list[Outcome] = []
        events: list[Event] = []
        newest: dict[str, int] = {}
        byte_count, began = 0, time.monotonic()

        def send() -> None:
            self.look(None)
            if events:
                insertion.send(events)
                newest.update((event.command.entity_id, event.version) for event in events)
                events.clear()

        for at, command in enumerate(commands, first):
            before = len(events)
            outcomes.append(self._one(at, command, states, recorded, events))
            byte_count += sum(event.size for event in events[before:])
            if byte_count > BATCH_BYTES or (insertion.is_under_way and time.monotonic() - began > HELD_S):
                break
            if len(events) >= EVENTS_AHEAD and time.monotonic() - began < QUICK_S:
                send()
        send()
        return outcomes, newest

    def _recorded(
        self, connection: Connection, commands: Sequence[Command], states: Mapping[str, Newest]
    ) -> dict[tuple[str, str], Recorded]:
        """By entity and command id, those of the commands that were handled before."""
        if not commands:
            return {}
        recorded = self.table.recorded(connection, commands)
        missing = [one for one in commands if (one.entity_id, one.command_id) not in recorded]
        return recorded | self.archive.recorded(connection, _of_archived(missing, states))

    def _land(self, insertion: Insertion, *, is_first_time: bool) -> None:
        try:
            insertion.land()
        except pymysql.err.IntegrityError as error:
            is_repeated = number_of(error) == _DUPLICATE and str(error.args[-1]).endswith(f"{COMMAND_KEY}'")
            if is_repeated and is_first_time:
                raise _HandledBeforeError from None
            raise

    def _session(self) -> Connection:
        if self._connection is None or not self._connection.open:
            self._remembered = Remembered()
            self._connection = self.open_session()
            read_in_one_snapshot(self._connection)
        return self._connection

    def _check_was_first(
        self,
        connection: Connection,
        entities: set[str],
        assumed: Mapping[str, Newest],
        states: Mapping[str, Newest],
        written: set[str],
    ) -> None:
        """Whether what was assumed of entities is so. Raises StoreUnavailableError.

        The unique keys let one owner of an entity through. But where another one was first, and its events were
        archived before this transaction wrote, they found nothing; nor do they find a command that was archived since
        its entity was remembered. Both take an entity's oldest event away, for the oldest are archived first; neither
        can be where nothing was ever archived. Of an entity that had no event, and of one that was not written, the
        newest tells: that is never archived.
        """
        others = entities - (written & assumed.keys())
        last = self.table.last(connection, others)
        is_so = all(last.get(entity, 0) == states.get(entity, _NO_EVENTS).version for entity in others)
        if is_so and self.archive.may_have_some(connection):
            is_so = self.table.are_there(connection, {entity: newest.first for entity, newest in assumed.items()})
        if not is_so:
            raise StoreUnavailableError(f"{self.table.name}: others were ahead each time. Send the command again")

    def _one(
        self,
        at: int,
        command: Command,
        states: dict[str, Newest],
        recorded: dict[tuple[str, str], Recorded],
        events: list[Event],
    ) -> Outcome:
        known = recorded.get((command.entity_id, command.command_id))
        if known is not None:
            return _again(command, known)
        handler = self.handlers.get(command.name)
        if handler is None:
            return HandlerFailedError(f"nothing handles the command {command.name}; nothing was written")
        version, state, first = states.get(command.entity_id, _NO_EVENTS)
        try:
            self.look(at)
            response, state = handled(handler, command, state)
        except ViewtailError as error:
            return error
        if len(response) + len(state) + len(command.request_text) > MOST_BYTES:
            return HandlerFailedError(
                f"what {command.name} was to write is larger than {MOST_BYTES >> 20} MiB; nothing was written"
            )
        version += 1
        states[command.entity_id] = Newest(version, state, first)
        recorded[command.entity_id, command.command_id] = Recorded(
            version, command.name, command.request_text, response
        )
        events.append(Event(command, version, response, state))
        return Answer(response=orjson.loads(response), version=version, is_repeated=False)

    def _refused(
        self,
        commands: Sequence[Command],
        until: float,
        first: int,
        looked_up: bool,
        error: pymysql.err.MySQLError,
    ) -> list[Outcome]:
        """MySQL takes something of the batch never: one by one, so that the others are not kept up."""
        if number_of(error) in _RIGHTS:
            what = (
                f"{self.table.name}: {number_of(error)} access denied. GRANT SELECT, INSERT on it, and SELECT on its "
                "archive where it has one (docs/entities.md)"
            )
            return [StoreError(what)] * len(commands)
        if number_of(error) in NOT_AS_MADE:
            what = f"{self.table.name}: {number_of(error)}. It, or its archive, is not there, or not as made"
            return [StoreError(f"{what}. Make it: viewtail entities create")] * len(commands)
        if len(commands) > 1 or not looked_up:  # it may have been handled before, which MySQL did not come to
            return [
                outcome
                for at, command in enumerate(commands, first)
                for outcome in self.commit([command], until, at, looks_up=True)
            ]
        said = f"{number_of(error)} {type(error).__name__}"
        if isinstance(error, pymysql.err.DataError | pymysql.err.OperationalError | pymysql.err.IntegrityError):
            return [
                HandlerFailedError(f"{self.table.name}: MySQL refused what {commands[0].name} was to write: {said}")
            ]
        return [StoreError(f"{self.table.name}: MySQL refused what {commands[0].name} was to write: {said}")]

    def _roll_back(self, is_kept: bool = False) -> None:
        """`is_kept`: it is no sign that others write the same entities."""
        if not is_kept:
            self._remembered.forget()
        connection = self._connection
        if connection is not None and connection.open:
            try:
                connection.rollback()
            except pymysql.err.MySQLError:
                self.close()


def _again(command: Command, known: Recorded) -> Outcome:
    """The first answer, to the same command; an error where another one has its id."""
    request = orjson.dumps(orjson.loads(known.request), option=orjson.OPT_SORT_KEYS)
    if (known.name, request) != (command.name, command.request_text):
        what = "another command" if known.name != command.name else "another request"
        return UsedCommandIdError(
            f"command id {command.command_id} of entity {command.entity_id} is that of {what} ({known.name}, version "
            f"{known.version}): use an id of its own for each command"
        )
    return Answer(response=orjson.loads(known.response), version=known.version, is_repeated=True)


def _of_archived(commands: Sequence[Command], states: Mapping[str, Newest]) -> list[Command]:
    """Those of entities with archived events."""
    return [one for one in commands if states.get(one.entity_id, _NO_EVENTS).first > 1]


def _is_broken(error: pymysql.err.MySQLError) -> bool:
    """Whether the connection went, and so nothing is known of what was under way."""
    return isinstance(error, pymysql.err.InterfaceError) or number_of(error) == 0
