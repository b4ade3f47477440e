"""One thread that handles an entity's commands in the order in which they came, up to a thousand in one transaction.

While one batch is committed the next ones wait together, so that the more callers there are, the more a transaction
takes. A handler that hangs holds up its own command only: the thread is left alone, and another one goes on.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice

import structlog

from servers.sessions import Connection
from viewtail.entities.batches import Batches, GivenUpError, Outcome
from viewtail.entities.commands import Answer, Command, Handler, HandlerFailedError, WorkerEndedError
from viewtail.entities.event_table import EventTable

_log = structlog.get_logger("viewtail.commands")

MOST_COMMANDS = 1_000  # of a transaction
HANGS_AFTER_S = 10.0

_Asked = tuple[Command, "Future[Answer]"]


@dataclass(eq=False)
class _Turn:
    """Of one thread: the batch that it is at, and since when it is in a handler."""

    asked: list[_Asked] = field(default_factory=list)
    at: int = 0
    since: float | None = None
    is_given_up: bool = False


class CommandWorker:
    """Takes commands from any thread; `with` closes it.

    Args:
        handlers: by command name.
        hangs_after_s: a handler that takes longer is given up. Its thread lives on, and writes nothing.
    """

    def __init__(
        self,
        table: EventTable,
        handlers: Mapping[str, Handler],
        open_session: Callable[[], Connection],
        *,
        hangs_after_s: float = HANGS_AFTER_S,
        patience_s: float = 30.0,
    ) -> None:
        self._table, self._handlers, self._open = table, dict(handlers), open_session
        self._hangs_after_s, self._patience_s = hangs_after_s, patience_s
        self._waiting: deque[_Asked] = deque()
        self._change = threading.Condition()
        self._is_closed = False
        self._turn: _Turn = self._started()
        self._watch = threading.Thread(target=self._watching, name="commands watch", daemon=True)
        self._watch.start()

    def submit(self, command: Command) -> Future[Answer]:
        """The answer, once it is durable; or RefusedError, UsedCommandIdError, HandlerFailedError,
        StoreUnavailableError (send it again), WorkerEndedError."""
        future: Future[Answer] = Future()
        with self._change:
            if self._is_closed:
                future.set_exception(WorkerEndedError("the worker is closed"))
            else:
                self._waiting.append((command, future))
                self._change.notify()
        return future

    def close(self) -> None:
        """Finish the batch that is under way; whatever waits behind it gets WorkerEndedError."""
        with self._change:
            self._is_closed = True
            left = [*self._waiting]
            self._waiting.clear()
            self._change.notify_all()
        for _, future in left:
            _tell(future, WorkerEndedError("the worker was closed"))
        self._watch.join()

    def __enter__(self) -> CommandWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the thread -----------------------------------------------------------------------------------------------

    def _started(self) -> _Turn:
        turn = _Turn()
        self._thread = threading.Thread(target=self._run, args=(turn,), name="commands", daemon=True)
        self._thread.start()
        return turn

    def _run(self, turn: _Turn) -> None:
        def look(at: int | None) -> None:
            with self._change:
                if turn.is_given_up:
                    raise GivenUpError
                if at is None:
                    turn.since = None
                else:
                    turn.at, turn.since = at, time.monotonic()

        batches = Batches(
            table=self._table,
            handlers=self._handlers,
            open_session=self._open,
            look=look,
            patience_s=self._patience_s,
        )
        try:
            while self._taken(turn):
                try:
                    outcomes = batches.commit([command for command, _ in turn.asked])
                except GivenUpError:
                    return  # the thread that goes on has what is left
                except Exception as error:
                    _log.exception("commands were not handled")
                    batches.close()
                    fault = HandlerFailedError(f"{type(error).__name__}; this is a fault in viewtail, report it")
                    outcomes = [fault] * len(turn.asked)
                for (_, future), outcome in zip(turn.asked, outcomes, strict=True):
                    _tell(future, outcome)
        finally:
            batches.close()

    def _taken(self, turn: _Turn) -> bool:
        """Whether there is a batch; waits for one, unless the worker was closed."""
        with self._change:
            turn.asked, turn.since = [], None
            while not self._waiting and not self._is_closed:
                self._change.wait()
            turn.asked = [self._waiting.popleft() for _ in islice(range(len(self._waiting)), MOST_COMMANDS)]
            return bool(turn.asked)

    # -- the watch ------------------------------------------------------------------------------------------------

    def _watching(self) -> None:
        while True:
            self._thread.join(self._hangs_after_s / 10)
            if not self._thread.is_alive() and self._is_closed:
                return
            self._give_up_what_hangs()

    def _give_up_what_hangs(self) -> None:
        with self._change:
            turn = self._turn
            if turn.since is None or time.monotonic() - turn.since < self._hangs_after_s:
                return
            turn.is_given_up = True
            command, future = turn.asked.pop(turn.at)
            self._waiting.extendleft(reversed(turn.asked))
            self._turn = self._started()
        _tell(
            future,
            HandlerFailedError(
                f"the handler of {command.name} did not return within {self._hangs_after_s:g} s; nothing was written"
            ),
        )


def _tell(future: Future[Answer], outcome: Outcome) -> None:
    if not future.set_running_or_notify_cancel():
        return  # its caller does not want it any more
    if isinstance(outcome, Answer):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
