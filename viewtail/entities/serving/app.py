"""The ASGI application: it finds what a request asks for, and answers.

    POST /ENTITY/ID/COMMAND   handles a command, once for its Idempotency-Key
    GET  /ENTITY/ID           the state, or with ?version=N that of a version
    GET  /docs, /openapi.json, /livez, /readyz

ENTITY is the table, as in bank.account. No part of a request is logged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

from anyio import move_on_after, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from viewtail.changes.errors import StoreUnavailableError, ViewtailError, nearest
from viewtail.entities import Command, CommandWorker, EventSourced
from viewtail.entities.serving import docs_page, openapi, problems
from viewtail.entities.serving.forwarding import MEMBER_HEADER, Forwarding
from viewtail.entities.serving.problems import METHOD, NOT_FOUND, UNAVAILABLE, Problem, json_response
from viewtail.entities.serving.requests import body_of, check_id, key_of, object_of, segments_of, version_of
from viewtail.servers.patience import PROBE

MOST_REQUESTS = 2_000  # under way
MOST_BYTES = 32 << 20  # of their bodies; what is made of a body may take ten times as much
READY_FOR_S = 1.0  # an answer of the store's is asked for at most so often
READY_WITHIN_S = 1.9  # a probe is answered, whatever the store does
ANSWER_WITHIN_S = 9.5  # a request, from when its body is there
PATIENCE_S = 9.0  # of a command, for the store: it says why
HANGS_AFTER_S = 7.0
_READ = ("GET", "HEAD")
T = TypeVar("T")


class EntityServer:
    """Serves event-sourced entities, by their tables' names.

    Args:
        most_body_bytes: the maximum size of a request.
        forwarding: given if several processes share the entities."""

    def __init__(
        self, entities: Sequence[EventSourced], *, most_body_bytes: int, forwarding: Forwarding | None = None
    ) -> None:
        self._entities = {entity.table.name: entity for entity in entities}
        self._most_body_bytes, self._forwarding = most_body_bytes, forwarding
        self._workers: dict[str, CommandWorker] = {}
        self._document = openapi.document(entities)
        self._page = docs_page.page(self._document)
        self._under_way = 0
        self._held_bytes = 0
        self._readiness = asyncio.Lock()
        self._ready: tuple[float, list[str]] = (0.0, [])  # since when it is known, and the tables that do not answer
        self.application = Router(default=self._answer, redirect_slashes=False, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as at_end:
            if self._forwarding is not None:
                at_end.push_async_callback(self._forwarding.close)
            for name, entity in self._entities.items():
                worker = self._workers[name] = entity.worker(hangs_after_s=HANGS_AFTER_S, patience_s=PATIENCE_S)
                at_end.push_async_callback(run_in_threadpool, worker.close)
            yield

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._response(request)
        except Problem as problem:
            response = problem.response()
        except ClientDisconnect:
            return
        except Exception as error:
            response = problems.of_fault(error, request.method).response()
        if self._forwarding is not None:
            response.headers.setdefault(MEMBER_HEADER, self._forwarding.member)
        await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        match segments_of(request):
            case [("livez" | "readyz" | "openapi.json" | "docs") as name]:
                return _allowed(request, *_READ) or await self._of_itself(name)
            case [table, entity_id]:
                entity = self._entity(table)
                return _allowed(request, *_READ) or await _state(request, entity, entity_id)
            case [table, entity_id, name]:
                entity = self._entity(table)
                if name not in entity.handlers:
                    raise _unknown(f"{table} has no command {name!r}", name, entity.handlers)
                return _allowed(request, "POST") or await self._counted(request, entity, entity_id, name)
        raise Problem(
            NOT_FOUND, "the paths are /ENTITY/ID, /ENTITY/ID/COMMAND, /docs, /openapi.json, /livez and /readyz"
        )

    async def _of_itself(self, name: str) -> Response:
        """Answer a request about the server: a probe, the OpenAPI document, or the page of documentation."""
        match name:
            case "livez":
                return json_response({"live": True})
            case "readyz":
                return await self._readyz()
            case "openapi.json":
                return json_response(self._document)
            case _:
                return Response(self._page, headers=docs_page.HEADERS)

    def _entity(self, table: str) -> EventSourced:
        entity = self._entities.get(table)
        if entity is None:
            raise _unknown(f"there are no entities {table!r}", table, self._entities)
        return entity

    async def _counted(self, request: Request, entity: EventSourced, entity_id: str, name: str) -> Response:
        if self._under_way >= MOST_REQUESTS:
            raise _too_many()
        self._under_way += 1
        try:
            with self._room() as take:
                return await self._command(request, entity, entity_id, name, take)
        finally:
            self._under_way -= 1

    @contextmanager
    def _room(self) -> Iterator[Callable[[int], None]]:
        """Reserve memory for a body: the caller passes each piece's size before keeping it. That may raise Problem."""
        held = 0

        def take(size: int) -> None:
            nonlocal held
            if self._held_bytes + size > MOST_BYTES:
                raise _too_many()
            held += size
            self._held_bytes += size

        try:
            yield take
        finally:
            self._held_bytes -= held

    async def _command(
        self, request: Request, entity: EventSourced, entity_id: str, name: str, take: Callable[[int], None]
    ) -> Response:
        check_id(entity_id)
        key = key_of(request)
        body = await body_of(request, self._most_body_bytes, take)
        table = entity.table.name
        try:
            command = Command(entity_id=entity_id, command_id=key, name=name, request=object_of(body))
            async with asyncio.timeout(ANSWER_WITHIN_S):
                if self._forwarding is not None:
                    passed = await self._forwarding.answer(request, body, table, entity_id)
                    if passed is not None:
                        return passed
                answer = await self._workers[table].answer(command)
        except TimeoutError:
            raise problems.of(_late(), f"{table} {name}") from None
        except ViewtailError as error:
            raise problems.of(error, f"{table} {name}") from None
        return json_response(
            {"response": answer.response, "version": str(answer.version), "is_repeated": answer.is_repeated}
        )

    async def _readyz(self) -> Response:
        async with self._readiness:
            known_at, silent = self._ready
            if time.monotonic() - known_at > READY_FOR_S:
                answers = await asyncio.gather(*(_is_answered(entity) for entity in self._entities.values()))
                silent = [name for name, is_there in zip(self._entities, answers, strict=True) if not is_there]
                self._ready = time.monotonic(), silent
        return json_response({"ready": not silent, "silent": silent}, 503 if silent else 200)


