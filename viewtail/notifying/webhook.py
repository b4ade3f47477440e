"""The POST of a message. Its address is a secret: whoever knows it may write there, so no error says it."""

from __future__ import annotations

import ssl
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

WITHIN_S = 10.0  # for a connection, and for each part of the answer
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


def post(url: str, body: bytes) -> None:
    """Send a body of JSON. Raises WebhookError unless the answer is 2xx."""
    try:
        request = Request(
            url, data=body, headers={"Content-Type": "application/json", "User-Agent": "viewtail"}, method="POST"
        )
        with build_opener(_NoRedirect).open(request, timeout=WITHIN_S):
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
