"""Handles commands: each entity has one of two threads, so one handles while the other waits for the server.

Nothing rests on that: the table's unique keys decide. But commands of one entity that are in one batch share one
transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from zlib import crc32

from servers.sessions import Connection
from viewtail.entities.commands import Answer, Command, Handler
from viewtail.entities.event_table import EventTable
from viewtail.entities.worker import HANGS_AFTER_S, MOST_WAITING_BYTES, PATIENCE_S, Lane

LANES = 2  # they share one interpreter: more would only make smaller batches


class CommandWorker:
    """Takes commands from any thread; `with` closes it.

    Args:
        handlers: by command name. They are called from several threads, for one entity from one.
        open_session: to the table's server, autocommit off.
        hangs_after_s: a handler that takes longer is given up. Its thread lives on, and writes nothing.
        patience_s: a caller hears within that time of its submit; where the server does not answer, that.
        most_waiting_bytes: of the commands that wait for one of the threads; what comes above that is refused.
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
    ) -> None:
        self._lanes = [
            Lane(
                table,
                handlers,
                open_session,
                hangs_after_s=hangs_after_s,
                patience_s=patience_s,
                most_waiting_bytes=most_waiting_bytes,
            )
            for _ in range(LANES)
        ]

    def submit(self, command: Command) -> Future[Answer]:
        """The answer, once it is durable; or RefusedError, UsedCommandIdError, HandlerFailedError,
        StoreUnavailableError or WorkerBusyError (send it again), WorkerEndedError."""
        future: Future[Answer] = Future()
        self._lane(command).take(command, future)
        return future

    async def answer(self, command: Command) -> Answer:
        """The same for coroutines, of which all that a batch has answers for are woken together."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._lane(command).take(command, future)
        return await future

    @property
    def waiting_count(self) -> int:
        """Commands that wait for the batches that are under way."""
        return sum(lane.waiting_count for lane in self._lanes)

    def close(self) -> None:
        """Finish the batches that are under way; whatever waits behind them gets WorkerEndedError."""
        for lane in self._lanes:
            lane.end()
        for lane in self._lanes:
            lane.join()

    def __enter__(self) -> CommandWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lane(self, command: Command) -> Lane:
        return self._lanes[crc32(command.entity_id.encode()) % len(self._lanes)]