async def _is_answered(entity: EventSourced) -> bool:
    """Return whether the entity's table can be read now."""
    try:
        await _in_thread(partial(entity.check, PROBE), READY_WITHIN_S)
    except ViewtailError as error:
        problems.of(error, entity.table.name)  # logs it
        return False
    return True


async def _in_thread(ask: Callable[[], T], within_s: float) -> T:
    """Run a function that waits for a server in a thread; after `within_s` the thread is left alone."""
    with move_on_after(within_s):
        return await to_thread.run_sync(ask, abandon_on_cancel=True)
    raise _late()


def _late() -> StoreUnavailableError:
    return StoreUnavailableError("the store did not answer in time")


async def _state(request: Request, entity: EventSourced, entity_id: str) -> Response:
    check_id(entity_id)
    version = version_of(request)
    try:
        state = await _in_thread(partial(entity.state, entity_id, version=version), ANSWER_WITHIN_S)
    except ViewtailError as error:
        raise problems.of_read(error, entity.table.name) from None
    if state is None:
        what = "no events" if version is None else f"no event of version {version}"
        raise Problem(NOT_FOUND, f"the entity has {what}")
    return json_response({"state": state.state, "version": str(state.version)})


def _allowed(request: Request, *methods: str) -> Response | None:
    """Return the answer to OPTIONS; raise Problem for a method that is not one here."""
    allow = {"Allow": ", ".join((*methods, "OPTIONS"))}
    if request.method == "OPTIONS":
        return Response(status_code=204, headers=allow)
    if request.method not in methods:
        raise Problem(METHOD, f"allowed here: {allow['Allow']}", allow)
    return None


def _too_many() -> Problem:
    return Problem(UNAVAILABLE, "too many commands are under way. Send it again, later", {"Connection": "close"})


def _unknown(said: str, name: str, known: Any) -> Problem:
    return Problem(NOT_FOUND, said + (nearest(name, known) or f"; there are {', '.join(known)}"))
