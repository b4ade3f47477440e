"""Ids of views, and of the copies that are beside a live one: 'mysql:by_email~2'."""

from __future__ import annotations

import re

_OF_COPY = re.compile(r"~[0-9]+$")


def copy_id(view: str, copy: int) -> str:
    """The id of a copy that is beside the live one."""
    return f"{view}~{copy}"


def view_of(copy: str) -> str:
    """The id of the view that an id is of, itself or a copy beside it."""
    return _OF_COPY.sub("", copy)


def is_copy(name: str) -> bool:
    """Return whether it is the id of a copy beside a live one."""
    return _OF_COPY.search(name) is not None
