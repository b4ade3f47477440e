"""What backfills say while a store is away."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from structlog.testing import capture_logs

from projectors.backfills import Backfills
from viewtail.changes.errors import StoreUnavailableError


def test_what_many_views_meet_again_and_again_is_told_once() -> None:
    own: Any = SimpleNamespace(stop=threading.Event(), backfill_error=None)
    backfills = Backfills(own)
    told = ["refused", "refused", "refused", "full", "full", "refused"]

    def fails(text: str) -> None:
        raise StoreUnavailableError(text)

    with capture_logs() as logs:
        assert [backfills._try(lambda: fails(text)) for text in told] == [False] * 6  # noqa: B023
        own.backfill_error = None  # a round without errors
        backfills._try(lambda: fails("refused"))
    assert [line["error"] for line in logs] == ["refused", "full", "refused", "refused"]
    assert own.backfill_error == "refused"
