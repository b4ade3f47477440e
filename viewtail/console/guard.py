"""Who may ask the console for what: the names it answers to, an operator's session, and the headers of each answer.

Reading is for everyone who reaches the address. A command needs a session, which the token opens; it must come from a
page of the console itself. Nothing is kept: a session is a signed text in a cookie, and a new token ends them all.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

COOKIE = "viewtail-console"
LASTS_S = 12 * 3600
MOST_NAME = 64  # characters of an operator's name
MINUTE_S = 60.0
MANY_WRONG = 20  # tokens, within a minute
PAUSE_S = 5.0  # of each sign-in then
MOST_PEERS = 5  # of a minute, that the log names
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

HEADERS = {
    # Nothing is taken from outside, and nobody frames a page. With "no-referrer" a browser would send no Origin.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


def names(host: str, url: str | None) -> frozenset[str]:
    """The hosts, without a port, that a request may name.

    A page elsewhere whose name is made to lead here, as in DNS rebinding, would read the console otherwise.
    """
    own = {host.lower(), f"[{host.lower()}]"} if host not in ("", "0.0.0.0", "::") else set()
    public = {urlsplit(url).hostname or ""} if url else set()
    return LOOPBACK | own | public


def is_named(host_header: str, known: Collection[str]) -> bool:
    """Whether a Host header names one of them, with any port."""
    name, colon, port = host_header.rpartition(":")
    host = name if colon and port.isdigit() else host_header
    return host.lower() in known


@dataclass(frozen=True, slots=True)
class Session:
    """An operator who signed in."""

    name: str
    ends_at: float  # seconds of the epoch
    cookie: str


class Sessions:
    """Opens and recognises sessions. Without a token there are none."""

    def __init__(self, token: str | None) -> None:
        self._key = None if token is None else hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()

    @property
    def can_act(self) -> bool:
        return self._key is not None

    def open(self, token: str, name: str, now: float | None = None) -> Session | None:
        """Return a session for whoever has the token; None for another."""
        given = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        if self._key is None or not hmac.compare_digest(self._key, given):
            return None
        ends_at = int((time.time() if now is None else now) + LASTS_S)
        payload = f"{base64.urlsafe_b64encode(name.encode()).decode()}.{ends_at}"
        return Session(name, ends_at, f"{payload}.{self._signed('session', payload)}")

    def of(self, cookie: str | None, now: float | None = None) -> Session | None:
        """Return the session of a cookie; None where it is none, or over."""
        if self._key is None or not cookie:
            return None
        payload, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(self._signed("session", payload), signature.encode("ascii", "replace").decode()):
            return None
        name, _, ends_at = payload.partition(".")
        if float(ends_at) <= (time.time() if now is None else now):
            return None
        return Session(base64.urlsafe_b64decode(name).decode(), float(ends_at), cookie)

    def form_key(self, session: Session) -> str:
        """A text that only a page of this session has: each of its forms sends it along."""
        return self._signed("form", session.cookie)

    def is_form_key(self, session: Session, given: str) -> bool:
        return hmac.compare_digest(self.form_key(session).encode(), given.encode("utf-8", "replace"))

    def _signed(self, what: str, text: str) -> str:
        assert self._key is not None
        return hmac.new(self._key, f"{what}|{text}".encode(), hashlib.sha256).hexdigest()


class WrongTokens:
    """Counts them, says once a minute how many there were, and slows everybody down who signs in after many.

    Args:
        say: is given the count of a minute, and addresses that they came from.
        later: calls a function after so many seconds.
    """

    def __init__(
        self, say: Callable[[int, Sequence[str]], None], later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._say, self._later = say, later
        self._count, self._last_count = 0, 0
        self._peers: dict[str, None] = {}
        self._is_waiting = False

    def note(self, peer: str) -> None:
        self._count += 1
        if len(self._peers) < MOST_PEERS:
            self._peers[peer] = None
        if not self._is_waiting:
            self._tell()

    @property
    def pause_s(self) -> float:
        """How long a sign-in waits, also one with the token, which cannot be told from others before."""
        return PAUSE_S if max(self._count, self._last_count) >= MANY_WRONG else 0.0

    def _tell(self) -> None:
        """The first at once; then those of each minute, until one has none."""
        if self._count:
            self._say(self._count, [*self._peers])
            self._later(MINUTE_S, self._tell)
        self._is_waiting = self._count > 0
        self._last_count, self._count, self._peers = self._count, 0, {}


def why_not_own(headers: Mapping[str, str]) -> str | None:
    """Say why a form does not come from a page of the console, as far as the browser tells; None where it may."""
    site, origin, host = headers.get("sec-fetch-site"), headers.get("origin"), headers.get("host", "")
    if site is not None and site != "same-origin":
        return "the form was sent by another site"
    # Behind a proxy that speaks HTTPS the scheme is another one here.
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return "the form was sent by another site"
    return None
