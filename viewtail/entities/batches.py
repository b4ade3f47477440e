"""Commits commands by the batch, a transaction each, while the handlers of the next batch are called.

A batch assumes states of entities that it reads at its beginning, or that the batch before left. The table's two unique
keys, and a look before COMMIT at what these do not see, decide whether the states were still so at its end. If not, or
if nobody knows whether a COMMIT came through, the batch is rolled back and begins again; commands that are recorded by
then are answered from the record. So several owners of an entity are slower, and never wrong. Events may be archived
meanwhile: a batch reads the table and the archive as they were at one moment.

While the server writes a batch, the handlers of the next are called, on the states that it is to leave, and their
events are sent over another session as soon as that COMMIT was sent: earlier, each might wait for the other's locks.
They are committed in turn. If the first batch left other states, the next is rolled back, and its handlers are called
again.

Few commands come twice. So a batch assumes that its commands were never handled before, and the unique key of their ids
refuses it where one was: then it begins again, and that command and those of the next second are looked up first. That
key does not see two kinds of commands, which are always looked up before they are answered: those that write nothing,
and those of entities with archived events.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pymysql

from viewtail.changes.errors import ReadOnlyError, StoreError, StoreUnavailableError, TemporaryError, ViewtailError
from viewtail.entities.archives import Archive
from viewtail.entities.commands import Command, Handler, HandlerFailedError
from viewtail.entities.event_table import (
    COMMAND_KEY,
    NOT_AS_MADE,
    Event,
    EventTable,
    Newest,
    Recorded,
    landed,
    read_in_one_snapshot,
)
from viewtail.entities.handling import NO_EVENTS, Batch, Outcome, of_archived
from viewtail.entities.pushes import Pushes
from viewtail.entities.remembered import Remembered
from viewtail.servers.pipelined import Flight
from viewtail.servers.sessions import TEMPORARY_NUMBERS, Connection, lacks_rights, number_of, read_only_error

_DUPLICATE = 1062
_MADE_MEANWHILE = 1412  # a table is younger than the snapshot
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.005, 1.0
LOOKED_UP_FOR_S = 1.0  # behind a command that had been handled before
# Between two handlers, the batch that is under way is looked after so often. It is waited for behind a handler that
# took SLOW_S; and before any other is called where those of a batch took QUICK_S each, or others write its entities.
LOOK_EVERY_S, SLOW_S, QUICK_S = 0.0005, 0.02, 0.001


class GivenUpError(Exception):
    """Somebody else finishes the batches: nothing of them may be written any more."""


class _HandledBeforeError(Exception):
    """A command was handled before, in a batch that assumed that none was."""


class _CameOutOtherwiseError(Exception):
    """A batch left other states than the next one was built on."""


_MET = (pymysql.err.MySQLError, ViewtailError, _HandledBeforeError)


@dataclass(eq=False, slots=True)
class _UnderWay:
    """A batch whose events were sent."""

    batch: Batch
    until: float
    which: int  # of the sessions
    flight: Flight
    steps: Generator[bool]  # to its end, each whether COMMIT was sent; the flight has an answer before each
    is_committing: bool = False


@dataclass(eq=False, kw_only=True)
class Batches:
    """Handles the batches of one thread, over two sessions of its own; the second is opened once batches overlap.

    Args:
        open_session: opens a session on the table's server, autocommit off.
        look: called before a handler, with the command's place, and with None before anything is written or waited
            for; may raise GivenUpError, or the ViewtailError that is the command's outcome.
        tell: gets the outcomes of commands that were given to `handle`, in order.
        pushes: called around a COMMIT with what it writes."""

    table: EventTable
    handlers: Mapping[str, Handler]
    open_session: Callable[[], Connection]
    look: Callable[[int | None], None] = lambda _: None
    tell: Callable[[Sequence[Outcome]], None] = lambda _: None
    pushes: Pushes = field(default_factory=Pushes)
    archive: Archive = field(init=False)
    _remembered: Remembered = field(default_factory=Remembered, init=False)
    _sessions: list[Connection | None] = field(default_factory=lambda: [None, None], init=False)
    _looks_up_until: float = field(default=0.0, init=False)  # by the monotonic clock
    _has_no_archive: bool = field(default=True, init=False)  # as far as is known
    _under_way: deque[_UnderWay] = field(default_factory=deque, init=False)  # one, or two while the first is ended

    def __post_init__(self) -> None:
        self.archive = Archive(self.table)

    def handle(self, commands: Sequence[Command], until: float, first: int) -> int:
        """Call the handlers of commands; `tell` gets the outcomes in one of the next calls, or in `finish`.

        Returns how many of them that will be: not all where their events come to BATCH_BYTES. All else is as `commit`
        has it.
        """
        while True:
            looks_up = time.monotonic() < self._looks_up_until
            try:
                batch = self._handled(commands, first, looks_up)
                self._send(batch, until)
            except _CameOutOtherwiseError:
                continue
            except _MET as error:
                self.finish()
                outcomes = self._tried_again(error, commands, until, first, looks_up)
                self.tell(outcomes)
                return len(outcomes)
            if batch.took_s > QUICK_S * len(batch.outcomes) or not self._remembered.is_worth_it:
                self.finish()
            return len(batch.outcomes)

    @property
    def under_way_count(self) -> int:
        """Count the commands whose events were sent, and whose outcomes `tell` did not get yet."""
        return sum(len(pending.batch.outcomes) for pending in self._under_way)

    def go_on(self) -> None:
        """Do what can be done without waiting. Raises GivenUpError."""
        with suppress(_CameOutOtherwiseError):
            self._advance(waits=False)

    def has_answer(self) -> bool:
        """Return whether there is something to do for the batches that are under way."""
        return not self._under_way or self._under_way[0].flight.has_answer()

    def finish(self) -> None:
        """Wait until `tell` has all outcomes. Raises GivenUpError."""
        with suppress(_CameOutOtherwiseError):
            self._end_all_but(0)

    def commit(
        self, commands: Sequence[Command], until: float, first: int = 0, looks_up: bool = False
    ) -> list[Outcome]:
        """Return an outcome for each command, in order, or for the first ones where their events come to BATCH_BYTES.

        `first` is the place of the first command, for `look`. With `looks_up` no handler is called for a command that
        was handled before.

        A server that does not answer is asked again until the monotonic clock says `until`; a TemporaryError is the
        outcome of all then. Raises GivenUpError; any other error is an outcome of all.
        """
        self.finish()
        try:
            return self._once(commands, first, looks_up or time.monotonic() < self._looks_up_until)
        except _MET as error:
            return self._tried_again(error, commands, until, first, looks_up)

    def close(self) -> None:
        """Close the sessions; batches that are under way are left alone."""
        self._under_way.clear()
        self._remembered = Remembered()
        self._close_sessions()

    # -- one try --------------------------------------------------------------------------------------------------

    def _once(self, commands: Sequence[Command], first: int, looks_up: bool) -> list[Outcome]:
        batch = self._handled(commands, first, looks_up)
        for _ in self._settled(batch, 0, Flight(self._session(0))):
            pass
        return batch.outcomes

    def _handled(self, commands: Sequence[Command], first: int, looks_up: bool) -> Batch:
        """Call the handlers of a batch. Raises _CameOutOtherwiseError if one that it is built on failed."""
        self.look(None)
        if self._under_way and not all(map(_is_open, self._sessions)):
            self._end_all_but(0)
            self._open_session(1)
        entities = {command.entity_id for command in commands}
        known = self._known(entities)
        if looks_up or len(known) < len(entities) or of_archived(commands, known):
            self._end_all_but(0)
        if not self._under_way:
            return self._read_and_handled(commands, first, entities, looks_up)
        batch = Batch(commands, first, entities, known, {}, is_looked_up=False, is_remembered=True)
        batch.call(self.handlers, self.look, self._between())
        return batch

    def _read_and_handled(self, commands: Sequence[Command], first: int, entities: set[str], looks_up: bool) -> Batch:
        """Read the states that are not remembered, and call the handlers. Nothing is under way."""
        connection = self._open_session(0)
        known = self._remembered.of(entities)
        assumed = known | self.table.newest(connection, entities - known.keys())
        to_look_up = commands if looks_up else of_archived(commands, assumed)
        recorded = self._recorded(connection, to_look_up, assumed)
        if to_look_up or len(known) < len(entities):  # it was asked
            connection.rollback()  # what is read behind the INSERT is of a later moment
        handled: dict[tuple[str, str], Recorded | Event] = {**recorded}
        batch = Batch(commands, first, entities, assumed, handled, is_looked_up=looks_up, is_remembered=bool(known))
        batch.call(self.handlers, self.look)
        return batch

    def _known(self, entities: set[str]) -> dict[str, Newest]:
        """Return the newest events of these entities, as the last batches left them."""
        known = self._remembered.of(entities)
        for pending in self._under_way:
            left = pending.batch.states
            known |= {entity: left[entity] for entity in entities if entity in left}
        return known

    def _settled(self, batch: Batch, which: int, flight: Flight) -> Generator[bool]:
        """Send, write and commit it. Where it would wait for answers, it yields whether COMMIT was sent."""
        connection = self._session(which)
        try:
            asked = self._sent(batch, flight)
            yield False
            is_none_archived = self._land(flight, asked=asked, is_first_time=not batch.is_looked_up)
            if not (batch.newest or batch.is_remembered or batch.in_vain):
                return
            if batch.newest:
                self.pushes.announce(batch.newest)  # before the next question: they can be read already
            self._check(connection, batch, asked=asked, is_none_archived=is_none_archived)
            self.look(None)
            flight.send(b"COMMIT")
            flight.flush()
            yield True
            landed(flight)
        except BaseException:
            if flight.is_under_way:  # its answers would be taken for those of what comes next
                self._close_session(which)
            raise
        if batch.newest:
            self.pushes.hand(batch.newest)
        self._remembered.keep(batch.states)

    def _sent(self, batch: Batch, flight: Flight) -> bool:
        """Send the events; True if the question whether anything is archived goes with them.

        It does where nothing else is read. A read must come behind the COMMIT of the batch before, and all that a
        transaction reads is of one moment: that of its first SELECT.
        """
        asks = self._has_no_archive and not (batch.in_vain or batch.not_told_by_keys)
        self.look(None)
        if batch.newest:
            self.table.send(flight, batch.events)
        if asks:
            flight.send(self.archive.question)
        flight.flush()
        return asks

    def _check(self, connection: Connection, batch: Batch, *, asked: bool, is_none_archived: bool) -> None:
        """Check what the table's keys do not see, before COMMIT. Raises errors after which `handle` tries again."""
        if self._recorded(connection, batch.in_vain, batch.states):  # taken once: that answer counts
            raise _HandledBeforeError
        if not is_none_archived:
            self._has_no_archive &= not (asked or self.archive.is_known)
            self._check_was_first(connection, batch)

    def _recorded(
        self, connection: Connection, commands: Sequence[Command], states: Mapping[str, Newest]
    ) -> dict[tuple[str, str], Recorded]:
        """The commands among these that were handled before, by entity and command id."""
        if not commands:
            return {}
        recorded = self.table.recorded(connection, commands)
        missing = [command for command in commands if (command.entity_id, command.command_id) not in recorded]
        return recorded | self.archive.recorded(connection, of_archived(missing, states))

    def _land(self, flight: Flight, *, asked: bool, is_first_time: bool) -> bool:
        """Return whether it was asked, and the answer says that nothing was archived before the events were written."""
        try:
            return self.archive.has_none(landed(flight, asked=asked))
        except pymysql.err.IntegrityError as error:
            is_repeated = number_of(error) == _DUPLICATE and str(error.args[-1]).endswith(f"{COMMAND_KEY}'")
            if is_repeated and is_first_time:
                raise _HandledBeforeError from None
            raise

    def _session(self, which: int) -> Connection:
        """Return one of the two sessions. Raises PyMySQL's error where it was lost."""
        session = self._sessions[which]
        if session is None or not session.open:
            raise pymysql.err.InterfaceError(0, "the session was lost")
        return session

    def _open_session(self, which: int) -> Connection:
        session = self._sessions[which]
        if session is None or not session.open:
            self._remembered = Remembered()  # the server may be another one
            session = self.open_session()
            read_in_one_snapshot(session)
            self._sessions[which] = session
        return session

    def _close_sessions(self) -> None:
        for which in range(len(self._sessions)):
            self._close_session(which)

    def _close_session(self, which: int) -> None:
        session, self._sessions[which] = self._sessions[which], None
        if session is not None and session.open:
            with suppress(pymysql.err.MySQLError):
                session.close()

    def _check_was_first(self, connection: Connection, batch: Batch) -> None:
        """Check that the assumed states are those of the entities. Raises StoreUnavailableError.

        The unique keys let one owner of an entity through. But they find nothing if another owner was first and its
        events were archived before this transaction wrote; nor do they find a command that was archived since its
        entity was remembered. Both take an entity's oldest event away, since the oldest are archived first; neither
        is possible where nothing was ever archived. For entities that the keys say nothing about, the newest event
        decides: it is never archived.
        """
        others = batch.not_told_by_keys
        last = self.table.last(connection, others)
        is_so = all(last.get(entity, 0) == batch.states.get(entity, NO_EVENTS)[0] for entity in others)
        if is_so and self.archive.may_have_some(connection):
            oldest = {entity: first for entity, (_, _, first) in batch.assumed.items()}
            is_so = self.table.are_there(connection, oldest)
        if not is_so:
            raise StoreUnavailableError(f"{self.table.name}: others were ahead each time. Send the command again")

    # -- what is under way ----------------------------------------------------------------------------------------

    def _send(self, batch: Batch, until: float) -> None:
        """Have the batch under way, behind the others. Raises _CameOutOtherwiseError if one of them failed."""
        self.look(None)
        while self._under_way and not self._under_way[0].is_committing:
            self._advance(waits=True)
        which = 1 - self._under_way[0].which if self._under_way else 0
        flight = Flight(self._session(which))
        sent = _UnderWay(batch, until, which, flight, self._settled(batch, which, flight))
        next(sent.steps)
        self._under_way.append(sent)
        with suppress(_CameOutOtherwiseError):  # then this one is told, too
            self._end_all_but(1)

    def _between(self) -> Callable[[], None]:
        """Return the function to call between two handlers: it advances the other batches from time to time."""
        last = time.monotonic()

        def look() -> None:
            nonlocal last
            now = time.monotonic()
            if now - last < LOOK_EVERY_S:
                return
            if now - last > SLOW_S:
                self._end_all_but(0)
            else:
                self._advance(waits=False)
            last = time.monotonic()

        return look

    def _end_all_but(self, count: int) -> None:
        """End the first batches, until so many are left. Raises _CameOutOtherwiseError."""
        while len(self._under_way) > count:
            self._advance(waits=True)

    def _advance(self, *, waits: bool) -> None:
        """Do what can be done of the first batch that is under way; with `waits`, until COMMIT is sent or answered.

        Raises _CameOutOtherwiseError if it left other states than were assumed. All are ended, with their outcomes,
        then too.
        """
        count = len(self._under_way)
        if count:
            self.look(None)
        while self._under_way and len(self._under_way) == count:
            pending = self._under_way[0]
            try:
                while waits or pending.flight.has_answer():
                    pending.is_committing = next(pending.steps)
                    if pending.is_committing and waits:
                        return
                return
            except StopIteration:
                self._under_way.popleft()
                self.tell(pending.batch.outcomes)
            except _MET as error:
                self._try_all_again(error)
                raise _CameOutOtherwiseError from None

    def _try_all_again(self, error: Exception) -> None:
        """Try all again after an error of the first: the other is numbered behind it, and rolled back too."""
        all_of_it = [*self._under_way]
        self._under_way.clear()
        self._roll_back_session(all_of_it[0].which)  # the other may wait for its locks
        for pending in all_of_it[1:]:
            with suppress(pymysql.err.MySQLError):
                landed(pending.flight)
            pending.steps.close()
        for pending in all_of_it:
            commands = pending.batch.commands[: len(pending.batch.outcomes)]
            outcomes: list[Outcome] = []
            if pending is all_of_it[0]:
                outcomes = self._tried_again(
                    error, commands, pending.until, pending.batch.first, pending.batch.is_looked_up
                )
            while (done := len(outcomes)) < len(commands):
                outcomes += self.commit(commands[done:], pending.until, pending.batch.first + done)
            self.tell(outcomes)

    # -- trying again ---------------------------------------------------------------------------------------------

    def _tried_again(
        self, error: Exception, commands: Sequence[Command], until: float, first: int, looks_up: bool
    ) -> list[Outcome]:
        """Retry a batch after an error; returns the outcomes of its commands."""
        pause_s = _FIRST_PAUSE_S
        while True:
            if isinstance(error, _HandledBeforeError):
                self._roll_back(is_kept=True)
                self._looks_up_until = time.monotonic() + LOOKED_UP_FOR_S
            else:
                self._roll_back()
                if isinstance(error, pymysql.err.MySQLError):
                    if not _may_pass(error):
                        return self._refused(commands, until, first, looks_up, error)
                    problem: Exception = self._unavailable(error)
                    if isinstance(problem, ReadOnlyError):  # by now the address may lead to a server that takes writes
                        self._close_sessions()
                else:
                    problem = error
                this_pause_s = random.uniform(0, pause_s)
                is_over = time.monotonic() + this_pause_s > until or not isinstance(problem, TemporaryError)
                if is_over and isinstance(problem, ViewtailError):
                    return [problem] * len(commands)
                time.sleep(this_pause_s)
                pause_s = min(_MOST_PAUSE_S, pause_s * 2)
            looks_up = True
            try:
                return self._once(commands, first, looks_up)
            except _MET as met:
                error = met

    def _unavailable(self, error: pymysql.err.MySQLError) -> StoreUnavailableError:
        return read_only_error(error, f"{self.table.name}: its server") or StoreUnavailableError(
            f"{self.table.name}: {number_of(error)} {type(error).__name__}. Whether the command was handled is not "
            "known: send it again under its id"
        )

    def _refused(
        self,
        commands: Sequence[Command],
        until: float,
        first: int,
        looked_up: bool,
        error: pymysql.err.MySQLError,
    ) -> list[Outcome]:
        """Commit commands one by one, since MySQL never takes something of the batch: so the others are not held up."""
        if lacks_rights(error):
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
        """Roll back; with `is_kept` that is no sign that others write the same entities."""
        if not is_kept:
            self._remembered.forget()
        for which in range(len(self._sessions)):
            self._roll_back_session(which)

    def _roll_back_session(self, which: int) -> None:
        session = self._sessions[which]
        if session is not None and session.open:
            try:
                session.rollback()
            except pymysql.err.MySQLError:
                self._close_session(which)


def _may_pass(error: pymysql.err.MySQLError) -> bool:
    """Return whether the same may succeed: also if the connection broke, with statements whose result is not known."""
    number = number_of(error)
    is_broken = isinstance(error, pymysql.err.InterfaceError) or number == 0
    return is_broken or number in (_DUPLICATE, _MADE_MEANWHILE, *TEMPORARY_NUMBERS)


def _is_open(session: Connection | None) -> bool:
    return session is not None and session.open
