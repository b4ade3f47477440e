"""A condition that an operator wrote over a table with people's data, as it is told and kept: without its values."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from projectors.projection import parts_of
from projectors.views import BoundView

DIGEST_DIGITS = 12  # in hexadecimal
_BLANK = "?"
_COMMENT = r"/\*.*?(?:\*/|\Z)|(?:#|--(?=\s|\Z))[^\n]*"
_QUOTED = r"'(?:[^']|'')*(?:'|\Z)|\"(?:[^\"]|\"\")*(?:\"|\Z)"
_NAME = r"`(?:[^`]|``)*(?:`|\Z)|(?:0[xXbB]|\d|\.\d)[\w.]*|[^\W\d][\w$]*"
_TOKEN = re.compile(rf"(?P<value>{_COMMENT}|{_QUOTED})|(?P<name>{_NAME})", re.DOTALL)


def has_peoples_data(view: BoundView) -> bool:
    """Return whether a table of the view has a masked column, or one that the view needs as it is."""
    return bool(view.view.unmasked) or any(
        column.mask is not None for part in parts_of(view) for column in part.table.columns
    )


def kept_condition(condition: str, view: BoundView, secret: bytes) -> str:
    """The condition itself where no table of the view has people's data; without its values where one has.

    The digest at its end tells it from others, so that a run which was stopped goes on. Who has no secret could try
    values until the digest is right, so without one it is another one each time.
    """
    if not has_peoples_data(view):
        return condition
    whole = hmac.new(secret, condition.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
    return f"{without_values(condition)} ({whole[:DIGEST_DIGITS] if secret else secrets.token_hex(DIGEST_DIGITS // 2)})"


def unsaid(number: int) -> str:
    """An error of the server without its text, which may have a value of a row."""
    return f"error {number}. Its text may have a value of a masked column: try the condition in a client of your own"


def without_values(condition: str) -> str:
    """The condition with a question mark for each literal and comment.

    Where a backslash may or may not escape a quote, nothing of it is sure.
    """
    if "\\" in condition:
        return _BLANK
    return _TOKEN.sub(lambda match: match[0] if _is_name(match) else _BLANK, condition)


def _is_name(match: re.Match[str]) -> bool:
    return match["name"] is not None and not match["name"][0].isdigit() and match["name"][0] != "."
