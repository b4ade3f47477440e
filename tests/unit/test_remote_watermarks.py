"""What a command that waits for a watermark says."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from offsets import watermarks
from projectors.watermark_rows import WatermarkPlace, remote_writer
from projectors.watermarks import RemoteWaiter, Watermarks
from viewtail.changes.errors import StopRequested


def test_who_waits_for_now_is_told_why_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteWaiter, "late_after_s", 0.01)
    stop, said = threading.Event(), list[str]()

    def say(why: str) -> None:
        said.append(why)
        stop.set()

    giving_up = threading.Timer(5, stop.set)
    giving_up.start()
    nowhere: Any = None
    writer = remote_writer(WatermarkPlace(open=nowhere, schema="viewtail"), "viewtail")
    waiter = RemoteWaiter(nowhere, "viewtail", lambda: [1], lambda: "no process runs that pipeline", say)
    asker = Watermarks(writer, waiter)
    monkeypatch.setattr(asker, "write", lambda: "asked")
    monkeypatch.setattr(watermarks, "passed", lambda *_: {})
    with pytest.raises(StopRequested):
        asker.now(stop)
    giving_up.cancel()
    assert said == ["no process runs that pipeline"]
