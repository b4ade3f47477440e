"""What the server answers while its store is away or its queue is full: an application in this process, no MySQL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.support.running import wait_for
from viewtail import settings
from viewtail.changes.errors import SettingsError, StoreError, StoreUnavailableError
from viewtail.entities import CommandWorker, EventSourced
from viewtail.entities.serving import app, requests
from viewtail.entities.serving.app import EntityServer
from viewtail.entities.serving.forwarding import FORWARDED_HEADER, MEMBER_HEADER, Forwarding
from viewtail.servers.sessions import Connection

HEADERS = {"Idempotency-Key": "1"}
PATH = "/bank.account/ada/deposit"
ENVIRONMENT = {"VIEWTAIL_SOURCE__URL": "mysql://root@127.0.0.1:1"}


class Away(EventSourced):
    """Its store never answers; or, with `refuses`, says no as soon as it is let go."""

    def __init__(self, *, refuses: bool = False, **limits: Any) -> None:
        super().__init__(
            "bank.account", {"deposit": lambda state, _: (1, state)}, settings=settings.load(None, ENVIRONMENT)
        )
        self.limits, self.refuses = limits, refuses
        self.asked = threading.Event()
        self.let_go = threading.Event()

    def worker(self, **_: Any) -> CommandWorker:
        def opened() -> Connection:
            self.asked.set()
            self.let_go.wait(60)
            raise (StoreError if self.refuses else StoreUnavailableError)("mysql://root@10.0.0.7 does not answer")

        self.made = CommandWorker(self.table, self.handlers, opened, **self.limits)
        return self.made


def served(entity: Away, asks: Callable[[httpx.AsyncClient], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        application = EntityServer([entity], most_body_bytes=1 << 20, **options).application
        async with application.lifespan_context(application):
            transport = httpx.ASGITransport(application)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                await asks(client)

    asyncio.run(run())


def test_a_command_to_a_store_that_is_away_is_503_in_time_and_names_no_server() -> None:
    entity = Away(patience_s=0.5)

    async def asks(client: httpx.AsyncClient) -> None:
        found = await client.post(PATH, headers=HEADERS, json={})
        assert (found.status_code, found.headers["retry-after"]) == (503, "1")
        assert found.json()["type"] == "urn:viewtail:problem:unavailable"
        assert "under its Idempotency-Key" in found.text and "10.0.0.7" not in found.text
        entity.let_go.set()

    served(entity, asks)


def test_what_comes_above_the_bound_is_503_at_once() -> None:
    entity = Away(refuses=True, most_waiting_bytes=2_000)

    async def asks(client: httpx.AsyncClient) -> None:
        under_way = [asyncio.create_task(client.post(PATH, headers=HEADERS, json={}))]
        assert await asyncio.to_thread(entity.asked.wait, 30)
        under_way.append(asyncio.create_task(client.post(PATH, headers=HEADERS, json={})))
        await asyncio.to_thread(wait_for, "it waits", lambda: entity.made.waiting_count)
        full = await client.post(PATH, headers=HEADERS, json={})
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        assert "too many commands wait; nothing was written" in full.text
        entity.let_go.set()
        await asyncio.gather(*under_way)

    served(entity, asks)


def test_a_body_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODY_WITHIN_S", 0.2)

    async def trickle() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(5)

    async def asks(client: httpx.AsyncClient) -> None:
        found = await client.post(PATH, headers=HEADERS, content=trickle())
        assert (found.status_code, found.headers["connection"]) == (408, "close")
        assert found.json()["type"] == "urn:viewtail:problem:request-timeout"

    served(Away(patience_s=0.5), asks)


def test_requests_under_way_are_bounded_and_free_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MOST_REQUESTS", 1)
    entity = Away(refuses=True)

    async def asks(client: httpx.AsyncClient) -> None:
        under_way = asyncio.create_task(client.post(PATH, headers=HEADERS, json={}))
        assert await asyncio.to_thread(entity.asked.wait, 30)
        full = await client.post(PATH, headers=HEADERS, json={})
        assert full.status_code == 503 and "too many commands are under way" in full.text
        entity.let_go.set()
        assert "the store refused" in (await under_way).text
        assert "the store refused" in (await client.post(PATH, headers=HEADERS, json={})).text

    served(entity, asks)


def test_bytes_under_way_are_bounded_and_free_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MOST_BYTES", 1_000)
    entity = Away(patience_s=0.5)
    large = {"text": "x" * 600}

    async def in_pieces() -> AsyncIterator[bytes]:
        for _ in range(600):
            yield b" "

    async def asks(client: httpx.AsyncClient) -> None:
        under_way = asyncio.create_task(client.post(PATH, headers=HEADERS, json=large))
        await asyncio.to_thread(entity.asked.wait, 5)
        for content in (b"x" * 600, in_pieces()):
            full = await client.post(PATH, headers=HEADERS, content=content)
            assert full.status_code == 503 and "too many commands are under way" in full.text
            assert full.headers["connection"] == "close"
        small = asyncio.create_task(client.post(PATH, headers=HEADERS, json={}))
        entity.let_go.set()
        for one in (await under_way, await small, await client.post(PATH, headers=HEADERS, json=large)):
            assert "does not answer" in one.text

    served(entity, asks)


@pytest.mark.parametrize("answer", ["nothing", "another program", "another member", "not found"])
def test_what_is_no_answer_of_the_owner_is_handled_here(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """And so ends at this process's own store."""
    owner, member = "http://owner:1", "http://member:1"
    seen: list[httpx.Request] = []

    def respond(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if answer == "nothing":
            raise httpx.ConnectError("refused")
        if answer == "not found":
            return httpx.Response(404, headers={MEMBER_HEADER: owner})
        return httpx.Response(200, json={}, headers={MEMBER_HEADER: member} if answer == "another member" else {})

    entity = Away(patience_s=0.3)
    entity.let_go.set()

    async def asks(client: httpx.AsyncClient) -> None:
        monkeypatch.setattr(forwarding, "_client", httpx.AsyncClient(transport=httpx.MockTransport(respond)))
        for _ in range(2):
            found = await client.post("/bank.account/a%2Fb/deposit", headers=HEADERS, json={"a": 1})
            assert (found.status_code, found.headers[MEMBER_HEADER]) == (503, member)

    forwarding = Forwarding([owner], member)
    served(entity, asks, forwarding=forwarding)
    assert len(seen) == (1 if answer == "nothing" else 2), "a member that does not answer is left alone for a while"
    assert seen[0].url.raw_path == b"/bank.account/a%2Fb/deposit"
    assert seen[0].headers[FORWARDED_HEADER] == member and seen[0].content == b'{"a":1}'


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"MEMBERS": "http://a:1,http://b:1"}, "set together"),
        ({"MEMBER": "http://a:1"}, "set together"),
        ({"MEMBERS": "http://a:1,http://b:1", "MEMBER": "http://c:1"}, "none of the members"),
        ({"MEMBERS": "http://a:1,http://a:1", "MEMBER": "http://a:1"}, "twice"),
        ({"MEMBERS": "http://a:1/,http://b:1", "MEMBER": "http://b:1"}, "without a path"),
        ({"MEMBERS": "a:1", "MEMBER": "a:1"}, "without a path"),
    ],
)
def test_members_that_cannot_be_are_refused_at_the_start(given: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        settings.load(None, {f"VIEWTAIL_SERVE__{name}": value for name, value in given.items()})


def test_members_are_separated_by_commas() -> None:
    given = {"VIEWTAIL_SERVE__MEMBERS": "http://a:1, http://b:1", "VIEWTAIL_SERVE__MEMBER": "http://b:1"}
    assert settings.load(None, given).serve.members == ("http://a:1", "http://b:1")
