"""Handles an entity's commands in the order in which they came, up to a thousand in one transaction.

Two lanes share the entities, each a thread over a session of its own. While the server writes a lane's batch, the lane
calls the handlers of the next one. Each takes half of the commands that callers wait for, so transactions grow with the
number of callers. A handler that hangs holds up its own command only: the thread is left alone,
and another one goes on. No caller waits longer than the worker's patience, whatever is slow: one more thread sees to
that.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import ceil

import structlog

from viewtail.changes.counting import counted
from viewtail.changes.errors import StoreUnavailableError, ViewtailError
from viewtail.entities.batches import Batches, GivenUpError
from viewtail.entities.commands import (
    Answer,
    Command,
    Handler,
    HandlerFailedError,
    HandlerHungError,
    WorkerBusyError,
    WorkerEndedError,
)
from viewtail.entities.event_table import EventTable
from viewtail.entities.handling import Outcome
from viewtail.entities.pushes import Pushes
from viewtail.servers.sessions import Connection

_log = structlog.get_logger("viewtail.commands")

LANES = 2  # measured: with three they wait for each other more than for the server
MOST_COMMANDS = 1_000  # in one transaction
FEW_COMMANDS = 32  # are not divided into two batches
HANGS_AFTER_S = 10.0
PATIENCE_S = 30.0
MOST_WAITING_BYTES = 64 << 20  # of requests, plus _BYTES_A_COMMAND for each
MOST_HUNG = 20  # threads in handlers that were given up
_LOOK_EVERY_S = 0.001  # for more commands and for the server's answer, while a batch is under way
_BYTES_A_COMMAND = 1 << 10  # about what a command without a request takes


@dataclass(eq=False, slots=True)
class _Asked:
    """A command and its caller: a thread has a Future, a coroutine one of its loop."""

    command: Command
    future: Future[Answer] | asyncio.Future[Answer]
    until: float  # by the monotonic clock: its caller hears by then
    size: int  # bytes
    is_told: bool = False
    is_hung: bool = False  # its handler was given up; only check whether it was handled before


@dataclass(eq=False)
class _Turn:
    """The work of one thread: the commands that it took, and the one whose handler is running."""

    taken: list[_Asked] = field(default_factory=list)  # commands without an outcome yet
    told_count: int = 0  # the number of earlier commands: the place of the first one taken
    called: tuple[int, float] | None = None  # the place of the command whose handler is running, and since when
    is_given_up: bool = False
    batches: Batches | None = None


@dataclass(eq=False)
class _Lane:
    """Commands of some entities, and the thread that handles them."""

    change: threading.Condition  # on the worker's only lock
    waiting: deque[_Asked] = field(default_factory=deque)
    most: int = MOST_COMMANDS  # fewer while their events are large
    callers: float = 0  # about how many there are: so many commands waited or were taken at once a moment ago
    turn: _Turn = field(default_factory=_Turn)
    thread: threading.Thread = field(init=False)

    def next_count(self) -> int:
        """Return how many commands the next batch takes: half of all, so that the other half is the batch behind it."""
        if self.waiting and self.waiting[0].is_hung:
            return 1  # it gets its outcome soon
        self.callers = max(len(self.waiting) + len(self.turn.taken), 0.9 * self.callers)
        part = ceil(self.callers / 2)
        return min(len(self.waiting), self.most, max(part, FEW_COMMANDS))

    def take_late(self, now: float) -> list[_Asked]:
        """Return the commands whose callers waited too long; those that were not begun are dropped."""
        late = [asked for asked in (*self.turn.taken, *self.waiting) if asked.until < now and not asked.is_told]
        if any(asked.until < now for asked in self.waiting):
            self.waiting = deque(asked for asked in self.waiting if now <= asked.until)
        return late


class CommandWorker:
    """Takes commands from any thread; `with` closes it.

    Args:
        handlers: by command name.
        open_session: to the table's server, autocommit off.
        hangs_after_s: a handler that takes longer is given up. Its thread lives on, and writes nothing.
        patience_s: a caller hears within that time of its submit; where the server does not answer, that.
        most_waiting_bytes: of the commands that wait; what comes above that is refused.
        pushes: to the views that show at once what was committed.
    """

    def __init__(
        self,
        table: EventTable,
        handlers: Mapping[str, Handler],
        open_session: Callable[[], Connection],
        *,
        hangs_after_s: float = HANGS_AFTER_S,
        patience_s: float = PATIENCE_S,
        most_waiting_bytes: int = MOST_WAITING_BYTES,
        pushes: Pushes | None = None,
    ) -> None:
        self._table, self._handlers, self._open = table, dict(handlers), open_session
        self._hangs_after_s, self._patience_s = hangs_after_s, patience_s
        self._most_waiting_bytes = most_waiting_bytes
        self._pushes = Pushes() if pushes is None else pushes
        self._waiting_bytes = 0
        self._hung: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self._lanes = [_Lane(threading.Condition(self._lock)) for _ in range(LANES)]
        for lane in self._lanes:
            self._start(lane)
        self._watch = threading.Thread(target=self._watching, name="commands watch", daemon=True)
        self._watch.start()

    @property
    def waiting_count(self) -> int:
        """Count the commands that wait for the batches that are under way."""
        return sum(len(lane.waiting) for lane in self._lanes)

    def submit(self, command: Command) -> Future[Answer]:
        """Return a future of the answer, which is set once that is durable.

        It may raise RefusedError, UsedCommandIdError, HandlerFailedError, StoreUnavailableError or WorkerBusyError
        (send the command again), WorkerEndedError.
        """
        future: Future[Answer] = Future()
        self._take(command, future)
        return future

    async def answer(self, command: Command) -> Answer:
        """Return the answer, for coroutines; those that one batch answers are woken together."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._take(command, future)
        return await future

    def _take(self, command: Command, future: Future[Answer] | asyncio.Future[Answer]) -> None:
        """Take a command, to settle the future one day; that is of this thread, or of its event loop."""
        size = len(command.request_text) + _BYTES_A_COMMAND
        asked = _Asked(command, future, time.monotonic() + self._patience_s, size)
        lane = self._lanes[hash(command.entity_id) % LANES]
        with self._lock:
            error = self._why_not_taken(asked)
            if error is None:
                lane.waiting.append(asked)
                self._waiting_bytes += asked.size
                lane.change.notify()
        if error is not None:
            future.set_exception(error)  # on the thread that asks

    def _why_not_taken(self, asked: _Asked) -> ViewtailError | None:
        if self._is_closed:
            return WorkerEndedError("the worker is closed")
        if len(self._hung) >= MOST_HUNG:
            self._hung = [thread for thread in self._hung if thread.is_alive()]
        if len(self._hung) >= MOST_HUNG:
            return WorkerBusyError(
                f"{self._table.name}: {len(self._hung)} handlers hang and keep a thread each, so no command is taken. "
                "Restart the process; the log names the commands"
            )
        if self._waiting_bytes and self._waiting_bytes + asked.size > self._most_waiting_bytes:
            return WorkerBusyError(
                f"{self._table.name}: {counted(self.waiting_count, 'commands', 'wait')} already; this one was not "
                "taken. Send it again, later"
            )
        return None

    def close(self) -> None:
        """Finish the batches that are under way, and their pushes; whatever waits behind gets WorkerEndedError."""
        left: list[_Asked] = []
        with self._lock:
            self._is_closed = True
            for lane in self._lanes:
                left += lane.waiting
                lane.waiting.clear()
                lane.change.notify_all()
            self._waiting_bytes = 0
        self._tell((asked, WorkerEndedError("the worker was closed")) for asked in left)
        self._watch.join()
        self._pushes.close()

    def __enter__(self) -> CommandWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the thread of a lane -------------------------------------------------------------------------------------

    def _start(self, lane: _Lane) -> None:
        lane.turn = _Turn()
        lane.thread = threading.Thread(target=self._run, args=(lane, lane.turn), name="commands", daemon=True)
        lane.thread.start()

    def _run(self, lane: _Lane, turn: _Turn) -> None:
        batches = turn.batches = Batches(
            table=self._table,
            handlers=self._handlers,
            open_session=self._open,
            look=partial(self._look, turn),
            tell=partial(self._tell_taken, turn),
            pushes=self._pushes,
        )
        try:
            while (some := self._taken(lane, turn, batches)) or turn.taken:
                try:
                    if some:
                        self._handle(lane, turn, batches, some)
                    elif self._is_closed or lane.callers <= FEW_COMMANDS:
                        batches.finish()
                    else:
                        batches.go_on()
                except GivenUpError:
                    return  # the thread that goes on has what is left
                except Exception as error:
                    _log.exception("commands were not handled")
                    under_way_count = batches.under_way_count  # may be committed
                    batches.close()
                    if not self._tell_fault(turn, under_way_count, error):
                        return
        finally:
            batches.close()

    def _look(self, turn: _Turn, at: int | None) -> None:
        if at is None:
            with self._lock:
                turn.called = None
        else:  # for each command: without the lock, for which other threads would be waited for
            asked = turn.taken[at - turn.told_count]
            if asked.is_hung:
                raise self._hung_error(asked.command)
            turn.called = at, time.monotonic()
        if turn.is_given_up:
            raise GivenUpError

    def _tell_taken(self, turn: _Turn, outcomes: Sequence[Outcome]) -> None:
        count = len(outcomes)
        with self._lock:
            if turn.is_given_up:
                raise GivenUpError
            some, turn.taken = turn.taken[:count], turn.taken[count:]
            turn.told_count += count
        self._tell(zip(some, outcomes, strict=True))

    def _tell_fault(self, turn: _Turn, under_way_count: int, error: Exception) -> bool:
        """Answer all commands of a turn that broke; False where another thread goes on with it."""
        fault = HandlerFailedError(f"{type(error).__name__}; this is a fault in viewtail, report it")
        try:
            self._tell_taken(turn, [self._silent()] * under_way_count)
            self._tell_taken(turn, [fault] * len(turn.taken))
        except GivenUpError:
            return False
        return True

    def _taken(self, lane: _Lane, turn: _Turn, batches: Batches) -> list[_Asked]:
        """Take the next batch. Where none is under way, wait for one, unless the worker was closed."""
        with self._lock:
            turn.called = None
            while not lane.waiting and not self._is_closed:
                if turn.taken and (lane.callers <= FEW_COMMANDS or batches.has_answer()):
                    break  # to finish them
                lane.change.wait(_LOOK_EVERY_S if turn.taken else None)
            some = [lane.waiting.popleft() for _ in range(lane.next_count())]
            turn.taken += some
            self._waiting_bytes -= sum(asked.size for asked in some)
            return some

    def _handle(self, lane: _Lane, turn: _Turn, batches: Batches, some: Sequence[_Asked]) -> None:
        until = max(asked.until for asked in some)  # the watch tells those who come before it
        before = len(turn.taken) - len(some)
        done = batches.handle([asked.command for asked in some], until, turn.told_count + before)
        with self._lock:
            # A batch of large events is cut off; later batches then read and handle fewer commands.
            if rest := len(some) - done:
                turn.taken = turn.taken[:-rest]
                self._put_back(lane, some[done:])
            lane.most = min(MOST_COMMANDS, 2 * (done if rest else lane.most))

    def _put_back(self, lane: _Lane, some: Sequence[_Asked]) -> None:
        """Put commands back, before all others."""
        lane.waiting.extendleft(reversed(some))
        self._waiting_bytes += sum(asked.size for asked in some)

    def _tell(self, told: Iterable[tuple[_Asked, Outcome]]) -> None:
        """Give each caller its outcome once; a loop's coroutines together, since waking a loop takes long."""
        with self._lock:
            new = [(asked, outcome) for asked, outcome in told if not asked.is_told]
            for asked, _ in new:
                asked.is_told = True
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Answer], Outcome]]] = {}
        for asked, outcome in new:
            if isinstance(asked.future, asyncio.Future):
                by_loop.setdefault(asked.future.get_loop(), []).append((asked.future, outcome))
            elif asked.future.set_running_or_notify_cancel():  # its caller still waits
                _settle(asked.future, outcome)
        for loop, some in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                loop.call_soon_threadsafe(_settle_all, some)

    # -- the watch ------------------------------------------------------------------------------------------------

    def _watching(self) -> None:
        while any(lane.thread.is_alive() for lane in self._lanes) or not self._is_closed:
            for lane in self._lanes:
                lane.thread.join(min(self._hangs_after_s, self._patience_s) / 10 / LANES)
            for lane in self._lanes:
                self._give_up_what_hangs(lane)
            self._tell_who_waited_too_long()

    def _give_up_what_hangs(self, lane: _Lane) -> None:
        with self._lock:
            turn, called = lane.turn, lane.turn.called
            if called is None or time.monotonic() - called[1] < self._hangs_after_s:
                return
            turn.is_given_up = True
            hung = turn.taken[called[0] - turn.told_count]
            hung.is_hung = True
            # It writes nothing, so its order does not matter.
            self._put_back(lane, [hung, *(asked for asked in turn.taken if asked is not hung)])
            self._hung.append(lane.thread)
            self._start(lane)
        _log.warning("a handler hangs, and is given up", command=hung.command.name)
        if turn.batches is not None:
            turn.batches.close()  # its thread writes nothing more, and may never end

    def _hung_error(self, command: Command) -> HandlerHungError:
        return HandlerHungError(
            f"the handler of {command.name} did not return within {self._hangs_after_s:g} s; nothing was written"
        )

    def _tell_who_waited_too_long(self) -> None:
        """Answer callers that waited too long, behind slow handlers or in a batch whose server says nothing."""
        late: list[_Asked] = []
        with self._lock:
            now = time.monotonic()
            for lane in self._lanes:
                late += lane.take_late(now)
            self._waiting_bytes = sum(asked.size for lane in self._lanes for asked in lane.waiting)
        silent = self._silent(f"no answer within {self._patience_s:g} s. ")
        self._tell((asked, silent) for asked in late)

    def _silent(self, what: str = "") -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self._table.name}: {what}Whether the command was handled is not known: send it again under its id"
        )


def _settle_all(told: Sequence[tuple[asyncio.Future[Answer], Outcome]]) -> None:
    """Settle these futures; runs on the thread of their loop."""
    for future, outcome in told:
        if not future.done():  # a caller that was cancelled does not want it any more
            _settle(future, outcome)


def _settle(future: Future[Answer] | asyncio.Future[Answer], outcome: Outcome) -> None:
    if isinstance(outcome, Answer):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
