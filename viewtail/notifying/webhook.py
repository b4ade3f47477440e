"""The POST of a message. Its address is a secret: whoever knows it may write there, so no error says it."""

from __future__ import annotations

import io
import socket
import ssl
import time
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

WITHIN_S = 10.0  # for a connection, for the message, and for the whole answer
LONGEST_PAUSE_S = 3600.0  # that a webhook may ask for


class WebhookError(Exception):
    """The webhook did not take a message; it says why, and not where.

    Args:
        pause_s: how long the webhook asks to be left alone; 0: it does not say.
    """

    def __init__(self, why: str, pause_s: float = 0.0) -> None:
        super().__init__(why)
        self.pause_s = pause_s


class _NoRedirect(HTTPRedirectHandler):
    """An answer that leads elsewhere is an error: a message is for one reader."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class _Until(io.RawIOBase):
    """Reads from a socket until a moment: by itself a socket waits anew for each byte."""

    def __init__(self, of: socket.socket, raw: io.RawIOBase, within_s: float) -> None:
        self._socket, self._raw = of, raw
        self._deadline = time.monotonic() + within_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(HTTPResponse):
    """An answer, and that of a proxy, which comes within the time or not at all."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Until(sock, self.fp.detach(), WITHIN_S))


class _Bounded(HTTPHandler, HTTPSHandler):
    def do_open(self, http_class: Any, req: Request, **http_conn_args: Any) -> Any:
        def connection(host: str, **given: Any) -> HTTPConnection:
            made: HTTPConnection = http_class(host, **given)
            made.response_class = _Answer
            return made

        return super().do_open(connection, req, **http_conn_args)


def post(url: str, body: bytes) -> None:
    """Send a body of JSON. Raises WebhookError unless the answer is 2xx."""
    try:
        request = Request(
            url, data=body, headers={"Content-Type": "application/json", "User-Agent": "viewtail"}, method="POST"
        )
        with build_opener(_NoRedirect, _Bounded).open(request, timeout=WITHIN_S):
            return
    except HTTPError as error:
        error.close()
        raise WebhookError(f"it answered {error.code}", _pause_s(error)) from None
    except (URLError, OSError, HTTPException, ValueError) as error:
        raise WebhookError(_why(error)) from None


def _pause_s(error: HTTPError) -> float:
    asked = error.headers.get("Retry-After", "")
    return min(LONGEST_PAUSE_S, float(asked)) if asked.isascii() and asked.isdigit() else 0.0


def _why(error: Exception) -> str:
    """What failed, without what the libraries say of the address."""
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return "its certificate is not trusted, or is another server's"
    if isinstance(reason, TimeoutError):
        return f"no answer within {WITHIN_S:.0f} s"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return type(reason).__name__
