"""What the cleaner does when it cannot go on."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from changes.errors import StopRequested, WaitedTooLongError
from operations import cleaner
from operations.cleaner import Cleaner


def test_the_cleaner_goes_on_after_a_replica_stood_still_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner, "STUCK_AGAIN_AFTER_S", 0.0)
    own: Any = SimpleNamespace(stop=threading.Event(), identity="mysql")
    deployment: Any = None
    made = Cleaner(deployment=deployment, own=own, share=0.05, rest_s=1, is_busy=lambda: False)
    attempts: list[str] = []

    def work() -> None:
        attempts.append("look")
        if len(attempts) == 1:
            raise WaitedTooLongError("a watermark did not come through the stream")
        raise StopRequested

    made._try(work)
    assert len(attempts) == 2
