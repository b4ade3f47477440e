"""Passes a command on to the process that its entity belongs to, so that commands of one entity share transactions.

It may fail in any way: then the command is handled here. The owner may have handled it all the same, and then it has
its first answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import httpx
import structlog
from starlette.requests import Request
from starlette.responses import Response

from viewtail.entities.serving.requests import KEY_HEADER
from viewtail.entities.serving.ring import Ring

_log = structlog.get_logger("viewtail.serve")

MEMBER_HEADER = "Viewtail-Member"  # in an answer: the member that gave it
FORWARDED_HEADER = "Viewtail-Forwarded"  # in a request: the member that gets it handles it
CONNECT_WITHIN_S = 1.0
ANSWER_WITHIN_S = 5.0
AWAY_S = 5.0  # how long nothing is forwarded to a member that did not answer
_PASSED_HEADERS = ("Content-Type", "Cache-Control", "Retry-After", MEMBER_HEADER)


class Forwarding:
    """Forwards requests for one member among several.

    Args:
        members: the addresses of all members, as http://HOST:PORT.
        member: this process's address."""

    def __init__(self, members: Sequence[str], member: str) -> None:
        self.member = member
        self._ring = Ring(members)
        self._away_until: dict[str, float] = {}
        timeout = httpx.Timeout(ANSWER_WITHIN_S, connect=CONNECT_WITHIN_S)
        # Kept for less than the 5 s after which uvicorn closes an idle connection.
        limits = httpx.Limits(max_connections=500, max_keepalive_connections=100, keepalive_expiry=2.0)
        self._client = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)

    async def answer(self, request: Request, body: bytes, table: str, entity_id: str) -> Response | None:
        """Return the owner's answer; None where the command is to be handled here."""
        owner = self._ring.owner(table, entity_id)
        is_ours = owner == self.member or FORWARDED_HEADER in request.headers
        if is_ours or self._away_until.get(owner, 0) > time.monotonic():
            return None
        headers = {
            KEY_HEADER: request.headers[KEY_HEADER],
            "Content-Type": "application/json",
            FORWARDED_HEADER: self.member,
        }
        url = httpx.URL(owner).copy_with(raw_path=request.scope["raw_path"])
        try:
            response = await self._client.post(url, content=body, headers=headers)
        except httpx.HTTPError as error:
            self._away_until[owner] = time.monotonic() + AWAY_S
            _log.warning(
                "a member does not answer: its commands are handled here", member=owner, error=type(error).__name__
            )
            return None
        if response.headers.get(MEMBER_HEADER) != owner:
            _log.warning("another program, or another member, answers at a member's address", member=owner)
            return None
        if response.status_code == 404:  # that member has an earlier version of the entities
            return None
        passed = {name: response.headers[name] for name in _PASSED_HEADERS if name in response.headers}
        return Response(response.content, response.status_code, passed)

    async def close(self) -> None:
        await self._client.aclose()
