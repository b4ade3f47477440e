"""A view seen from beside its pipelines: what it opened goes, however it ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from offsets.mysql import OwnSession
from projectors.proving import view_access
from projectors.proving.view_access import ViewAccess
from viewtail.changes.errors import MisuseError, StoreUnavailableError


class _Connection:
    open = True

    def close(self) -> None:
        self.open = False


class _Catalog:
    database = "viewtail"

    def __init__(self) -> None:
        self.opened: list[_Connection] = []

    def session(self) -> OwnSession:
        return OwnSession(self._open)

    def _open(self) -> Any:
        self.opened.append(_Connection())
        return self.opened[-1]

    def pipelines(self) -> list[Any]:
        return []

    def to_begin(self, session: Any) -> str:
        return f"{type(session).__name__} says"


@pytest.mark.parametrize("error", [None, StoreUnavailableError("MySQL does not answer")])
def test_one_that_cannot_begin_leaves_no_session_behind(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaner tries the views of a pipeline again and again: each such attempt would keep one."""

    def keepers(session: Any, *_: Any) -> list[Any]:
        session()
        if error is not None:
            raise error
        return []

    store: Any = type("S", (), {"keeps_every_change": False, "name": "mysql"})()
    monkeypatch.setattr(view_access, "keepers", keepers)
    monkeypatch.setattr(view_access, "store_of", lambda _: store)
    view: Any = type("V", (), {"view": None, "id": "mysql:v"})()
    catalog: Any = _Catalog()
    with pytest.raises((MisuseError, StoreUnavailableError)):
        ViewAccess(catalog, view, threading.Event())
    assert [one.open for one in catalog.opened] == [False]
