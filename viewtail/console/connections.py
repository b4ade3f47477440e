"""Connections of readers: so many at most, and none that keeps the console waiting.

One that sends no whole request within a while, or takes no answer, is closed: whoever reaches the address could hold
them all otherwise. Of too many, each further one is told so; far above that it is closed at once.
"""

from __future__ import annotations

import asyncio

import h11
from starlette.responses import PlainTextResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 128
ASKED_WITHIN_S = 10.0  # the whole of a request
TAKEN_WITHIN_S = 60.0  # an answer, or what waits of it
TOO_MANY = PlainTextResponse(
    f"{MOST} connections to the console are open, and it answers no more at once. Close pages of it that nobody looks "
    "at, then load this one again\n",
    503,
    {"Connection": "close", "Retry-After": "10"},
)


class Connection(H11Protocol):
    """One of them."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._ends = dict[str, asyncio.TimerHandle]()
        # All that waits to be taken is timed, at the end too: a transport that is closed waits for that for ever.
        transport.set_write_buffer_limits(high=0)
        if len(self.connections) > 2 * MOST:
            transport.abort()
        elif len(self.connections) > MOST:
            self.app = TOO_MANY
        self._wait("asked", ASKED_WITHIN_S)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._wait("asked", ASKED_WITHIN_S)
        else:
            self._wait_no_more("asked")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait("taken", TAKEN_WITHIN_S)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._wait_no_more("taken")

    def connection_lost(self, exc: Exception | None) -> None:
        for what in [*self._ends]:
            self._wait_no_more(what)
        super().connection_lost(exc)

    def _wait(self, what: str, within_s: float) -> None:
        """For the other side, from the first time on: one byte more gives it no more time."""
        if what not in self._ends:
            self._ends[what] = self.loop.call_later(within_s, self.transport.abort)

    def _wait_no_more(self, what: str) -> None:
        if (end := self._ends.pop(what, None)) is not None:
            end.cancel()
