"""What fillings say while a store is away."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from structlog.testing import capture_logs

from projectors.fills.runner import FillRunner
from projectors.outcomes import outcome_of
from viewtail.changes.errors import StoreUnavailableError


def test_what_many_views_meet_again_and_again_is_told_once() -> None:
    own: Any = SimpleNamespace(stop=threading.Event(), fills=SimpleNamespace(trouble=None))
    runner = FillRunner(own)

    def fails(text: str) -> None:
        def work() -> None:
            raise StoreUnavailableError(text)

        runner._act_on(outcome_of(work, own.stop))

    with capture_logs() as logs:
        for text in ["refused", "refused", "refused", "full", "full", "refused"]:
            fails(text)
        own.fills.trouble = None  # a round without errors
        fails("refused")
    assert [line["error"] for line in logs] == ["refused", "full", "refused", "refused"]
    assert own.fills.trouble == "refused"
