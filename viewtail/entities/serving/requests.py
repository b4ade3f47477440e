"""Reads requests strictly: one that is not exactly right ends in a Problem that says why, before anything is done.

Paths are read as they were sent: `%2F` in an id is a part of the id, and `..` has no meaning.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn
from urllib.parse import parse_qs, unquote_to_bytes

from starlette.requests import Request

from viewtail.entities.commands import MOST_COMMAND_ID, MOST_ENTITY_ID
from viewtail.entities.serving.problems import BAD_REQUEST, INVALID, MEDIA, TOO_LARGE, TOO_SLOW, Problem

BODY_WITHIN_S = 30.0
DISCARD_WITHIN_S = 1.0
MOST_DEPTH = 30  # of arrays and objects in each other: MariaDB's JSON ends at 32
MOST_VERSION = (1 << 64) - 1
KEY_HEADER = "Idempotency-Key"
KEY_PATTERN = "^[!-~]+$"  # what every client can put into a header

_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_VERSION = re.compile(r"[1-9][0-9]{0,19}", re.ASCII)


def segments_of(request: Request) -> list[str]:
    """Return the segments of the path, each decoded. Raises Problem."""
    raw: bytes = request.scope["raw_path"]
    if _ESCAPE.search(raw):
        raise Problem(BAD_REQUEST, "the path has a % that two hexadecimal digits do not follow")
    try:
        segments = [unquote_to_bytes(part).decode() for part in raw.split(b"/")[1:]]
    except UnicodeDecodeError:
        raise Problem(BAD_REQUEST, "the path is not UTF-8") from None
    if "\0" in "".join(segments):
        raise Problem(BAD_REQUEST, "the path has a NUL character")
    return segments


def check_id(entity_id: str) -> None:
    """Raise Problem for an id that no entity can have."""
    if not 1 <= len(entity_id) <= MOST_ENTITY_ID:
        raise Problem(BAD_REQUEST, f"an entity's id has 1 to {MOST_ENTITY_ID} characters")


def version_of(request: Request) -> int | None:
    """The version in ?version=N; None if there is none. Raises Problem."""
    try:
        query = parse_qs(request.scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="strict")
    except (UnicodeDecodeError, ValueError):
        raise Problem(BAD_REQUEST, "the query is not UTF-8, or has too many fields") from None
    given = query.get("version")
    if given is None:
        return None
    if len(given) > 1 or not _VERSION.fullmatch(given[0]) or int(given[0]) > MOST_VERSION:
        raise Problem(BAD_REQUEST, "version is one whole number from 1")
    return int(given[0])


def key_of(request: Request) -> str:
    """The Idempotency-Key. Raises Problem."""
    given = request.headers.getlist(KEY_HEADER)
    if not given:
        raise Problem(
            BAD_REQUEST,
            f"the header {KEY_HEADER} is missing: an id that the sender chooses for the command, the same each time "
            "that it sends the command",
        )
    if len(given) > 1 or not 1 <= len(given[0]) <= MOST_COMMAND_ID or not re.fullmatch(KEY_PATTERN, given[0]):
        raise Problem(BAD_REQUEST, f"{KEY_HEADER} is given once, as 1 to {MOST_COMMAND_ID} visible ASCII characters")
    return given[0]


async def body_of(request: Request, most_bytes: int, take: Callable[[int], None]) -> bytes:
    """Return the whole body. `take` gets each piece's size before it is kept. Raises Problem; ClientDisconnect."""
    kind = request.headers.get("Content-Type", "application/json")
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise Problem(MEDIA, "send the command's request as application/json")
    too_large = Problem(TOO_LARGE, f"a request has at most {most_bytes:,} bytes", {"Connection": "close"})
    length = request.headers.get("Content-Length", "")
    if length.isdecimal() and int(length[:20]) > most_bytes:
        await _discard(request, most_bytes)
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for chunk in request.stream():
                if len(body) + len(chunk) > most_bytes:
                    await _discard(request, most_bytes)
                    raise too_large
                take(len(chunk))
                body += chunk
    except TimeoutError:
        raise Problem(
            TOO_SLOW, f"the request did not arrive within {BODY_WITHIN_S:.0f} s", {"Connection": "close"}
        ) from None
    return bytes(body)


async def _discard(request: Request, most_bytes: int) -> None:
    """Read on, twice as much and for a while: a client that is cut off while it sends may never see the answer."""
    if "Expect" in request.headers:  # it asks first whether it may send, and reading would say yes
        return
    seen = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_WITHIN_S):
            async for chunk in request.stream():
                seen += len(chunk)
                if seen > 2 * most_bytes:
                    return


def object_of(body: bytes) -> dict[str, Any]:
    """The JSON object that a body is. Raises Problem; numbers are as they were sent, or refused later."""
    try:
        parsed = json.loads(
            body.decode(), object_pairs_hook=_without_twins, parse_int=_whole, parse_constant=_no_number
        )
    except UnicodeDecodeError:
        raise Problem(BAD_REQUEST, "the request is not UTF-8") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        where = f" at byte {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise Problem(BAD_REQUEST, f"the request is not JSON{where}") from None
    if not isinstance(parsed, dict):
        raise Problem(INVALID, "the request must be a JSON object, e.g. {}")
    if _is_deeper(parsed, MOST_DEPTH):
        raise _too_deep()
    return parsed


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise Problem(INVALID, "an object of the request has two members of one name")
    return members


def _whole(digits: str) -> int | float:
    """Return the text of a whole number; JavaScript writes 1e20 as digits."""
    try:
        number = int(digits)
        if -(1 << 63) <= number < 1 << 64:
            return number
        double = float(number)
    except (ValueError, OverflowError):  # thousands of digits
        double, number = 0.0, 1
    if int(double) != number:
        raise Problem(INVALID, "the request has a whole number that 64 bits do not hold exactly; send it as text")
    return double


def _no_number(_: str) -> NoReturn:
    raise ValueError


def _too_deep() -> Problem:
    return Problem(INVALID, f"arrays and objects of the request are more than {MOST_DEPTH} deep in each other")


def _is_deeper(value: Any, most: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    if most == 0:
        return True
    inner = value.values() if isinstance(value, dict) else value
    return any(_is_deeper(element, most - 1) for element in inner)
