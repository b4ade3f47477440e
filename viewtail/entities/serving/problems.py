"""The answers to failed requests: problem details (RFC 9457), all of one shape, without users' values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
import structlog
from starlette.responses import Response

from viewtail.changes.errors import MisuseError, ReadOnlyError, TemporaryError, ViewtailError, place_of
from viewtail.entities import (
    HandlerFailedError,
    HandlerHungError,
    RefusedError,
    UsedCommandIdError,
    WorkerBusyError,
    WorkerEndedError,
)

_log = structlog.get_logger("viewtail.serve")

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1


class Kind(NamedTuple):
    """The kind of a problem. `name` is the end of its `type`, a URN that never changes."""

    status: int
    name: str
    title: str

    @property
    def uri(self) -> str:
        """The problem's `type`."""
        return f"urn:viewtail:problem:{self.name}"


BAD_REQUEST = Kind(400, "bad-request", "The request cannot be read")
NOT_FOUND = Kind(404, "not-found", "There is no such thing")
METHOD = Kind(405, "method-not-allowed", "The method is not allowed here")
TOO_SLOW = Kind(408, "request-timeout", "The request did not arrive in time")
USED_ID = Kind(409, "used-id", "The id is that of another command")
TOO_LARGE = Kind(413, "too-large", "The request is too large")
MEDIA = Kind(415, "unsupported-media-type", "The request is not JSON")
INVALID = Kind(422, "invalid", "The request is not valid")
REFUSED = Kind(422, "refused", "A rule forbids the command")
HANDLER_FAILED = Kind(500, "handler-failed", "The command's handler failed")
STORE_REFUSED = Kind(500, "store-refused", "The store refused")
FAULT = Kind(500, "fault", "A fault of the server")
UNAVAILABLE = Kind(503, "unavailable", "Not available now")
HANDLER_HUNG = Kind(504, "handler-hung", "The command's handler did not return")
KINDS = (
    *(BAD_REQUEST, NOT_FOUND, METHOD, TOO_SLOW, USED_ID, TOO_LARGE, MEDIA, INVALID, REFUSED, HANDLER_FAILED),
    *(STORE_REFUSED, FAULT, UNAVAILABLE, HANDLER_HUNG),
)


class Problem(Exception):
    """Ends a request; `detail` is for the person who reads it."""

    def __init__(self, kind: Kind, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.kind, self.detail = kind, detail
        self._headers = dict(headers or {})
        if kind is UNAVAILABLE:
            self._headers["Retry-After"] = str(RETRY_AFTER_S)

    def body(self) -> dict[str, Any]:
        """Return the members of RFC 9457."""
        return {
            "type": self.kind.uri,
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
        }

    def response(self) -> Response:
        """The response with its body and headers."""
        return json_response(self.body(), self.kind.status, {"Content-Type": MEDIA_TYPE, **self._headers})


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of JSON that nobody keeps."""
    return Response(
        orjson.dumps(body), status, {"Content-Type": "application/json", "Cache-Control": "no-store", **(headers or {})}
    )


def of(error: ViewtailError, what: str) -> Problem:
    """The problem for a caller. Details for operators are logged; `what` names the entity's table and the command."""
    if isinstance(error, RefusedError):
        return Problem(REFUSED, str(error))
    if isinstance(error, UsedCommandIdError):
        return Problem(USED_ID, str(error))
    if isinstance(error, HandlerFailedError):
        _log.error("a handler failed", command=what, error=str(error), where=_handlers_own(error))
        return Problem(HANDLER_HUNG if isinstance(error, HandlerHungError) else HANDLER_FAILED, str(error))
    if isinstance(error, WorkerEndedError):
        return Problem(UNAVAILABLE, "the server is stopping; nothing was written. Send it again")
    if isinstance(error, WorkerBusyError):
        return Problem(UNAVAILABLE, "too many commands wait; nothing was written. Send it again, later")
    if isinstance(error, TemporaryError):
        return unavailable(error, what, _SEND_AGAIN)
    if isinstance(error, MisuseError):
        return Problem(INVALID, str(error))
    _log.error("the store refused", command=what, error=str(error))
    return Problem(STORE_REFUSED, "the store refused; the server's log says why")


_SEND_AGAIN = (
    "Whether the command was handled is not known: send it again under its Idempotency-Key, and it takes effect once"
)


def of_read(error: ViewtailError, what: str) -> Problem:
    """The problem for a caller that asked for a state; otherwise as `of`."""
    return unavailable(error, what, "Ask again, later") if isinstance(error, TemporaryError) else of(error, what)


def unavailable(error: TemporaryError, what: str, then: str) -> Problem:
    """Return the problem for a store that fails; the log alone names the server. `then`: what the caller may do."""
    _log.warning("the store is not available", command=what, error=str(error))
    if isinstance(error, ReadOnlyError):
        return Problem(UNAVAILABLE, f"the store takes no writes now: {error.variable} is ON there. {then}")
    return Problem(UNAVAILABLE, f"the store does not answer. {then}")


def of_fault(error: Exception, what: str) -> Problem:
    """The problem for an unexpected error. Its text is not even logged, since it may contain values."""
    _log.error(
        "a fault in viewtail; please report this line", request=what, error=type(error).__name__ + place_of(error)
    )
    return Problem(FAULT, "a fault of the server; its log says where")


def _handlers_own(error: ViewtailError) -> str:
    """Return the line of the handler that raised."""
    return place_of(error.__cause__).removeprefix(" at ") if error.__cause__ is not None else ""
